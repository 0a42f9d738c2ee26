"""A migration of a forest that goes on living, stopped and gone on with at any commit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tailfold.engine import Event, MemoryBackend, Store
from tailfold.engine.migration import Schema, migrate_backend
from tailfold.engine.migration.report import Report

from tests import shop
from tests.shop import new_shop, old_shop, till

SCHEMA = Schema(shop.upcasters, (till,))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "fork", "rewind", "delete", "gc", "migrate", "follow"]),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    min_size=3,
    max_size=14,
)


def events_of(number: int) -> list[Event]:
    return [shop.OldPaid(number), shop.OldRated(number), shop.OldMoved(number, "x"), shop.Pinged(number)][
        number % 3 : number % 3 + 2
    ]


def take(store: Store, what: str, number: int, more: int) -> None:
    """Do one thing to the source."""
    names = [head.stream for head in store.streams()]
    if what == "append" or not names:
        stream = f"s{number % 3}" if not names or number % 2 else names[more % len(names)]
        deleted = {one.stream for one in store.backend.tombstones()}
        if stream not in deleted:
            at = store.backend.head(stream)
            store.append(stream, events_of(more), expected=at.version if at else 0, key=f"k{store.position}")
        return
    name = names[number % len(names)]
    at_version = 1 + more % store.head(name).version
    if what == "fork":
        store.fork(name, at=at_version)
    elif what == "rewind":
        head = store.named_heads().get(name, name)
        store.rewind(name, at=1 + more % store.head(head).version)
    elif what == "delete":
        store.delete(name, reroot=True, drop_heads=True)
    elif what == "gc":
        store.gc()
    elif what == "follow":
        with store.subscribe(name=f"f{more % 2}", follow=False) as events:
            for _ in zip(range(number), events, strict=False):
                pass


def said(store: Store) -> dict[str, Any]:
    names = [head.stream for head in store.streams()]
    backend = store.backend
    return {
        "events": {name: list(store.read(name)) for name in names},
        "heads": store.named_heads(),
        "tree": sorted((b.stream, b.parent or "", b.at) for b in store.tree() if not b.deleted),
        "deleted": sorted(one.stream for one in backend.tombstones()),
        "ids": {name: backend.ids(name) for name in names},
        "position": store.position,
        "followers": [(one.name, one.position) for one in store.checkpoints()],
    }


A_DELETED_FORK_IS_NEEDED = [
    ("append", 0, 0),
    ("fork", 0, 1),
    ("append", 2, 1),
    ("fork", 1, 3),
    ("delete", 1, 0),
    ("migrate", 0, 0),
]


@example(A_DELETED_FORK_IS_NEEDED, 9)
@given(STEPS, st.integers(1, 12))
@settings(deadline=None)
def test_law_a_forest_that_lives_on_is_migrated_on(steps: list[tuple[str, int, int]], stop: int) -> None:
    source, lasting, stopped = MemoryBackend(), MemoryBackend(), MemoryBackend()
    clock = count(1)
    store = old_shop(source, clock=lambda: next(clock))

    def migrate(target: MemoryBackend, **more: Any) -> Report:
        report = migrate_backend(source, target, SCHEMA, clock=lambda: 5, **more)
        assert report.sound, report.findings
        return report

    def stopping(commits: Iterator[int]) -> Any:
        def after_commit(position: int) -> None:
            assert Store.open(backend=stopped).verify().findings == []
            if next(commits) == stop:
                raise KeyboardInterrupt

        return after_commit

    for what, number, more in [*steps, ("migrate", 0, 0)]:
        if what != "migrate":
            take(store, what, number, more)
            continue
        migrate(lasting)
        try:
            migrate(stopped, after_commit=stopping(count(1)))
        except KeyboardInterrupt:
            migrate(stopped)
    at_once = MemoryBackend()
    migrate(at_once)
    told = [said(new_shop(target)) for target in (at_once, lasting, stopped)]
    assert told[0] == told[1]
    assert told[0] == told[2]
    assert told[0]["position"] == store.position
    assert told[0]["heads"] == store.named_heads()
    assert told[0]["followers"] == [(one.name, one.position) for one in store.checkpoints()]
