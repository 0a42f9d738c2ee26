"""The writing half of a migration. Every commit is whole: the last position is where to go on after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from tailfold.engine.backend import chain, keys
from tailfold.engine.backend.port import Append, Backend, Head, IdRow, Lease, Row
from tailfold.engine.errors import Conflict, Corruption, EngineError, RecordDamaged
from tailfold.engine.events import COMPOSITE_KIND, Event
from tailfold.engine.migration.plan import Plan, Progress, pages
from tailfold.engine.migration.rewriting import Rewriter, Rewritten
from tailfold.engine.origin import Taken, read_origin, read_taken, taken_row
from tailfold.engine.records import (
    RECORD_FIELDS,
    Codec,
    describe,
    format_needed,
    raw_record,
    tag_of_record,
)

BLOBS_PER_COMMIT = 16
IDS_PER_COMMIT = 1000

AfterCommit = Callable[[int], None]
"""Called with the destination's last position after every commit, when it is durable."""


def check_destination(source: Backend, destination: Backend, where: str) -> None:
    """Raise `Conflict` unless *destination* is empty, or holds what was migrated from *source* and nothing else."""
    origin, taken = read_origin(destination), read_taken(destination)
    if origin is None:
        if destination.count()[1]:
            raise Conflict(f"{where} holds events that were not migrated into it. Give an empty directory")
        return
    stamp = keys.decode_stamp(source.meta(keys.FORMAT_KEY)[keys.FORMAT_KEY])
    if origin.source_created_ns != stamp.created_ns:
        raise Conflict(f"{where} was migrated from another store. Give an empty directory")
    for stream, at in taken.items():
        found = source.rows(stream, after=at.version - 1, upto=at.version, limit=1)
        if not found or found[0].hash != at.hash:
            raise Conflict(
                f"{where} was migrated from another store: stream {stream!r} has another hash at version"
                f" {at.version}"
            )
    for stream, version in ((head.stream, head.version) for head in heads(destination)):
        if stream not in taken or taken[stream].version != version:
            raise Conflict(
                f"{where} has gone on by itself: stream {stream!r} was appended to after the migration. Migrate"
                " into an empty directory"
            )


def copy(
    rewriter: Rewriter,
    destination: Backend,
    plan: Plan,
    upto: int,
    *,
    progress: Progress | None = None,
    after_commit: AfterCommit | None = None,
) -> int:
    """Bring *destination* to position *upto* of the source, with blobs, registry, ids and leases.

    Return how many events were copied now. Whatever kills it, the same call goes on where the last commit left
    off. Raises `Conflict` if somebody else writes to the destination.
    """
    source = rewriter.backend

    def committed() -> None:
        if after_commit:
            after_commit(destination.count()[1])

    for blobs in _missing_blobs(source, destination):
        destination.put(blobs=blobs)
        committed()
    described = [(one, text) for one, text in source.schemas() if one in plan.said]
    described += [describe(event_type) for event_type in plan.types]
    there = set(destination.schemas())
    if new := sorted(row for row in described if row not in there):
        destination.put(schemas=new)
        committed()
    start = position = destination.count()[1]
    for page in pages(source, start, upto):
        appends = [_append(source, rewriter.rewrite(list(rows))) for _, rows in groupby(page, lambda r: r.stream)]
        for append, done in zip(appends, destination.commit(appends), strict=True):
            position += len(append.records)
            if isinstance(done, EngineError):
                raise done
            if done.position != position:
                raise Conflict("somebody else writes to the destination: start anew in an empty directory")
        committed()
        if progress:
            progress("copying", position, upto)
    for ids in _changed_ids(rewriter, destination):
        destination.put(ids=ids)
        committed()
    for head in heads(destination):
        lease, seen = source.lease(head.stream), destination.lease(head.stream)
        # The epoch goes on, so that a driver of the old store stays fenced; nobody drives the new one yet.
        if lease is not None and (seen is None or seen.epoch < lease.epoch):
            destination.swap_lease(head.stream, seen=seen, new=Lease(lease.epoch, None, lease.taken_ns))
            committed()
    return position - start


