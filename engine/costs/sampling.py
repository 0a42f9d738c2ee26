"""Stretches of a stream to look at closely: all of a short one, evenly spread ones of a long one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tailfold.engine.fold import Fold
from tailfold.engine.loading import begin, load
from tailfold.engine.log import RECORDS_PER_PAGE
from tailfold.engine.store import Store

PLACES = 20
PAGES_OF_A_PLACE = 4
EVENTS_MOST = PLACES * PAGES_OF_A_PLACE * RECORDS_PER_PAGE
"""Streams up to this length are looked at whole."""


class Page(NamedTuple):
    """Some consecutive stored events."""

    after: int
    data: list[bytes]


def places(head: int) -> list[tuple[int, int]]:
    """Return (after, upto) of the stretches, in order, not touching each other."""
    if head <= EVENTS_MOST:
        return [(0, head)]
    length = PAGES_OF_A_PLACE * RECORDS_PER_PAGE
    return [
        (round((head - length) * i / (PLACES - 1)), round((head - length) * i / (PLACES - 1)) + length)
        for i in range(PLACES)
    ]


def pages(store: Store, stream: str, after: int, upto: int) -> Iterator[Page]:
    """Yield the stored events of a stretch, page by page."""
    while after < upto:
        data = store.backend.data(stream, after=after, upto=min(upto, after + RECORDS_PER_PAGE))
        yield Page(after, data)
        after += len(data)


def state_at(store: Store, stream: str, fold: Fold[Any], version: int) -> Any:
    """Return the state at *version*, from the nearest snapshot."""
    if version == 0:
        return begin(store.snapshots, fold)
    return load(store.log, store.snapshots, stream, fold, version).state
