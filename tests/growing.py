"""A fold whose state grows in every way, for snapshot tests: series, tables, dicts, sets, nested things."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from tailfold.engine import Event, Fold
from tailfold.snapshots import Series, Table


class Said(Event, frozen=True):
    kind = "said"
    who: str
    text: str


class Scored(Event, frozen=True):
    kind = "scored"
    who: str
    points: int


class Forgot(Event, frozen=True):
    kind = "forgot"
    who: str


class Line(msgspec.Struct, frozen=True):
    number: int
    who: str
    text: str


@dataclass
class Talk:
    lines: Series[Line] = field(default_factory=Series[Line])
    points: Table[str, int] = field(default_factory=Table[str, int])
    by_person: Table[str, Series[int]] = field(default_factory=Table[str, Series[int]])
    order: dict[str, int] = field(default_factory=dict)
    people: set[str] = field(default_factory=set)
    total: int = 0


talk: Fold[Talk] = Fold("talk", Talk)


@talk.on(Said)
def _(state: Talk, event: Said) -> None:
    number = len(state.lines)
    state.lines.append(Line(number, event.who, event.text))
    state.people.add(event.who)
    if event.who not in state.by_person:
        state.by_person[event.who] = Series[int]()
    state.by_person[event.who].append(number)
    state.order.pop(event.who, None)
    state.order[event.who] = number
    if len(state.order) > 5:
        del state.order[next(iter(state.order))]  # relies on the order of insertion


@talk.on(Scored)
def _(state: Talk, event: Scored) -> None:
    state.points[event.who] = state.points.get(event.who, 0) + event.points
    state.total += event.points


@talk.on(Forgot)
def _(state: Talk, event: Forgot) -> None:
    state.points.pop(event.who, None)
    state.people.discard(event.who)
