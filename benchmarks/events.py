"""The events that benchmarks append and fold: a tool result, of a chosen size, and a counter of them."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

from tailfold.engine import Event, Fold


class Measured(Event, frozen=True):
    kind = "measured"
    turn: int
    call_id: str
    text: str


@dataclass
class Totals:
    events: int = 0
    turns: int = 0
    characters: int = 0


totals: Fold[Totals] = Fold("totals", Totals)


@totals.on(Measured)
def _(state: Totals, event: Measured) -> None:
    state.events += 1
    state.turns = event.turn
    state.characters += len(event.text)


def events(count: int, text_bytes: int, seed: int = 1) -> list[Measured]:
    """Return *count* events, each with *text_bytes* of seeded text."""
    chance = random.Random(seed)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(500)]
    text = " ".join(chance.choices(words, k=max(2, text_bytes // 3)))
    texts = [text[i : i + text_bytes] for i in range(0, max(1, len(text) - text_bytes), 7)] or [text]
    return [Measured(i, f"c{i}", texts[i % len(texts)]) for i in range(count)]
