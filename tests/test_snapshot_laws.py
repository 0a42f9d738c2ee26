"""The heart: whatever happens to snapshots, the state is that of folding all, byte for byte (I7, I14)."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tailfold.engine import Durability, Event, Fold, LmdbBackend, MemoryBackend, Store
from tailfold.engine.backend import keys
from tailfold.engine.loading import refold
from tailfold.snapshots import CostBased, Policy, Series, every, never

from tests.domain import Deposited, account
from tests.growing import Forgot, Said, Scored, Talk, talk
from tests.surgery import change_row, flip

WHO = st.sampled_from([f"person {i}" for i in range(40)])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Said, WHO, st.text(max_size=8)), st.builds(Scored, WHO, st.integers(-5, 9)), st.builds(Forgot, WHO)
)
POLICIES: list[Policy] = [every(1), every(7), every(300), CostBased(0.05), never]


def truth(store: Store, stream: str, fold: Fold[Any], upto: int) -> bytes:
    return refold(store.log, store.snapshots, stream, fold, upto).body


def loaded(store: Store, stream: str, fold: Fold[Any], at: int | None = None) -> bytes:
    state = store.load(stream, fold, at).state
    return store.snapshots.facts(fold).codec.encode(state, check=False).body


class Laws(RuleBasedStateMachine):
    """Appends, loads, live handles, policies, reopenings, prunings, collections, damage; never a wrong state."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.memory = MemoryBackend()
        self.stores: list[Store] = []
        self.lives: list[Any] = []
        self.policy: Policy = every(7)
        self.open()

    def open(self) -> None:
        lmdb_backend = LmdbBackend(self.folder / "s", durability=Durability.RELAXED)
        self.stores = [
            Store.open(backend=backend, snapshots=self.policy, clock=lambda: 1)
            for backend in (lmdb_backend, self.memory)
        ]
        self.lives = [store.live("a", talk) for store in self.stores]

    def teardown(self) -> None:
        for store in self.stores:
            for k in (
                {0, 1, store.head("a").version // 2, store.head("a").version} if self.lives[0].version else {0}
            ):
                assert loaded(store, "a", talk, k) == truth(store, "a", talk, k)
            assert store.verify().findings == []
        self.stores[0].close()
        shutil.rmtree(self.folder)

    @rule(events=st.lists(EVENTS, min_size=1, max_size=6))
    def append(self, events: list[Event]) -> None:
        for live in self.lives:
            live.append(*events)

    @rule(seed=st.integers(0, 99), count=st.integers(100, 900))
    def append_many(self, seed: int, count: int) -> None:
        chance = random.Random(seed)
        who = [f"person {i}" for i in range(40)]
        events: list[Event] = [
            Said(chance.choice(who), "x" * chance.randrange(9))
            if chance.random() < 0.7
            else Scored(chance.choice(who), 1)
            for _ in range(count)
        ]
        for live in self.lives:
            for begin in range(0, count, 50):
                live.append(*events[begin : begin + 50])

    @rule(policy=st.sampled_from(POLICIES))
    def reopen(self, policy: Policy) -> None:
        self.policy = policy
        self.stores[0].close()
        self.open()

    @rule(share=st.floats(0, 1))
    def load_at(self, share: float) -> None:
        k = int(self.lives[0].version * share)
        for store in self.stores:
            assert loaded(store, "a", talk, k) == truth(store, "a", talk, k)

    @rule()
    def collect(self) -> None:
        for store in self.stores:
            expected = store.backend.collect_chunks(dry_run=True)
            assert store.backend.collect_chunks() == expected
            assert store.backend.collect_chunks().chunks == 0

    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        for store in self.stores:
            name = keys.fold_hash(talk.name)
            there = list(store.backend.snapshot_keys("a", name, upto=10**9))
            if there:
                gone = [key for key in there if data.draw(st.booleans())]
                assert store.backend.drop_snapshots("a", name, gone) == len(gone)

    @rule(data=st.data())
    def lose_chunks(self, data: st.DataObject) -> None:
        """Delete chunks behind everyone's back, live handles included."""
        seed = data.draw(st.integers(0, 9))
        held = self.memory._chunks
        lost = [ref for ref in sorted(held) if random.Random(seed + ref[0]).random() < 0.3]
        for ref in lost:
            del held[ref]
        lmdb_backend: Any = self.stores[0].backend
        lmdb_backend._write(lambda txn: [txn.delete(ref, db=lmdb_backend._chunks) for ref in lost])

    @rule(index=st.integers(0, 400))
    def damage_chunks(self, index: int) -> None:
        for ref, stored in list(self.memory._chunks.items())[:3]:
            self.memory._chunks[ref] = flip(stored, index)

    @rule(index=st.integers(0, 400))
    def damage_snapshots(self, index: int) -> None:
        import msgspec

        snapshots = self.memory._streams["a"].snapshots if "a" in self.memory._streams else {}
        for place, write in list(snapshots.items())[:2]:
            snapshots[place] = msgspec.structs.replace(write, row=flip(write.row, index))

    @rule()
    def refresh(self) -> None:
        for live in self.lives:
            live.refresh()

    @invariant()
    def live_is_truth(self) -> None:
        for store, live in zip(self.stores, self.lives, strict=True):
            codec = store.snapshots.facts(talk).codec
            assert codec.encode(live.state, check=False).body == truth(store, "a", talk, live.version)

    @rule()
    def read_all_of_the_live_state(self) -> None:
        for store, live in zip(self.stores, self.lives, strict=True):
            fresh = (
                talk.fold(r.event for r in store.read("a") if isinstance(r.event, Event))
                if live.version
                else Talk()
            )
            assert list(live.state.lines) == list(fresh.lines)
            assert dict(live.state.points.items()) == dict(fresh.points.items())
            mine = {k: list(v) for k, v in live.state.by_person.items()}
            assert mine == {k: list(v) for k, v in fresh.by_person.items()}
            assert live.state.order == fresh.order
            assert live.state.people == fresh.people


TestLaws = Laws.TestCase
TestLaws.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=18, deadline=None)


