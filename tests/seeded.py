"""A fold that breaks a law on purpose: the order of a set decides its state."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailfold.engine import Fold

from tests.domain import Noted


@dataclass
class Firsts:
    seen: set[str] = field(default_factory=set)
    firsts: list[str] = field(default_factory=list)


first_of_a_set: Fold[Firsts] = Fold("first of a set", Firsts)


@first_of_a_set.on(Noted)
def _(state: Firsts, event: Noted) -> None:
    state.seen.add(event.text)
    state.firsts.append(next(iter(state.seen)))
