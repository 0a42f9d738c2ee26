"""What is left of deleted streams reads as it always did, whoever reads it, until it is given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine import MemoryBackend, Projection, Recorded, Store
from tailfold.engine.backend.port import Backend
from tailfold.snapshots import every

from tests.shop import OldPaid, OldRated, Rated, old_shop, upcasters

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
