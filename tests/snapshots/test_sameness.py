"""A state is trusted in a snapshot only if it comes back as the very same."""

from __future__ import annotations

import collections
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from tailfold.snapshots import Series, StateCodec, Table
from tailfold.snapshots.codec import NotEncodableError


class Shape(msgspec.Struct):
    n: int


class Square(Shape):
    side: int = 0


class Colour(enum.IntEnum):
    RED = 1


@dataclass
class Box:
    counts: dict[str, int] = field(default_factory=dict)
    number: int = 0
    ratio: float = 0
    shapes: list[Shape] = field(default_factory=list)
    when: datetime | None = None
    items: Sequence[int] = ()
    series: Series[Shape] = field(default_factory=Series[Shape])
    table: Table[str, Shape] = field(default_factory=Table[str, Shape])


CODEC: StateCodec[Box] = StateCodec(Box)


@pytest.mark.parametrize(
    "change",
    [
        {"counts": collections.defaultdict(int, a=1)},
        {"counts": collections.Counter("aab")},
        {"counts": collections.OrderedDict(a=1)},
        {"number": True},
        {"number": Colour.RED},
        {"shapes": [Square(1, 2)]},
        {"when": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))},
        {"items": (1, 2)},
        {"series": Series[Shape]([Square(1, 2)])},
        {"series": Series[Shape]([Square(1, 2)] * 600)},
        {"table": Table[str, Shape]({"a": Square(1, 2)})},
    ],
    ids=str,
)
def test_what_would_come_back_as_something_else_is_refused(change: dict[str, Any]) -> None:
    box = Box(items=[1])
    for name, value in change.items():
        setattr(box, name, value)
    with pytest.raises(NotEncodableError):
        CODEC.encode(box)


def test_what_comes_back_as_it_was_is_taken() -> None:
    box = Box({"b": 1, "a": 2}, 5, 0.5, [Shape(1)], datetime(2026, 1, 1, tzinfo=UTC), [1])
    box.series.extend(Shape(i) for i in range(600))
    box.table["a"] = Shape(1)
    assert CODEC.decode(CODEC.encode(box).body, None).counts == {"b": 1, "a": 2}


def test_an_attribute_outside_the_fields_is_refused() -> None:
    box = Box(items=[1])
    box.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(NotEncodableError):
        CODEC.encode(box)


def test_an_int_where_a_float_is_declared_is_the_float() -> None:
    one, other = Box(ratio=5, items=[1]), Box(ratio=5.0, items=[1])
    assert CODEC.encode(one).body == CODEC.encode(other).body
    assert CODEC.hash(one) == CODEC.hash(other)


def test_a_post_init_that_changes_the_state_is_refused() -> None:
    @dataclass
    class Grows:
        n: int = 0

        def __post_init__(self) -> None:
            self.n += 1

    with pytest.raises(NotEncodableError):
        StateCodec[Grows](Grows).encode(Grows())


def test_extending_a_series_by_itself_ends() -> None:
    series = Series[int]([1, 2])
    series.extend(series)
    assert series == [1, 2, 1, 2]


def test_a_refused_key_leaves_the_table_as_it_was() -> None:
    table = Table[Any, int]({"a": 1})
    for key in (1.5, 2**70, "\ud800", Colour.RED, object()):
        with pytest.raises(TypeError):
            table[key] = 1
        assert key not in table
        assert table.get(key) is None
    assert len(table) == 1
