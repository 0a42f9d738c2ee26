"""Commands about the store as a whole: verify, stats."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer
from tailfold.cli.console import emit, note, plural, progress_bar, say, table
from tailfold.cli.exits import Exit
from tailfold.cli.guard import check_before_writing, probe
from tailfold.cli.options import JsonOption, StoreOption, open_all, open_store, open_to_drive, run_named, store_path
from tailfold.engine import Store
from tailfold.engine.backend.port import Sealed
from tailfold.engine.errors import BadArgument, StoreDamaged
from tailfold.engine.names import check_stream_name
from tailfold.engine.rawrecords import tag_of_record
from tailfold.engine.shape import readable_parts


def verify(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="One run; default: the whole store.", show_default=False),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="HASH",
            help="A head hash noted earlier: the run must still contain it.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Recompute every hash, version and position, and check every page; exit 7 if anything is damaged.

    Prints the head hash of RUN: note it elsewhere, and --head finds out later if events were cut off.

    Examples:

      tailfold verify

      tailfold verify r-1 --head 2f9c61b0a7d3e5f48b1c0d9e7a6f5b3c
    """
    if head is not None:
        if run is None:
            raise BadArgument("--head belongs to one run: tailfold verify RUN --head HASH")
        if len(head) != 32 or not all(c in "0123456789abcdefABCDEF" for c in head):
            raise BadArgument("a head hash has 32 hexadecimal digits")
    if run is not None:
        check_stream_name(run)
    path = store_path(store)

    def look(opened: Store) -> None:
        findings = opened.backend.check()
        if findings:
            raise StoreDamaged(str(path), findings)

    try:
        probe(path, look)
    except StoreDamaged as error:
        if as_json:
            findings = [{"stream": None, "version": None, "what": what} for what in error.findings]
            emit({"sound": False, "streams": 0, "events": 0, "head": None, "version": None, "findings": findings})
        raise
    with open_store(store) as opened:
        run = run_named(opened, run) if run is not None else None
        total = opened.head(run).version if run is not None else opened.usage()["events"]
        with progress_bar("verifying", total) as bar:
            advance = (lambda done: bar.advance(bar.task_ids[0], done)) if bar else None
            result = opened.verify(run, head=head, progress=advance)
        if as_json:
            emit(
                {
                    "sound": result.sound,
                    "streams": result.streams,
                    "events": result.events,
                    "head": result.head.hash.hex() if result.head else None,
                    "version": result.head.version if result.head else None,
                    "findings": [f._asdict() for f in result.findings],
                }
            )
        else:
            for finding in result.findings:
                say(str(finding))
            if result.sound and result.head:
                say(f"{run} is sound: {result.events} events, head {result.head.hash.hex()}")
            elif result.sound:
                say(f"the store is sound: {plural(result.streams, 'stream')}, {plural(result.events, 'event')}")
        if not result.sound:
            note(f"{plural(len(result.findings), 'finding')}; nothing was changed. Restore a copy")
            raise typer.Exit(Exit.CORRUPTION)


def seal(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="One run; default: every stream.", show_default=False),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Only full segments (256 events, or 8 MiB), as is done by itself for live runs."
        ),
    ] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Pack events into compressed segments: about a third of the space, for text as agents write it.

    Changes no byte of an event, no hash and no answer; reading one old event takes a little longer. Long runs are
    packed by themselves, behind their snapshots; this is for runs that have ended. The file keeps its size: the
    space is used by what is appended next.

    Examples:

      tailfold seal

      tailfold seal r-1 --json
    """
    path = store_path(store)

    def look(opened: Store) -> None:
        check_before_writing(opened, path)
        if run is not None:
            opened.head(run_named(opened, run))

    probe(path, look)
    with open_to_drive(store) as opened:
        streams = [run_named(opened, run)] if run is not None else [head.stream for head in opened.streams()]
        total = Sealed(0, 0, 0, 0)
        with progress_bar("sealing", sum(opened.head(stream).version for stream in streams)) as bar:
            for stream in streams:
                done = opened.seal(stream, whole=whole)
                total = Sealed(*(a + b for a, b in zip(total, done, strict=True)))
                if bar:
                    bar.advance(bar.task_ids[0], opened.head(stream).version)
        if as_json:
            emit({"streams": len(streams), **total._asdict()})
        elif total.events:
            what = f"{plural(total.events, 'event')} of {plural(len(streams), 'stream')}"
            say(f"sealed {what} in {plural(total.segments, 'segment')}:")
            say(f"{total.record_bytes} bytes take {total.segment_bytes}")
        else:
            say("everything is sealed that can be")


def stats(as_json: JsonOption = False, store: StoreOption = None) -> None:
    """Show how much is stored: streams, events by kind, sizes by table.

    Example:

      tailfold stats --json
    """
    with open_all(store) as opened:
        usage = opened.usage()
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for part in readable_parts(opened.log.backend):
            for row in opened.log.rows(part.reader, after=part.after, upto=part.upto):
                kind, version = tag_of_record(row.data)
                counts[f"{kind}@{version}"] += 1
                sizes[f"{kind}@{version}"] += len(row.data)
        kinds = {tag: {"events": counts[tag], "bytes": sizes[tag]} for tag in sorted(counts)}
        shown: dict[str, Any] = {
            "store": str(store_path(store)),
            "format": opened.format,
            **usage,
            "event_bytes": sum(sizes.values()),
            "bytes": _attributed(usage["tables"]),
            "kinds": kinds,
            "schemas": _schemas(opened),
        }
        if as_json:
            emit(shown)
            return
        say(f"store {shown['store']}, format {opened.format}")
        what = f"{plural(usage['streams'], 'stream')}, {plural(usage['events'], 'event')}"
        say(f"{what}, {shown['event_bytes']} bytes of records,")
        say(f"data.mdb of {usage['file_bytes']} bytes, write-ahead file of {usage['ahead_bytes']} bytes")
        say("pages: " + ", ".join(f"{share} {size}" for share, size in shown["bytes"].items()))
        say("")
        rows = [(tag, str(counts[tag]), str(sizes[tag])) for tag in sorted(counts)]
        if rows:
            table(("KIND", "EVENTS", "BYTES"), rows)
            say("")
        tables = usage["tables"].items()
        table(("TABLE", "ROWS", "BYTES"), [(n, str(t["rows"]), str(t["bytes"])) for n, t in tables])


_SHARES = {
    "events": ("events",),
    "snapshots": ("snapshots",),
    "chunks": ("chunks",),
    "blobs": ("blobs",),
    "indexes": ("positions", "ids", "names", "streams", "children", "checkpoints"),
    "other": ("meta", "leases", "kinds"),
}


def _attributed(tables: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of pages by what they are for."""
    return {
        share: sum(tables[name]["bytes"] for name in names if name in tables) for share, names in _SHARES.items()
    }


def _schemas(opened: Store) -> dict[str, list[Any]]:
    """Return the field descriptions that the store keeps of every (kind, version) it was given."""
    found: dict[str, list[Any]] = {}
    for tag, fields in opened.kinds():
        found.setdefault(tag, []).append(fields)
    return found
