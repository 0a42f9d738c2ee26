"""The store as a user sees it: appends, reads, folds, live handles, leases."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tailfold.engine import ANY, EXISTS, Blob, Durability, Fold, LmdbBackend, MemoryBackend, Store
from tailfold.engine.backend.port import Backend
from tailfold.engine.errors import (
    BadArgument,
    BlobNotFound,
    EngineError,
    FoldFailed,
    KeyReused,
    StreamNotFound,
    WrongVersion,
)
from tailfold.snapshots import every

from tests.domain import Account, Attached, Deposited, Noted, account


def test_an_append_says_where_it_stands(store: Store) -> None:
    store.append("x", Deposited(1), expected=0)
    done = store.append("a", [Deposited(1), Deposited(2)], expected=0)
    assert (done.stream, done.first, done.last, done.position, done.repeated) == ("a", 1, 2, 3, False)
    assert store.head("a").hash == done.hash


def test_expected_versions(store: Store) -> None:
    with pytest.raises(WrongVersion) as conflict:
        store.append("a", Deposited(1), expected=EXISTS)
    assert (conflict.value.actual, conflict.value.expected) == (0, "EXISTS")
    store.append("a", Deposited(1), expected=ANY)
    store.append("a", Deposited(1), expected=EXISTS)
    with pytest.raises(WrongVersion) as conflict:
        store.append("a", Deposited(1), expected=1)
    assert (conflict.value.actual, conflict.value.expected) == (2, 1)


def test_a_key_makes_an_append_idempotent_and_the_batch_is_the_unit(store: Store) -> None:
    first = store.append("a", [Deposited(1), Deposited(2)], expected=0, key="k")
    again = store.append("a", [Deposited(1), Deposited(2)], expected=0, key="k")
    assert again == first._replace(repeated=True)
    with pytest.raises(KeyReused):
        store.append("a", [Deposited(1)], expected=ANY, key="k")
    store.append("b", [Deposited(9)], expected=0, key="k")  # keys belong to their stream
    assert store.head("a").version == 2


def test_the_same_journal_has_the_same_head_in_any_store() -> None:
    heads: set[bytes] = set()
    for _ in range(2):
        store = Store.open(backend=MemoryBackend(), clock=lambda: 5)
        store.append("other", Deposited(len(heads)), expected=0)
        store.append("a", Deposited(1), expected=0)
        heads.add(store.head("a").hash)
    assert len(heads) == 1


def test_cause_conversation_and_time_are_kept(store: Store) -> None:
    store.log.clock = lambda: 123
    store.append("a", Deposited(1), expected=0, causation="b@7", correlation="talk")
    [recorded] = store.read("a")
    assert (recorded.causation, recorded.correlation, recorded.time_ns) == ("b@7", "talk", 123)
    assert recorded.event_id == "a@1"


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", "a\nb", "\ud800", "é" * 128])
def test_names_that_cannot_be_streams_are_refused_everywhere(name: str, store: Store) -> None:
    for use in (
        lambda: store.append(name, Deposited(1), expected=0),
        lambda: store.read(name),
        lambda: store.head(name),
        lambda: store.live(name, account),
        lambda: store.lease(name),
    ):
        with pytest.raises(BadArgument):
            use()


def test_nonsense_arguments_are_refused(store: Store) -> None:
    store.append("a", Deposited(1), expected=0)
    for use in (
        lambda: store.append("a", [], expected=1),
        lambda: store.append("a", Deposited(1), expected=-7),
        lambda: store.append("a", Deposited(1), expected=0 - 1),  # a slip, and no ANY
        lambda: store.append("a", Deposited(1), expected=0 - 2),
        lambda: store.append("a", Deposited(1), expected=1, key=""),
        lambda: store.read("a", after=-1),
        lambda: store.read("a", limit=-1),
        lambda: store.read_all(upto=-1),
        lambda: store.load("a", account, at=-1),
        lambda: Store.open(),
        lambda: Fold("", Account),
        lambda: Fold("x", Account, version=0),
    ):
        with pytest.raises(BadArgument):
            use()


def test_events_may_come_from_an_iterator_and_an_empty_one_is_refused(store: Store) -> None:
    with pytest.raises(BadArgument):
        store.append("new", iter(()), expected=0)  # type: ignore[arg-type]
    assert list(store.streams()) == []
    done = store.append("a", (Deposited(i) for i in range(3)), expected=0, key="k")  # type: ignore[arg-type]
    assert done.last == 3
    with pytest.raises(KeyReused):
        store.append("a", (Deposited(9) for _ in range(3)), expected=3, key="k")  # type: ignore[arg-type]
    assert store.verify().findings == []


def test_a_retry_may_have_another_order_of_its_dictionaries(store: Store) -> None:
    store.append("a", Noted("x", {"a": 1, "b": 2}), expected=0, key="k")
    assert store.append("a", Noted("x", {"b": 2, "a": 1}), expected=0, key="k").repeated


@pytest.mark.parametrize("bad", [5, "\udc80", "", "x" * 2000, b"k"])
def test_a_key_that_cannot_be_one_disturbs_nobody_in_its_group(bad: Any, store: Store) -> None:
    async def main() -> list[object]:
        appends = [store.append_async("good", Deposited(1), expected=0)]
        appends += [store.append_async("bad", Deposited(1), expected=0, key=bad)]
        return list(await asyncio.gather(*appends, return_exceptions=True))

    good, refused = asyncio.run(main())
    assert isinstance(refused, BadArgument)
    assert not isinstance(good, BaseException)
    for stream in (None, b"x", 5):
        with pytest.raises(BadArgument):
            store.append(stream, Deposited(1), expected=0)  # type: ignore[arg-type]


def test_a_spoilt_handle_writes_no_snapshot(store: Store) -> None:
    fragile: Fold[list[int]] = Fold("fragile", lambda: [0], state_type=list[int])

    @fragile.on(Deposited)
    def _(state: list[int], event: Deposited) -> None:
        state[0] += event.amount
        if event.amount == 99:
            raise ValueError("no")

    live = store.live("a", fragile)
    live.append(Deposited(1))
    with pytest.raises(FoldFailed):
        live.append(Deposited(5), Deposited(99))
    with pytest.raises(EngineError, match="refresh"):
        live.snapshot()
    assert store.load("a", fragile, at=1).state == [1]


def test_streams_are_listed_by_name_page_after_page(store: Store) -> None:
    names = sorted((f"s{i}" for i in range(1200)), key=str.encode)
    for name in names[:50]:
        store.append(name, Deposited(1), expected=0)
    assert [head.stream for head in store.streams()] == names[:50]
    assert [h.stream for h in store.backend.heads(after=names[9], limit=3)] == names[10:13]


def test_long_streams_are_read_in_pages(store: Store) -> None:
    store.append("a", [Deposited(i) for i in range(3000)], expected=0)
    store.append("b", Deposited(1), expected=0)
    assert [r.version for r in store.read("a")] == list(range(1, 3001))
    assert [r.version for r in store.read("a", backwards=True)] == list(range(3000, 0, -1))
    assert [r.position for r in store.read_all(after=2990)] == list(range(2991, 3002))
    assert store.load("a", account).state.events == 3000
    assert store.load("a", account, at=1500).state.events == 1500


def test_a_page_of_large_events_is_cut_short_and_still_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailfold.engine.backend.lmdb.backend.PAGE_BYTES_MAX", 50_000)
    with Store.open(tmp_path / "s", durability=Durability.RELAXED) as store:
        store.append("a", [Noted("x" * 5000) for _ in range(200)], expected=0)
        assert len(store.backend.data("a", after=0, upto=200)) == 16
        assert store.load("a", account).state.events == 200


def test_loading_a_stream_without_events_gives_the_initial_state(store: Store) -> None:
    assert store.load("nothing", account) == (Account(), 0)
    with pytest.raises(StreamNotFound):
        store.load("nothing", account, at=1)


def test_a_handler_may_return_the_next_state_or_change_the_given_one() -> None:
    total: Fold[int] = Fold("total", lambda: 0)

    @total.on(Deposited)
    def _(state: int, event: Deposited) -> int:
        return state + event.amount

    assert total.fold([Deposited(1), Noted("passed over"), Deposited(2)]) == 3
    with pytest.raises(BadArgument, match="two handlers"):
        total.on(Deposited)(lambda state, event: state)

    async def waiting(state: int, event: Noted) -> int:
        return state

    with pytest.raises(BadArgument, match="coroutine"):
        total.on(Noted)(waiting)  # type: ignore[arg-type]


def test_a_handler_that_raises_is_named_with_the_event(store: Store) -> None:
    fragile: Fold[int] = Fold("fragile", lambda: 0)

    @fragile.on(Deposited)
    def _(state: int, event: Deposited) -> int:
        return state // event.amount

    store.append("a", [Deposited(1)] * 1500 + [Deposited(0)], expected=0)
    with pytest.raises(FoldFailed) as failed:
        store.load("a", fragile)
    assert (failed.value.fold, failed.value.stream, failed.value.version) == ("fragile", "a", 1501)
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def test_a_live_handle_keeps_the_state_folded(store: Store) -> None:
    live = store.live("a", account)
    assert (live.version, live.event_id) == (0, None)
    live.append(Deposited(5))
    live.append(Deposited(1), Noted("x"), key="k")
    assert (live.version, live.event_id, live.state.balance) == (3, "a@3", 6)
    assert live.append(Deposited(1), Noted("x"), key="k").repeated
    assert live.version == 3
    store.fork("a", at=2, name="b")
    forked = store.live("b", account)
    assert forked.event_id == "a@2", "an event keeps its id wherever it is read"
    forked.append(Noted("y"), causation=forked.event_id)
    assert forked.event_id == "b@3"


def test_a_live_handle_does_not_interleave_with_others_and_catches_up(store: Store) -> None:
    live = store.live("a", account)
    store.append("a", [Deposited(1), Deposited(2)], expected=0)
    with pytest.raises(WrongVersion):
        live.append(Deposited(3))
    assert live.state.balance == 0
    assert live.refresh() == 2
    live.append(Deposited(3))
    assert live.state.balance == 6
    assert live.refresh() == 0


def test_a_repeated_append_found_by_a_new_handle_is_folded(store: Store) -> None:
    """The first attempt was durable, its answer was lost with the process."""
    live = store.live("a", account)
    store.append("a", Deposited(7), expected=0, key="k")
    assert live.append(Deposited(7), key="k").repeated
    assert (live.version, live.state.balance) == (1, 7)


def test_a_handle_whose_fold_failed_is_not_used_on(store: Store) -> None:
    fragile: Fold[int] = Fold("fragile", lambda: 1)
    fragile.on(Deposited)(lambda state, event: state // event.amount)
    live = store.live("a", fragile)
    with pytest.raises(FoldFailed):
        live.append(Deposited(0))
    assert store.head("a").version == 1, "it was durable before it was folded"
    with pytest.raises(EngineError, match="refresh"):
        live.append(Deposited(1))


def test_one_process_may_open_a_store_several_times(tmp_path: Path) -> None:
    one, two = Store.open(tmp_path / "s"), Store.open(tmp_path / "s")
    one.append("a", Deposited(1), expected=0)
    one.close()
    assert two.load("a", account).version == 1
    with pytest.raises(BadArgument, match="durable"):
        LmdbBackend(tmp_path / "s", durability=Durability.RELAXED)
    two.close()
    two.close()
    LmdbBackend(tmp_path / "s", durability=Durability.RELAXED).close()


def test_a_store_that_was_deleted_and_made_again_is_the_new_one(tmp_path: Path) -> None:
    import shutil

    one = Store.open(tmp_path / "s")
    one.append("a", Deposited(1), expected=0)
    shutil.rmtree(tmp_path / "s")
    two = Store.open(tmp_path / "s")
    assert two.backend.head("a") is None
    two.append("b", Deposited(1), expected=0)
    two.close()
    one.close()


def test_a_store_that_another_process_made_anew_is_not_taken_for_the_open_one(tmp_path: Path) -> None:
    import shutil
    import subprocess
    import sys

    old = Store.open(tmp_path / "s")
    old.append("old", Deposited(1), expected=0)
    shutil.rmtree(tmp_path / "s")
    script = "import sys; from tailfold.engine import Store; Store.open(sys.argv[1]).close()"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=True)
    new = Store.open(tmp_path / "s")
    new.append("new", Deposited(1), expected=0)
    new.close()
    old.close()
    with Store.open(tmp_path / "s", create=False) as store:
        assert [head.stream for head in store.streams()] == ["new"]


def test_the_map_grows_without_losing_an_append(tmp_path: Path) -> None:
    backend = LmdbBackend(tmp_path / "s", map_bytes=1 << 19, durability=Durability.RELAXED)
    with Store.open(backend=backend) as store:
        before = store.usage()["map_bytes"]
        for i in range(20):
            store.append("a", [Noted("x" * 3000)] * 50, expected=i * 50)
        assert store.usage()["map_bytes"] > before
        assert store.verify().findings == []


def test_usage_counts(store: Store) -> None:
    store.append("a", [Deposited(1)] * 3, expected=0)
    usage = store.usage()
    assert (usage["streams"], usage["events"], usage["tables"]["events"]["rows"]) == (1, 3, 3)
    assert usage["durability"] in ("durable", "relaxed")


def test_an_event_read_from_another_store_brings_its_content_along(store: Store) -> None:
    other = Store.open(backend=MemoryBackend(), events=[Attached])
    other.append("a", Attached("f", Blob(b"content")), expected=0)
    [found] = other.read("a")
    assert isinstance(found.event, Attached)
    store.append("b", found.event, expected=0)
    [again] = store.read("b")
    assert isinstance(again.event, Attached)
    assert again.event.content.data == b"content"
    assert store.verify().findings == []
    store.append("c", again.event, expected=0)
    assert len(store.backend.blobs()) == 1
    other.delete("a")
    other.gc()
    with pytest.raises(BlobNotFound):
        store.append("d", found.event, expected=0)
    assert store.backend.head("d") is None, "nothing is written then"


@pytest.mark.parametrize("name", ["", "x" * 256, "x" * 600])
def test_what_can_name_no_stream_is_not_there(name: str, backend: Backend) -> None:
    assert backend.head(name) is None
    assert backend.rows(name, after=0, upto=1, limit=1) == []
    for ask in (backend.lineage, backend.children):
        with pytest.raises(StreamNotFound):
            ask(name)


def test_versions_that_no_number_of_eight_bytes_holds_are_not_there(store: Store) -> None:
    store.append("s", Deposited(1), expected=0)
    for version in (2, 1 << 63, 1 << 64, 10**30):
        assert list(store.backend.rows("s", after=version - 1, upto=version, limit=1)) == []
        assert list(store.read("s", after=version)) == []
        for ask in (store.trace, lambda s, at: store.fork(s, at=at), lambda s, at: store.load(s, account, at)):
            with pytest.raises(StreamNotFound):
                ask("s", version)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"snapshots": every}, "snapshots is a policy"),
        ({"snapshots": 100}, "snapshots is a policy"),
        ({"upcasters": [Deposited]}, "upcasters is an Upcasters"),
        ({"events": Deposited}, r"events is a list of event classes: \[Deposited\]"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named_when_the_store_is_opened(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        Store.open(backend=MemoryBackend(), **wrong)
