"""What is left of deleted streams reads as it always did, whoever reads it, until it is given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tailfold.engine import Blob, MemoryBackend, Projection, Recorded, Store
from tailfold.engine.backend.port import Backend
from tailfold.engine.verify import check_rows
from tailfold.snapshots import every

from tests.shop import Filed, OldPaid, OldRated, Rated, old_shop, upcasters

STEPS = st.lists(
    st.tuples(st.sampled_from(["pay", "rate", "fork", "delete", "gc"]), st.integers(0, 9), st.integers(0, 9)),
    min_size=4,
    max_size=25,
)


@given(STEPS, st.integers(0, 12))
def test_law_events_of_deleted_streams_are_lifted_as_before(steps: list[tuple[str, int, int]], after: int) -> None:
    backend = MemoryBackend()
    old = old_shop(backend)
    names = ["s"]
    old.append("s", [OldPaid(1), OldRated(5)], expected=0)
    truth: dict[str, object] = {}

    def note() -> None:
        for name in names:
            new = Store.open(backend=backend, upcasters=upcasters, snapshots=every(1))
            truth.update({one.event_id: one.event for one in new.read(name)})

    for what, number, more in steps:
        name = names[number % len(names)] if names else ""
        if what == "gc":
            old.gc()
        elif not names:
            break
        elif what == "pay":
            old.append(name, OldPaid(more), expected=old.head(name).version)
        elif what == "rate":
            old.append(name, OldRated(more), expected=old.head(name).version)
        elif what == "fork":
            names.append(old.fork(name, at=1 + more % old.head(name).version).stream)
        else:
            note()
            old.delete(name, reroot=True)
            names.remove(name)
    note()
    reading = Store.open(backend=backend, upcasters=upcasters)
    seen = list(reading.read_all(after=after))
    following = Store.open(backend=backend, upcasters=upcasters)
    assert seen == [one for one in following.subscribe(follow=False) if one.position > after]
    assert [one.event for one in seen] == [truth[one.event_id] for one in seen]
    ratings: Projection[list[int]] = Projection("ratings", list, state_type=list[int])

    @ratings.on(Rated)
    def _(state: list[int], recorded: Recorded) -> None:
        assert isinstance(recorded.event, Rated)
        state.append(recorded.event.balance)

    everything = [one.event for one in reading.read_all()]
    assert reading.project(ratings).state == [e.balance for e in everything if isinstance(e, Rated)]


def test_a_step_with_context_of_a_deleted_fork_of_a_deleted_stream(backend: Backend) -> None:
    old = old_shop(backend)
    old.append("a", [OldPaid(1), OldRated(5), OldPaid(2)], expected=0)
    old.fork("a", at=3, name="b")
    old.append("b", [OldRated(4), OldPaid(3)], expected=3)
    old.fork("b", at=4, name="c")
    old.append("c", OldRated(3), expected=4)
    old.delete("a", reroot=True)
    old.delete("b", reroot=True)
    for _ in range(2):
        reading = Store.open(backend=backend, upcasters=upcasters)
        for after, balances in ((0, [100, 300, 300]), (2, [300, 300]), (3, [300, 300]), (4, [300])):
            found = [one.event for one in reading.read_all(after=after)]
            assert [event.balance for event in found if isinstance(event, Rated)] == balances
        old.gc()


@given(st.data())
@settings(deadline=None)
def test_law_a_sound_store_is_found_sound_while_streams_are_deleted_and_given_back(data: st.DataObject) -> None:
    store = Store.open(backend=MemoryBackend())
    names = ["a", "b", "c", "d"]
    for name in names:
        for number in range(3):
            store.append(name, [Filed(name, Blob(f"{name}{i}".encode())) for i in range(4)], expected=4 * number)
    store.fork("a", at=7, name="f")
    store.append("f", OldPaid(1), expected=7)
    store.delete("d")
    plan = data.draw(st.lists(st.sampled_from([*names[:3], "f", "gc", "-"]), max_size=40))

    busy = False

    def meanwhile() -> None:
        nonlocal busy
        if busy:  # what is done meanwhile asks the backend, too
            return
        busy = True
        what = plan.pop() if plan else "-"
        if what == "gc":
            store.gc()
        elif what != "-" and what not in {one.stream for one in store.backend.tombstones()}:
            store.delete(what, reroot=True)
        busy = False

    def interrupted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            meanwhile()
            return real(*args, **more)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for method in ("where", "own_rows", "rows", "head", "blob"):
            patched.setattr(store.backend, method, interrupted(getattr(store.backend, method)))
        assert store.verify().findings == []
    assert store.verify().findings == []


def test_where_events_were_given_back_is_looked_for_once() -> None:
    store = Store.open(backend=MemoryBackend())
    for number in range(1000):
        store.append(f"s{number}", OldPaid(number), expected=0)
    for number in range(0, 1000, 10):
        store.delete(f"s{number}")
    store.gc()
    with pytest.MonkeyPatch.context() as patched:
        asked = Mock(wraps=store.backend.tombstones)
        patched.setattr(store.backend, "tombstones", asked)
        assert len(list(store.subscribe(follow=False))) == 900
        assert asked.call_count == 1


def test_the_hash_before_the_own_events_of_a_deleted_fork_is_found(backend: Backend) -> None:
    store = Store.open(backend=backend)
    store.append("a", [OldPaid(1), OldPaid(2)], expected=0)
    store.fork("a", at=1, name="b")
    store.append("b", [OldPaid(3), OldPaid(4)], expected=1)
    store.fork("b", at=2, name="c")
    store.delete("b", reroot=True)
    for _ in range(2):
        check_rows(store.log, store.backend.rows_by_position(after=2, limit=10))
        store.gc()


def test_a_fork_without_a_name_gets_the_first_free_one_and_no_name_is_tried_twice() -> None:
    store = Store.open(backend=MemoryBackend())
    store.append("s", OldPaid(1), expected=0)
    store.fork("s", name="s.4")
    store.delete(store.fork("s").stream)
    with pytest.MonkeyPatch.context() as patched:
        asked = Mock(wraps=store.backend.head)
        patched.setattr(store.backend, "head", asked)
        made = [store.fork("s", at=1).stream for _ in range(200)]
        assert asked.call_count < 3 * len(made)
    assert made == [f"s.{number}" for number in [3, *range(5, 204)]]
    other = Store.open(backend=store.backend)
    assert (other.fork("s").stream, store.fork("s").stream) == ("s.204", "s.205")
