"""A made-up session of an agent, of any length: the same seed and number give the same events."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

from tailfold.engine.agent.events import (
    ModelDecision,
    ModelFailed,
    RunRedirected,
    RunResumed,
    RunStarted,
    ToolCall,
    ToolCalled,
    ToolError,
    ToolResult,
    TurnStarted,
    Usage,
)
from tailfold.engine.backend.port import Durability
from tailfold.engine.costs.scratch import Count, Scratch
from tailfold.engine.errors import BadArgument
from tailfold.engine.events import Event

EVENTS_MOST = 10_000_000
STREAM = "synthetic"
BATCH = 1000
WORDS, PHRASES, TEXTS = 4000, 5000, 4000
"""Texts are put together of phrases, some of them frequent, so that they compress about as those of sessions do."""
TOOLS = ("search", "read_file", "quote", "compare")
TURNS_OF_A_QUESTION = 12


@contextmanager
def synthetic_session(events: int, *, seed: int = 1, count: Count = lambda done: None) -> Iterator[Scratch]:
    """Make a session of exactly *events* events, 1 to 10 million, in a temporary directory; remove it at the end.

    About 300 record bytes an event. It stands in the stream ``synthetic``; the agent's fold folds it.
    """
    if not 1 <= events <= EVENTS_MOST:
        raise BadArgument(f"a synthetic session has 1 to {EVENTS_MOST:,} events, not {events:,}")
    with tempfile.TemporaryDirectory(prefix="tailfold-bench-") as folder:
        scratch = Scratch(Path(folder) / "store")
        with scratch.open(Durability.RELAXED) as store:
            made = session(seed)
            for first in range(0, events, BATCH):
                batch = [next(made) for _ in range(min(BATCH, events - first))]
                store.log.append(STREAM, batch, first)
                count(len(batch))
        yield scratch


def session(seed: int) -> Iterator[Event]:
    """Yield the events of a session without end: questions, turns, calls one or several at a time, failures."""
    chance = random.Random(seed)
    texts = _texts(chance)
    yield RunStarted("synthetic", f"Question 1: {chance.choice(texts)[:120]}", "made up", 10_000)
    turn = calls_made = resumes = 0
    question = 1
    while True:
        for left in reversed(range(chance.randint(2, 2 * TURNS_OF_A_QUESTION))):
            turn += 1
            yield TurnStarted(turn)
            if chance.random() < 0.01:
                yield ModelFailed(turn, "the model did not answer in time", _hash(chance))
                continue
            if chance.random() < 0.0005:
                resumes += 1
                yield RunResumed(resumes, None)
                continue
            usage = Usage(chance.randint(500, 8000), chance.randint(20, 600), chance.randint(300, 9000))
            if left == 0:
                yield ModelDecision(turn, [], chance.choice(texts)[:400], _hash(chance), usage)
                break
            calls = []
            for _ in range(chance.choices((1, 2, 3), (80, 15, 5))[0]):
                calls_made += 1
                about = chance.choice(texts)[:60]
                calls.append(ToolCall(f"c{calls_made}", chance.choice(TOOLS), {"query": about, "limit": 20}))
            said = chance.choice(texts)[:80] if chance.random() < 0.3 else ""
            yield ModelDecision(turn, calls, said, _hash(chance), usage)
            for call in calls:
                yield ToolCalled(turn, call, "read_only")
            for call in calls:
                if chance.random() < 0.02:
                    yield ToolError(turn, call.id, "nothing was found")
                else:
                    yield ToolResult(turn, call.id, {"text": chance.choice(texts), "rows": chance.randint(0, 99)})
        question += 1
        yield RunRedirected(question=f"Question {question}: {chance.choice(texts)[:120]}")


def _texts(chance: random.Random) -> list[str]:
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 10))) for _ in range(WORDS)]
    frequent = list(accumulate(1 / (rank + 5) for rank in range(WORDS)))
    phrases = [
        " ".join(chance.choices(words, cum_weights=frequent, k=chance.randint(4, 12))) for _ in range(PHRASES)
    ]
    common = list(accumulate(1 / (rank + 3) for rank in range(PHRASES)))
    return [
        " ".join(chance.choices(phrases, cum_weights=common, k=round(chance.triangular(1, 24, 6))))
        for _ in range(TEXTS)
    ]


def _hash(chance: random.Random) -> str:
    return f"{chance.getrandbits(128):032x}"
