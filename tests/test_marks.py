"""Marks change no answer (I7, I14): a state that begins at one is that of folding all, byte for byte."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tailfold.engine import Durability, Event, Fold, LmdbBackend, MemoryBackend, Store
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import SnapshotWrite
from tailfold.engine.loading import refold
from tailfold.engine.log import RECORDS_PER_PAGE
from tailfold.engine.snapshot_report import explain, standing, verify_snapshots
from tailfold.snapshots import CostBased, Policy, Series, every, never
from tailfold.snapshots.limits import MARK_EVENTS
from tailfold.snapshots.marks import Mark, pack, unpack

from tests.surgery import flip


class Line(msgspec.Struct):
    who: str
    text: str
    weight: float = 0.0


class Spoken(Event, frozen=True):
    kind = "spoken"
    who: str
    text: str


class Corrected(Event, frozen=True):
    """The newest line is written anew, in place: what a handler may do, for that one is never sealed."""

    kind = "corrected"
    text: str


class Shortened(Event, frozen=True):
    """All but the newest lines are dropped, as an agent does that runs out of context."""

    kind = "shortened"
    keep: int


class Started(Event, frozen=True):
    """A handler that returns another state, which shares the lines."""

    kind = "started"
    topic: str


class Meta(msgspec.Struct):
    heard: int = 0
    people: set[str] = set()
    whispers: Series[str] = msgspec.field(default_factory=Series[str])


@dataclass
class Talk:
    topic: str = ""
    lines: Series[Line] = field(default_factory=Series[Line])
    meta: Meta = field(default_factory=Meta)
    weight: float = 0.0


talk: Fold[Talk] = Fold("marked-talk", Talk)


@talk.on(Spoken)
def _(state: Talk, event: Spoken) -> None:
    state.lines.append(Line(event.who, event.text, len(event.text)))
    state.meta.heard += 1
    state.meta.people.add(event.who)
    if event.text.startswith("x"):
        state.meta.whispers.append(event.text)
    state.weight += len(event.text)


@talk.on(Corrected)
def _(state: Talk, event: Corrected) -> None:
    if state.lines:
        state.lines[-1].text = event.text


@talk.on(Shortened)
def _(state: Talk, event: Shortened) -> None:
    state.lines = Series[Line](state.lines.last(event.keep))


@talk.on(Started)
def _(state: Talk, event: Started) -> Talk:
    return replace(state, topic=event.topic)


WHO = st.sampled_from(["ann", "bob", "eve"])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Spoken, WHO, st.text("xyz", max_size=4)),
    st.builds(Spoken, WHO, st.text("xyz", max_size=4)),
    st.builds(Corrected, st.text(max_size=4)),
    st.builds(Started, st.text(max_size=4)),
    st.builds(Shortened, st.integers(0, 3)),
)
POLICIES: list[Policy] = [every(3), every(17), every(60), CostBased(0.05), never]


def truth(store: Store, stream: str, upto: int) -> bytes:
    return refold(store.log, store.snapshots, stream, talk, upto).body


def loaded(store: Store, stream: str, at: int | None = None) -> bytes:
    state = store.load(stream, talk, at).state
    return store.snapshots.facts(talk).codec.encode(state, check=False).body


def dense(patch: pytest.MonkeyPatch, events: int = 5, chunk: int = 4) -> None:
    """Take marks so often, and make chunks so small, that short histories meet what long ones do."""
    patch.setattr("tailfold.snapshots.marks.MARK_EVENTS", events)
    patch.setattr("tailfold.engine.snapshotting.MARK_EVENTS", events)
    patch.setattr("tailfold.snapshots.series.CHUNK_ITEMS", chunk)


class MarkLaws(RuleBasedStateMachine):
    """Appends, forks, loads of any version, policies, reopenings, lost snapshots and chunks, damage."""

    used = 0

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        dense(self.patch)
        self.folder = Path(tempfile.mkdtemp())
        self.memory = MemoryBackend()
        self.names = ["a"]
        self.policy: Policy = every(17)
        self.stores: list[Store] = []
        self.lives: list[dict[str, Any]] = []
        self.open()

    def open(self) -> None:
        backend = LmdbBackend(self.folder / "s", durability=Durability.RELAXED)
        self.stores = [
            Store.open(backend=one, snapshots=self.policy, clock=lambda: 1) for one in (backend, self.memory)
        ]
        self.lives = [{name: store.live(name, talk) for name in self.names} for store in self.stores]

    def teardown(self) -> None:
        try:
            for store in self.stores:
                for name in self.names:
                    for at in range(self.lives[0][name].version + 1):
                        assert loaded(store, name, at) == truth(store, name, at), (name, at)
                MarkLaws.used += store.counters.marks_used
            self.stores[0].close()
        finally:
            self.patch.undo()
            shutil.rmtree(self.folder)

    @rule(data=st.data(), events=st.lists(EVENTS, min_size=1, max_size=6))
    def append(self, data: st.DataObject, events: list[Event]) -> None:
        name = data.draw(st.sampled_from(self.names))
        for lives in self.lives:
            lives[name].append(*events)

    @rule(data=st.data(), seed=st.integers(0, 99), count=st.integers(20, 120), step=st.integers(1, 9))
    def append_many(self, data: st.DataObject, seed: int, count: int, step: int) -> None:
        name, chance = data.draw(st.sampled_from(self.names)), random.Random(seed)
        events: list[Event] = [
            Spoken(chance.choice(["ann", "bob"]), chance.choice(["x", "yy", "zzz"]))
            if chance.random() < 0.97
            else chance.choice([Corrected("c"), Shortened(2), Started("s")])
            for _ in range(count)
        ]
        for lives in self.lives:
            for begin in range(0, count, step):
                lives[name].append(*events[begin : begin + step])

    @rule(data=st.data(), share=st.floats(0, 1))
    def fork(self, data: st.DataObject, share: float) -> None:
        name = data.draw(st.sampled_from(self.names))
        version = self.lives[0][name].version
        if not version or len(self.names) == 5:
            return
        at, child = max(1, int(version * share)), f"f{len(self.names)}"
        self.names.append(child)
        for store, lives in zip(self.stores, self.lives, strict=True):
            store.fork(name, at=at, name=child)
            assert loaded(store, child) == truth(store, child, at)
            lives[child] = store.live(child, talk)

    @rule(policy=st.sampled_from(POLICIES))
    def reopen(self, policy: Policy) -> None:
        self.policy = policy
        self.stores[0].close()
        self.open()

    @rule(data=st.data(), share=st.floats(0, 1))
    def load_at(self, data: st.DataObject, share: float) -> None:
        name = data.draw(st.sampled_from(self.names))
        at = int(self.lives[0][name].version * share)
        for store in self.stores:
            assert loaded(store, name, at) == truth(store, name, at)

    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        name, fold = data.draw(st.sampled_from(self.names)), keys.fold_hash(talk.name)
        seed = data.draw(st.integers(0, 9))
        for store in self.stores:
            there = list(store.backend.snapshot_keys(name, fold, upto=10**9, own=True))
            gone = [key for key in there if random.Random(seed + key.version).random() < 0.5]
            assert store.backend.drop_snapshots(name, fold, gone) == len(gone)
            store.backend.collect_chunks()

    @rule(seed=st.integers(0, 9))
    def lose_chunks(self, seed: int) -> None:
        lost = [ref for ref in sorted(self.memory._chunks) if random.Random(seed + ref[0]).random() < 0.3]
        for ref in lost:
            del self.memory._chunks[ref]
        lmdb_backend: Any = self.stores[0].backend
        lmdb_backend._write(lambda txn: [txn.delete(ref, db=lmdb_backend._chunks) for ref in lost])

    @rule(index=st.integers(0, 600))
    def damage_snapshots(self, index: int) -> None:
        for stream in self.memory._streams.values():
            for place, write in list(stream.snapshots.items())[-2:]:
                stream.snapshots[place] = msgspec.structs.replace(write, row=flip(write.row, index))

    @invariant()
    def live_is_truth(self) -> None:
        for store, lives in zip(self.stores, self.lives, strict=True):
            for name, live in lives.items():
                if live.version:
                    body = store.snapshots.facts(talk).codec.encode(live.state, check=False).body
                    assert body == truth(store, name, live.version)


TestMarkLaws = MarkLaws.TestCase
TestMarkLaws.settings = settings(max_examples=settings().max_examples // 4, stateful_step_count=14, deadline=None)


class Notes(Event, frozen=True):
    kind = "notes"
    text: str


@dataclass
class Book:
    count: int = 0
    pages: Series[str] = field(default_factory=Series[str])


book: Fold[Book] = Fold("marked-book", Book)


@book.on(Notes)
def _(state: Book, event: Notes) -> None:
    state.count += 1
    state.pages.append(event.text)


def written(backend: Any, count: int, policy: Policy, fold: Fold[Any] = book, step: int = 100) -> Store:
    store = Store.open(backend=backend, snapshots=policy)
    live = store.live("a", fold)
    for begin in range(0, count, step):
        live.append(*[Notes(f"text {i}") for i in range(begin, min(begin + step, count))])
    live.snapshot()
    return store


def check_anywhere(store: Store, versions: list[int], folded_most: int) -> None:
    """Fork and load at *versions*: the right state, with few events folded."""
    for at in versions:
        before = store.counters.events_folded
        store.fork("a", at=at, name=f"at-{at}")
        state = store.load(f"at-{at}", book).state
        assert state.count == len(state.pages) == at
        assert state.pages[-1] == f"text {at - 1}"
        assert state.pages[at // 2] == f"text {at // 2}"
        assert state.pages.last(600) == [f"text {i}" for i in range(max(0, at - 600), at)]
        assert store.counters.events_folded - before <= folded_most, at


@pytest.mark.parametrize("policy", [every(1000), every(9000), CostBased()], ids=repr)
def test_a_fork_anywhere_folds_no_more_than_from_the_nearest_mark(backend: Any, policy: Policy) -> None:
    store = written(backend, 30_000, policy)
    fresh = Store.open(backend=backend, snapshots=never)
    chance = random.Random(3)
    check_anywhere(fresh, [700, *(chance.randrange(700, 30_000) for _ in range(30))], MARK_EVENTS + 100)
    assert fresh.counters.marks_used > 10
    store.close()


def test_marks_are_carried_on_by_those_who_resume(backend: Any) -> None:
    """Each of many short lives takes over the marks of the one before, and adds its own, but none for its tail."""
    for begin in range(0, 12_000, 400):
        live = Store.open(backend=backend, snapshots=every(1000)).live("a", book)
        live.append(*[Notes(f"text {i}") for i in range(begin, begin + 400)])
    last = Store.open(backend=backend, snapshots=every(1000))
    last.live("a", book).snapshot()
    there = [key.version for key in last.backend.snapshot_keys("a", keys.fold_hash(book.name), upto=10**9)]
    gone = list(last.backend.snapshot_keys("a", keys.fold_hash(book.name), upto=11_999))
    assert last.backend.drop_snapshots("a", keys.fold_hash(book.name), gone) == len(gone)
    fresh = Store.open(backend=backend, snapshots=never)
    check_anywhere(fresh, [1500, 4321, 9999, 11_111], RECORDS_PER_PAGE)
    assert fresh.counters.marks_used == 4, there


def test_a_catch_up_takes_marks_too(backend: Any) -> None:
    Store.open(backend=backend, snapshots=never).append("a", [Notes(f"text {i}") for i in range(9000)], expected=0)
    Store.open(backend=backend, snapshots=every(8000)).load("a", book)
    fresh = Store.open(backend=backend, snapshots=never)
    check_anywhere(fresh, [1000, 4096, 7777], MARK_EVENTS)
    assert fresh.counters.marks_used == 3


def test_a_fork_that_went_on_carries_its_parents_marks(backend: Any) -> None:
    store = written(backend, 6000, every(6000))
    child = store.fork("a", at=5000, name="child").stream
    live = store.live(child, book)
    theirs = [f"other {i}" for i in range(5000, 9000)]
    for begin in range(0, 4000, 150):  # not where the parent's marks are
        live.append(*map(Notes, theirs[begin : begin + 150]))
    live.snapshot()
    fresh = Store.open(backend=backend, snapshots=never)
    for at in (2000, 4990, 5100, 5130, 5410, 5440, 8200):
        before = fresh.counters.events_folded
        assert list(fresh.load(child, book, at).state.pages) == ([f"text {i}" for i in range(5000)] + theirs)[:at]
        assert fresh.counters.events_folded - before <= MARK_EVENTS + 150, at


STEPS = st.lists(st.integers(1, 12), min_size=1, max_size=12)


@given(STEPS, st.lists(st.tuples(st.floats(0, 1), STEPS), max_size=3), st.integers(0, 9))
def test_what_a_fork_appends_never_gets_its_parents_marks(
    root: list[int], forks: list[tuple[float, list[int]]], seed: int
) -> None:
    """Each stream is appended to in steps of its own, so that its marks stand elsewhere than its parent's."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        dense(patch)
        store = Store.open(backend=MemoryBackend(), snapshots=every(40), clock=lambda: 1)
        name = "a"
        for i, (share, steps) in enumerate([(0.0, root), *forks]):
            if i:
                version = store.head(name).version
                name = store.fork(name, at=max(1, int(version * share)), name=f"f{i}").stream
            live = store.live(name, talk)
            for step in steps:
                live.append(*[Spoken("ann", chance.choice(["x", "y", "yy"])) for _ in range(step)])
            live.snapshot()
        fresh = Store.open(backend=store.backend, snapshots=never)
        for at in range(store.head(name).version + 1):
            assert loaded(fresh, name, at) == truth(fresh, name, at), at


