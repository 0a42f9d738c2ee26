"""Looking at snapshots: which would be used and why not, are they true, which may go. For people and the CLI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from tailfold.engine.backend import keys, rules
from tailfold.engine.backend.port import Collected, SnapshotKey
from tailfold.engine.errors import EngineError
from tailfold.engine.fold import Fold
from tailfold.engine.fold_facts import FoldFacts
from tailfold.engine.loading import begin
from tailfold.engine.log import Log
from tailfold.engine.snapshotting import Snapshots
from tailfold.snapshots.chunks import DIGEST_BYTES, ChunkDamagedError, split, unpack
from tailfold.snapshots.codec import hash_body
from tailfold.snapshots.limits import MARK_EVENTS
from tailfold.snapshots.marks import unpack as unpack_marks
from tailfold.snapshots.zstd import decompress

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
    marks: int
    """States at earlier versions that it carries."""
    created_ns: int


class Verdict(NamedTuple):
    """Whether a load would use a snapshot, and if not, why."""

    snapshot: Standing
    usable: bool
    why: str


class Explained(NamedTuple):
    """How a load of a stream would go."""

    used: Standing | None
    mark: int | None
    """The version that it starts from, if that is a mark which a later snapshot carries, of what was forked."""
    head: int
    tail: int
    """Events that a load folds after the snapshot or mark, or all of them."""
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
    """Snapshots of this code, compared with a new fold byte for byte, with all their marks."""
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
    start = used.version if used else 0
    marked = snapshots.marked(stream, fold, facts, start, last) if last - start > MARK_EVENTS else None
    mark = marked.version if marked is not None else None
    return Explained(used, mark, last, last - (mark or start), verdicts)


def verify_snapshots(
    log: Log, snapshots: Snapshots, stream: str, fold: Fold[Any], progress: Callable[[int], None] | None = None
) -> SnapshotsVerified:
    """Fold *stream* anew and compare every snapshot of *fold* with it, byte for byte; check all others' hashes.

    What their marks give is compared in the same way.
    """
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
    marks = _marks_of(snapshots, stream, facts.name_hash, mine)
    state = begin(snapshots, fold)
    version = 0
    for target in sorted({*mine, *marks}):
        while version < target:
            for _, records in log.record_pages(stream, after=version, upto=target):
                state = fold.fold_records(state, records, stream, version)
                version += len(records)
                if progress:
                    progress(len(records))
        truth = facts.codec.encode(state, check=False).body
        for at, carried in marks.get(target, {}).items():
            what = _wrong_mark(snapshots, stream, fold, facts, mine[at], carried, truth)
            if what:
                findings.append(SnapshotFinding(stream, fold.name, at, f"its mark at version {target}: {what}"))
        what = _wrong(snapshots, stream, facts.name_hash, mine[target], truth) if target in mine else ""
        if what:
            findings.append(SnapshotFinding(stream, fold.name, target, what))
    return SnapshotsVerified(len(mine), checked, findings)


def _marks_of(
    snapshots: Snapshots, stream: str, name_hash: bytes, mine: dict[int, SnapshotKey]
) -> dict[int, dict[int, bytes]]:
    """Return the marks at each version: their bodies, by the version of the snapshot that carries them."""
    found: dict[int, dict[int, bytes]] = {}
    for version, key in mine.items():
        stored = snapshots.backend.snapshot(stream, name_hash, key)
        try:
            marks = unpack_marks(keys.decode_snapshot_row(stored or b"").marks)
        except msgspec.MsgspecError:
            continue  # said when the snapshot itself is looked at
        for mark in marks:
            found.setdefault(mark.version, {})[version] = mark.body
    return found


def _wrong_mark(
    snapshots: Snapshots,
    stream: str,
    fold: Fold[Any],
    facts: FoldFacts[Any],
    carrier: SnapshotKey,
    body: bytes,
    truth: bytes,
) -> str:
    whole = snapshots.decode(stream, fold, facts, carrier)[0]
    if whole is None:
        return ""  # said when the snapshot itself is looked at
    try:
        state = facts.marks.decode(body, whole.state)
    except (ValueError, ChunkDamagedError, EngineError):
        return ""  # not used by any load: the newest item of a series was changed after it
    return "" if facts.codec.encode(state, check=False).body == truth else "its state is not what folding gives"


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
        return Standing(stream, "?", key.version, key.fold_id.hex(), len(stored), 0, 0, 0)
    chunks, marks = len(row.refs) // DIGEST_BYTES, len(unpack_marks(row.marks))
    fold_id = key.fold_id.hex()
    return Standing(stream, row.fold, key.version, fold_id, len(stored), chunks, marks, row.created_ns)


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
