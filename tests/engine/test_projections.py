"""Projections: the state is the fold of all events up to the position, saved with it, and rebuilt at will."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tailfold.engine import ANY, Event, LmdbBackend, MemoryBackend, Projected, Projection, Recorded, Store
from tailfold.engine import projections as module
from tailfold.engine.backend import keys
from tailfold.engine.errors import BadArgument, FoldFailed, RecordDamaged, StoreReadOnly
from tailfold.engine.projections import Stored
from tailfold.upcasters import RenameField, Upcasters

from tests.books import BOOKS, Books, books, deposited
from tests.domain import Deposited, Noted, Withdrawn
from tests.surgery import change_event, change_row

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Count:
    withdrawals: int = 0


counting: Projection[Count] = Projection("counting", Count)


@counting.on(Withdrawn)
def _(state: Count, recorded: Recorded) -> None:
    state.withdrawals += 1


def truth(store: Store) -> Books:
    """Fold `read_all` by hand."""
    store.log.codec.register([Deposited])
    state = Books()
    for recorded in store.read_all():
        if isinstance(recorded.event, Deposited):
            deposited(state, recorded)
    return state


def fill(store: Store, count: int, start: int = 0) -> None:
    for i in range(start, start + count, 50):
        events = [Deposited(n) if n % 3 else Withdrawn(1) for n in range(i, i + 50)]
        store.append(f"s{i // 50 % 7}", events, expected=ANY)


class FoldsAlike(RuleBasedStateMachine):
    """Interleaved appends, reopening, rebuilding, crashes between folding and saving, collection of chunks."""

    backend: Any

    @initialize(lmdb=st.booleans())
    def start(self, lmdb: bool) -> None:
        import tempfile

        self.folder = Path(tempfile.mkdtemp())
        self.backend = LmdbBackend(self.folder / "s") if lmdb else MemoryBackend()
        self.store = Store.open(backend=self.backend)
        self.models: dict[str, Projected[Any]] = {}

    def model(self, name: str) -> Projected[Any]:
        if name not in self.models:
            projection: Projection[Any] = counting if name == "counting" else BOOKS
            self.models[name] = self.store.project(projection, catch_up=False)
        return self.models[name]

    @rule(stream=st.sampled_from("abc"), deposits=st.integers(0, 300), withdrawals=st.integers(1, 3))
    def append(self, stream: str, deposits: int, withdrawals: int) -> None:
        self.store.append(stream, [*map(Deposited, range(deposits)), *[Withdrawn(1)] * withdrawals], expected=ANY)

    @rule(name=st.sampled_from(["books", "counting"]), save=st.booleans())
    def catch_up(self, name: str, save: bool) -> None:
        self.model(name).catch_up(save=save)
        assert self.model(name).behind == 0

    @rule(name=st.sampled_from(["books", "counting"]))
    def save(self, name: str) -> None:
        assert self.model(name).save()
        assert self.store.checkpoint(name).position == self.model(name).position

    @rule(name=st.sampled_from(["books", "counting"]))
    def crash(self, name: str) -> None:
        self.models.pop(name, None)

    @rule(name=st.sampled_from(["books", "counting"]))
    def rebuild(self, name: str) -> None:
        self.model(name).rebuild()
        assert self.store.checkpoint(name).position == self.store.position

    @rule()
    def collect(self) -> None:
        self.store.snapshots.collect()

    @rule()
    def lose_chunks(self) -> None:
        """What is derived may be lost: it is folded anew."""
        if isinstance(self.backend, MemoryBackend):
            self.backend._chunks.clear()

    @rule()
    def reopen(self) -> None:
        self.models.clear()
        self.store.close()
        if isinstance(self.backend, LmdbBackend):
            self.backend = LmdbBackend(self.folder / "s")
        self.store = Store.open(backend=self.backend)

    @invariant()
    def state_is_the_fold_of_all_events_up_to_the_position(self) -> None:
        for name, model in getattr(self, "models", {}).items():
            found = list(self.store.log.read_all(upto=model.position))
            if name == "counting":
                assert model.state.withdrawals == sum(r.kind == "withdrawn" for r in found)
            else:
                assert [(s, v) for s, v, _ in model.state.ledger] == [
                    (r.stream, r.version) for r in found if r.kind == "deposited"
                ]
        for checkpoint in self.store.checkpoints() if hasattr(self, "store") else ():
            assert checkpoint.position <= self.store.position, "I8"

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.log.codec.register([Deposited])
            assert self.store.project(BOOKS).state == truth(self.store)
            self.store.close()


TestFoldsAlike = FoldsAlike.TestCase
TestFoldsAlike.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=12, deadline=None)


def test_only_what_came_since_is_folded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 1000)
    assert store.project(BOOKS).state == truth(store)
    assert store.checkpoint("books").position == 1000
    fill(store, 50, start=1000)
    seen = []
    original = store.log.recorded
    monkeypatch.setattr(store.log, "recorded", lambda row: seen.append(row.position) or original(row))  # type: ignore[func-returns-value]
    again = store.project(BOOKS)
    assert again.position == 1050
    assert set(seen) == {p for p in range(1001, 1051) if (p - 1) % 3}, "and kinds without a handler are not decoded"
    assert store.checkpoint("books").position == 1000, "50 events are as well folded again"
    assert again.save()
    assert store.checkpoint("books").position == 1050


def test_several_stand_side_by_side(store: Store) -> None:
    fill(store, 600)
    one, other = store.project(BOOKS), store.project(counting)
    assert one.state == truth(store)
    assert other.state.withdrawals == 200
    assert [(c.name, c.projection) for c in store.checkpoints()] == [("books", True), ("counting", True)]


def test_other_code_folds_anew_and_says_so_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    fill(store, 600)
    store.project(BOOKS)
    changed = books(version=2)
    with caplog.at_level(logging.WARNING, "tailfold"):
        assert store.project(changed).state == truth(store)
        assert store.project(changed).behind == 0
    assert [r.message for r in caplog.records] == [
        "projection 'books' is folded anew: its code has changed (version)"
    ]
    assert not store.project(BOOKS, save=False).save() or store.checkpoint("books").position == 600


def test_code_that_is_behind_does_not_write_over_newer_code(store: Store) -> None:
    fill(store, 300)
    old = store.project(BOOKS)
    new = store.project(books(version=2))
    assert new.save()
    fill(store, 300, start=300)
    assert old.catch_up() == 300
    assert old.state == truth(store), "it goes on in memory"
    assert not old.save()
    assert store.project(books(version=2), catch_up=False).position == 300


def test_two_holders_fold_for_themselves_and_what_came_furthest_is_kept(store: Store) -> None:
    fill(store, 300)
    one, other = store.project(BOOKS), store.project(BOOKS)
    fill(store, 300, start=300)
    one.catch_up()
    assert not other.save(), "it is behind"
    other.catch_up()
    assert one.state == other.state == truth(store)


def test_damaged_rows_and_chunks_change_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        fill(store, 3000)
        store.project(BOOKS)
        expected = truth(store)
    for table in ("checkpoints", "chunks"):
        for change in (lambda k, v: (k, v[:-1] + bytes([v[-1] ^ 1])), lambda k, v: (k, v[:9]), lambda k, v: None):
            change_row(path, table, lambda key: True, change)
            with Store.open(path) as store:
                assert store.project(BOOKS).state == expected


def test_a_handler_that_raises_is_named_and_what_is_saved_stands(store: Store) -> None:
    fill(store, 600)
    broken: Projection[Count] = Projection("broken", Count)
    fail = [False]

    @broken.on(Withdrawn)
    def _(state: Count, recorded: Recorded) -> None:
        if fail[0]:
            raise ZeroDivisionError("no")
        state.withdrawals += 1

    broken.fold.pinned = True
    model = store.project(broken)
    fill(store, 300, start=600)
    fail[0] = True
    with pytest.raises(FoldFailed, match=r"broken.*ZeroDivisionError"):
        model.catch_up()
    assert not model.save(), "a spoilt state is never saved"
    fail[0] = False
    model.catch_up()
    assert model.state.withdrawals == 300


@pytest.mark.parametrize("version", [1, 2, 77, 150])
def test_with_check_an_event_that_was_changed_is_found_before_it_is_folded(version: int, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        fill(store, 1000)
        assert store.project(BOOKS, catch_up=False).catch_up(check=True, save=False) == 1000
    change_event(path, version, lambda data: data[:-1] + bytes([data[-1] ^ 1]), stream=2)
    with Store.open(path) as store, pytest.raises(RecordDamaged, match=f"'s1' version {version} "):
        store.project(BOOKS, catch_up=False).catch_up(check=True)


def test_a_missing_event_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        fill(store, 100)
    change_row(path, "positions", lambda key: key == keys.POSITION_KEY.pack(42), lambda *_: None)
    with Store.open(path) as store, pytest.raises(RecordDamaged, match="position 42"):
        store.project(BOOKS)


def test_what_it_does_not_want_may_be_anything(store: Store) -> None:
    class Strange(Noted, frozen=True):
        kind = "deposited"
        other: int = 1

    store.append("theirs", Strange("x"), expected=0)

    def wants(state: Books, stored: Stored) -> bool:
        return isinstance(stored.payload(), dict) and "amount" in stored.payload()

    fresh = Store.open(backend=store.backend)
    fresh.append("ours", Deposited(3), expected=0)
    assert dict(fresh.project(books("picky", wants=wants)).state.balance.items()) == {"ours": 3}


def test_renamed_kinds_are_found(backend: Any) -> None:
    class Put(Event, frozen=True):
        kind = "put"
        sum: int

    Store.open(backend=backend).append("a", [Put(5), Put(6)], expected=0)
    steps = Upcasters(events=[Deposited])
    steps.change("put", 1, RenameField("sum", "amount"))
    steps.rename_kind("put", 2, "deposited", 1)
    opened = Store.open(backend=backend, upcasters=steps)
    assert dict(opened.project(BOOKS).state.balance.items()) == {"a": 11}


def test_names_are_not_shared_with_subscriptions(store: Store) -> None:
    fill(store, 300)
    store.project(BOOKS)
    with pytest.raises(BadArgument, match="is a projection's"):
        store.subscribe(name="books")
    with pytest.raises(BadArgument, match="rebuild"):
        store.reset_checkpoint("books")
    list(store.subscribe(name="mine", follow=False))
    with pytest.raises(BadArgument, match="subscription's"):
        store.project(books("mine"))


def test_a_store_that_can_only_be_read_is_projected_and_not_written_to(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 600)

    def refuse(*_: object) -> bool:
        raise StoreReadOnly("no")

    monkeypatch.setattr(store.backend, "put_checkpoint", refuse)
    assert store.project(BOOKS).state == truth(store)
    assert list(store.checkpoints()) == []


def test_progress_is_told_and_a_long_catching_up_is_saved_on_the_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAVE_ON_THE_WAY_S", 0.0)
    monkeypatch.setattr(module, "SAVING_SHARE", 1e9)
    fill(store, 5000)
    told: list[int] = []
    saved: list[int] = []

    def progress(done: int) -> None:
        told.append(done)
        saved.extend(c.position for c in store.checkpoints())

    store.project(BOOKS, progress=progress)
    assert sum(told) == 5000
    assert saved, "a crash in the middle does not start over"


KILLED = """
import os, signal, sys
from tests.books import BOOKS
from tailfold.engine import Store
from tailfold.engine import projections
projections.SAVE_ON_THE_WAY_S = 0.0
with Store.open(sys.argv[1]) as store:
    left = int(sys.argv[2])
    def progress(done):
        global left
        left -= done
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
    store.project(BOOKS, progress=progress)
"""


def test_a_process_killed_while_it_folds_leaves_a_state_that_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        fill(store, 8000)
    positions = []
    for after in (1, 3000, 2000, 10**6):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(after)], cwd=ROOT, timeout=60)
        assert done.returncode == (-9 if after < 10**6 else 0)
        with Store.open(path) as store:
            positions.append(store.project(BOOKS, catch_up=False).position)
            model = store.project(BOOKS, save=False)
            assert model.state == truth(store)
    assert positions == sorted(positions)
    assert 0 < positions[1] < 8000
    assert positions[-1] == 8000