def newest_row(store: Store, fold: Fold[Any], upto: int = 10**9) -> keys.SnapshotRow:
    name = keys.fold_hash(fold.name)
    key = next(store.backend.snapshot_keys("a", name, upto=upto))
    stored = store.backend.snapshot("a", name, key)
    assert stored is not None
    return keys.decode_snapshot_row(stored)


def test_a_series_that_was_replaced_ends_the_marks_before_it() -> None:
    store = Store.open(backend=MemoryBackend(), snapshots=every(10**6))
    live = store.live("a", talk)
    for _ in range(3):
        live.append(*[Spoken("ann", "x")] * MARK_EVENTS)
    live.append(Shortened(3))
    for _ in range(2):
        live.append(*[Spoken("ann", "x")] * MARK_EVENTS)
    live.snapshot()
    there = [mark.version for mark in unpack(newest_row(store, talk).marks)]
    assert there == [4 * MARK_EVENTS, 5 * MARK_EVENTS], "from the first one after it on"


def test_a_newest_item_that_was_changed_makes_its_mark_unused() -> None:
    store = Store.open(backend=MemoryBackend(), snapshots=every(10**6))
    live = store.live("a", talk)
    live.append(*[Spoken("ann", "x")] * MARK_EVENTS)
    live.append(Corrected("changed"))
    live.append(*[Spoken("ann", "x")] * MARK_EVENTS)
    live.snapshot()
    assert unpack(newest_row(store, talk).marks)[0].version == MARK_EVENTS
    fresh = Store.open(backend=store.backend, snapshots=never)
    assert fresh.load("a", talk, MARK_EVENTS).state.lines[-1].text == "x"
    assert loaded(fresh, "a", MARK_EVENTS) == truth(fresh, "a", MARK_EVENTS)
    fresh.load("a", talk, MARK_EVENTS + 1)
    assert fresh.counters.marks_used == 0
    assert fresh.counters.missed["a mark cannot be used"] > 0


