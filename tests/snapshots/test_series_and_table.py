"""A Series behaves as a list, a Table as a dict, under any operations and at any persist or reload point."""

from __future__ import annotations

import contextlib
import copy
import pickle
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tailfold.snapshots import Series, StateCodec, Table
from tailfold.snapshots.chunks import ChunkDamagedError, ChunkReader, pack, split, unpack


class Item(msgspec.Struct, frozen=True):
    n: int
    text: str = ""


@dataclass
class State:
    series: Series[Item] = field(default_factory=Series[Item])
    table: Table[str, int] = field(default_factory=Table[str, int])
    lists: Table[int, list[int]] = field(default_factory=Table[int, list[int]])
    nested: Table[str, Series[int]] = field(default_factory=Table[str, Series[int]])


class Chunks:
    """A plain store of packed chunks."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.written = 0

    def put(self, chunks: dict[bytes, bytes]) -> int:
        new = {ref: pack(data) for ref, data in chunks.items() if ref not in self.held}
        self.held |= new
        self.written += len(new)
        return len(new)

    def reader(self) -> ChunkReader:
        def load(ref: bytes) -> bytes:
            if ref not in self.held:
                raise ChunkDamagedError(ref, "is missing")
            return unpack(ref, self.held[ref])

        return ChunkReader(load, cache_bytes=20_000)


CODEC: StateCodec[State] = StateCodec(State)
KEYS = st.one_of(st.integers(0, 80).map(str), st.text(max_size=3))


class Growing(RuleBasedStateMachine):
    @initialize(start=st.integers(0, 1200))
    def begin(self, start: int) -> None:
        self.chunks = Chunks()
        self.state = State()
        self.items: list[Item] = []
        self.dict: dict[str, int] = {}
        self.lists: dict[int, list[int]] = {}
        self.nested: dict[str, list[int]] = {}
        self.extend(start)

    @rule(count=st.integers(0, 700))
    def extend(self, count: int) -> None:
        new = [Item(len(self.items) + i) for i in range(count)]
        self.state.series.extend(new)
        self.items += new

    @rule(n=st.integers(0, 5))
    def append(self, n: int) -> None:
        self.state.series.append(Item(n, "x"))
        self.items.append(Item(n, "x"))

    @rule(key=KEYS, value=st.integers(0, 9))
    def put(self, key: str, value: int) -> None:
        self.state.table[key] = value
        self.dict[key] = value

    @rule(start=st.integers(0, 3000), count=st.integers(0, 300))
    def put_many(self, start: int, count: int) -> None:
        for i in range(start, start + count):
            self.state.table[f"k{i}"] = i
            self.dict[f"k{i}"] = i

    @rule(start=st.integers(0, 3000), count=st.integers(0, 300))
    def delete_many(self, start: int, count: int) -> None:
        for i in range(start, start + count):
            assert (self.state.table.pop(f"k{i}", None)) == self.dict.pop(f"k{i}", None)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        if key in self.dict:
            del self.state.table[key]
            del self.dict[key]
        else:
            with pytest.raises(KeyError):
                del self.state.table[key]

    @rule(key=st.integers(0, 60), value=st.integers(0, 9))
    def change_in_place(self, key: int, value: int) -> None:
        self.state.lists.setdefault(key, []).append(value)
        self.lists.setdefault(key, []).append(value)

    @rule(key=st.integers(0, 3).map(str), count=st.integers(0, 400))
    def grow_inside(self, key: str, count: int) -> None:
        if key not in self.state.nested:
            self.state.nested[key] = Series[int]()
        self.state.nested[key].extend(range(count))
        self.nested.setdefault(key, []).extend(range(count))

    @rule()
    def persist(self) -> None:
        encoded = CODEC.encode(self.state)
        self.chunks.put(encoded.writer.chunks)
        encoded.writer.stored(self.chunks.reader())

    @rule()
    def encode_without_storing(self) -> None:
        CODEC.encode(self.state)

    @rule()
    def reload(self) -> None:
        encoded = CODEC.encode(self.state)
        self.chunks.put(encoded.writer.chunks)
        self.state = CODEC.decode(encoded.body, self.chunks.reader())
        assert CODEC.encode(self.state).body == encoded.body
        assert not CODEC.encode(self.state).writer.chunks, "nothing is new after a reload"

    @rule(deep=st.booleans())
    def copied(self, deep: bool) -> None:
        self.state = (
            copy.deepcopy(self.state)
            if deep
            else State(
                copy.copy(self.state.series), copy.copy(self.state.table), self.state.lists, self.state.nested
            )
        )

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        size = len(self.items)
        place = data.draw(st.integers(-size - 2, size + 2))
        if -size <= place < size:
            assert self.state.series[place] == self.items[place]
        else:
            with pytest.raises(IndexError):
                self.state.series[place]
        some = st.one_of(st.none(), st.integers(-size - 2, size + 2))
        cut = slice(data.draw(some), data.draw(some), data.draw(st.sampled_from([None, 1, 2, -1, -300])))
        assert self.state.series[cut] == self.items[cut]
        count = data.draw(st.integers(0, size + 2))
        assert self.state.series.last(count) == (self.items[-count:] if count else [])
        key = data.draw(KEYS)
        assert self.state.table.get(key) == self.dict.get(key)
        assert (key in self.state.table) == (key in self.dict)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "state"):
            return
        state = self.state
        assert len(state.series) == len(self.items)
        assert len(state.table) == len(self.dict)
        assert len(state.lists) == len(self.lists)

    @rule()
    def all_the_same(self) -> None:
        state = self.state
        assert list(state.series) == self.items
        assert state.series == self.items
        assert list(reversed(state.series))[:5] == self.items[::-1][:5]
        assert dict(state.table.items()) == self.dict
        assert state.table == self.dict
        assert set(state.table) == set(self.dict)
        assert sorted(state.table.values()) == sorted(self.dict.values())
        assert {k: list(v) for k, v in state.lists.items()} == self.lists
        assert {k: list(v) for k, v in state.nested.items()} == self.nested
        assert pickle.loads(pickle.dumps(state.series)) == state.series
        assert pickle.loads(pickle.dumps(state.table)) == state.table
        # History does not show in the bytes: the same content, built at once, gives the same state hash.
        fresh = State(Series[Item](self.items), Table[str, int](self.dict), Table[int, list[int]](self.lists))
        fresh.nested.update({k: Series[int](v) for k, v in self.nested.items()})
        assert CODEC.hash(fresh) == CODEC.hash(state)


TestGrowing = Growing.TestCase
TestGrowing.settings = settings(max_examples=settings().max_examples, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("n", [255, 256, 257, 65_535, 65_536, 70_000])
def test_a_snapshot_writes_what_is_new_and_no_more(n: int) -> None:
    chunks = Chunks()
    state = State()
    state.series.extend(Item(i) for i in range(n))
    encoded = CODEC.encode(state)
    leaves = (n - 1) // 256  # the newest item is never sealed
    assert chunks.put(encoded.writer.chunks) <= leaves + leaves // 256
    encoded.writer.stored(chunks.reader())
    state.series.extend(Item(i) for i in range(600))
    again = CODEC.encode(state)
    new = (n + 599) // 256 - leaves
    assert len(again.writer.chunks) <= new + 1, "two or three leaves, and a node at the most"
    assert len(again.body) < 256 * 16 * 2 + 256 * 30, "the root stays small"


def test_a_reload_loads_only_what_is_asked_for() -> None:
    chunks = Chunks()
    state = State()
    state.series.extend(Item(i) for i in range(100_000))
    encoded = CODEC.encode(state)
    chunks.put(encoded.writer.chunks)
    reader = chunks.reader()
    loaded = CODEC.decode(encoded.body, reader)
    assert reader.loaded == 0
    assert loaded.series.last(3)[-1] == Item(99_999)
    assert reader.loaded == 0, "the tail stands in the snapshot"
    assert loaded.series[5] == Item(5)
    assert reader.loaded == 2, "a node and a leaf"


def test_stored_items_leave_memory() -> None:
    chunks = Chunks()
    state = State()
    state.series.extend(Item(i) for i in range(10_000))
    encoded = CODEC.encode(state)
    chunks.put(encoded.writer.chunks)
    encoded.writer.stored(chunks.reader())
    assert not state.series._kept
    assert not state.series._unstored.payloads
    assert len(state.series._tail) == 10_000 % 256


def test_append_is_a_lists_own_append() -> None:
    series = Series[int]()
    assert series.append.__self__ is series._tail  # type: ignore[attr-defined]


def test_damaged_chunks_are_noticed() -> None:
    chunks = Chunks()
    state = State()
    state.series.extend(Item(i) for i in range(300))
    encoded = CODEC.encode(state)
    chunks.put(encoded.writer.chunks)
    for ref, stored in chunks.held.items():
        for index in (0, 3, len(stored) // 2, len(stored) - 1):
            changed = stored[:index] + bytes([stored[index] ^ 1]) + stored[index + 1 :]
            with pytest.raises(ChunkDamagedError):
                unpack(ref, changed)
    loaded = CODEC.decode(encoded.body, Chunks().reader())
    with pytest.raises(ChunkDamagedError):
        loaded.series[0]


@given(st.binary(max_size=80))
def test_any_bytes_are_a_chunk_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        split(data)
    with pytest.raises(ChunkDamagedError):
        unpack(b"x" * 16, data)


def test_untyped_growing_state_is_right_or_refused() -> None:
    from tailfold.snapshots.codec import NotEncodableError

    @dataclass
    class Loose:
        things: Series = field(default_factory=Series)  # type: ignore[type-arg]
        table: Table = field(default_factory=Table)  # type: ignore[type-arg]
        any: Any = None

    codec: StateCodec[Loose] = StateCodec(Loose)
    chunks = Chunks()
    state = Loose(Series(range(600)), Table({"a": 1}), {"x": [1]})
    encoded = codec.encode(state)
    chunks.put(encoded.writer.chunks)
    encoded.writer.stored(chunks.reader())
    assert codec.decode(encoded.body, chunks.reader()) == state
    for wrong in (
        Loose(Series([Item(1)] * 300)),
        Loose(Series([Item(1)])),
        Loose(any=(1, 2)),
        Loose(any=Item(1)),
        Loose(table=Table({"a": Item(1)})),
    ):
        with pytest.raises(NotEncodableError):
            codec.encode(wrong)


def test_keys_that_a_dict_and_bytes_tell_apart_differently_are_refused() -> None:
    table: Table[Any, int] = Table()
    for key in (1.0, True, None, (1, 2.0)):
        with pytest.raises(TypeError):
            table[key] = 1


def test_reprs_are_short_and_say_how_much_there_is() -> None:
    assert repr(Series([1, 2])) == "Series([1, 2])"
    assert repr(Series(range(1000))) == "Series([0, 1, 2, … 1000 items …, 999])"
    assert repr(Table({"a": 1})) == "Table({'a': 1})"
    assert "1000 items" in repr(Table({str(i): i for i in range(1000)}))


def test_clear_and_update() -> None:
    table = Table[str, int]({"a": 1})
    table.update({"b": 2}, c=3)
    assert table == {"a": 1, "b": 2, "c": 3}
    table.clear()
    assert (len(table), table == {}) == (0, True)
