"""Subscriptions: what is there, then what comes, of one stream or the whole store, to threads and coroutines.

Nothing is open in the store between two events: rows are fetched page by page, so a slow reader blocks no writer
and pins no page.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Self

from tailfold.engine import checkpoints
from tailfold.engine.backend.port import Row
from tailfold.engine.errors import BadArgument, RecordDamaged, StoreClosed, StreamDeleted
from tailfold.engine.log import ROWS_PER_PAGE, Log, Recorded
from tailfold.engine.names import check_stream_name
from tailfold.engine.waking import Bell

SAVE_AFTER_S = 0.25
"""A named subscription saves at the latest when this has passed since its last save and it asks or waits…"""
SAVE_AFTER_EVENTS = 1000
"""…or when so many events were handled since."""


class Subscription:
    """Events in order, gapless: first those that are there, then each as it comes. See `Store.subscribe`.

    An iterator and an async iterator, over the same place: use it as one of the two, in one task at a time.
    **Asking for the next event says that the last one is handled.** With a name, what is handled is saved now and
    then (every 0.25 s or 1,000 events, and before waiting longer than that), and on `close`. Whoever subscribes
    under that name later goes on there. A process that is killed gets again what it had handled since the last
    save, and what it had in hand: **every event at least once**, so handle an event twice as once (its
    `Recorded.event_id` tells). After a ``break`` the event in hand counts as not handled; `ack` says otherwise.
    """

    position: int
    """The last position (of one stream: the last version) that was handled."""

    def __init__(self, log: Log, *, stream: str | None, after: int | None, name: str | None, follow: bool) -> None:
        """Start past the checkpoint of *name*, else past *after*, else at the beginning."""
        self._log = log
        self._stream = check_stream_name(stream) if stream is not None else None
        self._name = name
        self._follow = follow
        last = self._last()
        saved = checkpoints.of_subscription(log.backend, name, stream) if name is not None else None
        self.position = saved if saved is not None else after or 0
        if not 0 <= self.position <= last:
            what = "version" if stream is not None else "position"
            whose = f"checkpoint {name!r} stands at" if saved is not None else "after is"
            raise BadArgument(f"{whose} {self.position}, the last {what} is {last}: no event can follow that")
        self._upto = None if follow else last
        self._fetched = self.position
        self._rows: deque[Row] = deque()
        self._parts: deque[Recorded] = deque()
        self._part_place = 0
        self._in_hand: int | None = None
        """The place that counts as handled when the next event is asked for."""
        self._saved = self.position
        self._handled_since = 0
        self._saved_at = 0.0
        self._closed = False
        self._bell = Bell()
        self._unwatch: weakref.finalize[[], Subscription] | None = None

    # -- iterate ---------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Recorded:
        found = self.poll(None)
        if found is None:
            raise StopIteration
        return found

    def poll(self, timeout_s: float | None = 0.0) -> Recorded | None:
        """Return the next event, waiting up to *timeout_s* (None: for ever); None if none came, or at the end."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self.ack()
        while True:
            if self._save_is_due():  # before the next is taken: should this raise, nothing is lost
                self.save()
            self._bell.clear()
            found = self._take()
            pause_s = self._pause(until)
            if found is not None or pause_s == 0.0:
                return found
            self._watch()
            self._bell.wait(pause_s)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Recorded:
        found = await self.poll_async(None)
        if found is None:
            raise StopAsyncIteration
        return found

    async def poll_async(self, timeout_s: float | None = 0.0) -> Recorded | None:
        """Like `poll`, for a coroutine; the loop goes on while it waits, and while a checkpoint is written."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self.ack()
        while True:
            if self._save_is_due():
                await asyncio.to_thread(self.save)
            self._bell.clear()
            found = self._take()
            pause_s = self._pause(until)
            if found is not None or pause_s == 0.0:
                return found
            self._watch()
            await self._bell.wait_async(pause_s)

    def _pause(self, until: float | None) -> float | None:
        """Return how long to wait for a ring: 0 not at all, None for ever."""
        if self._closed or not self._follow:
            return 0.0
        left = None if until is None else max(0.0, until - time.monotonic())
        if self._name is None or self.position == self._saved:
            return left
        due = max(0.001, self._saved_at + SAVE_AFTER_S - time.monotonic())
        return due if left is None else min(due, left)

    def _watch(self) -> None:
        # The first time the bell is hung after the look: ring it, so that the next look comes at once.
        if self._unwatch is None:
            self._unwatch = self._bell.hang(self._log.backend, self)
            self._bell.ring()

    # -- take ------------------------------------------------------------------------------------------

    def _take(self) -> Recorded | None:
        """Return the next event that is there, or None."""
        while not self._closed:
            if self._parts:
                part = self._parts.popleft()
                # One stored event may give several: it is handled when the last of them is.
                self._in_hand = None if self._parts else self._part_place
                return part
            if not self._rows and not self._fetch():
                return None
            row = self._rows[0]
            self._parts.extend(self._log.recorded(row))
            self._rows.popleft()  # only now: what cannot be decoded is met again
            self._part_place = row.position if self._stream is None else row.version
            if not self._parts:
                self._handled(self._part_place)
        return None

    def _fetch(self) -> bool:
        """Fetch the next page of rows; False if there are none."""
        left = ROWS_PER_PAGE if self._upto is None else min(ROWS_PER_PAGE, self._upto - self._fetched)
        if left <= 0:
            return False
        if self._stream is None:
            page = store_page(self._log, after=self._fetched, limit=left)
        else:
            upto = min(self._last(), self._fetched + left)
            page = list(self._log.rows(self._stream, after=self._fetched, upto=upto))
        if self._upto is not None and self._stream is None:
            page = [row for row in page if row.position <= self._upto]
        self._rows.extend(page)
        if page:
            self._fetched = page[-1].position if self._stream is None else page[-1].version
        return bool(page)

    def _last(self) -> int:
        if self._stream is None:
            return self._log.backend.count()[1]
        head = self._log.backend.head(self._stream)
        return head.version if head is not None else 0

    # -- how far ---------------------------------------------------------------------------------------

    def ack(self) -> None:
        """Say that the event in hand is handled, without asking for another."""
        if self._in_hand is not None:
            self._handled(self._in_hand)
            self._in_hand = None

    def _handled(self, place: int) -> None:
        self.position = place
        self._handled_since += 1

    def _save_is_due(self) -> bool:
        if self._name is None or self.position == self._saved:
            return False
        late = time.monotonic() >= self._saved_at + SAVE_AFTER_S
        at_end = self._upto is not None and self.position >= self._upto
        return late or at_end or self._handled_since >= SAVE_AFTER_EVENTS

    def save(self) -> None:
        """Save what is handled, durable on return; nothing without a name. Never goes backwards (I8).

        Raises `StoreReadOnly` or `StoreFull`; then the old checkpoint stands.
        """
        if self._name is None or self.position == self._saved:
            return
        position = self.position
        checkpoints.save(self._log.backend, self._name, position, self._stream, self._log.clock())
        self._saved, self._handled_since, self._saved_at = position, 0, time.monotonic()

    def close(self) -> None:
        """Save what is handled, and end: whoever waits for the next event gets the end. Twice is fine."""
        if not self._closed:
            self._closed = True
            if self._unwatch is not None:
                self._unwatch()
            self._bell.ring()
            with suppress(StoreClosed, StreamDeleted):  # what was handled since the last save comes again
                self.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)


def store_page(log: Log, *, after: int, limit: int) -> list[Row]:
    """Return the next rows of the whole store past position *after*; raise `RecordDamaged` at a gap (I2).

    What a sweep gave back of deleted streams is no gap; so a page may end further on than *limit* positions.
    """
    page = log.backend.rows_by_position(after=after, limit=limit)
    if page and page[-1].position != after + len(page) and not _given_back(log):
        for due, row in enumerate(page, after + 1):
            if row.position != due:
                raise RecordDamaged(row.stream, row.version, f"position {due} of the store is missing before it")
    return page


def _given_back(log: Log) -> bool:
    if not log.given_back:  # looked for once: that costs a look at every stream
        log.given_back = any(one.kept < one.version for one in log.backend.tombstones())
    return log.given_back
