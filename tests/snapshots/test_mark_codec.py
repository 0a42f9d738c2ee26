"""Marks by themselves: which states have them, how many are carried, and what becomes of damaged ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.snapshots import Series, Table
from tailfold.snapshots.codec import StateCodec
from tailfold.snapshots.limits import MARK_BYTES_MOST, MARK_EVENTS, MARKS_MOST
from tailfold.snapshots.marks import MarkCodec, Marks, unpack


@dataclass
class Book:
    count: int = 0
    pages: Series[str] = field(default_factory=Series[str])


def test_a_mark_that_would_not_come_back_as_it_was_is_not_taken() -> None:
    class Tagged(dict[str, int]):
        """Comes back as a plain dictionary."""

    @dataclass
    class Odd:
        tags: dict[str, int] = field(default_factory=dict)
        pages: Series[str] = field(default_factory=Series[str])

    codec = MarkCodec[Odd](Odd)
    assert codec.encode(Odd({"a": 1})) is not None
    assert codec.encode(Odd(Tagged(a=1))) is None


def test_states_with_a_table_have_no_marks() -> None:
    @dataclass
    class Counts:
        by_text: Table[str, int] = field(default_factory=Table[str, int])

    assert not MarkCodec(Counts).possible
    assert not MarkCodec(list[Series[str]]).possible
    assert not MarkCodec(Series[Series[str]]).possible
    assert MarkCodec(Book).possible
    assert MarkCodec(int).possible


def test_a_state_that_is_large_without_its_series_has_no_marks() -> None:
    @dataclass
    class Wide:
        text: str = ""
        pages: Series[str] = field(default_factory=Series[str])

    codec, marks = MarkCodec[Wide](Wide), Marks()
    marks.take(codec, Wide("x" * (MARK_BYTES_MOST + 1)), MARK_EVENTS)
    assert marks.hand_over(codec, Wide(), MARK_EVENTS + 1) == b""
    assert marks.due_at > 2 * MARK_EVENTS, "it is asked ever less"


def test_a_snapshot_carries_no_more_than_so_many() -> None:
    codec, marks, state = MarkCodec[Book](Book), Marks(), Book()
    while marks.due_at < 300 * MARK_EVENTS:
        marks.take(codec, state, marks.due_at)
    there = [mark.version for mark in unpack(marks.hand_over(codec, state, 300 * MARK_EVENTS))]
    assert MARKS_MOST // 2 <= len(there) <= MARKS_MOST
    assert there[0] <= 16 * MARK_EVENTS, "spread over all that was folded since the last snapshot"
    assert there[-1] >= 280 * MARK_EVENTS


@given(st.integers(0, 400), st.integers(1, 255))
def test_damaged_marks_are_none(index: int, change: int) -> None:
    codec, marks, state = MarkCodec[Book](Book), Marks(), Book()
    for version in range(MARK_EVENTS, 9 * MARK_EVENTS, MARK_EVENTS):
        marks.take(codec, state, version)
    packed = marks.hand_over(codec, state, 9 * MARK_EVENTS)
    index %= len(packed)
    damaged = packed[:index] + bytes([packed[index] ^ change]) + packed[index + 1 :]
    assert unpack(packed) and unpack(damaged) in ([], unpack(packed))


@given(st.integers(0, 700), st.integers(0, 700), st.integers(2, 5))
def test_the_beginning_of_a_series_is_the_series_that_it_was(first: int, more: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailfold.snapshots.series.CHUNK_ITEMS", chunk)
        codec = StateCodec[Book](Book)
        long, short = Book(), Book()
        for i in range(first):
            short.pages.append(f"text {i}")
        for i in range(first + more):
            long.pages.append(f"text {i}")
        codec.encode(long)
        begun = Book(0, long.pages._beginning(first))
        assert codec.encode(begun).body == codec.encode(short).body
        begun.pages.append("another")
        assert begun.pages == [f"text {i}" for i in range(first)] + ["another"]
        assert len(long.pages) == first + more