def filled(backend: Any, count: int = 700, policy: Policy | None = None) -> Store:
    store = Store.open(backend=backend, snapshots=policy or every(100))
    live = store.live("a", talk)
    for i in range(count):
        live.append(Said(f"p{i % 30}", f"text {i}"))
    return store


# -- changed code ----------------------------------------------------------------------------------------


def version_of_talk(
    handler: Callable[[Talk, Said], None], *, version: int = 1, pinned: bool = False, state: type = Talk
) -> Fold[Any]:
    fold: Fold[Any] = Fold("talk", state, version=version, pinned=pinned)
    fold.on(Said)(handler)
    return fold


def as_before(state: Talk, event: Said) -> None:
    state.total += len(event.text)


def changed(state: Talk, event: Said) -> None:
    state.total += len(event.text) + 1


@given(st.integers(1, 12))
@settings(max_examples=10)
def test_a_changed_reducer_never_gets_an_old_snapshot(count: int) -> None:
    backend = MemoryBackend()
    store = Store.open(backend=backend, snapshots=every(1))
    old, new = version_of_talk(as_before), version_of_talk(changed)
    live = store.live("a", old)
    for _ in range(count):
        live.append(Said("a", "xyz"))
    assert store.load("a", new).state.total == count * 4
    assert store.load("a", old).state.total == count * 3


