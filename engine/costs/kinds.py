"""What each kind of event costs: decoding it, and its handler. One by one, on stretches of the stream."""

from __future__ import annotations

import gc
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

from tailfold.engine.costs.figures import KindCost
from tailfold.engine.costs.sampling import EVENTS_MOST, pages, places, state_at
from tailfold.engine.events import Several
from tailfold.engine.fold import Fold
from tailfold.engine.rawrecords import stored_tag, tag_bytes
from tailfold.engine.store import Store

KEPT_OF_A_KIND = 5000
"""Records of each kind that are decoded by themselves…"""
KEPT_BYTES = 32 << 20
"""…as long as they fit into this."""
DECODED_LEAST = 2000
"""Few records are decoded again and again, up to about this many decodes."""
TIMED_LEAST = 5000
"""A short stream is folded again and again, until about this many events were timed."""

Count = Callable[[int], None]


class Counted(NamedTuple):
    """How often each stored ``kind@version`` occurs, and its record bytes."""

    events: Counter[str]
    bytes: Counter[str]


def tag_text(data: bytes) -> str:
    """Return the stored tag of a record, quickly where that can be; raise ValueError."""
    return tag_bytes(data).decode() or stored_tag(data)


def count_kinds(store: Store, stream: str, count: Count) -> Counted:
    """Count the events of the whole stream without decoding them."""
    events: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for page in pages(store, stream, 0, store.head(stream).version):
        for data in page.data:
            tag = tag_text(data)
            events[tag] += 1
            sizes[tag] += len(data)
        count(len(page.data))
    return Counted(events, sizes)


def kind_costs(
    store: Store, stream: str, fold: Fold[Any], counted: Counted, clock_ns: float, count: Count
) -> list[KindCost]:
    """Return the cost of each kind, those that cost most in all first."""
    head = store.head(stream).version
    kept: dict[str, list[bytes]] = {tag: [] for tag in counted.events}
    kept_bytes: Counter[str] = Counter()
    spent_ns: dict[str, list[int]] = {tag: [] for tag in counted.events}
    timed: Counter[str] = Counter()
    rounds = max(1, min(100, TIMED_LEAST // head)) if head <= EVENTS_MOST else 1
    with collector_off():
        for number in range(rounds + (rounds > 1)):
            if number == 1 and rounds > 1:  # the first round of a short stream only warms up
                timed.clear()
                for one in spent_ns.values():
                    one.clear()
            for after, upto in places(head):
                state = state_at(store, stream, fold, after)
                for page in pages(store, stream, after, upto):
                    tags = [tag_text(data) for data in page.data]
                    if number == 0:
                        for tag, data in zip(tags, page.data, strict=True):
                            if len(kept[tag]) < KEPT_OF_A_KIND and kept_bytes[tag] < KEPT_BYTES:
                                kept[tag].append(data)
                                kept_bytes[tag] += len(data)
                    records = store.log.codec.decode_page(stream, page.after, page.data)
                    timed.update(tags)
                    state = _handle(fold, state, records, tags, spent_ns)
                    if number == 0:
                        count(len(page.data))
        contexts = store.log.codec.lifting.chain.contexts
        decode = {} if contexts else {tag: _decode_us(store, stream, data) for tag, data in kept.items() if data}
    found = []
    weight: dict[str, float] = {}
    for tag, events in counted.events.items():
        handler_us = _usual_us(spent_ns[tag], clock_ns)
        one_us = (decode.get(tag) or 0.0) + (handler_us or 0.0)
        weight[tag] = one_us * events
        found.append((tag, events, handler_us))
    in_all = sum(weight.values())
    found.sort(key=lambda one: (-weight[one[0]], one[0]))
    return [
        KindCost(
            tag,
            events,
            counted.bytes[tag],
            timed[tag],
            decode.get(tag),
            handler_us,
            weight[tag] / in_all if in_all else None,
        )
        for tag, events, handler_us in found
    ]


def _usual_us(spent_ns: list[int], clock_ns: float) -> float | None:
    """Return the mean without the slowest hundredth, in which another process had the processor; None if empty.

    What a handler does rarely and slowly is left out with it: the walk through the whole stream has that.
    """
    if not spent_ns:
        return None
    kept = sorted(spent_ns)[: len(spent_ns) - -(-len(spent_ns) // 100) if len(spent_ns) > 1 else 1]
    return max(0.0, sum(kept) / len(kept) - clock_ns) / 1000


def _handle(
    fold: Fold[Any], state: Any, records: list[Any], tags: list[str], spent_ns: dict[str, list[int]]
) -> Any:
    """Fold *records* as `Fold.fold_records` does, with a look at the clock around each handler."""
    handlers = fold.handlers
    look = perf_counter_ns
    for record, tag in zip(records, tags, strict=True):
        payload = record.payload
        for event in payload.events if payload.__class__ is Several else (payload,):
            handler = handlers.get(event.__class__)
            if handler is None:
                continue
            begun = look()
            result = handler(state, event)
            spent_ns[tag].append(look() - begun)
            if result is not None:
                state = result
    return state


def _decode_us(store: Store, stream: str, data: list[bytes]) -> float:
    """Return the time of decoding one record among others of its kind, steps included: the median of rounds."""
    decode_page = store.log.codec.decode_page
    decode_page(stream, 0, data[:1])  # makes what decoding the kind needs
    rounds = max(3, min(200, DECODED_LEAST // len(data)))
    found = []
    for _ in range(rounds):
        begun = perf_counter()
        decode_page(stream, 0, data)
        found.append(perf_counter() - begun)
    return statistics.median(found) / len(data) * 1e6


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector out of figures of single calls: it would hit one of them at random."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
