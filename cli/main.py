"""The console script: the app, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import logging
import os
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from tailfold.cli import interrupts
from tailfold.cli.commands import bench, follow, forks, journal, migrate, runs, schema, snapshots
from tailfold.cli.commands import list as list_command
from tailfold.cli.commands import store as store_commands
from tailfold.cli.console import note
from tailfold.cli.exits import Exit, exit_of
from tailfold.cli.options import STORE_VARIABLE, given_store
from tailfold.engine.errors import EngineError
from typer.core import TyperCommand

DEBUG_VARIABLE = "TAILFOLD_DEBUG"

# Typer carries click inside, under a private name that has moved before: BadParameter's second ancestor is
# click's own root of errors in every release of either.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="tailfold",
    help="An event log for long-lived agents: run, kill, resume, replay without a model.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.command("run")(runs.run)
app.command("resume")(runs.resume)
app.command("list")(list_command.list_runs)
app.command("show")(journal.show)
app.command("tail")(follow.tail)
app.command("trace")(follow.trace)
app.command("state")(journal.state)
app.command("replay")(runs.replay)
app.command("verify")(store_commands.verify)
app.command("export")(journal.export)
app.command("import")(journal.import_run)
app.command("seal")(store_commands.seal)
app.command("stats")(store_commands.stats)
app.command("bench")(bench.bench)
app.command("migrate")(migrate.migrate)
app.command("fork")(forks.fork)
app.command("rewind")(forks.rewind)
app.command("tree")(forks.tree)
app.command("diff")(forks.diff)
app.command("delete")(forks.delete)
app.command("gc")(forks.gc)
app.add_typer(snapshots.app, name="snapshots")
app.add_typer(schema.app, name="schema")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tailfold {metadata.version('tailfold')}")
        raise typer.Exit


@app.callback()
def _root(
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            parser=given_store,
            metavar="DIR",
            help="The store's directory, for any command.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    if store is not None:
        os.environ[STORE_VARIABLE] = str(store)


class _Command(TyperCommand):
    """A command that can be interrupted once its arguments are read: Typer imports and builds much for that."""

    def invoke(self, ctx: Any) -> Any:
        interrupts.let_through()
        return super().invoke(ctx)


for _app in (app, *(group.typer_instance for group in app.registered_groups)):
    for _command in _app.registered_commands if _app is not None else ():
        _command.cls = _Command


def main() -> None:
    """Run the command line and exit with one of the codes of `exits.Exit`."""
    _replace_closed_streams()
    signal.signal(signal.SIGTERM, _interrupt)  # as Ctrl-C: the terminal is put right, and what to do is said
    code = run(sys.argv[1:])
    interrupts.hold_back()  # all is done: it should not look as if it were not
    sys.exit(code)


def _replace_closed_streams() -> None:
    """Give the null device for streams that the caller has closed: a run must not end for want of a reader."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115


def _interrupt(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)


def run(arguments: list[str]) -> int:
    """Run one command; return its exit code. No traceback reaches the user, unless TAILFOLD_DEBUG is set."""
    logging.basicConfig(format="tailfold: %(message)s", level=logging.WARNING)
    try:
        code = app(arguments, prog_name="tailfold", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except SystemExit as end:
        return _closed_pipe() if end.code == 1 else int(end.code or 0)  # typer ends so when a pipe is closed
    except typer.Exit as end:
        return end.exit_code
    except _CommandLineError as error:
        error.show()
        return Exit.USAGE
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _closed_pipe()
    except EngineError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        note(str(error))
        return exit_of(error)
    except OSError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        note(f"the system refused: {error}")
        return Exit.UNEXPECTED
    except MemoryError:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        note("there is too little memory for this (ulimit -v?); nothing is the worse for it")
        return Exit.UNEXPECTED
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        note(f"unexpected {type(error).__name__}: {error}. {DEBUG_VARIABLE}=1 shows where")
        return Exit.UNEXPECTED


def _closed_pipe() -> int:
    """The reader of a pipe left (head, less): not our error; keep the exit of the interpreter quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK
