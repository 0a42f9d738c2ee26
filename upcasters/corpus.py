"""The golden corpus: real payloads of every (kind, version), and what each lifted to when it was recorded.

One JSON line an entry, kept for ever beside the schema lock. Checking it is running the code on them: a payload
that lifts no more, or to something else, is found whatever the declarations say.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from tailfold.upcasters.chain import Chain, Stage
from tailfold.upcasters.errors import LiftError, LockError
from tailfold.upcasters.schema import Value, default_of, view
from tailfold.upcasters.steps import Context, TypedStep


class Made(msgspec.Struct, frozen=True):
    """A payload on its way or at its end, as JSON has it."""

    kind: str
    version: int
    payload: Value


class Passed(msgspec.Struct, frozen=True):
    """What one step made of what it was given."""

    kind: str
    """What it lifts."""
    version: int
    outputs: list[Made]


class Entry(msgspec.Struct, frozen=True):
    """One golden payload. A step with context is given the state of a stream without events."""

    kind: str
    version: int
    payload: Value
    """For people: the plain values."""
    msgpack: str
    """The exact stored bytes (base64)."""
    stages: list[Passed] = []
    events: list[Made] = []
    """The current events that it lifted to, when it was recorded."""

    @property
    def tag(self) -> tuple[str, int]:
        """The stored (kind, version)."""
        return self.kind, self.version

    @property
    def stored(self) -> bytes:
        """The exact stored payload."""
        return base64.b64decode(self.msgpack, validate=True)

    def plain(self) -> Any:
        """Return the stored payload as plain values; raise `LockError`."""
        try:
            return msgspec.msgpack.decode(self.stored)
        except (msgspec.MsgspecError, binascii.Error) as error:
            raise LockError(f"a payload of {self.kind}@{self.version} cannot be read: {error}") from None


class Failure(NamedTuple):
    """An entry that does not lift as it did."""

    entry: Entry
    step: tuple[str, int] | None
    """The (kind, version) whose step gives something else; None if it is not one step."""
    what: str


class CorpusChecked(NamedTuple):
    """What a check of the corpus found."""

    lifted: list[Entry]
    """Entries that lift as they did."""
    anew: list[Entry]
    """The same, recorded anew: with the stages and events of today."""
    failures: list[Failure]
    passed_over: int
    """Entries of retired versions."""

    def proves(self, kind: str, version: int) -> int:
        """Return how many payloads go through the step from (kind, version) as they did when they were recorded."""
        return sum(
            any((stage.kind, stage.version) == (kind, version) for stage in entry.stages) for entry in self.lifted
        )


def record(chain: Chain, kind: str, version: int, payload: bytes) -> Entry:
    """Make the entry of a stored payload; raise `LiftError` if it cannot be read."""
    plain = msgspec.msgpack.decode(payload)
    entry = Entry(kind, version, view(plain), base64.b64encode(payload).decode())
    stages, events = _way(chain, entry)
    return msgspec.structs.replace(entry, stages=[_passed(stage) for stage in stages], events=events)


def check(entries: Iterable[Entry], chain: Chain) -> CorpusChecked:
    """Lift every entry, and compare what comes out with what is recorded."""
    lifted, anew, failures, passed_over = [], [], [], 0
    for entry in entries:
        if entry.tag in chain.upcasters.retired and not chain.lifts(*entry.tag):
            passed_over += 1
            continue
        try:
            stages, events = _way(chain, entry)
        except LiftError as error:
            way = list(chain.steps_from(*entry.tag))
            failed = [s for s in way if s.label == error.step] or way[-1:]  # what its class refuses, the last made
            step = failed[0].source if failed else None
            failures.append(Failure(entry, step, f"it lifts no more: {error}"))
            continue
        failure = _differs(entry, stages, events, chain)
        if failure is not None:
            failures.append(failure)
            continue
        again = [_passed(stage) for stage in stages]
        lifted.append(entry)
        anew.append(msgspec.structs.replace(entry, stages=again, events=events))
    return CorpusChecked(lifted, anew, failures, passed_over)


def _way(chain: Chain, entry: Entry) -> tuple[list[Stage], list[Made]]:
    plain = entry.plain()
    stages = chain.trace(entry.kind, entry.version, plain, _from_nothing)
    if not stages:
        known = chain.current.get(entry.kind)
        if known is None or entry.version > known.version:
            why = "the code has no such kind" if known is None else f"the code is at version {known.version}"
            raise LiftError(f"into {entry.kind}@{entry.version}", plain, why)
    events = chain.lift(entry.kind, entry.version, plain, _from_nothing)
    return stages, [Made(event.kind, event.version, view(chain.plain(event))) for event in events]


def _from_nothing(context: Context) -> Any:
    return context.initial()


def _passed(stage: Stage) -> Passed:
    outputs = [Made(output.kind, output.version, view(output.payload)) for output in stage.outputs]
    return Passed(stage.step.kind, stage.step.version, outputs)


def _differs(entry: Entry, stages: list[Stage], events: list[Made], chain: Chain) -> Failure | None:
    left = list(stages)
    gone = False
    for passed in entry.stages:
        source = passed.kind, passed.version
        stage = next((stage for stage in left if stage.step.source == source), None)
        if stage is None or [o[:2] for o in stage.outputs] != [(o.kind, o.version) for o in passed.outputs]:
            gone = True
            continue
        left.remove(stage)
        cls = stage.step.new if isinstance(stage.step, TypedStep) else None
        for was, output in zip(passed.outputs, stage.outputs, strict=True):
            what = _difference(was.payload, view(output.payload), cls)
            if what is not None:
                where = f"step {stage.step.label} makes something else of it: {what}"
                return Failure(entry, source, where)
    return _events_differ(entry, events, gone, chain)


def _events_differ(entry: Entry, events: list[Made], gone: bool, chain: Chain) -> Failure | None:
    current = {kind: event.version for kind, event in chain.current.items()}
    if any(current.get(made.kind) != made.version for made in entry.events):
        # A version was raised since: the recorded steps are the proof, if they are still on the way.
        what = "it no longer goes through the steps that it was recorded with, and its end has moved"
        return Failure(entry, entry.tag, what) if gone else None
    before = [(made.kind, made.version) for made in entry.events]
    after = [(made.kind, made.version) for made in events]
    if before != after:
        return Failure(entry, entry.tag, f"it gives {_kinds(after)}, it gave {_kinds(before)}")
    for was, now in zip(entry.events, events, strict=True):
        said = _difference(was.payload, now.payload, chain.current[now.kind])
        if said is not None:
            step = entry.tag if entry.stages else None
            return Failure(entry, step, f"the {now.kind} says something else: {said}")
    return None


def _kinds(tags: list[tuple[str, int]]) -> str:
    return " + ".join(f"{kind}@{version}" for kind, version in tags) or "no event"


def _difference(was: Value, now: Value, cls: Any) -> str | None:
    """Say where two payloads differ. If a class *cls* made them, fields may have come with their defaults."""
    found = _differs_at(was, now, cls is not None, "")
    if found is None and cls is not None:
        for field in msgspec.structs.fields(cls):
            name = field.encode_name
            if name in now and name not in was and now[name] != default_of(field)[0]:
                return f"{name} is {_short(now[name])}, and was not there"
    return found


def _differs_at(was: Value, now: Value, grown: bool, path: str) -> str | None:
    if isinstance(was, dict) and isinstance(now, dict):
        for name in was:
            if name not in now:
                return f"{path}{name} is gone"
            found = _differs_at(was[name], now[name], grown, f"{path}{name}.")
            if found is not None:
                return found
        more = [name for name in now if name not in was]
        return None if grown or not more else f"{path}{more[0]} was not there"
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = enumerate(zip(was, now, strict=True))
        each = (_differs_at(a, b, grown, f"{path}{i}.") for i, (a, b) in pairs)
        return next((found for found in each if found is not None), None)
    if was == now and (type(was) is type(now) or (grown and (type(was), type(now)) == (int, float))):
        return None
    return f"{path.rstrip('.') or 'it'} is {_short(now)}, was {_short(was)}"


def _short(value: Value) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"


# -- the file ----------------------------------------------------------------------------------------------


def render(entries: Iterable[Entry]) -> str:
    """Return the corpus as JSON lines, in the order of kinds, versions and payloads."""
    ordered = sorted(entries, key=lambda e: (e.kind, e.version, len(e.msgpack), e.msgpack))
    return "".join(msgspec.json.encode(entry).decode() + "\n" for entry in ordered)


def parse(text: str) -> list[Entry]:
    """Read a corpus file's text; raise `LockError` naming the line."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                entry = msgspec.json.decode(line, type=Entry)
                entry.plain()
            except (msgspec.MsgspecError, LockError) as error:
                raise LockError(f"line {number}: {error}") from None
            entries.append(entry)
    return entries


