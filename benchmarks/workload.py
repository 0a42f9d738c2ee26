"""Sessions shaped like published agent sessions, made lazily from one seed: what the benchmarks write and read.

A turn is one burst: the turn begins, the model decides on some calls at once, and their outputs come back. Tool
outputs hold most of the bytes, now and then somebody shows an image, and some turns are forked and tried again.
The shape is stated by tests/benchmarks/test_workload.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec
from tailfold.engine import Blob, Event, Fold
from tailfold.snapshots import Series

from benchmarks.events import texts

SEED = 20_250_131
CORPUS_TEXTS = 6000
NUMBERS_A_LINE = 5
IMAGES = 24
"""Distinct images of a session: the same screenshot is shown again, and stored once."""


class TurnBegun(Event, frozen=True):
    kind = "turn_begun"
    turn: int


class Call(msgspec.Struct, frozen=True):
    call_id: str
    tool: str
    arguments: dict[str, str]


class Decided(Event, frozen=True):
    kind = "decided"
    turn: int
    text: str
    calls: list[Call]


class Returned(Event, frozen=True):
    kind = "returned"
    turn: int
    call_id: str
    output: str


class ImageShown(Event, frozen=True):
    kind = "image_shown"
    turn: int
    image: Blob


@dataclass(frozen=True)
class Profile:
    """How a session looks. Lengths are medians in characters; spreads are those of a log-normal distribution."""

    name: str
    decision_chars: int
    output_chars: int
    spread: float
    calls: tuple[int, ...]
    """How often 0, 1, 2, … calls are made at once, as weights."""
    image_share: float = 0.0
    """Share of turns in which an image is shown."""
    image_bytes: int = 60_000
    fork_share: float = 0.0
    """Share of turns from which a fork is made."""
    events: int = 100_000
    """Length of such a session, if nothing else is asked for."""


AGENT = Profile("agent", 1400, 2100, 0.9, (4, 40, 24, 14, 10, 8), image_share=0.02, fork_share=0.01)
TINY = Profile("tiny", 24, 40, 0.5, (10, 60, 30), events=1_000_000)
HUGE = Profile("huge", 160, 240, 0.8, (4, 40, 24, 14, 10, 8), fork_share=0.0001, events=10_000_000)
PROFILES = {profile.name: profile for profile in (AGENT, TINY, HUGE)}

TOOLS = ("read_file", "search", "run_tests", "list_folder", "get_plans")


@lru_cache(maxsize=2)
def _corpus(seed: int) -> str:
    """Return lines of prose with numbers in them, as outputs have hashes and times: those do not compress."""
    chance = random.Random(f"corpus {seed}")
    lines = []
    for text in texts(CORPUS_TEXTS, 1400, seed):
        words = text.split(" ")
        for _ in range(NUMBERS_A_LINE):
            words[chance.randrange(len(words))] = f"{chance.getrandbits(48):012x}"
        lines.append(" ".join(words))
    return "\n".join(lines)


def _text(chance: random.Random, corpus: str, median: int, spread: float) -> str:
    wanted = int(math.exp(chance.gauss(math.log(median), spread)))
    size = max(8, min(wanted, len(corpus) // 4, median * 40))
    begin = chance.randrange(len(corpus) - size)
    return corpus[begin : begin + size]


def bursts(profile: Profile, events: int, seed: int = SEED) -> Iterator[list[Event]]:
    """Yield exactly *events* events, in the batches that an agent appends as one; nothing is kept."""
    chance = random.Random(f"{profile.name} {seed}")
    corpus = _corpus(seed)
    images = [chance.randbytes(profile.image_bytes) for _ in range(IMAGES)] if profile.image_share else []
    left, turn, made = events, 0, 0
    counts = range(len(profile.calls))
    while left:
        turn += 1
        calls = [
            Call(f"c{made + i}", chance.choice(TOOLS), {"path": _text(chance, corpus, 24, 0.4)})
            for i in range(chance.choices(counts, profile.calls)[0])
        ]
        made += len(calls)
        text = _text(chance, corpus, profile.decision_chars, profile.spread / 2)
        batches: list[list[Event]] = [[TurnBegun(turn)], [Decided(turn, text, calls)]]
        if images and chance.random() < profile.image_share:
            batches[0].append(ImageShown(turn, Blob(chance.choice(images))))
        outputs: list[Event] = [
            Returned(turn, call.call_id, _text(chance, corpus, profile.output_chars, profile.spread))
            for call in calls
        ]
        if outputs:
            batches.append(outputs)  # the calls ran at once, and came back together
        for batch in batches:
            batch = batch[:left]
            left -= len(batch)
            if batch:
                yield batch


def session_events(profile: Profile, events: int, seed: int = SEED) -> Iterator[Event]:
    """Yield the same events one by one."""
    for batch in bursts(profile, events, seed):
        yield from batch


def fork_versions(profile: Profile, events: int, seed: int = SEED) -> list[int]:
    """Return the versions at which the session is forked and tried again, in order; at least five."""
    chance = random.Random(f"forks {profile.name} {seed}")
    count = max(5, round(events / 4 * profile.fork_share))
    return sorted(chance.randint(max(1, events // 10), events) for _ in range(count))


class Item(msgspec.Struct, frozen=True):
    """One event of a session in the plain form that every peer can store: the text and what it belongs to."""

    kind: str
    turn: int
    call_id: str
    text: str


def items(profile: Profile, events: int, seed: int = SEED) -> Iterator[Item]:
    """Yield the session in plain form. An image is named, not carried: not every peer can store one."""
    for event in session_events(profile, events, seed):
        if isinstance(event, Returned):
            yield Item("returned", event.turn, event.call_id, event.output)
        elif isinstance(event, Decided):
            calls = " ".join(f"{call.tool} {call.call_id} {call.arguments['path']}" for call in event.calls)
            yield Item("decided", event.turn, "", f"{event.text}\n{calls}")
        elif isinstance(event, ImageShown):
            yield Item("image_shown", event.turn, "", event.image.digest.hex())
        else:
            assert isinstance(event, TurnBegun)
            yield Item("turn_begun", event.turn, "", "")


@dataclass
class Session:
    """What an agent holds: everything that was said, and a few counters."""

    events: int = 0
    turns: int = 0
    characters: int = 0
    images: int = 0
    messages: Series[str] = field(default_factory=Series[str])


session: Fold[Session] = Fold("benchmark-session", Session)


@session.on(TurnBegun)
def _(state: Session, event: TurnBegun) -> None:
    state.events += 1
    state.turns = event.turn


@session.on(Decided)
def _(state: Session, event: Decided) -> None:
    state.events += 1
    state.characters += len(event.text)
    state.messages.append(event.text)


@session.on(Returned)
def _(state: Session, event: Returned) -> None:
    state.events += 1
    state.characters += len(event.output)
    state.messages.append(event.output)


@session.on(ImageShown)
def _(state: Session, event: ImageShown) -> None:
    state.events += 1
    state.images += 1
