"""The façade that a user opens: one store, its streams, their states. It holds no logic of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from tailfold.engine import checkpoints, forks, leases, tracing
from tailfold.engine.backend import keys
from tailfold.engine.backend.lmdb import LmdbBackend
from tailfold.engine.backend.port import Appended, Backend, Child, Durability, Head, Lease, Piece, Sealed, Swept
from tailfold.engine.checkpoints import Checkpoint
from tailfold.engine.errors import BadArgument, NotFound, StreamDeleted
from tailfold.engine.events import Event
from tailfold.engine.fold import Fold
from tailfold.engine.forks import Branch, Difference
from tailfold.engine.leases import Grant
from tailfold.engine.live import Live
from tailfold.engine.loading import Loaded, load, load_deleted, refold
from tailfold.engine.log import Log, Recorded
from tailfold.engine.names import check_stream_name
from tailfold.engine.origin import COPYING, Origin, read_origin
from tailfold.engine.projections import Projected, Projection
from tailfold.engine.records import Newer, read_description
from tailfold.engine.sealing import Sealer
from tailfold.engine.snapshotting import Counters, Snapshots
from tailfold.engine.subscriptions import Subscription
from tailfold.engine.tracing import Trace
from tailfold.engine.verify import Progress, Verified, check_readable, verify
from tailfold.snapshots.policy import CostBased, Policy
from tailfold.upcasters import Upcasters

S = TypeVar("S")


class Store:
    """A store of event streams. Open one with `Store.open`; use it as a context manager, or close it.

    Safe to use from several threads and coroutines. Several processes may open one store at once.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        clock: Callable[[], int] = time.time_ns,
        snapshots: Policy | None = None,
        sealing: bool = True,
    ) -> None:
        """Wrap an opened backend; most callers want `Store.open`."""
        self.backend = backend
        self.log = Log(backend, clock=clock)
        self.snapshots = Snapshots(backend, snapshots or CostBased(), clock=clock)
        self._sealer = Sealer(backend)
        if sealing:
            self.snapshots.written = self._sealer.wake
        lifting = self.log.codec.lifting
        self.snapshots.generation = lambda: lifting.generation
        self.snapshots.steps = lambda kinds: self._steps(kinds)
        lifting.load_context = lambda context, stream, at: self._context(context, stream, at)
        self.snapshots.refold = lambda fold, stream, upto: refold(self.log, self.snapshots, stream, fold, upto)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        backend: Backend | None = None,
        create: bool = True,
        durability: Durability = Durability.DURABLE,
        clock: Callable[[], int] = time.time_ns,
        events: Iterable[type[Event]] = (),
        upcasters: Upcasters | None = None,
        newer: Newer = Newer.REFUSE,
        snapshots: Policy | None = None,
        sealing: bool = True,
    ) -> Store:
        """Open the store at *path*, or on *backend*; make it if nothing is there and *create*.

        The directory gets mode 0700, its files 0600. *clock* gives UTC nanoseconds for the records.
        *events* are made known up front, so that reads give them typed; a kind that is appended or folded
        becomes known by itself, all others are read as `Opaque`: name them here where they are only read.
        *upcasters* lift events of older schema versions; *newer* says what happens to events of newer ones
        than the code's. *snapshots* says when snapshots are written: `CostBased` by default, ``every(n)``,
        or `never`; those that are there are used in any case. *sealing* packs events that are older than a
        snapshot into compressed segments, in the background.

        Raises `StoreNotFound` (also for a directory of something else), `StoreDamaged`, `FormatTooNew` for a
        store of a later format, or `BadSteps` if the upcasters do not lead to the events; nothing is written
        then (I10).
        """
        if (path is None) == (backend is None):
            raise BadArgument("give either a path or a backend")
        if snapshots is not None and (isinstance(snapshots, type) or not callable(getattr(snapshots, "due", None))):
            raise BadArgument(f"snapshots is a policy, such as every(1000) or never, not {snapshots!r:.60}")
        if upcasters is not None and not isinstance(upcasters, Upcasters):
            raise BadArgument(f"upcasters is an Upcasters, not {upcasters!r:.60}")
        if isinstance(events, type):
            raise BadArgument(f"events is a list of event classes: [{events.__name__}]")
        if backend is None:
            assert path is not None
            backend = LmdbBackend(path, create=create, durability=durability)
        store = cls(backend, clock=clock, snapshots=snapshots, sealing=sealing)
        try:
            store.log.codec.register(events)
            store.log.codec.newer = newer
            if upcasters is not None:
                store.log.codec.adopt(upcasters)
        except BaseException:
            backend.close()
            raise
        return store

    def _steps(self, kinds: Iterable[str]) -> str:
        """Say which steps are in force, for fold ids; a state that passed over newer events is another one."""
        text = self.log.codec.lifting.text(kinds)
        return f"newer events are passed over\n{text}" if self.log.codec.newer is Newer.OPAQUE else text

    def _context(self, context: Any, stream: str, at: int) -> Any:
        try:
            return load(self.log, self.snapshots, stream, context, at).state
        except StreamDeleted:
            return load_deleted(self.log, self.snapshots, stream, context, at)

    # -- append ----------------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        events: Event | Sequence[Event],
        *,
        expected: int,
        key: str | None = None,
        causation: str | None = None,
        correlation: str | None = None,
        epoch: int | None = None,
    ) -> Appended:
        """Append *events* to *stream* as one unit, all or nothing (I5); durable on return (I12).

        *expected* is the version that the writer believes the stream is at (0 for a new one), `ANY`, or
        `EXISTS`. *key* makes the append idempotent within the stream: the same key with the same events
        returns the first result, with other events raises `KeyReused`. *causation* is the event id
        (``stream@version``) of the cause, *correlation* names the whole conversation. *epoch* is that of the
        lease under which the caller drives.

        Checked in this order, and a refused append changes nothing: `BadArgument` for what cannot be
        stored, `Fenced`, `KeyReused`, `WrongVersion`. `StoreFull` writes nothing either; after
        `OutcomeUnknown` the append is absent or whole.
        """
        batch = [events] if isinstance(events, Event) else events
        return self.log.append(
            stream,
            batch,
            expected,
            key,
            causation,
            correlation,
            epoch,
        ).appended

    async def append_async(
        self,
        stream: str,
        events: Event | Sequence[Event],
        *,
        expected: int,
        key: str | None = None,
        causation: str | None = None,
        correlation: str | None = None,
        epoch: int | None = None,
    ) -> Appended:
        """Like `append`, for a coroutine: appends of many coroutines share commits.

        Cancelling the wait does not take the append back: it is then absent or whole, and may be whole.
        """
        batch = [events] if isinstance(events, Event) else events
        prepared = self.log.prepare(stream, batch, expected, key, causation, correlation, epoch)
        return self.log.written(prepared, await self.log.append_soon(prepared)).appended

    # -- read ------------------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        backwards: bool = False,
    ) -> Iterator[Recorded]:
        """Yield the events of *stream* with after < version <= upto, at most *limit*, in order of versions.

        With *backwards*, newest first. An *upto* past the head means the head as it is now. Reads page by
        page: no transaction stays open while the caller works. Raises `StreamNotFound` at once.
        """
        return self.log.read(stream, after=after, upto=upto, limit=limit, backwards=backwards)

    def read_all(self, *, after: int = 0, upto: int | None = None, limit: int | None = None) -> Iterator[Recorded]:
        """Yield events of all streams with after < position <= upto, at most *limit*, in commit order."""
        return self.log.read_all(after=after, upto=upto, limit=limit)

    def head(self, stream: str) -> Head:
        """Return version and chain hash of the end of *stream* without reading events; `StreamNotFound`."""
        return self.log.head(stream)

    def streams(self) -> Iterator[Head]:
        """Yield the head of every stream in byte order of the names, without reading events."""
        return self.log.streams()

    def kinds(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield (``kind@version``, fields) of everything that was ever written to this store.

        A tag that was written with different fields is yielded once for each. Needs no code of the user.
        """
        for tag, description in self.backend.schemas():
            yield tag, read_description(tag, description)

    # -- fold ------------------------------------------------------------------------------------------

    @property
    def newer_read(self) -> dict[str, int]:
        """How often an event of a newer schema version than the code's was read as `Opaque`, by tag."""
        return dict(self.log.codec.newer_read)

    def load(self, stream: str, fold: Fold[S], at: int | None = None) -> Loaded[S]:
        """Return the fold of *stream* at version *at*, or at its head; a stream without events is at 0.

        Raises `StreamNotFound` if the stream does not reach *at*, a `SchemaError` or `RecordDamaged` that
        names the event that cannot be read, `FoldFailed` if a handler raised.
        """
        folding = load(self.log, self.snapshots, stream, fold, at)
        return Loaded(folding.state, folding.version)

    def live(self, stream: str, fold: Fold[S], *, epoch: int | None = None) -> Live[S]:
        """Open *stream* for driving: a handle that keeps the state folded while it appends."""
        check_stream_name(stream)
        return Live(self.log, self.snapshots, stream, fold, epoch=epoch)

    @property
    def counters(self) -> Counters:
        """What snapshots did through this store object: loads, hits, misses by reason, bytes written."""
        return self.snapshots.counters

    # -- fork ------------------------------------------------------------------------------------------

    def fork(self, stream: str, *, at: int | None = None, name: str | None = None) -> Head:
        """Make a new stream that has versions 1..*at* of *stream* (all of it by default); return its head.

        It copies nothing and writes one small row, however long the stream is; durable on return, absent or whole
        after a crash. It sees exactly those versions, whatever its parent does later, and goes on by itself from
        version *at* + 1. Without a *name* it gets the first free one of ``STREAM.2``, ``STREAM.3``, …
        Raises `StreamNotFound` if the stream does not reach *at*, `StreamExists` if the name is taken.
        """
        return forks.fork(self.log, stream, at=at, name=name)

    def rewind(self, name: str, *, at: int, to: str | None = None) -> Head:
        """Go back: make the named head *name* stand for a new fork, at version *at*, of what it stands for now.

        What came after *at* stays readable under its own stream. *to* names the fork. Fork and move are one
        transaction. Raises as `fork` does, and `HeadMoved` if somebody was faster.
        """
        return forks.rewind(self.log, name, at=at, to=to)

    def resolve(self, name: str) -> str:
        """Return the stream that *name* stands for: that of the named head, if there is one, else *name*.

        The command line does so wherever it takes a RUN. Everything else here takes streams as they are: after a
        rewind of *name*, ``load(name, …)`` still means the old line.
        """
        return forks.resolve(self.backend, name)

    def named_heads(self) -> dict[str, str]:
        """Return the stream that each named head stands for."""
        return self.backend.named_heads()

    def move_head(self, name: str, to: str | None, *, expected: str | None) -> None:
        """Let the named head *name* stand for stream *to* if it stands for *expected* now; None is "there is none".

        Durable on return. Raises `HeadMoved`, or `StreamNotFound` for *to*; nothing is changed then.
        """
        self.backend.move_head(check_stream_name(name), to, expected=expected)

    def children(self, stream: str) -> list[Child]:
        """Return the forks of *stream* in the order of their versions."""
        return self.backend.children(stream)

    def ancestry(self, stream: str) -> list[Piece]:
        """Return where the events of *stream* stand: its ancestors, oldest first, and itself last."""
        return self.backend.lineage(check_stream_name(stream))

    def tree(self, stream: str | None = None) -> list[Branch]:
        """Return the forest of forks, each stream after its parent; or only the tree that *stream* is in."""
        return forks.tree(self.backend, stream)

    def diff(self, left: str, right: str, *, limit: int | None = None) -> Difference:
        """Return up to which version two streams are one, and what each has after that (at most *limit* events)."""
        return forks.difference(self.log, left, right, limit=limit)

    def version_at(self, stream: str, time_ns: int) -> int:
        """Return the last version of *stream* recorded at *time_ns* (UTC) or before; 0 if none was."""
        return forks.version_at_time(self.log, stream, time_ns)

    def delete(self, stream: str, *, reroot: bool = False, drop_heads: bool = False) -> None:
        """Delete *stream*: it cannot be read or appended to any more; its name stays taken by a tombstone.

        Refused with `StreamNeeded` while living forks rest on it, unless *reroot*: they keep exactly what they saw;
        and while a named head stands for it, unless *drop_heads*.
        Refused with `LeaseHeld` while somebody drives it. Durable on return; `gc` gives the space back.
        """
        self.log.head(stream)
        leases.check_free(self.backend, stream)
        forks.delete(self.log, stream, reroot=reroot, drop_heads=drop_heads)

    def seal(self, stream: str, *, upto: int | None = None, whole: bool = True) -> Sealed:
        """Pack the own events of *stream* up to *upto* (by default its head) into compressed segments.

        A segment takes a third of what its events take, for text as agents write it; reading cannot tell. With
        *whole* only full segments are made (256 events, or 8 MiB of them), else what is left is packed as well.
        Durable on return, segment by segment. The pages that the events had are used again; the file keeps its
        size.
        """
        return self.backend.seal(stream, upto=self.log.head(stream).version if upto is None else upto, whole=whole)

    def gc(self, *, dry_run: bool = False) -> Swept:
        """Give back what deleted streams held and nothing living needs, with blobs that no event names.

        Writers wait while it runs. Changes no answer about a living stream (I14); until it has run, reads of the
        whole store give the events of deleted ones, too. The file keeps its size; its free pages are used again.
        """
        origin = read_origin(self.backend)
        if origin is not None and origin.state == COPYING:
            raise BadArgument(
                "this store is being migrated into: blobs wait for their events. Finish the migration"
            )
        return forks.sweep(self.backend, dry_run=dry_run)

    # -- follow ----------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The last position: what a subscription that wants only what comes starts after."""
        return self.backend.count()[1]

    def subscribe(
        self, stream: str | None = None, *, after: int | None = None, name: str | None = None, follow: bool = True
    ) -> Subscription:
        """Return an iterator, for ``for`` and ``async for``, over the events of *stream* or of the whole store.

        It gives what is there, in order and gapless, and then waits for more; appends of any process wake it, and
        it does not wait busily. With *follow* off it ends at the head as it is now. It starts past *after*: a
        position of the store, or a version of *stream*, which need not exist yet. With a *name* it starts past the
        checkpoint of that name, if there is one, and saves it as it goes: see `Subscription` for when, and for
        what **at least once** means. Several names see all events, each at its own pace. Kinds that were not made
        known (``Store.open(events=…)``) come as `Opaque`.

        Raises `BadArgument` if it would start past the end, or if the name is a projection's or of another stream.
        """
        return Subscription(self.log, stream=stream, after=after, name=name, follow=follow)

    def project(
        self,
        projection: Projection[S],
        *,
        catch_up: bool = True,
        save: bool = True,
        progress: Progress | None = None,
    ) -> Projected[S]:
        """Return the read model of *projection*, from its saved state, caught up to the last position.

        Only what came since it was saved is folded; all of it if its code has changed (logged once). With
        *catch_up* off it stands where it was saved. See `Projected.catch_up` for the errors, and for *save*.
        """
        projected = Projected(self.log, self.snapshots, projection)
        if catch_up:
            projected.catch_up(save=save, progress=progress)
        return projected

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield how far each named subscription and each projection has come, in order of the names."""
        return checkpoints.every(self.backend)

    def checkpoint(self, name: str) -> Checkpoint:
        """Return how far the subscription or projection *name* has come; raise `NotFound`."""
        found = checkpoints.find(self.backend, name)
        if found is None:
            raise NotFound(f"no checkpoint {name!r} in this store")
        return found

    def reset_checkpoint(self, name: str, position: int = 0, *, stream: str | None = None) -> None:
        """Set the checkpoint of a subscription to *position*, back or forth; durable on return.

        Raises `BadArgument` past the last position (I8), or for a projection's: `Projected.rebuild` does that.
        """
        checkpoints.reset(self.backend, name, position, stream, self.log.clock())

    def drop_checkpoint(self, name: str) -> bool:
        """Forget how far a subscription or projection has come; return whether there was one."""
        return self.backend.drop_checkpoint(checkpoints.check_name(name))

    def trace(self, stream: str, version: int) -> Trace:
        """Return what led to an event, back to its root, and all that it caused; see `tracing.trace`."""
        return tracing.trace(self.log, check_stream_name(stream), version)

    # -- drive -----------------------------------------------------------------------------------------

    @contextmanager
    def drive(self, stream: str, *, take_over: bool = False) -> Iterator[Grant]:
        """Hold the lease of *stream* inside the ``with``: at most one driver (I13).

        A dead driver's lease is taken over, and `Grant.previous` says whose it was; a live one raises
        `LeaseHeld`, unless *take_over* pushes it aside (it is then fenced). Released at the end, also after
        an exception; what a killed process leaves behind is taken over by the next driver.
        """
        check_stream_name(stream)
        grant = leases.acquire(self.backend, stream, clock=self.log.clock, take_over=take_over)
        try:
            yield grant
        finally:
            leases.release(self.backend, stream, grant.epoch, clock=self.log.clock)

    def lease(self, stream: str) -> Lease | None:
        """Return the lease row of *stream*, or None if it was never driven."""
        return self.backend.lease(check_stream_name(stream))

    # -- look after ------------------------------------------------------------------------------------

    def verify(
        self,
        stream: str | None = None,
        *,
        head: str | None = None,
        progress: Progress | None = None,
    ) -> Verified:
        """Recompute pages, chains, versions and positions of *stream* or the store; see `verify.verify`."""
        return verify(self.log, stream, head=head, progress=progress)

    def check_readable(self, stream: str, *, upto: int | None = None) -> int:
        """Raise unless every event of *stream* up to *upto* is as it was written and can be decoded."""
        return check_readable(self.log, stream, upto=upto)

    @property
    def format(self) -> int:
        """The format version that the store is stamped with: the least that a release must know to read it."""
        return keys.decode_stamp(self.backend.meta(keys.FORMAT_KEY)[keys.FORMAT_KEY]).format

    def origin(self) -> Origin | None:
        """Return what a migrated store knows of its source; None for any other. Raises `Corruption`."""
        return read_origin(self.backend)

    def usage(self) -> dict[str, Any]:
        """Return counts and sizes in bytes, by table."""
        return {
            "streams": self.backend.count()[0],
            "durability": self.backend.durability.value,
            **self.backend.usage(),
        }

    def close(self) -> None:
        """Make everything durable and let go of the store. Closing twice is fine.

        Appends that coroutines still wait for are refused with `StoreClosed`: await them first.
        """
        self._sealer.close()
        self.backend.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
