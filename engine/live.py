"""The live handle: whoever drives a stream keeps its state folded, event by event, and never reloads."""

from __future__ import annotations

from typing import Generic, TypeVar

from tailfold.engine.backend.port import Appended
from tailfold.engine.errors import Conflict, EngineError
from tailfold.engine.events import Event
from tailfold.engine.fold import Fold
from tailfold.engine.gathering import Due, Gathering
from tailfold.engine.loading import Folding, catch_up, fold_on, load
from tailfold.engine.log import Log, Written, event_id
from tailfold.engine.snapshotting import Snapshots

S = TypeVar("S")


class Live(Generic[S]):
    """A stream held open by a writer: `state` is always the fold of versions 1..`version`.

    Appends expect the handle's own version, so two handles cannot interleave. What is folded is the event
    as it will be read back, so the live state equals the state that a later load gives. When the policy says
    that a snapshot is due, it goes with the next append, in its transaction. After a `Conflict` the handle
    still stands at its old version: `refresh` folds what others appended.
    """

    state: S
    version: int

    def __init__(
        self, log: Log, snapshots: Snapshots, stream: str, fold: Fold[S], *, epoch: int | None = None
    ) -> None:
        """Load the stream; with *epoch*, append only as long as that lease is current."""
        self._log = log
        self._snapshots = snapshots
        self._fold = fold
        self._epoch = epoch
        self._spoilt = False
        self._gathering = Gathering()
        self._hash: bytes | None = None
        self._event_id: str | None = None
        self.stream = stream
        self._take(load(log, snapshots, stream, fold))

    @property
    def event_id(self) -> str | None:
        """The id of the last event, to name as the cause of the next; None at version 0.

        In a fork that has no event of its own yet, it is an event of an ancestor.
        """
        if self._event_id is None and self.version:
            for row in self._log.backend.rows(self.stream, after=self.version - 1, upto=self.version, limit=1):
                self._event_id = event_id(row.origin, row.version)
        return self._event_id

    def append(
        self,
        *events: Event,
        key: str | None = None,
        causation: str | None = None,
        correlation: str | None = None,
    ) -> Appended:
        """Append *events* as one unit and fold them; durable on return. Raises as `Store.append` does.

        `FoldFailed` means that they are durable, and a handler failed on them: do not append them again; mend the
        handler, and `refresh`.
        """
        due = self._due()
        written = self._log.append(
            self.stream,
            events,
            self.version,
            key,
            causation,
            correlation,
            self._epoch,
            due.write if due else None,
        )
        return self._folded(written, due)

    async def append_async(
        self,
        *events: Event,
        key: str | None = None,
        causation: str | None = None,
        correlation: str | None = None,
    ) -> Appended:
        """Like `append`, for a coroutine; appends of many coroutines share commits.

        One at a time for a handle: it expects its own version. After a cancelled wait the events may be durable and
        not folded: `refresh` tells.
        """
        due = self._due()
        prepared = self._log.prepare(
            self.stream,
            events,
            self.version,
            key,
            causation,
            correlation,
            self._epoch,
            due.write if due else None,
        )
        return self._folded(self._log.written(prepared, await self._log.append_soon(prepared)), due)

    def refresh(self) -> int:
        """Fold what others appended since; return the number of events. Reloads if a fold had failed."""
        before = self.version
        head = self._log.backend.head(self.stream)
        upto = head.version if head else 0
        if self._spoilt:
            self._take(load(self._log, self._snapshots, self.stream, self._fold))
            self._spoilt = False
        elif upto > before:
            self._spoilt = True  # until the fold is through: it changes the state in place
            folding = Folding(self.state, before, self._gathering)
            self._take(catch_up(self._log, self._snapshots, self.stream, self._fold, folding, upto))
            self._spoilt = False
        return self.version - before

    def snapshot(self) -> bool:
        """Write a snapshot of the state as it is now, whatever the policy says; return whether it was written.

        Worth it when nobody will append for a while, as at the end of a run. Durable on return.
        """
        self._check_sound()
        due = self._encoded() if self.version else None
        return due is not None and self._snapshots.put(self.stream, self._fold, due, self._gathering)

    def _take(self, folding: Folding[S]) -> None:
        self.state, self.version, self._gathering = folding
        self._hash = self._event_id = None

    def _due(self) -> Due | None:
        """Return the snapshot that goes with the next append, if one is due: of the state as it is now."""
        self._check_sound()
        if not self.version or not self._snapshots.due(self._gathering.progress()):
            return None
        return self._encoded()

    def _check_sound(self) -> None:
        if self._spoilt:
            raise EngineError(f"the state of {self.stream!r} is spoilt by a fold that failed: refresh the handle")

    def _encoded(self) -> Due | None:
        if self._hash is None:
            rows = self._log.backend.rows(self.stream, after=self.version - 1, upto=self.version, limit=1)
            self._hash = rows[0].hash if rows else b""
        due = self._snapshots.encode(
            self.stream, self._fold, self.state, self.version, self._hash, self._gathering.marks
        )
        self._gathering.begin_anew(due)
        return due

    def _folded(self, written: Written, due: Due | None) -> Appended:
        appended = written.appended
        if due is not None:
            self._snapshots.settle(self.stream, self._fold, due, appended.snapshot, self._gathering)
        if appended.repeated:
            # The first attempt was durable. Its events are folded already, or stand in the log unseen.
            if appended.last > self.version:
                self.refresh()
            return appended
        if appended.first != self.version + 1:
            raise Conflict(
                f"stream {self.stream!r}: two appends of one handle overlapped; await each before the next"
            )
        self._spoilt = True
        self.state = fold_on(
            self._snapshots,
            self._fold,
            self.state,
            written.records,
            self.stream,
            self.version,
            self._gathering,
        )
        self._gathering.event_bytes += written.bytes
        self.version, self._hash = appended.last, appended.hash
        self._event_id = event_id(self.stream, self.version)
        self._spoilt = False
        return appended