def _append(source: Backend, rewritten: Sequence[Rewritten]) -> Append:
    first, last = rewritten[0].row, rewritten[-1].row
    created_ns = None
    if first.version == 1:
        head = source.head(first.stream)
        created_ns = head.created_ns if head is not None else None
    return Append(
        first.stream,
        first.version - 1,
        [one.data for one in rewritten],
        [chain.digest(one.data) for one in rewritten],
        _time_of(last),
        blobs={digest: content for one in rewritten for digest, content in one.blobs.items()},
        format=max(format_needed(one.data) for one in rewritten),
        created_ns=created_ns,
        meta=taken_row(first.stream, Taken(last.version, last.hash)),
    )


def _time_of(row: Row) -> int:
    time_ns = raw_record(row.data)[RECORD_FIELDS.index("time_ns")]
    if not isinstance(time_ns, int):
        raise RecordDamaged(row.stream, row.version, "its time cannot be read")
    return time_ns


def _missing_blobs(source: Backend, destination: Backend) -> Iterator[dict[bytes, bytes]]:
    after = b""
    while page := source.blobs(after=after, limit=BLOBS_PER_COMMIT):
        missing = {digest: content for digest, content in page if destination.blob(digest) is None}
        if missing:
            yield missing
        after = page[-1][0]


def _changed_ids(rewriter: Rewriter, destination: Backend) -> Iterator[dict[str, dict[bytes, IdRow]]]:
    """Yield the idempotency rows that the destination lacks, or has otherwise."""
    batch: dict[str, dict[bytes, IdRow]] = {}
    gathered = 0
    for head in heads(destination):
        there = dict(destination.ids(head.stream))
        for id_hash, row in rewriter.backend.ids(head.stream):
            if row.last > head.version:
                continue  # a writer of the source was faster than we are
            moved = id_row(rewriter, destination, head.stream, row)
            if there.get(id_hash) != moved:
                batch.setdefault(head.stream, {})[id_hash] = moved
                gathered += 1
        if gathered >= IDS_PER_COMMIT:
            yield batch
            batch, gathered = {}, 0
    if batch:
        yield batch


def id_row(rewriter: Rewriter, destination: Backend, stream: str, row: IdRow) -> IdRow:
    """Return what an idempotency row of the source is in the destination.

    The digest of the content is made again from the events as the new code says them, so that its retry of the
    append is known as one. Where not each record is one event of the code, there is no such retry: it stays.
    """
    after, upto = row.first - 1, row.last
    old = rewriter.backend.rows(stream, after=after, upto=upto, limit=upto - after)
    new = destination.rows(stream, after=after, upto=upto, limit=upto - after)
    if not new or new[-1].version != row.last:
        raise Corruption(f"stream {stream!r}: an idempotency row stands for versions {row.first}..{row.last}")
    content = row.content
    schema = rewriter.schema(stream)
    if schema is not None and [r.data for r in old] != [r.data for r in new]:
        codec = rewriter.store(schema).log.codec
        events = _one_each(codec, stream, new)
        content = codec.content(events) if events is not None else content
    return IdRow(row.first, row.last, new[-1].position, new[-1].hash, content)


def _one_each(codec: Codec, stream: str, rows: Sequence[Row]) -> list[Event] | None:
    """Return the events of *rows* if each is one event of the code."""
    found: list[Event] = []
    records = codec.decode_page(stream, rows[0].version - 1, [row.data for row in rows])
    for row, record in zip(rows, records, strict=True):
        events = codec.events(record)
        if tag_of_record(row.data)[0] == COMPOSITE_KIND or not isinstance(events[0], Event):
            return None
        found.append(events[0])
    return found


def heads(backend: Backend) -> Iterator[Head]:
    """Yield the head of every stream, in byte order of the names."""
    after = ""
    while page := backend.heads(after=after):
        yield from page
        after = page[-1].stream