def test_a_changed_state_schema_is_a_miss(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Talk2(Talk):
        more: int = 3

    store = Store.open(backend=MemoryBackend(), snapshots=every(1))
    live = store.live("a", version_of_talk(as_before))
    for _ in range(4):
        live.append(Said("a", "x"))
    other = version_of_talk(as_before, state=Talk2)
    assert store.load("a", other).state == Talk2(total=4)
    assert any("state" in reason for reason in store.counters.missed)


def test_code_that_changed_under_its_version_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    store = Store.open(backend=MemoryBackend(), snapshots=every(1))
    live = store.live("a", version_of_talk(as_before))
    for _ in range(4):
        live.append(Said("a", "x"))
    reader = Store.open(backend=store.backend, snapshots=never)
    for _ in range(3):
        reader.load("a", version_of_talk(changed))
    warnings = [r.message for r in caplog.records if "changed under version 1" in r.message]
    assert len(warnings) == 1
    caplog.clear()
    other = Store.open(backend=store.backend, snapshots=never)
    other.load("a", version_of_talk(changed, version=2))
    assert not [r for r in caplog.records if "changed under" in r.message]


def test_a_pinned_fold_relies_on_its_version_alone() -> None:
    store = Store.open(backend=MemoryBackend(), snapshots=every(1))
    live = store.live("a", version_of_talk(as_before, pinned=True))
    for _ in range(5):
        live.append(Said("a", "xyz"))
    assert store.load("a", version_of_talk(changed, pinned=True)).state.total == 4 * 3 + 4
    assert store.load("a", version_of_talk(changed, pinned=True, version=2)).state.total == 5 * 4


# -- counts, not times -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 5000, 20_000])
def test_a_resume_folds_no_more_than_the_tail_and_loads_no_chunk(size: int) -> None:
    backend = MemoryBackend()
    store = Store.open(backend=backend, snapshots=every(500))
    live = store.live("a", talk)
    for begin in range(0, size, 100):
        live.append(*[Said("p", f"text {i}") for i in range(begin, begin + 100)])
    live.append(*[Said("p", "tail")] * 77)
    fresh = Store.open(backend=backend, snapshots=never)
    state = fresh.load("a", talk).state
    assert fresh.counters.events_folded <= 600
    assert fresh.counters.hits == 1
    assert len(state.lines) == size + 77
    assert fresh.counters.chunks_loaded <= 4, "one person's table leaf, not the history"


def test_a_snapshot_writes_the_new_chunks_and_no_more() -> None:
    @dataclass
    class Lines:
        lines: Series[str] = field(default_factory=Series[str])

    fold: Fold[Lines] = Fold("lines", Lines)
    fold.on(Said)(lambda state, event: state.lines.append(event.text))
    store = Store.open(backend=MemoryBackend(), snapshots=every(1000))
    live = store.live("a", fold)
    for begin in range(0, 10_001, 100):
        live.append(*[Said("p", f"text {i}") for i in range(begin, begin + 100)])
    assert store.counters.snapshots_written == 10
    assert store.counters.chunks_written == 10_000 // 256, "each full chunk once"
    assert len(store.backend._chunks) == 10_000 // 256  # type: ignore[attr-defined]


def test_deleting_all_snapshot_data_changes_no_answer() -> None:
    backend = MemoryBackend()
    store = filled(backend)
    before = [loaded(store, "a", talk, k) for k in (0, 1, 350, 700)]
    backend._streams["a"].snapshots.clear()
    backend._chunks.clear()
    fresh = Store.open(backend=backend, snapshots=never)
    assert [loaded(fresh, "a", talk, k) for k in (0, 1, 350, 700)] == before


def test_a_snapshot_of_another_history_is_not_used(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", snapshots=every(1)) as store:
        live = store.live("a", account)
        for i in range(5):
            live.append(Deposited(i))
    forged = keys.encode(keys.SnapshotRow("account", {}, b"x" * 16, b"", b"", 0, b""))
    change_row(tmp_path / "s", "snapshots", lambda key: True, lambda key, value: (key, forged))
    for version in (4, 3, 2, 1):
        try:
            change_row(
                tmp_path / "s",
                "snapshots",
                lambda key, version=version: keys.SNAPSHOT_KEY.unpack(key)[2] == version,  # type: ignore[misc]
                lambda key, value: (key, forged),
            )
        except AssertionError:
            continue
    with Store.open(tmp_path / "s", snapshots=never) as store:
        assert store.load("a", account).state.balance == 10
        assert store.counters.hits == 0
        assert store.counters.missed["it is of another history: its chain hash is not the log's"] >= 1


def test_retention_thins_the_ladder_and_collection_takes_the_rows_away(backend: Any) -> None:
    store = Store.open(backend=backend, snapshots=every(20))
    live = store.live("a", talk)
    for i in range(3000):
        live.append(Scored(f"p{i % 200}", 1))
    there = list(store.backend.snapshot_keys("a", keys.fold_hash("talk"), upto=10**9))
    assert len(there) < 40, "of 150 that were written"
    assert [key.version for key in there[:3]] == [2980, 2960, 2940] or there[0].version >= 2960
    chunks_before = store.usage()["tables"]["chunks"]["rows"]
    would = store.backend.collect_chunks(dry_run=True)
    assert would.chunks > 0
    assert store.backend.collect_chunks() == would
    assert store.usage()["tables"]["chunks"]["rows"] == chunks_before - would.chunks
    fresh = Store.open(backend=backend, snapshots=never)
    for key in there:
        assert loaded(fresh, "a", talk, key.version) == truth(fresh, "a", talk, key.version)
    assert fresh.counters.chunks_healed == 0, "nothing that a kept snapshot needs was taken"
    live.append(Scored("p1", 1))
    assert loaded(store, "a", talk) == truth(store, "a", talk, 3001)


def test_a_table_that_changes_for_ever_does_not_fill_the_store(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailfold.engine.snapshotting.COLLECT_AFTER_BYTES", 50_000)
    store = Store.open(backend=backend, snapshots=every(20))
    live = store.live("a", talk)
    sizes = []
    for i in range(4000):
        live.append(Scored(f"p{i % 300}", 1))
        if i % 500 == 499:
            sizes.append(store.usage()["tables"]["chunks"]["rows"])
    assert store.counters.chunks_collected > 1000
    assert sizes[-1] < 3 * sizes[1], sizes
    assert loaded(store, "a", talk) == truth(store, "a", talk, 4000)


def test_a_live_handle_whose_chunks_were_collected_goes_on(backend: Any) -> None:
    store = filled(backend, 2000)
    live = store.live("a", talk)
    for key in store.backend.snapshot_keys("a", keys.fold_hash("talk"), upto=10**9):
        store.backend.drop_snapshots("a", keys.fold_hash("talk"), [key])
    assert store.backend.collect_chunks().chunks > 0
    for i in range(300):
        live.append(Said("p1", f"more {i}"))
    assert live.state.lines[0].text == "text 0"
    assert loaded(store, "a", talk) == truth(store, "a", talk, 2300)


def test_a_state_that_cannot_be_encoded_has_no_snapshots_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    odd: Fold[Any] = Fold("odd", lambda: [object()])
    odd.on(Deposited)(lambda state, event: None)
    store = Store.open(backend=MemoryBackend(), snapshots=every(1))
    live = store.live("a", odd)
    for _ in range(5):
        live.append(Deposited(1))
    assert len([r for r in caplog.records if "has no snapshots" in r.message]) == 1
    assert store.counters.snapshots_written == 0
    store.load("a", odd)


def test_a_long_fold_snapshots_on_the_way(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", durability=Durability.RELAXED, snapshots=never) as store:
        store.append("a", [Deposited(1)] * 5000, expected=0)
    with Store.open(tmp_path / "s", durability=Durability.RELAXED, snapshots=every(1000)) as store:
        store.load("a", account)
        there = list(store.backend.snapshot_keys("a", keys.fold_hash("account"), upto=10**9))
        assert [key.version for key in there] == [5000, 4000, 3000, 2000, 1000]
