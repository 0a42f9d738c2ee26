"""The live handle: whoever drives a stream keeps its state folded, event by event, and never reloads."""

from __future__ import annotations

from typing import Generic, TypeVar

from tailfold.engine.backend.port import Appended
from tailfold.engine.errors import Conflict, EngineError
from tailfold.engine.events import Event
from tailfold.engine.fold import Fold
from tailfold.engine.loading import catch_up, load
from tailfold.engine.log import Log, Written, event_id

S = TypeVar("S")


class Live(Generic[S]):
    """A stream held open by a writer: `state` is always the fold of versions 1..`version`.

    Appends expect the handle's own version, so two handles cannot interleave. What is folded is the event
    as it will be read back, so the live state equals the state that a later load gives. After a `Conflict`
    the handle still stands at its old version: `refresh` folds what others appended.
    """

    def __init__(self, log: Log, stream: str, fold: Fold[S], *, epoch: int | None = None) -> None:
        """Load the stream; with *epoch*, append only as long as that lease is current."""
        self._log = log
        self._fold = fold
        self._epoch = epoch
        self._spoilt = False
        self.stream = stream
        self.state, self.version = load(log, stream, fold)

    @property
    def event_id(self) -> str | None:
        """The id of the last event, to name as the cause of the next; None at version 0."""
        return event_id(self.stream, self.version) if self.version else None

    def append(
        self,
        *events: Event,
        key: str | None = None,
        causation: str | None = None,
        correlation: str | None = None,
    ) -> Appended:
        """Append *events* as one unit and fold them; durable on return. Raises as `Store.append` does."""
        self._check_sound()
        return self._folded(
            self._log.append(self.stream, events, self.version, key, causation, correlation, self._epoch)
        )

    async def append_async(
        self,
        *events: Event,
        key: str | None = None,
        causation: str | None = None,
        correlation: str | None = None,
    ) -> Appended:
        """Like `append`, for a coroutine; appends of many coroutines share commits."""
        self._check_sound()
        return self._folded(
            await self._log.append_async(
                self.stream, events, self.version, key, causation, correlation, self._epoch
            )
        )

    def refresh(self) -> int:
        """Fold what others appended since; return the number of events. Reloads if a fold had failed."""
        before = self.version
        head = self._log.backend.head(self.stream)
        upto = head.version if head else 0
        if self._spoilt:
            self.state, self.version = load(self._log, self.stream, self._fold)
            self._spoilt = False
        elif upto > before:
            self._spoilt = True  # until the fold is through: it changes the state in place
            self.state = catch_up(self._log, self.stream, self._fold, self.state, before, upto)
            self.version = upto
            self._spoilt = False
        return self.version - before

    def _check_sound(self) -> None:
        if self._spoilt:
            raise EngineError(
                f"the state of {self.stream!r} is spoilt by a fold that failed: refresh the handle"
            )

    def _folded(self, written: Written) -> Appended:
        appended = written.appended
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
        self.state = self._fold.fold_records(self.state, written.records, self.stream, self.version)
        self.version = appended.last
        self._spoilt = False
        return appended
