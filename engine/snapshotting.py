"""Snapshots beside the log: finding a usable one, writing one when it is due, healing what was lost.

Everything here is derived data (I14). Whatever is wrong with a snapshot, the state comes from an older usable
one or from the start: counted, logged once, never a wrong or partial state, never an exception for the caller.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import Backend, Collected, SnapshotKey, SnapshotWrite
from tailfold.engine.errors import ChunkLost, EngineError
from tailfold.engine.fold import Fold
from tailfold.engine.fold_facts import FoldFacts
from tailfold.engine.gathering import Due, Gathering, HealingReader
from tailfold.snapshots import fingerprint
from tailfold.snapshots.chunks import (
    ChunkDamagedError,
    pack,
    split,
    unpack,
)
from tailfold.snapshots.codec import EncodedState, NotEncodableError, hash_body
from tailfold.snapshots.limits import MARK_EVENTS
from tailfold.snapshots.marks import Marks, nearest
from tailfold.snapshots.policy import ANY_NUMBER, Policy, Progress, never
from tailfold.snapshots.zstd import compress, decompress

S = TypeVar("S")
logger = logging.getLogger("tailfold")

COLLECT_AFTER_BYTES = 16 << 20
"""Chunks are collected at the earliest when this much was written through one store object."""


class _UnusableError(ValueError):
    """Why a snapshot is not used."""


Refold = Callable[[Fold[Any], str, int], EncodedState]
"""Folds a stream up to a version without snapshots, and encodes the state: the source of lost chunks."""


@dataclass
class Counters:
    """What snapshots did in this store object: for tests, benchmarks and the curious."""

    loads: int = 0
    hits: int = 0
    marks_used: int = 0
    """Loads that began at a mark: these are hits, too."""
    missed: Counter[str] = field(default_factory=Counter)
    """Why a snapshot that was there was not used, by reason."""
    events_folded: int = 0
    """Events decoded and folded by loads."""
    chunks_loaded: int = 0
    snapshots_written: int = 0
    snapshots_refused: int = 0
    chunks_written: int = 0
    snapshot_bytes: int = 0
    chunk_bytes: int = 0
    chunks_healed: int = 0
    chunks_collected: int = 0


class Found(NamedTuple, Generic[S]):
    """A usable snapshot, decoded."""

    state: S
    version: int
    bytes: int
    reader: HealingReader
    marks: Marks


class Snapshots:
    """The snapshots of one store. Thread-safe as far as the backend is; counters are approximate then."""

    def __init__(self, backend: Backend, policy: Policy, *, clock: Callable[[], int]) -> None:
        self.backend = backend
        self.policy = policy
        self.counters = Counters()
        self.refold: Refold | None = None
        self.written: Callable[[str, int], None] = lambda stream, version: None
        """Called when a snapshot stands at a version of a stream."""
        self.steps: Callable[[Iterable[str]], str] = lambda kinds: ""
        """Says which upcasters are in force for kinds of events."""
        self.generation: Callable[[], int] = lambda: 0
        """Changes whenever `steps` may say something else."""
        self._clock = clock
        self._facts: weakref.WeakKeyDictionary[Fold[Any], tuple[int, FoldFacts[Any]]] = weakref.WeakKeyDictionary()
        self._said: set[tuple[str, str]] = set()
        self._hopeless: dict[tuple[str, bytes], int] = {}
        self._uncollected_bytes = 0
        self._collect_at_bytes = COLLECT_AFTER_BYTES

    def facts(self, fold: Fold[S]) -> FoldFacts[S]:
        """Return the facts of *fold*, computed once unless it gets another handler, or the store other steps."""
        generation = self.generation()
        known = self._facts.get(fold)
        if known is None or known[0] != generation or known[1].handlers != len(fold.handlers):
            known = self._facts[fold] = generation, FoldFacts(fold, self.steps)
        return known[1]

    def due(self, progress: Progress) -> bool:
        """Ask the policy; one that raises is a user's fault that must not cost an append: it counts as never."""
        try:
            return bool(self.policy.due(progress))
        except Exception as error:
            self._say("", f"the snapshot policy {self.policy!r} failed, no snapshot is written: {error!r}")
            return False

    def reach(self, progress: Progress) -> int:
        """Ask the policy how many more events may be folded before it wants to be asked again; at least 1."""
        try:
            return max(1, int(self.policy.reach(progress)))
        except Exception as error:
            self._say("", f"the snapshot policy {self.policy!r} failed, no snapshot is written: {error!r}")
            return ANY_NUMBER

    # -- find ------------------------------------------------------------------------------------------

    def find(self, stream: str, fold: Fold[S], upto: int, *, newest: bool = False) -> Found[S] | None:
        """Return the newest usable snapshot or mark of *fold* at a version <= *upto*, or None.

        With *newest* there are no later versions, and so no later snapshot that has marks.
        """
        facts = self.facts(fold)
        if facts.unusable:
            return None
        others: list[SnapshotKey] = []
        looked = newest
        for key in self.backend.snapshot_keys(stream, facts.name_hash, upto=upto):
            if key.fold_id != facts.fold_id:  # compared before anything is decoded
                others.append(key)
                continue
            if not looked and upto - key.version > MARK_EVENTS:
                looked = True
                marked = self.marked(stream, fold, facts, key.version, upto)
                if marked is not None:
                    return marked
            found, why = self.decode(stream, fold, facts, key)
            if found is not None:
                self.counters.hits += 1
                return found
            self._miss(stream, fold, key.version, why)
        if not looked and upto > MARK_EVENTS:
            marked = self.marked(stream, fold, facts, 0, upto)
            if marked is not None:
                return marked
        if others:
            self._miss_of_other_code(stream, fold, facts, others[0])
        return None

    def marked(self, stream: str, fold: Fold[S], facts: FoldFacts[S], after: int, upto: int) -> Found[S] | None:
        """Return the state of the newest mark with *after* < version <= *upto*, if a later snapshot carries one."""
        if not facts.marks.possible:
            return None
        try:
            later = self.backend.snapshot_past(stream, facts.name_hash, facts.fold_id, upto)
            if later is None:
                return None
            row = keys.decode_snapshot_row(later.row)
            mark = nearest(row.marks, after, upto)
            if mark is None:
                return None
            whole, reader = self._state(stream, fold, facts, row, later.hash, mark.version)
            state = facts.marks.decode(mark.body, whole)
        except (msgspec.MsgspecError, ValueError, ChunkDamagedError, EngineError) as error:
            self._miss(stream, fold, upto, f"a mark cannot be used ({error})")
            return None
        self.counters.hits += 1
        self.counters.marks_used += 1
        marks = Marks(mark.version, row.marks, facts.marks.series(state))
        return Found(state, mark.version, len(later.row), reader, marks)

    def decode(
        self, stream: str, fold: Fold[S], facts: FoldFacts[S], key: SnapshotKey
    ) -> tuple[Found[S] | None, str]:
        """Return the state of the snapshot at *key*, or why it is not used."""
        try:
            stored = self.backend.snapshot(stream, facts.name_hash, key)
            if stored is None:
                return None, "it was deleted meanwhile"
            row = keys.decode_snapshot_row(stored)
            log_hash = self.log_hash(stream, key.version)
            state, reader = self._state(stream, fold, facts, row, log_hash, key.version)
        except _UnusableError as error:
            return None, str(error)
        except (msgspec.MsgspecError, ValueError) as error:
            return None, f"it cannot be decoded ({error})"
        except EngineError as error:
            return None, str(error)
        marks = Marks(key.version, row.marks, facts.marks.series(state))
        return Found(state, key.version, len(stored), reader, marks), ""

    def _state(
        self,
        stream: str,
        fold: Fold[S],
        facts: FoldFacts[S],
        row: keys.SnapshotRow,
        log_hash: bytes,
        version: int,
    ) -> tuple[S, HealingReader]:
        """Return the state of *row*, and the reader of its chunks: lost ones are made by folding to *version*."""
        if row.hash != log_hash:
            raise _UnusableError("it is of another history: its chain hash is not the log's")
        body = decompress(row.body)
        if hash_body(body) != row.state_hash:
            raise _UnusableError("its bytes were changed")
        reader = self.reader(stream, fold, version)
        return facts.codec.decode(body, reader), reader

    def log_hash(self, stream: str, version: int) -> bytes:
        """Return the chain hash of the log at *version*; empty if it does not reach it."""
        rows = self.backend.rows(stream, after=version - 1, upto=version, limit=1)
        return rows[0].hash if rows else b""

    def reader(self, stream: str, fold: Fold[Any], version: int) -> HealingReader:
        """Return the reader of one state, whose chunks are those of its snapshot at *version*."""

        def load(ref: bytes) -> bytes:
            self.counters.chunks_loaded += 1
            stored = self.backend.chunk(ref)
            try:
                if stored is not None:
                    return unpack(ref, stored)
                why = f"chunk {ref.hex()} is missing"
            except ChunkDamagedError as error:
                why = str(error)
            return self._heal(stream, fold, healing.version, ref, why)

        healing = HealingReader(load, version)
        return healing

    def _heal(self, stream: str, fold: Fold[Any], version: int, ref: bytes, why: str) -> bytes:
        self._say(stream, f"stream {stream!r}, fold {fold.name!r}: {why}. Folding anew to restore it")
        self.counters.missed["chunk lost or damaged"] += 1
        # Every chunk of a state is one of its state at its last snapshot: fold to there, and it is made again.
        assert self.refold is not None
        payloads = self.refold(fold, stream, version).writer.chunks
        if ref in payloads:
            try:
                self.backend.put_chunks({ref: pack(data) for ref, data in payloads.items()})
            except EngineError as error:
                self._say(stream, f"restored chunks of {stream!r} could not be written: {error}")
            self.counters.chunks_healed += 1
            return payloads[ref]
        raise ChunkLost(stream, fold.name, ref.hex())

    def _miss(self, stream: str, fold: Fold[Any], version: int, why: str) -> None:
        self.counters.missed[why.split(" (")[0]] += 1
        self._say(stream, f"snapshot of {fold.name!r} at {stream!r} version {version} is not used: {why}")

    def _miss_of_other_code(self, stream: str, fold: Fold[S], facts: FoldFacts[S], key: SnapshotKey) -> None:
        changed = self.changed(stream, facts, key)
        self.counters.missed[f"other code: {', '.join(changed)}"] += 1
        if "source" in changed and "version" not in changed:
            self._say(
                "",
                f"the code of fold {fold.name!r} has changed under version {fold.version}: snapshots of the old"
                " code are not used. Raise its version if it means something else now; pin it if it does not",
            )

    def changed(self, stream: str, facts: FoldFacts[Any], key: SnapshotKey) -> list[str]:
        """Return the names of the parts in which the fold id at *key* differs from ours."""
        stored = self.backend.snapshot(stream, facts.name_hash, key)
        try:
            theirs = keys.decode_snapshot_row(stored or b"").parts
        except msgspec.MsgspecError:
            return ["unreadable"]
        return fingerprint.changed_parts(facts.parts, theirs) or ["unknown"]

    def say(self, text: str) -> None:
        """Warn once for each text."""
        self._say("", text)

    def _say(self, stream: str, text: str) -> None:
        """Warn once for each stream and text."""
        if (stream, text) not in self._said and len(self._said) < 10_000:
            self._said.add((stream, text))
            logger.warning("%s", text)

    # -- write -----------------------------------------------------------------------------------------

    def encode(
        self, stream: str, fold: Fold[S], state: S, version: int, chain_hash: bytes, marks: Marks | None = None
    ) -> Due | None:
        """Encode a snapshot of *state* at *version*; None if the state cannot be encoded (said once).

        It carries the *marks* that were taken on the way.
        """
        begin = time.perf_counter()
        facts = self.facts(fold)
        place = (stream, facts.fold_id)
        if version < self._hopeless.get(place, 0):
            return None
        try:
            if facts.unusable:
                raise NotEncodableError(facts.unusable)
            encoded = facts.codec.encode(state)
            needs = needs_of(encoded)
        except Exception as error:
            # Whatever a state holds must not cost an append. Later it may hold something else: try again
            # when the stream has doubled.
            self._hopeless[place] = 2 * version
            self._say("", f"fold {fold.name!r} has no snapshots, every load folds it from the start: {error}")
            return None
        row = keys.SnapshotRow(
            fold.name,
            facts.parts,
            chain_hash,
            encoded.hash,
            b"".join(encoded.refs),
            self._clock(),
            compress(encoded.body),
            marks.hand_over(facts.marks, state, version) if marks is not None else b"",
        )
        write = SnapshotWrite(
            fold=facts.name_hash,
            key=SnapshotKey(version, facts.fold_id),
            hash=chain_hash,
            row=keys.encode(row),
            chunks={ref: pack(payload) for ref, payload in encoded.writer.chunks.items()},
            needs=needs,
        )
        return Due(write, encoded, time.perf_counter() - begin)

    def mark(self, fold: Fold[S], state: S, version: int, marks: Marks) -> None:
        """Take a mark of *state* at *version*: it goes with the next snapshot, if there will be one."""
        facts = self.facts(fold)
        if self.policy is never or facts.unusable or not facts.marks.possible:
            marks.stop()
        else:
            marks.take(facts.marks, state, version)

    def put(self, stream: str, fold: Fold[Any], due: Due, gathering: Gathering) -> bool:
        """Write a snapshot by itself; a store that cannot take it goes on without."""
        try:
            written = self.backend.put_snapshot(stream, due.write)
        except EngineError as error:
            self._say(stream, f"a snapshot of {stream!r} could not be written: {error}")
            written = False
        self.settle(stream, fold, due, written, gathering)
        return written

    def settle(self, stream: str, fold: Fold[Any], due: Due, written: bool, gathering: Gathering) -> None:
        """Take note of what became of a snapshot; its chunks may leave memory once they are stored."""
        if not written:
            self.counters.snapshots_refused += 1
            self._restore_needed(stream, fold, due, gathering)
            return
        self.counters.snapshots_written += 1
        self.written(stream, due.write.key.version)
        self.counters.snapshot_bytes += len(due.write.row)
        self.counters.chunks_written += len(due.write.chunks)
        self.counters.chunk_bytes += sum(map(len, due.write.chunks.values()))
        # A reader for each snapshot: copies of an older state keep theirs, and heal from its version.
        before = gathering.reader
        gathering.reader = self.reader(stream, fold, due.write.key.version)
        if before is not None:
            gathering.reader.share_cache(before)
        due.encoded.writer.stored(gathering.reader)
        self.wrote_chunks(due.write.chunks)

    def wrote_chunks(self, chunks: Mapping[bytes, bytes]) -> None:
        """Count chunks that were written, and collect dead ones when there may be many."""
        self._uncollected_bytes += sum(map(len, chunks.values()))
        if self._uncollected_bytes >= self._collect_at_bytes:
            self.collect()

    def _restore_needed(self, stream: str, fold: Fold[Any], due: Due, gathering: Gathering) -> None:
        """Make chunks again that a refused snapshot rests on and that are gone, so that the next one succeeds."""
        if gathering.reader is None:
            return
        try:
            for ref in due.write.needs:
                if ref not in due.write.chunks and self.backend.chunk(ref) is None:
                    gathering.reader.payload(ref)
                    return  # healing one restores all
        except EngineError as error:
            self._say(stream, f"chunks of {stream!r} could not be restored: {error}")

    def collect(self) -> Collected:
        """Delete the chunks that no snapshot or checkpoint reaches. Done by itself as soon as much was written.

        A `Table` leaves old leaves behind when its snapshots are thinned; a `Series` never does. The cost is
        proportional to what is kept, so that collecting takes a bounded share of writing.
        """
        self._uncollected_bytes = 0
        try:
            collected = self.backend.collect_chunks()
        except EngineError as error:
            self._say("", f"chunks could not be collected: {error}")
            return Collected(0, 0)
        self.counters.chunks_collected += collected.chunks
        kept_bytes = self.backend.usage()["tables"]["chunks"]["bytes"]
        self._collect_at_bytes = max(COLLECT_AFTER_BYTES, kept_bytes)
        return collected


def needs_of(encoded: EncodedState) -> list[bytes]:
    """Return every stored chunk that a saved state rests on directly: its own references, and its new chunks'."""
    new = encoded.writer.chunks
    found = dict.fromkeys(encoded.refs)
    for payload in new.values():
        found.update(dict.fromkeys(split(payload).refs))
    return [ref for ref in found if ref not in new]
