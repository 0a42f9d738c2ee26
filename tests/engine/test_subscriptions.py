"""Subscriptions: what is there and what comes, in order, gapless, from any place, to threads and coroutines."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tailfold.engine import ANY, LmdbBackend, MemoryBackend, Recorded, Store
from tailfold.engine.errors import BadArgument, NotFound, RecordDamaged, StoreClosed, StoreReadOnly, StreamDeleted
from tailfold.upcasters import Upcasters

from tests.domain import Deposited, Noted, Withdrawn


def places(found: Any) -> list[tuple[str, int]]:
    return [(recorded.stream, recorded.version) for recorded in found]


def later(store: Store, *streams: str, after_s: float = 0.05) -> threading.Thread:
    def work() -> None:
        for stream in streams:
            time.sleep(after_s)
            store.append(stream, Deposited(1), expected=ANY)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def take(subscription: Any, count: int, timeout_s: float = 10) -> list[Recorded]:
    found = [subscription.poll(timeout_s) for _ in range(count)]
    assert None not in found
    return found


def test_it_gives_what_is_there_and_then_what_comes(store: Store) -> None:
    store.append("a", [Deposited(1), Deposited(2)], expected=0)
    with store.subscribe() as everything, store.subscribe("b") as one:
        assert places(take(everything, 2)) == [("a", 1), ("a", 2)]
        assert one.poll() is None, "the stream need not exist yet"
        thread = later(store, "b", "a", "b")
        assert places(take(everything, 3)) == [("b", 1), ("a", 3), ("b", 2)]
        assert places(take(one, 2)) == [("b", 1), ("b", 2)]
        thread.join()
        assert everything.poll(0.01) is None


def test_it_starts_at_any_place_and_may_end_at_the_head(store: Store) -> None:
    for stream in "abab":
        store.append(stream, Deposited(1), expected=ANY)
    assert places(store.subscribe(after=1, follow=False)) == [("b", 1), ("a", 2), ("b", 2)]
    assert places(store.subscribe("a", after=1, follow=False)) == [("a", 2)]
    assert places(store.subscribe(after=store.position, follow=False)) == []
    assert places(store.subscribe("none", follow=False)) == []
    for wrong in (5, -1):
        with pytest.raises(BadArgument, match="no event can follow"):
            store.subscribe(after=wrong)


def test_coroutines_wait_without_threads_of_their_own(store: Store) -> None:
    async def main() -> None:
        subscriptions = [store.subscribe("a") for _ in range(50)]
        tasks = [asyncio.ensure_future(anext(s)) for s in subscriptions]
        before = threading.active_count()
        await asyncio.sleep(0.05)
        assert threading.active_count() <= before + 1, "one watcher for all of them"
        await store.append_async("a", Deposited(7), expected=0)
        assert places(await asyncio.wait_for(asyncio.gather(*tasks), 10)) == [("a", 1)] * 50
        assert await subscriptions[0].poll_async(0.01) is None
        async with subscriptions[0] as again:
            asyncio.get_running_loop().call_later(0.02, lambda: store.append("a", Deposited(8), expected=1))
            async for recorded in again:
                assert recorded.event == Deposited(8)
                break

    asyncio.run(main())


def test_closing_ends_who_waits(store: Store) -> None:
    subscription = store.subscribe()
    threading.Timer(0.05, subscription.close).start()
    assert list(subscription) == []
    waiting = store.subscribe()
    threading.Timer(0.05, store.close).start()
    if isinstance(store.backend, LmdbBackend):  # a memory backend that is closed may be opened again
        with pytest.raises(StoreClosed):
            next(waiting)


def test_no_thread_is_left_when_nobody_waits(tmp_path: Any) -> None:
    def watchers() -> int:
        return sum(thread.name == "tailfold-watcher" for thread in threading.enumerate())

    with Store.open(tmp_path / "s") as store:
        kept = store.subscribe()
        assert kept.poll() is None
        assert watchers() == 0, "nobody has waited yet"
        assert kept.poll(0.001) is None
        assert watchers() == 1
        store.subscribe().poll(0.001)
        del kept
        gc.collect()
        deadline = time.monotonic() + 10
        while watchers() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert watchers() == 0
        assert store.subscribe().poll(0.001) is None, "and it starts again"
    assert watchers() == 0, "closing ends it"


def test_without_inotify_it_is_woken_all_the_same(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailfold.engine.backend.lmdb import watching

    monkeypatch.setattr(watching, "_inotify", lambda file: None)
    with Store.open(tmp_path / "s") as store:
        subscription = store.subscribe()
        thread = later(store, "a", "a")
        assert places(take(subscription, 2)) == [("a", 1), ("a", 2)]
        thread.join()


def test_waiting_costs_no_processor_time(store: Store) -> None:
    subscription = store.subscribe()
    subscription.poll(0.001)
    begun = time.process_time()
    subscription.poll(1.0)
    assert time.process_time() - begun < 0.2


# -- checkpoints -----------------------------------------------------------------------------------------


def test_asking_for_the_next_event_is_what_handles_the_last(store: Store) -> None:
    store.append("a", [Deposited(i) for i in range(5)], expected=0)
    with store.subscribe(name="n") as first:
        take(first, 3)
    assert store.checkpoint("n").position == 2, "the third was in hand, and nobody came back for the next"
    with store.subscribe(name="n") as second:
        assert second.position == 2
        assert second.poll() == store.subscribe(after=2, follow=False).poll()
        second.ack()
    assert store.checkpoint("n").position == 3


def test_an_exception_in_the_handler_leaves_the_event_unhandled(store: Store) -> None:
    store.append("a", [Deposited(i) for i in range(5)], expected=0)
    with pytest.raises(ZeroDivisionError), store.subscribe("a", name="n") as subscription:
        for recorded in subscription:
            assert recorded.version / (4 - recorded.version)
    assert store.checkpoint("n").position == 3
    assert store.checkpoint("n").stream == "a"
    assert places(store.subscribe("a", name="n", follow=False)) == [("a", 4), ("a", 5)]
    assert store.checkpoint("n").position == 5


def test_it_is_saved_before_a_long_wait(store: Store) -> None:
    store.append("a", [Deposited(i) for i in range(5)], expected=0)
    subscription = store.subscribe(name="n")
    take(subscription, 5)
    assert subscription.poll(0.5) is None
    assert store.checkpoint("n").position == 5, "nothing was closed or asked for"


def test_names_have_their_own_pace_and_belong_to_one_thing(store: Store) -> None:
    store.append("a", [Deposited(1), Deposited(2)], expected=0)
    assert len(list(store.subscribe(name="x", follow=False))) == 2
    assert len(list(store.subscribe(name="y", follow=False))) == 2
    assert [c.name for c in store.checkpoints()] == ["x", "y"]
    with pytest.raises(BadArgument, match="the whole store"):
        store.subscribe("a", name="x")
    store.reset_checkpoint("x", 1)
    assert len(list(store.subscribe(name="x", follow=False))) == 1
    assert store.drop_checkpoint("x")
    assert not store.drop_checkpoint("x")
    with pytest.raises(NotFound):
        store.checkpoint("x")


def test_a_stored_place_goes_before_after(store: Store) -> None:
    store.append("a", [Deposited(i) for i in range(5)], expected=0)
    with store.subscribe(name="n", after=3) as subscription:
        assert places(take(subscription, 1)) == [("a", 4)]
        subscription.ack()
    assert store.subscribe(name="n", after=0).position == 4


def test_a_save_that_is_refused_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append("a", [Deposited(i) for i in range(3)], expected=0)
    subscription = store.subscribe(name="n")
    take(subscription, 1)

    def refuse(*_: object) -> bool:
        raise StoreReadOnly("no")

    with monkeypatch.context() as patched:
        patched.setattr(store.backend, "put_checkpoint", refuse)
        with pytest.raises(StoreReadOnly):
            subscription.poll()
    assert places(take(subscription, 2)) == [("a", 2), ("a", 3)]


# -- what is stored in another way --------------------------------------------------------------------------


def test_one_stored_event_that_gives_several_or_none_moves_on(backend: Any) -> None:
    store = Store.open(backend=backend)
    for event in (Deposited(5), Withdrawn(1), Noted("x")):
        store.append("a", event, expected=ANY)
    store.close()

    class Paid(Deposited, frozen=True):
        kind = "paid"

    steps = Upcasters(events=[Paid, Noted])

    @steps.split_by("deposited", 1, into=[("paid", 1), ("noted", 1)])
    def _(payload: Any) -> Any:
        return [("paid", payload), ("noted", {"text": "split", "extra": {}})]

    steps.drop("withdrawn", 1)
    if isinstance(backend, LmdbBackend):
        backend = LmdbBackend(backend.path, durability=backend.durability)
    with Store.open(backend=backend, upcasters=steps) as opened, opened.subscribe(name="n") as subscription:
        found = take(subscription, 3)
        assert [(r.kind, r.version, r.sub) for r in found] == [("paid", 1, 0), ("noted", 1, 1), ("noted", 3, 0)]
        assert subscription.position == 2


def test_what_cannot_be_read_is_named_and_met_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append("a", [Deposited(1), Deposited(2)], expected=0)
    subscription = store.subscribe()
    take(subscription, 1)
    for _ in range(2):
        with monkeypatch.context() as patched:

            def damaged(row: Any) -> list[Recorded]:
                raise RecordDamaged(row.stream, row.version, "a test")

            patched.setattr(store.log, "recorded", damaged)
            with pytest.raises(RecordDamaged, match="version 2"):
                subscription.poll()
    assert places(take(subscription, 1)) == [("a", 2)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from("abc"), st.integers(1, 400)),
        st.tuples(st.just("take"), st.sampled_from(["all", "a", "c"]), st.integers(1, 300)),
        st.tuples(st.just("crash"), st.sampled_from(["all", "a", "c"]), st.just(0)),
        st.tuples(st.just("close"), st.sampled_from(["all", "a", "c"]), st.booleans()),
    ),
    max_size=25,
)


@settings(deadline=None)
@given(steps=STEPS, lmdb=st.booleans())
def test_law_every_follower_sees_every_event_in_order_at_least_once(
    steps: list[Any], lmdb: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Interleaved appends, followers of the store and of streams, crashes between handling and saving."""
    backend = LmdbBackend(tmp_path_factory.mktemp("law") / "s") if lmdb else MemoryBackend()
    with Store.open(backend=backend) as store:

        def subscribe(name: str) -> Any:
            return store.subscribe(None if name == "all" else name, name=f"of {name}")

        names = ("all", "a", "c")
        subscriptions = {name: subscribe(name) for name in names}
        handled: dict[str, list[tuple[str, int]]] = {name: [] for name in names}
        written: dict[str, list[tuple[str, int]]] = {name: [] for name in names}
        for what, name, number in [*steps, *[("take", name, 10**6) for name in names]]:
            if what == "append":
                done = store.append(name, [Deposited(i) for i in range(number)], expected=ANY)
                for one in {"all", name} & set(names):
                    written[one] += [(name, v) for v in range(done.first, done.last + 1)]
            elif what == "take":
                while number and (recorded := subscriptions[name].poll()) is not None:
                    handled[name].append((recorded.stream, recorded.version))
                    number -= 1
            else:
                if what == "close":
                    if number:
                        subscriptions[name].ack()
                    subscriptions[name].close()
                subscriptions[name] = subscribe(name)
                assert subscriptions[name].position <= len(handled[name])
                del handled[name][subscriptions[name].position :]  # these come again
        assert handled == written
        for checkpoint in store.checkpoints():
            assert checkpoint.position <= len(written[checkpoint.name.removeprefix("of ")]), "I8"


def test_closing_is_quiet_when_the_stream_was_deleted_meanwhile(store: Store) -> None:
    store.append("s", [Deposited(1), Deposited(2)], expected=0)
    with store.subscribe("s", name="n") as events:
        assert events.poll() is not None
        events.ack()
        store.delete("s")
        with pytest.raises(StreamDeleted):
            store.read("s")


@pytest.mark.parametrize("position", [-1, 2, 1 << 63, 10**30])
def test_a_checkpoint_is_not_set_past_the_end(store: Store, position: int) -> None:
    store.append("s", Deposited(1), expected=0)
    with pytest.raises(BadArgument, match="position"):
        store.reset_checkpoint("n", position)
    assert list(store.checkpoints()) == []
