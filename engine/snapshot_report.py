"""Looking at snapshots: which would be used and why not, are they true, which may go. For people and the CLI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from tailfold.engine.backend import keys, rules
from tailfold.engine.backend.port import Collected, SnapshotKey
from tailfold.engine.fold import Fold
from tailfold.engine.loading import begin
from tailfold.engine.log import Log
from tailfold.engine.snapshotting import Snapshots
from tailfold.snapshots.chunks import DIGEST_BYTES, ChunkDamagedError, decompress, split, unpack
from tailfold.snapshots.codec import hash_body

EVERYTHING = (1 << 63) - 1


class Standing(NamedTuple):
    """A stored snapshot, as far as it can be read without its fold."""

    stream: str
    fold: str
    version: int
    fold_id: str
    bytes: int
    chunks: int
    """Chunks that it refers to directly."""
    created_ns: int


class Verdict(NamedTuple):
    """Whether a load would use a snapshot, and if not, why."""

    snapshot: Standing
    usable: bool
    why: str


class Explained(NamedTuple):
    """How a load of a stream would go."""

    used: Standing | None
    head: int
    tail: int
    """Events that a load folds after the snapshot, or all of them."""
    verdicts: list[Verdict]


class SnapshotFinding(NamedTuple):
    """A snapshot that is not what folding gives."""

    stream: str
    fold: str
    version: int
    what: str


class SnapshotsVerified(NamedTuple):
    """What `verify_snapshots` did."""

    compared: int
    """Snapshots of this code, compared with a new fold byte for byte."""
    checked: int
    """Snapshots of other code or folds: their hashes and chunks were checked, their states cannot be."""
    findings: list[SnapshotFinding]


class Pruned(NamedTuple):
    """What a pruning took, or would take."""

    snapshots: int
    collected: Collected


def standing(snapshots: Snapshots, stream: str) -> Iterator[Standing]:
    """Yield every snapshot of *stream*, of any fold, newest first within a fold."""
    for fold, key in _keys(snapshots, stream):
        found = _standing(snapshots, stream, fold, key)
        if found is not None:
            yield found


def explain(snapshots: Snapshots, stream: str, fold: Fold[Any]) -> Explained:
    """Say which snapshot a load of *stream* would use, and why it would not use each of the others."""
    facts = snapshots.facts(fold)
    head = snapshots.backend.head(stream)
    last = head.version if head else 0
    verdicts = []
    used = None
    for key in snapshots.backend.snapshot_keys(stream, facts.name_hash, upto=EVERYTHING):
        found = _standing(snapshots, stream, facts.name_hash, key)
        if found is None:
            continue
        if key.fold_id != facts.fold_id:
            why = f"other code: {', '.join(snapshots.changed(stream, facts, key))} differs"
        else:
            why = snapshots.decode(stream, fold, facts, key)[1]
        if not why and used is None:
            used = found
        verdicts.append(Verdict(found, not why, why))
    return Explained(used, last, last - (used.version if used else 0), verdicts)


def verify_snapshots(
    log: Log, snapshots: Snapshots, stream: str, fold: Fold[Any], progress: Callable[[int], None] | None = None
) -> SnapshotsVerified:
    """Fold *stream* anew and compare every snapshot of *fold* with it, byte for byte; check all others' hashes."""
    facts = snapshots.facts(fold)
    log.codec.register(fold.events)
    mine: dict[int, SnapshotKey] = {}
    findings: list[SnapshotFinding] = []
    checked = 0
    for name_hash, key in _keys(snapshots, stream):
        if name_hash == facts.name_hash and key.fold_id == facts.fold_id:
            mine[key.version] = key
            continue
        checked += 1
        what = _wrong(snapshots, stream, name_hash, key, None)
        if what:
            found = _standing(snapshots, stream, name_hash, key)
            findings.append(SnapshotFinding(stream, found.fold if found else "?", key.version, what))
    state = begin(snapshots, fold)
    version = 0
    for target in sorted(mine):
        while version < target:
            for _, records in log.record_pages(stream, after=version, upto=target):
                state = fold.fold_records(state, records, stream, version)
                version += len(records)
                if progress:
                    progress(len(records))
        truth = facts.codec.encode(state, check=False).body
        what = _wrong(snapshots, stream, facts.name_hash, mine[target], truth)
        if what:
            findings.append(SnapshotFinding(stream, fold.name, target, what))
    return SnapshotsVerified(len(mine), checked, findings)