# -- choosing ----------------------------------------------------------------------------------------------

PAYLOAD_BYTES_MAX = 16 << 10
"""Larger payloads are not taken: a corpus is read in reviews."""


class Chooser:
    """Picks a few payloads of each tag out of many: the smallest ones that differ in what their fields hold."""

    def __init__(self, most: int, have: Iterable[Entry] = ()) -> None:
        """Keep at most *most* of each tag, with those that *have* holds already."""
        self._most = most
        self._have: dict[tuple[str, int], set[Any]] = {}
        for entry in have:
            self._have.setdefault(entry.tag, set()).add(_signature(entry.plain()))
        self._found: dict[tuple[str, int], dict[Any, bytes]] = {}

    def offer(self, kind: str, version: int, payload: bytes) -> None:
        """Look at a stored payload."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            return
        tag = kind, version
        have = self._have.get(tag, set())
        if len(have) >= self._most:
            return
        signature = _signature(msgspec.msgpack.decode(payload))
        if signature in have:
            return
        found = self._found.setdefault(tag, {})
        held = found.get(signature)
        if held is None or (len(payload), payload) < (len(held), held):
            found[signature] = payload

    def chosen(self) -> list[tuple[str, int, bytes]]:
        """Return the picked payloads with their tags."""
        picked = []
        for (kind, version), found in sorted(self._found.items()):
            room = self._most - len(self._have.get((kind, version), ()))
            smallest = sorted(found.values(), key=lambda payload: (len(payload), payload))[:room]
            picked += [(kind, version, payload) for payload in smallest]
        return picked


def _signature(payload: Any) -> Any:
    if not isinstance(payload, dict):
        return type(payload).__name__
    return tuple(
        sorted(
            (str(name), type(value).__name__, bool(value) if isinstance(value, list | dict | str) else True)
            for name, value in payload.items()
        )
    )
