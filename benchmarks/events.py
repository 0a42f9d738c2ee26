"""The events that benchmarks append and fold: a tool result, of a chosen size, and a counter of them."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from itertools import accumulate

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


POOL = 20_000
WORDS = 4000
PHRASES = 5000


def texts(count: int, text_bytes: int, seed: int = 1) -> list[str]:
    """Return *count* texts (at most a pool of them) of about *text_bytes*, of phrases and words as in a session.

    In chunks of 256 they compress 3.6 (120 bytes) to 6 times (1,400 bytes); public agent sessions do 5.5 times.
    """
    chance = random.Random(seed)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 10))) for _ in range(WORDS)]
    frequent = list(accumulate(1 / (rank + 5) for rank in range(WORDS)))
    phrases = [
        " ".join(chance.choices(words, cum_weights=frequent, k=chance.randint(4, 12))) for _ in range(PHRASES)
    ]
    common = list(accumulate(1 / (rank + 3) for rank in range(PHRASES)))
    found = []
    for _ in range(min(count, POOL)):
        parts: list[str] = []
        size = 0
        while size < text_bytes:
            if chance.random() < 0.93:
                parts += chance.choices(phrases, cum_weights=common)
            else:
                parts += chance.choices(words, cum_weights=frequent)
            size += len(parts[-1]) + 1
        found.append(" ".join(parts)[:text_bytes])
    return found


def events(count: int, text_bytes: int, seed: int = 1) -> list[Measured]:
    """Return *count* events, each with about *text_bytes* of seeded text."""
    pool = texts(count, text_bytes, seed)
    return [Measured(i, f"c{i}", pool[i % len(pool)]) for i in range(count)]
