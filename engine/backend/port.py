"""The contract between the log and whatever keeps it. No I/O here, only the words and the promises.

A backend needs no transactions of its own beyond one promise: *commit this batch; each append in it is
whole or absent, and is refused if its stream is not at the expected version or its epoch is not current*.
That is small enough for a networked backend to keep. The LMDB and the memory backend are driven by one
state machine (tests/test_model_agreement.py), so neither may be laxer than the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec
from tailfold.engine.errors import EngineError

FORMAT_VERSION = 6
"""The newest on-disk format that this release reads (I10)."""
FORMAT_FORKS = 3
"""The least format that has forks and deleted streams."""
FORMAT_AHEAD = 5
"""The least format whose newest transactions may stand in a write-ahead file only."""
FORMAT_SEGMENTS = 6
"""The least format that has sealed segments as they are packed now."""
FORMAT_LEAST = 1
"""What a store has to be stamped with. What needs more raises the stamp (`Append.format`)."""


class _Unchecked(int):
    """An expected version that names none. A type of its own: no arithmetic on versions gives one by mistake."""

    def __repr__(self) -> str:
        return "ANY" if self == ANY else "EXISTS"


ANY = _Unchecked(-1)
"""Expected version: append wherever the stream ends, also to a new stream."""
EXISTS = _Unchecked(-2)
"""Expected version: append wherever the stream ends, but only to a stream that has events."""

HASH_BYTES = 16


class Durability(Enum):
    """What an acknowledged append has survived."""

    DURABLE = "durable"
    """Acknowledged = on the disk, also if the machine loses power (I12). The default."""
    RELAXED = "relaxed"
    """Acknowledged = handed to the operating system: survives a killed process, not a power cut, which may
    lose or damage the whole store, also what other processes have written durably to it meanwhile. Synced on
    close. For tests, and for imports that can start over."""


class SnapshotKey(NamedTuple):
    """Where a snapshot stands: it is of *fold* (a hash of its name) with *fold_id*, at *version*."""

    version: int
    fold_id: bytes


class LaterSnapshot(NamedTuple):
    """A snapshot past a version, for the marks that it carries."""

    version: int
    row: bytes
    hash: bytes
    """Chain hash of the log at its version."""


class SnapshotWrite(msgspec.Struct, frozen=True, gc=False):
    """A snapshot ready to write. Derived data: it may be refused or lost without changing an answer."""

    fold: bytes
    """Hash of the fold's name."""
    key: SnapshotKey
    hash: bytes
    """Chain hash of the stream at the version: not the log's, not written."""
    row: bytes
    chunks: Mapping[bytes, bytes]
    """Packed chunks by digest; those that are there already are not written again."""
    needs: Sequence[bytes]
    """Digests of chunks that must be there already, or nothing is written."""


class Collected(NamedTuple):
    """What a garbage collection took, or would take."""

    chunks: int
    bytes: int


class IdRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an idempotency key stands for."""

    first: int
    last: int
    position: int
    hash: bytes
    content: bytes


class CheckpointWrite(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint ready to write: how far a subscription or projection has handled the store, or one stream."""

    position: int
    """The last position that was handled; the last version if *stream* is named."""
    row: bytes
    """`keys.CheckpointRow`, with the state of a projection."""
    stream: str | None = None
    chunks: Mapping[bytes, bytes] = msgspec.field(default_factory=dict)
    needs: Sequence[bytes] = ()
    reset: bool = False
    """Write whatever stands there: also a later position, or one of other code."""


NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""No rows: one for all appends, for a fresh dictionary each would be one more object for the garbage collector."""


class Append(msgspec.Struct, frozen=True, gc=False):
    """One append, ready to commit: the unit that is whole or absent (I5)."""

    stream: str
    expected: int
    """The version the stream must be at, or `ANY` or `EXISTS`."""
    records: Sequence[bytes]
    """Encoded records, at least one."""
    digests: Sequence[bytes]
    """The digest of each record; computed outside the writer's lock."""
    time_ns: int
    key: str | None = None
    """Idempotency key, scoped to the stream."""
    content: bytes = b""
    """Digest of what the append says, to tell a retry from a reused key. Empty without a key."""
    epoch: int | None = None
    """The lease epoch of the driver, or None for an append outside any lease."""
    blobs: Mapping[bytes, bytes] = NOTHING
    """Content by digest; rows that are there already are not written again."""
    snapshot: SnapshotWrite | None = None
    """A snapshot of the stream as it is before this append; written in the same transaction."""
    schemas: Mapping[str, bytes] = NOTHING
    """Description of the fields by tag, for every kind that this process writes for the first time."""
    position: int | None = None
    """The position of the first record, past the last one; None: the next. Only a copy of a store leaves gaps."""
    format: int = FORMAT_LEAST
    """The least format that can hold the records. A lower stamp is raised to it in the same transaction."""
    created_ns: int | None = None
    """When the stream began, if this append makes it and copies events; by default `time_ns`."""
    meta: Mapping[bytes, bytes] = NOTHING
    """Rows of the table `meta` that are written with it."""


class Appended(NamedTuple):
    """What an append did. On return from a durable backend it is on the disk."""

    stream: str
    first: int
    """Version of the first event of the append."""
    last: int
    """Version of the last event: the stream's version after it."""
    position: int
    """Position of the last event in the whole store."""
    hash: bytes
    """Chain hash at `last`."""
    repeated: bool
    """True if the idempotency key had been used before with the same content, so nothing was written."""
    snapshot: bool = False
    """True if the snapshot that came with the append was written."""


class Head(NamedTuple):
    """The end of a stream, read without touching its events (I4)."""

    stream: str
    version: int
    hash: bytes
    created_ns: int
    updated_ns: int
    base: int = 0
    """Of a fork, the version at which it left its parent: its own events come after. Else 0."""


class Row(NamedTuple):
    """One stored record with what its key says."""

    stream: str
    """The stream that was asked for."""
    version: int
    position: int
    hash: bytes
    data: bytes
    origin: str
    """The stream that the event was appended to: an ancestor, if `stream` is a fork and inherited it."""


class Plain(NamedTuple):
    """Records that stand one by one."""

    records: list[bytes]
    bytes: int
    """Of the records."""


class Packed(NamedTuple):
    """Records that stand together, packed: as one msgpack array, which is decoded in one call.

    Unpacked one after another, each is decoded while it is in the processor's cache.
    """

    unpack: Callable[[], bytes]
    """Gives the array; raises `RecordDamaged`."""
    records: int
    bytes: int
    """Of the records."""


class Piece(NamedTuple):
    """A part of a lineage: the events of *stream* with after < version <= upto."""

    stream: str
    after: int
    upto: int
    deleted: bool
    """True if only forks keep it: the stream itself was deleted."""


class Child(NamedTuple):
    """A fork, as its parent sees it."""

    stream: str
    at: int
    """The last version that it shares with its parent."""
    deleted: bool


class Tombstone(NamedTuple):
    """What remains of a deleted stream."""

    stream: str
    base: int
    """Its own events begin after this version; what is before belongs to its ancestors."""
    kept: int
    """Its own events that are still there: those with base < version <= kept."""
    version: int
    """The version that it had."""
    deleted_ns: int
    base_hash: bytes
    """Chain hash at `base`; empty if that is 0, or if no own event is kept."""


class Sealed(NamedTuple):
    """What a sealing did."""

    events: int
    """Events that were not sealed before."""
    segments: int
    record_bytes: int
    """Record bytes that were packed."""
    segment_bytes: int
    """Bytes that they take now."""


