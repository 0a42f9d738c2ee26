"""What old schema versions cost: pages decoded with their steps, against the same events stored as current."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tailfold.engine.costs.figures import Upcasting, Walk
from tailfold.engine.costs.kinds import Counted, collector_off, tag_text
from tailfold.engine.costs.sampling import pages, places
from tailfold.engine.events import Opaque, split_tag
from tailfold.engine.fold import Fold
from tailfold.engine.log import RECORDS_PER_PAGE
from tailfold.engine.rawrecords import as_record
from tailfold.engine.records import Codec
from tailfold.engine.store import Store

ROUNDS = 5
NONE = Upcasting(0, 0, 0, None, None, None, None)


def upcasting(store: Store, stream: str, fold: Fold[Any], counted: Counted, walk: Walk) -> Upcasting:
    """Return what the steps cost in *stream*. Without old events no step runs, and nothing is measured."""
    codec = store.log.codec
    chain = codec.lifting.chain
    old = {tag: events for tag, events in counted.events.items() if chain.lifts(*split_tag(tag))}
    if not old:
        return NONE
    steps = max(len(list(chain.steps_from(*split_tag(tag)))) for tag in old)
    described: dict[str, list[list[dict[str, Any]]]] = {}
    for tag, fields in store.kinds():
        described.setdefault(tag, []).append(fields)
    plain = Codec(store.backend.blob, lambda tag: described.get(tag, []))
    plain.register([*codec.known_events, *fold.events])
    plain.newer = codec.newer
    rounds = 1 if chain.contexts else ROUNDS  # contexts go through the stream once, in order
    with_steps_s = rest_s = current_s = 0.0
    timed = 0
    with collector_off():
        for after, upto in places(store.head(stream).version):
            for page in pages(store, stream, after, upto):
                tags = [tag_text(data) for data in page.data]
                number = sum(tag in old for tag in tags)
                if not number:
                    continue
                seconds, records = _median_s(lambda p=page: codec.decode_page(stream, *p), rounds)  # type: ignore[misc]
                current = [
                    one
                    for record, tag in zip(records, tags, strict=True)
                    if tag in old
                    for one in _as_current(codec, plain, record)
                ]
                rest = [data for data, tag in zip(page.data, tags, strict=True) if tag not in old]
                with_steps_s += seconds
                rest_s += _decode_s(plain, stream, rest)
                current_s += _decode_s(plain, stream, current)
                timed += number
    if not timed:
        return Upcasting(sum(old.values()), steps, 0, None, None, None, None)
    # The pages that were timed hold their share of old events; the whole stream has its own.
    saved_us = max(0.0, with_steps_s - rest_s - current_s) / timed * 1e6
    saved_s = saved_us * sum(old.values()) / 1e6
    return Upcasting(
        old_events=sum(old.values()),
        steps=steps,
        timed=timed,
        lifted_us=(with_steps_s - rest_s) / timed * 1e6,
        current_us=current_s / timed * 1e6,
        share_of_decode=min(1.0, saved_s / walk.decode_s) if walk.decode_s else None,
        share_of_walk=min(1.0, saved_s / walk.total_s) if walk.total_s else None,
    )


def _as_current(codec: Codec, plain: Codec, record: Any) -> list[bytes]:
    """Return the record bytes that a migration would write, one for each event."""
    return [
        as_record(event.opaque_kind, event.opaque_version, event.payload)
        if isinstance(event, Opaque)
        else plain.encode(event, record.time_ns, record.causation, record.correlation).data
        for event in codec.events(record)
    ]


def _decode_s(codec: Codec, stream: str, data: list[bytes]) -> float:
    seconds = 0.0
    for first in range(0, len(data), RECORDS_PER_PAGE):
        page = data[first : first + RECORDS_PER_PAGE]
        seconds += _median_s(lambda page=page: codec.decode_page(stream, 0, page), ROUNDS)[0]  # type: ignore[misc]
    return seconds


def _median_s(work: Callable[[], list[Any]], rounds: int) -> tuple[float, list[Any]]:
    found = []
    records: list[Any] = []
    for _ in range(rounds):
        begun = perf_counter()
        records = work()
        found.append(perf_counter() - begun)
    return statistics.median(found), records
