"""Options that many commands share, and how a store is found and opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from tailfold.cli.guard import check_before_writing, probe
from tailfold.engine import Store
from tailfold.engine.agent.events import AGENT_UPCASTERS
from tailfold.engine.agent.listing import is_run
from tailfold.engine.errors import BadArgument, StreamNotFound
from tailfold.engine.names import check_stream_name
from tailfold.snapshots import never

STORE_VARIABLE = "TAILFOLD_STORE"
STORE_DEFAULT = ".tailfold"


def given_store(text: str) -> Path:
    """Return the path that --store names. An empty one comes from an unset variable of a script."""
    if not text:
        raise typer.BadParameter("an empty path names no store")
    return Path(text)


StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        parser=given_store,
        metavar="DIR",
        help=f"The store's directory. Default: ${STORE_VARIABLE}, else ./{STORE_DEFAULT}.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run's id. After a rewind, :ID means the old line."),
]
AtOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="N|TIME",
        help="Only versions 1..N, or what was recorded up to a time (ISO 8601, UTC if it names no zone).",
        show_default=False,
    ),
]
CatalogOption = Annotated[
    Path | None,
    typer.Option(
        "--catalog",
        metavar="FILE",
        help="A catalogue file (JSON) in place of the shipped one.",
        show_default=False,
    ),
]


def store_path(given: Path | None) -> Path:
    """Return the store's path: *given*, else the environment's, else ./.tailfold."""
    if given is not None:
        return given
    return Path(os.environ.get(STORE_VARIABLE) or STORE_DEFAULT)


def open_store(given: Path | None) -> Store:
    """Open the store that the options name, for a command that only reads: it writes no snapshots either."""
    return Store.open(store_path(given), create=False, snapshots=never)


def open_to_drive(given: Path | None) -> Store:
    """Open the store that the options name for driving a run."""
    return Store.open(store_path(given), create=False, upcasters=AGENT_UPCASTERS)


def version_of(store: Store, stream: str, at: str | None) -> int | None:
    """Return the version that an --at option means; raise `BadArgument` for what is neither version nor time."""
    if at is None or (at.isascii() and at.isdigit()):
        return int(at) if at is not None else None
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise BadArgument(
            f"--at is a version from 0 on, or a time such as 2026-01-31T12:00:00, not {at!r}"
        ) from None
    # What a time is shown as has microseconds: all of that one counts.
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return store.version_at(stream, (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000 + 999)


def run_named(store: Store, text: str) -> str:
    """Return the stream that a RUN argument means: what its named head stands for; with a colon, itself."""
    return check_stream_name(text[1:] if text.startswith(":") else store.resolve(text))


def open_run(
    given: Path | None, run: str, *, at: str | None = None, also: Callable[[Store], object] | None = None
) -> Store:
    """Open the store after a probe that *run* can be read truly up to *at*: half an answer is none.

    *also* is called in the probe, for commands that read more than events.
    """
    check_stream_name(run)

    def look(store: Store) -> None:
        stream = run_named(store, run)
        check_run(store, stream, version_of(store, stream, at))
        if also is not None:
            also(store)

    probe(store_path(given), look)
    opened = open_store(given)
    if is_run(opened, run_named(opened, run)):
        opened.log.codec.adopt(AGENT_UPCASTERS)
    return opened


def check_run(store: Store, run: str, at: int | None = None) -> None:
    """Raise unless *run* can be read truly up to *at*, with the events of agents if it is an agent's run."""
    try:
        if is_run(store, run):
            store.log.codec.adopt(AGENT_UPCASTERS)
        store.check_readable(run, upto=at)
    except StreamNotFound:
        for _ in store.streams():  # a name that was damaged is not one that was never there
            pass
        raise


def open_to_start(given: Path | None) -> Store:
    """Open the store for a new run; make it if nothing is there, probe it if something is."""
    path = store_path(given)
    if (path / "data.mdb").exists():
        probe(path, lambda store: check_before_writing(store, path))
    else:
        probe(path, lambda store: None, create=True)
    return open_to_drive(given)


def open_to_resume(given: Path | None, run: str) -> Store:
    """Open the store after a probe that *run* can be read truly and that the store can be written to."""
    path = store_path(given)

    def look(store: Store) -> None:
        check_before_writing(store, path)
        check_run(store, run_named(store, run))

    probe(path, look)
    return open_to_drive(given)


def open_all(given: Path | None) -> Store:
    """Open the store after a probe that every event in it can be read truly."""

    def check(store: Store) -> None:
        own = [head.stream for head in store.streams() if is_run(store, head.stream)]
        for head in store.streams():
            store.check_readable(head.stream)
        store.log.codec.adopt(AGENT_UPCASTERS)
        for stream in own:
            store.check_readable(stream)
        for _ in store.kinds():
            pass

    probe(store_path(given), check)
    return open_store(given)


def read_file(path: Path) -> bytes:
    """Return a file's content; raise `BadArgument` naming it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadArgument(f"cannot read {path}: {error.strerror}") from None