class Swept(NamedTuple):
    """What a sweep took, or would take."""

    events: int
    event_bytes: int
    snapshots: int
    blobs: int
    blob_bytes: int


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """Who holds a lease: enough to tell a live driver from a dead one with a reused pid."""

    pid: int
    started: str
    """Start time of the process, as an opaque token: equal only for the same process."""
    boot: str
    """Token of the machine's boot, so that a reboot ends every lease."""
    space: str
    """Token of the pid namespace: pids of another one cannot be judged from here."""
    host: str = ""


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """The lease row of a run. `holder` is None when it was released in good order."""

    epoch: int
    holder: Holder | None
    taken_ns: int


class Backend(Protocol):
    """The port. Every method may be called from any thread; none keeps a read view open after returning."""

    durability: Durability

    def commit(self, batch: Sequence[Append]) -> list[Appended | EngineError]:
        """Commit *batch* in its order, in one transaction; return one outcome an append.

        Each append is whole or absent: records, head, positions, idempotency row, blobs and registry rows
        together (I5). A refused append (`Fenced`, `KeyReused`, `WrongVersion`) changes nothing and does not
        disturb the others; the order of checks is that of `rules.check`. On return the batch is durable as
        `durability` says. Raises `StoreFull` with nothing written, or `OutcomeUnknown`.
        """

    def head(self, stream: str) -> Head | None:
        """Return the head of *stream*, or None if there never was one. Raises `StreamDeleted` for a tombstone.

        So do all methods below that take the name of a stream, unless they say otherwise.
        """

    def heads(self, *, after: str = "", limit: int = 1000) -> list[Head]:
        """Return up to *limit* heads in byte order of their names, from the first name past *after*.

        Deleted streams have none.
        """

    def count(self) -> tuple[int, int]:
        """Return (number of streams, last position), deleted streams apart.

        The last position is the number of events that were ever appended (I2).
        """

    def data(self, stream: str, *, after: int, upto: int) -> list[bytes]:
        """Return the record bytes of versions *after*+1..*upto*, in order: the fold's read.

        *upto* must not pass the head. Raises `RecordDamaged` if the versions are not contiguous (I1). A page of
        large records is cut short.
        """

    def runs(self, stream: str, *, after: int, upto: int) -> list[Plain | Packed]:
        """Return what `data` does, for folds: records that stand together as they stand, others a few at a time."""

    def rows(self, stream: str, *, after: int, upto: int, limit: int, backwards: bool = False) -> list[Row]:
        """Return up to *limit* rows with after < version <= upto, oldest first, or newest first.

        Rows come as they are stored; a missing version shows as a gap (verify looks for those).
        """

    def rows_by_position(self, *, after: int, limit: int) -> list[Row]:
        """Return up to *limit* rows of the whole store with position > *after*, in commit order.

        Events that a sweep gave back are passed over, so positions may have gaps. Rows stand under the streams
        that they were appended to.
        """

    def where(self, positions: Sequence[int]) -> list[tuple[str, int] | None]:
        """Return the (stream, version) that each of *positions* stands for, or None (I3)."""

    def blob(self, digest: bytes) -> bytes | None:
        """Return the content with this digest, or None."""

    def blobs(self, *, after: bytes = b"", limit: int = 64) -> list[tuple[bytes, bytes]]:
        """Return up to *limit* (digest, content) in order of the digests, past *after*."""

    def schemas(self) -> Iterator[tuple[str, bytes]]:
        """Yield (tag, description) of everything in the registry of kinds, in order of the tags."""

    def lease(self, stream: str) -> Lease | None:
        """Return the lease row of *stream*, or None if it was never driven."""

    def swap_lease(self, stream: str, *, seen: Lease | None, new: Lease) -> bool:
        """Replace the lease row if it is still *seen*; return whether it was. Durable on return."""

    # -- copying stores: what migration needs beside appends.

    def ids(self, stream: str) -> list[tuple[bytes, IdRow]]:
        """Return every idempotency row of *stream* under the hash of its key, in order of the hashes.

        Also of a deleted stream, and without what a fork inherits.
        """

    def meta(self, prefix: bytes) -> dict[bytes, bytes]:
        """Return the rows of `meta` whose keys begin with *prefix*; ``format`` is the stamp."""

    def put(
        self,
        *,
        meta: Mapping[bytes, bytes] | None = None,
        blobs: Mapping[bytes, bytes] | None = None,
        schemas: Sequence[tuple[str, bytes]] = (),
        ids: Mapping[str, Mapping[bytes, IdRow]] | None = None,
    ) -> None:
        """Write rows that come with no append, in one transaction; durable on return.

        Blobs and descriptions that are there already stay; other rows are replaced. Idempotency rows are given
        by stream, under the hash of the key; raises `StreamNotFound`, with nothing written, if it has no events.
        """

    # -- forks: a stream that begins as its parent was at a version. What is shared is stored once.

    def fork(
        self, stream: str, *, at: int, name: str, time_ns: int, head: tuple[str, str | None] | None = None
    ) -> Head:
        """Make *name* a stream that has versions 1..*at* of *stream*, and goes on by itself; return its head.

        One small row, whatever the length (I11); durable on return, absent or whole after a crash. With
        *head*, (name, expected), the named head is moved from *expected* to the fork in the same transaction.
        Raises `StreamNotFound`, `StreamExists` or `HeadMoved`; nothing is changed then.
        """

    def lineage(self, stream: str, *, deleted: bool = False) -> list[Piece]:
        """Return where the events of *stream* stand, oldest first; the last piece is its own, maybe empty.

        With *deleted* also of a deleted one: where they stood, whatever a sweep gave back of them.
        """

    def spread(self, stream: str, *, after: int) -> int:
        """Return over how many streams the versions past *after* are spread: 1 unless it is a fork of forks."""

    def children(self, stream: str) -> list[Child]:
        """Return the forks of *stream* in the order of their versions; also of a deleted one."""

    def forks(self) -> list[Head]:
        """Return the heads of all forks that are not deleted."""

    def named_heads(self) -> dict[str, str]:
        """Return the stream that each named head stands for."""

    def move_head(self, name: str, to: str | None, *, expected: str | None) -> None:
        """Let a named head stand for *to* (None: drop it) if it stands for *expected* (None: there is none).

        Durable on return. Raises `HeadMoved`, or `StreamNotFound` for *to*.
        """

    def delete(self, stream: str, *, time_ns: int, reroot: bool = False, drop_heads: bool = False) -> None:
        """Delete *stream*: nobody can read or append to it any more, and its name stays taken.

        Durable on return. Its events are given back by `sweep`, up to what forks need. Raises `StreamNeeded` if
        a living fork rests on it unless *reroot*, or a named head stands for it unless *drop_heads*.
        """

    def bury(self, tombstone: Tombstone, *, last_position: int | None = None) -> None:
        """Make *tombstone* stand here as it stands in another store, of a stream that is here or never was.

        With *last_position*, positions go on after that one, which stood for an event that was given back.
        """

    def tombstones(self) -> list[Tombstone]:
        """Return what remains of deleted streams, in order of their making."""

    def own_rows(self, stream: str, *, after: int, limit: int) -> list[Row]:
        """Return up to *limit* of the rows that are stored under *stream* itself, deleted or not."""

    def sweep(self, refs_in: Callable[[bytes], list[bytes]], *, dry_run: bool = False) -> Swept:
        """Give back the events of deleted streams that no living stream needs, and blobs that no event names.

        *refs_in* gives the digests of the blobs that a record refers to. One transaction: writers wait.
        """

    def seal(self, stream: str, *, upto: int, whole: bool = True, most: int | None = None) -> Sealed:
        """Pack the own events of *stream* up to version *upto* into compressed segments; durable on return.

        With *whole* only full segments are made; at most *most* are. Records, hashes and positions stay as they
        are, and no reader can tell; a segment is in the place of its events or they are, also after a crash (I6).
        A backend that has no use for it does nothing. Raises `StreamNotFound`, or `RecordDamaged` with nothing
        changed.
        """

    # -- snapshots: derived data. Losing all of it changes no answer (I14).

    def snapshot_keys(self, stream: str, fold: bytes, *, upto: int, own: bool = False) -> Iterator[SnapshotKey]:
        """Yield the keys of the snapshots of *fold* at versions <= *upto*, newest first.

        Those of ancestors serve a fork, up to where it left them; with *own* they are left out. Read piece by
        piece: between two of them, rows may come and go.
        """

    def snapshot(self, stream: str, fold: bytes, key: SnapshotKey) -> bytes | None:
        """Return the row of a snapshot, or None."""

    def snapshot_past(self, stream: str, fold: bytes, fold_id: bytes, version: int) -> LaterSnapshot | None:
        """Return the oldest snapshot of *fold* with *fold_id* at a version above *version*, or None.

        It is one of the stream that *version* stands under: for a fork that has not gone on yet, its parent's,
        past what the fork itself sees.
        """

    def folds(self, stream: str) -> list[bytes]:
        """Return the hashes of the folds that have snapshots of *stream*."""

    def put_snapshot(self, stream: str, snapshot: SnapshotWrite) -> bool:
        """Write a snapshot with its chunks in one transaction, and thin the ladder; durable on return.

        Returns False, with nothing written, if the log has another chain hash at that version or a needed
        chunk is not there.
        """

    def drop_snapshots(self, stream: str, fold: bytes, dropped: Sequence[SnapshotKey]) -> int:
        """Delete snapshots; return how many were there. Their chunks stay until `collect_chunks`."""

    def chunk(self, digest: bytes) -> bytes | None:
        """Return the packed chunk with this digest, or None."""

    def put_chunks(self, chunks: Mapping[bytes, bytes]) -> None:
        """Write packed chunks over whatever stands under their digests: the repair of lost or damaged ones."""

    def collect_chunks(self, *, dry_run: bool = False) -> Collected:
        """Delete every chunk that no snapshot and no checkpoint reaches, in one transaction; or only count."""

    # -- followers: waiting for events, and how far each has come.

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *wake* soon (within 50 ms) after anybody, in any process, has committed; return what ends that.

        *wake* is called from any thread, also for nothing, and must be quick and not raise. Who is woken looks
        for itself. A watch costs no busy waiting; while nobody watches there is no thread. Closing the backend
        wakes everyone once.
        """

    def checkpoint(self, name: str) -> bytes | None:
        """Return the row of a checkpoint, or None."""

    def checkpoints(self) -> list[tuple[str, bytes]]:
        """Return (name, row) of every checkpoint in byte order of the names."""

    def put_checkpoint(self, name: str, write: CheckpointWrite) -> bool:
        """Write a checkpoint, with the chunks of its state, in one transaction; durable on return.

        Raises `BadArgument` if its position is past the last one of the store or stream (I8). Returns False,
        with nothing written, if `rules.may_replace` says no or a needed chunk is not there.
        """

    def drop_checkpoint(self, name: str) -> bool:
        """Delete a checkpoint; return whether it was there. Its chunks stay until `collect_chunks`."""

    def usage(self) -> dict[str, Any]:
        """Return sizes in bytes and row counts by table, for people to look at."""

    def check(self) -> list[str]:
        """Check the structure below the rows (pages, tables); return findings, empty if sound."""

    def check_forks(self) -> list[tuple[str, str]]:
        """Compare what every fork says of its lineage with the streams it names, and with their lists of forks.

        Returns (stream, what is wrong); empty if sound.
        """

    def close(self) -> None:
        """Make everything durable and let go of the store. Closing twice is fine."""
