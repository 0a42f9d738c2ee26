"""Commands that follow what happens: tail, and trace, which follows causes and effects."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated, Any

import msgspec
import typer
from tailfold.cli.console import clock_text, emit, note, one_line, say_line
from tailfold.cli.guard import probe
from tailfold.cli.options import JsonOption, RunArgument, StoreOption, open_store, run_named, store_path
from tailfold.engine import Opaque, Recorded, Store
from tailfold.engine.agent.events import AGENT_UPCASTERS
from tailfold.engine.agent.listing import is_run
from tailfold.engine.backend.port import Row
from tailfold.engine.errors import StreamNotFound
from tailfold.engine.exporting import line_of
from tailfold.engine.names import check_stream_name
from tailfold.engine.rawrecords import tag_of_record

LEVELS_MAX = 20
"""Steps to the right, however deep the tree is."""
SHOWN = 10
"""Events that tail shows of what is there, unless it is told where to begin."""


def tail(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="One run; default: the whole store.", show_default=False),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, from any process, until Ctrl-C.")
    ] = False,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            metavar="N",
            min=0,
            help=f"Begin after version N of the run, or position N of the store. Default: the last {SHOWN}.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Show the last events of a run or of the whole store, and with --follow each new one as it happens.

    With --follow the run need not have begun. In the whole store an event is shown by its stored field names.

    Examples:

      tailfold tail r-1 --follow

      tailfold tail --after 0 --json
    """
    if run is not None:
        check_stream_name(run)

    def look(opened: Store) -> None:
        stream = run_named(opened, run) if run is not None else None
        if not _waits(opened, stream, follow):
            _typed(opened, stream)
            for _ in opened.subscribe(stream, after=_begin(opened, stream, after), follow=False):
                pass

    probe(store_path(store), look)
    with open_store(store) as opened:
        run = run_named(opened, run) if run is not None else None
        if _waits(opened, run, follow):
            note(f"{run} has no events yet: waiting for the first")
            opened.subscribe(run).poll(None)  # what it is shows in its first event
        _typed(opened, run)
        for recorded in opened.subscribe(run, after=_begin(opened, run, after), follow=follow):
            _show(recorded, run is None, as_json)
            sys.stdout.flush()


def _waits(opened: Store, run: str | None, follow: bool) -> bool:
    """Say whether *run* has not begun; that is an error unless it is to be followed."""
    if run is None or opened.backend.head(run) is not None:
        return False
    if not follow:
        for _ in opened.streams():  # a name that was damaged is not one that was never there
            pass
        raise StreamNotFound(run)
    return True


def _begin(opened: Store, run: str | None, after: int | None) -> int:
    if after is not None:
        return after
    head = opened.backend.head(run) if run is not None else None
    last = opened.position if run is None else head.version if head else 0
    return max(0, last - SHOWN)


def _typed(opened: Store, run: str | None) -> Store:
    """Make the events of the shipped agent known if they are all that will be shown."""
    if run is not None and is_run(opened, run):
        opened.log.codec.adopt(AGENT_UPCASTERS)
    return opened


def _show(recorded: Recorded, everything: bool, as_json: bool) -> None:
    if as_json:
        emit(line_of(recorded))
        return
    content = one_line(line_of(recorded)["payload"], 10_000)
    clock = clock_text(recorded.time_ns)
    if everything:
        say_line(f"{recorded.position:>6}  {recorded.event_id:<14}  {clock}  {recorded.kind:<15} {content}")
    else:
        opaque = " (unknown kind)" if isinstance(recorded.event, Opaque) else ""
        say_line(f"{recorded.version:>4}  {clock}  {recorded.kind:<15}{opaque} {content}")


def trace(
    run: RunArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The version of the event.")],
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Trace an event: what led to it, from the root down, and below it all that it caused, in any stream.

    A line is caused by the one above it, unless it names another (←). Events name their cause when they are
    appended; one that was appended without is a root, and nothing is guessed.

    Examples:

      tailfold trace r-1 4

      tailfold trace r-1 1 --json
    """
    check_stream_name(run)
    traced = probe(store_path(store), lambda opened: _traced(opened, run_named(opened, run), version))
    shown = msgspec.msgpack.decode(traced)
    if as_json:
        emit(shown)
        return
    if shown["outside"] is not None:
        say_line(f"{shown['outside']}  (no event of this store)")
    for one in reversed(shown["causes"]):
        say_line(f"{one['id']}  {one['kind']}")
    say_line(f"{shown['event']['id']}  {shown['event']['kind']}  ◀ traced")
    _show_effects(shown["event"]["id"], shown["effects"])
    if not (shown["causes"] or shown["effects"] or shown["outside"]):
        note("it names no cause, and no event names it as its cause")


def _show_effects(root: str, effects: list[dict[str, Any]]) -> None:
    """Show a line an effect: an only effect under its cause, several one step to the right, naming their cause."""
    effects_of = Counter(one["cause"] for one in effects)
    level, above = {root: 0}, root
    for one in effects:
        cause = one["cause"]
        level[one["id"]] = min(LEVELS_MAX, level[cause] + (effects_of[cause] > 1))
        because = "" if cause == above else f"  ← {cause}"
        say_line(f"{'  ' * level[one['id']]}{one['id']}  {one['kind']}{because}")
        above = one["id"]


def _traced(opened: Store, run: str, version: int) -> bytes:
    found = opened.trace(run, version)
    [row] = opened.log.rows(run, after=version - 1, upto=version)
    causes = [_event(_stored(opened, *place)) for place in found.causes]
    effects = [
        _event(_stored(opened, effect.stream, effect.version)) | {"depth": effect.depth, "cause": effect.cause}
        for effect in found.effects
    ]
    shown = {"event": _event(row), "causes": causes, "outside": found.outside, "effects": effects}
    return msgspec.msgpack.encode(shown)


def _stored(opened: Store, stream: str, version: int) -> Row:
    """Return a row by where it stands: under a stream that may be deleted by now, and still needed by forks."""
    for row in opened.log.backend.own_rows(stream, after=version - 1, limit=1):
        if row.version == version:
            return row
    raise StreamNotFound(stream)  # given back since it was found


def _event(row: Row) -> dict[str, Any]:
    kind, schema_version = tag_of_record(row.data)
    return {
        "id": f"{row.origin}@{row.version}",
        "stream": row.stream,
        "version": row.version,
        "position": row.position,
        "kind": kind,
        "schema_version": schema_version,
    }
