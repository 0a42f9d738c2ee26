"""The writing half of a migration. Every commit is whole: the last position is where to go on after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tailfold.engine import checkpoints
from tailfold.engine.backend import chain, keys
from tailfold.engine.backend.port import Append, Backend, CheckpointWrite, Head, IdRow, Lease, Row
from tailfold.engine.errors import (
    Conflict,
    Corruption,
    EngineError,
    RecordDamaged,
    StreamDeleted,
    StreamNotFound,
)
from tailfold.engine.events import COMPOSITE_KIND, Event
from tailfold.engine.migration.plan import Plan, Progress, pages, runs
from tailfold.engine.migration.rewriting import Rewriter, Rewritten
from tailfold.engine.origin import Taken, read_origin, read_taken, taken_row
from tailfold.engine.rawrecords import RECORD_FIELDS, format_needed, raw_record, tag_of_record
from tailfold.engine.records import Codec, describe
from tailfold.engine.shape import Fork, Shape

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
    there = Shape(source)
    for stream, at in taken.items():
        if not there.keeps(stream, at.version):
            continue  # the source gave it back since
        found = _own_row(source, stream, at.version)
        if not found or found[0].hash != at.hash:
            raise Conflict(
                f"{where} was migrated from another store: stream {stream!r} has another hash at version"
                f" {at.version}"
            )
    for head in heads(destination):
        stream, version = head.stream, head.version
        if version == head.base and stream not in taken:
            continue  # a fork without events of its own
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
    """Bring *destination* to position *upto* of the source, with blobs, registry, ids, leases and checkpoints.

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
    shape = rewriter.shape
    copied = 0
    for page in pages(source, shape, destination.count()[1], upto):
        batch: list[Append] = []
        for rows in runs(page):
            fork = shape.fork(rows[0].stream)
            if fork is not None and not _is_there(destination, fork.stream):
                # A fork begins where its parent is by now: what stands before has to be there first.
                copied += _commit(destination, batch)
                batch = []
                _fork(destination, fork)
                committed()
            batch.append(_append(shape, rewriter.rewrite(rows)))
        copied += _commit(destination, batch)
        committed()
        if progress:
            progress("copying", page[-1].position, upto)
    for fork in shape.forks():
        if not _is_there(destination, fork.stream):
            _fork(destination, fork)
            committed()
    for ids in _changed_ids(rewriter, destination):
        destination.put(ids=ids)
        committed()
    named = destination.named_heads()
    for name in shape.named_heads.keys() | named.keys():
        if shape.named_heads.get(name) != named.get(name):
            destination.move_head(name, shape.named_heads.get(name), expected=named.get(name))
            committed()
    for head in heads(destination):
        lease, seen = source.lease(head.stream), destination.lease(head.stream)
        # The epoch goes on, so that a driver of the old store stays fenced; nobody drives the new one yet.
        if lease is not None and (seen is None or seen.epoch < lease.epoch):
            destination.swap_lease(head.stream, seen=seen, new=Lease(lease.epoch, None, lease.taken_ns))
            committed()
    buried = {one.stream: one for one in destination.tombstones()}
    last = source.where([upto])[0] if upto else None
    for name, tombstone in shape.tombstones.items():
        kept = tombstone._replace(kept=shape.kept[name])
        stands = buried.get(name)
        position = upto if last is not None and last[0] == name and destination.count()[1] < upto else None
        if stands is None or position is not None:
            destination.bury(kept, last_position=position)
            committed()
    for name, write in moved_checkpoints(source, destination, upto):
        if destination.checkpoint(name) != write.row:
            destination.put_checkpoint(name, write)
            committed()
    return copied


def _commit(destination: Backend, appends: list[Append]) -> int:
    for append, done in zip(appends, destination.commit(appends), strict=True):
        if isinstance(done, EngineError):
            raise done
        if append.position is None or done.position != append.position + len(append.records) - 1:
            raise Conflict("somebody else writes to the destination: start anew in an empty directory")
    return sum(len(append.records) for append in appends)


def _fork(destination: Backend, fork: Fork) -> None:
    # An earlier call may have buried the parent: then it is made off a living fork, which shares its events.
    todo, parent = [fork.parent], fork.parent
    while todo:
        parent = todo.pop()
        if _head(destination, parent) is not None:
            break
        todo += [child.stream for child in destination.children(parent) if child.at >= fork.at]
    destination.fork(parent, at=fork.at, name=fork.stream, time_ns=fork.created_ns)


def _head(backend: Backend, stream: str) -> Head | None:
    try:
        return backend.head(stream)
    except StreamDeleted:
        return None


def _is_there(backend: Backend, stream: str) -> bool:
    """Say whether there is such a stream, deleted or not."""
    try:
        return backend.head(stream) is not None
    except StreamDeleted:
        return True


def _own_row(backend: Backend, stream: str, version: int) -> list[Row]:
    try:
        return backend.own_rows(stream, after=version - 1, limit=1)
    except StreamNotFound:
        return []


def _append(shape: Shape, rewritten: Sequence[Rewritten]) -> Append:
    first, last = rewritten[0].row, rewritten[-1].row
    created_ns = None
    if first.version == 1 and first.stream in shape.heads:
        created_ns = shape.heads[first.stream].created_ns
    return Append(
        first.stream,
        first.version - 1,
        [one.data for one in rewritten],
        [chain.digest(one.data) for one in rewritten],
        _time_of(last),
        blobs={digest: content for one in rewritten for digest, content in one.blobs.items()},
        position=first.position,
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
    for stream, version in taken_over(rewriter.shape, destination):
        there = dict(destination.ids(stream))
        for id_hash, row in rewriter.backend.ids(stream):
            if row.last > version:
                continue  # a writer of the source was faster than we are, or nobody needs it
            moved = id_row(rewriter, destination, stream, row)
            if there.get(id_hash) != moved:
                batch.setdefault(stream, {})[id_hash] = moved
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
    old = rewriter.backend.own_rows(stream, after=after, limit=upto - after)
    new = destination.own_rows(stream, after=after, limit=upto - after)
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


def moved_checkpoints(source: Backend, destination: Backend, upto: int) -> Iterator[tuple[str, CheckpointWrite]]:
    """Yield the checkpoint of every subscription as it has to stand in the destination.

    Where it stands in the source counts, also if that was set back. Projections are folded anew; a subscription to
    a stream that is deleted can see nothing any more.
    """
    for one in checkpoints.every(source):
        if one.projection:
            continue
        last = upto
        if one.stream is not None:
            try:
                head = destination.head(one.stream)
            except StreamDeleted:
                continue
            last = head.version if head is not None else 0
        row = keys.CheckpointRow(min(one.position, last), one.stream, one.updated_ns)
        yield one.name, CheckpointWrite(row.position, keys.encode(row), stream=one.stream, reset=True)


def taken_over(shape: Shape, destination: Backend) -> Iterator[tuple[str, int]]:
    """Yield every stream that has events in the destination, also deleted ones, and up to which version."""
    yield from ((head.stream, head.version) for head in heads(destination))
    for name, tombstone in shape.tombstones.items():
        if shape.kept[name] > tombstone.base and _head(destination, name) is None:
            yield name, shape.kept[name]


def heads(backend: Backend) -> Iterator[Head]:
    """Yield the head of every stream, in byte order of the names."""
    after = ""
    while page := backend.heads(after=after):
        yield from page
        after = page[-1].stream
