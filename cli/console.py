"""What is printed where: answers and data on stdout, everything else on stderr; JSON when asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.text import Text
from tailfold.engine.exporting import time_text as time_text

_encode = msgspec.json.Encoder().encode


def say(text: str) -> None:
    """Print a line of the answer."""
    sys.stdout.write(_printable(text) + "\n")


def clock_text(time_ns: int) -> str:
    """Return a time as a line of a journal shows it: date and milliseconds, UTC."""
    return time_text(time_ns)[:23].replace("T", " ")


def plural(count: int, one: str) -> str:
    """Return a number with its noun: 1 finding, 2 findings."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def note(text: str) -> None:
    """Print a line about the answer, on stderr."""
    sys.stdout.flush()
    sys.stderr.write(f"tailfold: {_printable(text)}\n")
    sys.stderr.flush()


def emit(value: Any) -> None:
    """Print *value* as one line of JSON."""
    write_line(_encode(value))


def write_line(line: bytes) -> None:
    """Print a line of JSON as UTF-8, whatever the terminal's encoding: machines read it."""
    sys.stdout.flush()
    raw = getattr(sys.stdout, "buffer", None)
    if raw is None:  # a stream of text only, as in a test
        sys.stdout.write(line.decode() + "\n")
        return
    raw.write(line + b"\n")
    raw.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print *rows* in columns; the last column is cut to the width of a terminal, and whole in a pipe."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [cell.ljust(size) for cell, size in zip(row[:-1], widths, strict=False)]
        say_line("  ".join([*cells, row[-1]]).rstrip())


def width_of_terminal() -> int:
    """Return the columns of the terminal that standard output is; 100 in a pipe."""
    return Console().width if sys.stdout.isatty() else 100


def say_line(text: str) -> None:
    """Print one line of data: cut to the width of a terminal, whole in a pipe."""
    width = width_of_terminal() if sys.stdout.isatty() else len(text)
    say(text if len(text) <= width else text[: width - 1] + "…")


def one_line(value: Any, most: int = 100) -> str:
    """Return *value* as JSON, cut to *most* characters."""
    text = value if isinstance(value, str) else _encode(value).decode()
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


@contextmanager
def thinking(text: str) -> Iterator[Status | None]:
    """Show a spinner on stderr, only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with Console(stderr=True).status(plain(text)) as status:
        yield status


def plain(text: str) -> Text:
    """Return *text* for rich, as it is: what a model says must not be taken for markup."""
    return Text(_printable(" ".join(text.split())), overflow="ellipsis", no_wrap=True)


@contextmanager
def progress_bar(text: str, total: int) -> Iterator[Progress | None]:
    """Show a progress bar on stderr, only on a terminal and only for work worth one."""
    if not sys.stderr.isatty() or total < 10_000:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(text, total=total)
        yield progress


@contextmanager
def counting(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar like `progress_bar`; give the function that moves it on by a number of steps."""
    with progress_bar(text, total) as bar:
        yield (lambda done: bar.advance(bar.task_ids[0], done)) if bar else lambda done: None


@contextmanager
def stages() -> Iterator[Callable[[str, float], None]]:
    """Show a bar on stderr, only on a terminal; give what moves it: what is being done, and its share (0 to 1)."""
    if not sys.stderr.isatty():
        yield lambda what, share: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=1.0)
        shown = ("", -1.0)

        def show(what: str, share: float) -> None:
            nonlocal shown
            if what != shown[0] or share - shown[1] >= 0.01:  # seldom: it must not disturb what is measured
                refresh = what != shown[0]
                shown = (what, share)
                progress.update(task, description=what, completed=share, refresh=refresh)

        yield show


_STEERING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of text: they could make a line read as another one."""


def _printable(text: str) -> str:
    """Keep a journal's content from steering the terminal: control characters are shown, not sent."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = "".join(char if _is_plain(char) else f"\\x{ord(char):02x}" for char in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _is_plain(char: str) -> bool:
    return char in "\n\t" or (char >= " " and not "\x7f" <= char <= "\x9f" and char not in _STEERING)
