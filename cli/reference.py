"""Renders docs/cli.md from the app: ``python -m tailfold.cli.reference > docs/cli.md``. A test compares."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer
from tailfold.cli.exits import Exit
from tailfold.cli.main import app

EXIT_MEANINGS = {
    Exit.OK: "done",
    Exit.UNEXPECTED: "an unexpected error, or a run that ended without an answer",
    Exit.USAGE: "wrong usage: arguments, options, files given on the command line",
    Exit.RUN_ENDED: "the run has ended",
    Exit.DRIVEN_ELSEWHERE: "another process drives the run",
    Exit.REPLAY_DIVERGED: "replay diverged from the journal",
    Exit.NOT_FOUND: "no such store, run, version or schema lock",
    Exit.CORRUPTION: "corruption found",
    Exit.SCHEMA: "schema: undecodable, newer than known, or a change that would break journals",
    Exit.CONFLICT: "conflict: somebody else was first",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; nothing is lost",
}


def render() -> str:
    """Return the whole reference as Markdown."""
    lines = [
        "# The command line",
        "",
        "<!-- generated: python -m tailfold.cli.reference > docs/cli.md -->",
        "",
        "Answers and data go to standard output, everything else to standard error. `--json` prints JSON,",
        "one object a line. The store is `--store DIR`, else `$TAILFOLD_STORE`, else `./.tailfold`.",
        "",
        "`TAILFOLD_OLLAMA_TIMEOUT_S` is the time that a model may take for a reply (default 300 s);",
        "`TAILFOLD_DEBUG=1` shows the traceback of an unexpected error.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {code.value} | {EXIT_MEANINGS[code]} |" for code in Exit),
    ]
    for name, command in _commands(typer.main.get_command(app)):
        lines += ["", f"## tailfold {name}", "", _text(command)]
        lines += ["", "| argument or option | meaning |", "|---|---|"]
        for parameter in command.params:
            if parameter.name == "help":
                continue
            names = ", ".join(f"`{option}`" for option in parameter.opts)
            if parameter.param_type_name == "argument":
                names = f"`{(parameter.metavar or parameter.name).strip('[]')}`"
            metavar = parameter.metavar if parameter.param_type_name == "option" else None
            if metavar:
                names += f" {metavar}".replace("|", "\\|")
            meaning = (getattr(parameter, "help", None) or "").replace("|", "\\|")
            default = parameter.default
            if default not in (None, False, "") and "Default" not in meaning:
                meaning += f" Default: {default}."
            if getattr(parameter, "required", False):
                meaning += " Required."
            lines.append(f"| {names} | {meaning} |")
    return "\n".join(lines) + "\n"


def _commands(group: Any) -> Iterator[tuple[str, Any]]:
    """Yield (full name, command) of every command, groups opened."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {inner}", one) for inner, one in _commands(command))
        else:
            yield name, command


def _text(command: Any) -> str:
    """Return a command's help, its examples indented as code."""
    return inspect.cleandoc(command.help or "").replace("\n\n  ", "\n\n    ")


if __name__ == "__main__":
    sys.stdout.write(render())