def test_a_snapshot_that_is_nearer_than_any_mark_is_taken() -> None:
    store = written(MemoryBackend(), 3 * MARK_EVENTS, every(10**6), step=MARK_EVENTS)
    state = store.load("a", book, MARK_EVENTS + 10).state
    name, fold = keys.fold_hash(book.name), store.snapshots.facts(book)
    due = store.snapshots.encode("a", book, state, MARK_EVENTS + 10, store.log.head("a").hash)
    assert due is not None
    chain_hash = store.snapshots.log_hash("a", MARK_EVENTS + 10)
    row = msgspec.structs.replace(keys.decode_snapshot_row(due.write.row), hash=chain_hash)
    write = msgspec.structs.replace(due.write, hash=chain_hash, row=keys.encode(row))
    assert write.fold == name and write.key.fold_id == fold.fold_id
    assert store.backend.put_snapshot("a", write)
    fresh = Store.open(backend=store.backend, snapshots=never)
    fresh.load("a", book, 2 * MARK_EVENTS - 1)
    assert fresh.counters.events_folded == MARK_EVENTS - 11
    assert fresh.counters.marks_used == 0


def test_looking_at_snapshots_looks_at_their_marks(backend: Any) -> None:
    store = written(backend, 3000, every(2000))
    store.fork("a", at=1500, name="child")
    found = explain(store.snapshots, "child", book)
    assert (found.used, found.mark) == (None, 1280)
    assert found.tail == 220
    newest = next(standing(store.snapshots, "a"))
    assert newest.marks == len(unpack(newest_row(store, book).marks)) > 10
    verified = verify_snapshots(store.log, store.snapshots, "a", book)
    assert verified.compared >= 1 and not verified.findings

    name = keys.fold_hash(book.name)
    key = next(store.backend.snapshot_keys("a", name, upto=10**9))
    row = newest_row(store, book)
    marks = unpack(row.marks)
    wrong = list(marks)
    wrong[2] = Mark(marks[2].version, marks[3].body)
    forged = keys.encode(msgspec.structs.replace(row, marks=pack(wrong)))
    store.backend.put_snapshot("a", SnapshotWrite(name, key, row.hash, forged, {}, []))
    [finding] = verify_snapshots(store.log, store.snapshots, "a", book).findings
    assert finding.version == key.version
    assert f"its mark at version {marks[2].version}" in finding.what


def test_rows_of_older_releases_have_no_marks() -> None:
    row = keys.SnapshotRow("f", {}, b"h", b"s", b"", 1, b"body")
    older = keys.encode((row.fold, row.parts, row.hash, row.state_hash, row.refs, row.created_ns, row.body))
    assert keys.decode_snapshot_row(older) == row
