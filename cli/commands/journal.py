"""Commands for one journal: show, state, export, import."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import typer
from tailfold.cli.console import clock_text, counting, emit, note, one_line, say, say_line, write_line
from tailfold.cli.options import (
    AtOption,
    JsonOption,
    RunArgument,
    StoreOption,
    open_run,
    open_to_start,
    run_named,
    version_of,
)
from tailfold.engine import Opaque, Store, importing
from tailfold.engine.agent.listing import is_run
from tailfold.engine.agent.state import run_fold
from tailfold.engine.errors import BadArgument
from tailfold.engine.exporting import export as export_lines
from tailfold.engine.exporting import line_of
from tailfold.engine.names import check_run_id
from tailfold.snapshots import state_hash, to_plain


def show(run: RunArgument, at: AtOption = None, as_json: JsonOption = False, store: StoreOption = None) -> None:
    """Show a journal, one line an event. Times are UTC.

    Examples:

      tailfold show r-1

      tailfold show r-1 --at 5 --json
    """
    with open_run(store, run, at=at) as opened:
        run = run_named(opened, run)
        for recorded in opened.read(run, upto=version_of(opened, run, at)):
            line = line_of(recorded)
            if as_json:
                emit(line)
            else:
                content = one_line(line["payload"], 10_000)
                opaque = " (unknown kind)" if isinstance(recorded.event, Opaque) else ""
                clock = clock_text(recorded.time_ns)
                say_line(f"{recorded.version:>4}  {clock}  {recorded.kind:<15}{opaque} {content}")


def state(run: RunArgument, at: AtOption = None, as_json: JsonOption = False, store: StoreOption = None) -> None:
    """Show the folded state of a run, now or at an earlier version or time.

    Examples:

      tailfold state r-1 --at 5

      tailfold state r-1 --at 2026-01-31T12:00:00
    """
    with open_run(store, run, at=at) as opened:
        run = run_named(opened, run)
        _require_run(opened, run)
        loaded = opened.load(run, run_fold, version_of(opened, run, at))
        shown = {
            "run": run,
            "version": loaded.version,
            "state_hash": state_hash(loaded.state),
            "state": to_plain(loaded.state),
        }
        if as_json:
            emit(shown)
        else:
            say(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())


def export(
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Default: stdout.", show_default=False),
    ] = None,
    records: Annotated[
        bool,
        typer.Option(
            "--records/--no-records",
            help="With the stored bytes and blobs (base64), which import needs. Default: with them.",
            show_default=False,
        ),
    ] = True,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Export a journal as JSON lines, one event a line, oldest first (--json changes nothing here).

    Events of unknown kinds and dropped ones are in it too, byte for byte: tailfold import restores the journal.

    Example:

      tailfold export r-1 --output r-1.jsonl
    """

    def exported(opened: Store) -> Iterator[dict[str, Any]]:
        return export_lines(opened.log, run_named(opened, run), records=records)

    with open_run(store, run, also=exported) as opened:
        lines = (msgspec.json.encode(line) for line in exported(opened))
        if output is None:
            for line in lines:
                write_line(line)
            return
        try:
            with output.open("xb") as file:
                try:
                    file.writelines(line + b"\n" for line in lines)
                    file.flush()
                except BaseException:
                    output.unlink()  # half an export is none
                    raise
        except FileExistsError:
            raise BadArgument(f"{output} exists: export never writes over a file") from None
        except OSError as error:
            raise BadArgument(f"cannot write {output}: {error.strerror}") from None


def import_run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export wrote; - reads standard input.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="RUN", help="Import under another id. Default: the id in FILE.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Import an exported journal, byte for byte: the same records, times, blobs and, under its own id, hashes.

    The whole file is checked before anything is written. Killed on the way, the import is continued by the same
    command. A run of that id with other events is a conflict (exit 9). A fork becomes a run of its own: its hashes,
    which begin with the id of its root, are others then.

    Examples:

      tailfold import r-1.jsonl

      ssh other tailfold export r-1 | tailfold import - --as r-1-copy
    """
    if name is not None:
        check_run_id(name)
    with _seekable(file) as lines:
        total = sum(1 for _ in lines)
        lines.seek(0)
        with counting("checking", total) as advance:
            checked = importing.check(lines, progress=advance)
        lines.seek(0)
        with open_to_start(store) as opened, counting("importing", total) as advance:
            try:
                done = importing.import_stream(opened.log, checked, lines, name=name, progress=advance)
            except KeyboardInterrupt:
                note("interrupted; what was imported is kept. Go on with the same command")
                raise
    if as_json:
        emit(done._asdict())
    elif done.added == 0:
        say(f"{done.stream} is there already: {done.events} events, head {done.head}")
    else:
        there = "" if done.added == done.events else f" ({done.events - done.added} were there already)"
        say(f"imported {done.stream}: {done.events} events{there}, head {done.head}")


@contextmanager
def _seekable(file: str) -> Iterator[IO[bytes]]:
    """Open *file*, or a copy of standard input, which has to be gone through twice."""
    if file == "-":
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.seek(0)
            yield copy
        return
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise BadArgument(f"cannot read {file}: {error.strerror}") from None
        yield opened


def _require_run(opened: Store, run: str) -> None:
    if not is_run(opened, run):
        [first] = opened.read(run, limit=1)
        raise BadArgument(
            f"stream {run!r} is no run of an agent (it begins with {first.kind!r}), so this command has no fold for"
            " it"
        )