def prune(snapshots: Snapshots, streams: Iterator[str], *, dry_run: bool = False) -> Pruned:
    """Thin the ladder of every fold of *streams*, drop what is damaged, then collect what nothing reaches.

    Safe beside readers and writers: a live state whose chunks were taken makes them again when it needs them.
    A dry run counts the chunks that are unreachable already, not those that the pruning would set free.
    """
    backend = snapshots.backend
    dropped = 0
    for stream in streams:
        head = backend.head(stream)
        for name_hash in backend.folds(stream):
            here = list(backend.snapshot_keys(stream, name_hash, upto=EVERYTHING, own=True))
            gone = rules.superseded(here, here[0].fold_id, head.version if head else 0) if here else []
            damaged = [k for k in here if k not in gone and _wrong(snapshots, stream, name_hash, k, None)]
            gone += damaged
            dropped += len(gone) if dry_run else backend.drop_snapshots(stream, name_hash, gone)
    return Pruned(dropped, backend.collect_chunks(dry_run=dry_run))


def _keys(snapshots: Snapshots, stream: str) -> Iterator[tuple[bytes, SnapshotKey]]:
    for name_hash in snapshots.backend.folds(stream):
        for key in snapshots.backend.snapshot_keys(stream, name_hash, upto=EVERYTHING, own=True):
            yield name_hash, key


def _standing(snapshots: Snapshots, stream: str, name_hash: bytes, key: SnapshotKey) -> Standing | None:
    stored = snapshots.backend.snapshot(stream, name_hash, key)
    if stored is None:
        return None
    try:
        row = keys.decode_snapshot_row(stored)
    except msgspec.MsgspecError:
        return Standing(stream, "?", key.version, key.fold_id.hex(), len(stored), 0, 0)
    chunks = len(row.refs) // DIGEST_BYTES
    return Standing(stream, row.fold, key.version, key.fold_id.hex(), len(stored), chunks, row.created_ns)


def _wrong(snapshots: Snapshots, stream: str, name_hash: bytes, key: SnapshotKey, truth: bytes | None) -> str:
    """Say what is wrong with a stored snapshot, or "": against its own hashes, and against *truth* if given."""
    stored = snapshots.backend.snapshot(stream, name_hash, key)
    if stored is None:
        return ""
    try:
        row = keys.decode_snapshot_row(stored)
        body = decompress(row.body)
    except (msgspec.MsgspecError, ValueError) as error:
        return f"it cannot be decoded ({error})"
    if row.hash != snapshots.log_hash(stream, key.version):
        return "its chain hash is not the log's"
    if hash_body(body) != row.state_hash:
        return "its bytes were changed"
    if truth is not None and body != truth:
        return "its state is not what folding gives"
    return _damaged_chunk(snapshots, row.refs)


def _damaged_chunk(snapshots: Snapshots, refs: bytes) -> str:
    todo = [refs[i : i + DIGEST_BYTES] for i in range(0, len(refs), DIGEST_BYTES)]
    seen: set[bytes] = set()
    while todo:
        ref = todo.pop()
        if ref in seen:
            continue
        seen.add(ref)
        stored = snapshots.backend.chunk(ref)
        if stored is None:
            return f"chunk {ref.hex()} is missing"
        try:
            todo += split(unpack(ref, stored)).refs
        except ChunkDamagedError as error:
            return str(error)
    return ""
