"""Lifting: old records become current events inside the one decode call, by the chain of upcasters.

For an old (kind, version) there is a record class like any other, whose payload is lifted as soon as it is decoded;
so records at the current version pay nothing, and everyone who reads (folds, reads, replay, export, the command
line) lifts alike. What fails on that way is walked again, step by step, to say which step it was.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from tailfold.engine.errors import BadSteps, StepFailed
from tailfold.engine.events import Event, Several, tag
from tailfold.snapshots import fingerprint
from tailfold.upcasters import Chain, LiftError, Stage, StepsError, Upcasters, current_events
from tailfold.upcasters.compiled import compile_lift
from tailfold.upcasters.steps import Context

CONTEXTS_KEPT = 64
"""States of context folds that wait for the next page of their streams."""

LoadContext = Callable[[Any, str, int], Any]
"""Gives a fresh state of a context fold for a stream at a version."""


class Waiting(msgspec.Struct, gc=False):
    """A stored payload whose steps need the state before it: lifted after the page is decoded."""

    kind: str
    version: int
    payload: Any


class Way(NamedTuple):
    """How records of one old tag are decoded."""

    payload: Any
    """The annotation of the payload as stored."""
    lift: Callable[[Any], None]
    """Called with each new record: puts the event in place of its payload."""


class Lifting:
    """The steps that one codec has. Thread-safe once `adopt` has returned."""

    def __init__(self, decode: Callable[[bytes, Any], Any], encode: Callable[[Any], bytes]) -> None:
        self._decode, self._encode = decode, encode
        self.upcasters = Upcasters()
        self.generation = 0
        """Raised whenever steps are added: what was derived from them is out of date then."""
        self.load_context: LoadContext | None = None
        self.contexts_kept = CONTEXTS_KEPT
        self._contexts: OrderedDict[tuple[int, str, int, int], Any] = OrderedDict()
        self._keeping = threading.Lock()
        self.chain = self._built(self.upcasters, ())

    def adopt(self, upcasters: Upcasters, events: Iterable[type[Event]]) -> None:
        """Add the steps of *upcasters*, to its events and *events*; raise `BadSteps`, with nothing added."""
        merged = Upcasters()
        try:
            merged.include(self.upcasters)
            merged.include(upcasters)
        except StepsError as error:
            raise BadSteps(str(error)) from None
        self.chain = self._built(merged, events)
        self.upcasters = merged
        self._contexts.clear()
        self.generation += 1

    def has(self, upcasters: Upcasters) -> bool:
        """Say whether everything of *upcasters* was adopted already."""
        own = self.upcasters
        return (
            all(own.get(*step.source) is step for step in upcasters)
            and upcasters.retired <= own.retired
            and all(event in own.events for event in upcasters.events)
        )

    def _built(self, upcasters: Upcasters, events: Iterable[type[Event]]) -> Chain:
        try:
            current = current_events([*upcasters.events, *events])
            return Chain(upcasters, current, self.build, self.plain)
        except StepsError as error:
            raise BadSteps(str(error)) from None

    def build(self, value: Any, wanted: Any) -> Any:
        """Make *wanted* of plain values exactly as a decoder would."""
        return self._decode(self._encode(value), wanted)

    def plain(self, value: Any) -> Any:
        """Make plain values of a struct exactly as storing it would."""
        return msgspec.msgpack.decode(self._encode(value))

    def way(self, kind: str, version: int) -> Way | None:
        """Return how records of (kind, version) become current, or None if no step lifts them."""
        if not self.chain.lifts(kind, version):
            return None
        compiled = compile_lift(self.chain, kind, version)
        lift = compiled.lift
        if lift is None:
            return Way(Any, lambda record: _wait(record, kind, version))
        if compiled.several:
            return Way(compiled.payload_type, lambda record: _part(record, lift))
        return Way(compiled.payload_type, lift)

    def slowly(self, stream: str, at: int, kind: str, version: int, payload: Any) -> Any:
        """Lift one payload step by step; raise `StepFailed` naming the one that fails."""
        return self._events(stream, at, Waiting(kind, version, payload), None)

    def trace(self, stream: str, at: int, kind: str, version: int, payload: Any) -> list[Stage]:
        """Return every stage of lifting one payload, for people; raise `StepFailed`."""
        try:
            return self.chain.trace(kind, version, payload, lambda context: self._context(context, stream, at - 1))
        except LiftError as error:
            raise _failed(stream, at, kind, version, error) from error

    def text(self, kinds: Iterable[str]) -> str:
        """Say what the steps are that decide about events of *kinds*: for fold ids. Empty if there are none."""
        steps = self.upcasters.reaching(kinds)
        if not steps:
            return ""
        said = [f"{step.label}: {'; '.join(step.does)}" for step in steps]
        return "\n".join([*said, fingerprint.source_text({step.label: step.code for step in steps})])

    # -- steps that look at earlier events ---------------------------------------------------------------

    def resolve(self, stream: str, after: int, records: list[Any]) -> None:
        """Lift what waits among the *records* of versions *after*+1, …, each with the state before it.

        The states of the context folds go through the page event by event. What a page begins with is left from
        the page before, or loaded: from a snapshot of the context fold and its tail, as any state is.
        """
        contexts = self.chain.contexts
        states: dict[int, Any] = {}
        for i in range(len(contexts)):
            self._take(stream, i, after, states)
        if not states and not any(_waits(record.payload) for record in records):
            return
        for i, context in enumerate(contexts):
            if i not in states:
                states[i] = self._context(context, stream, after)
        for i, record in enumerate(records):
            if type(record.payload) is Waiting:
                record.payload = self._events(stream, after + 1 + i, record.payload, states)
            elif _waits(record.payload):  # a composite: each part sees the state before the stored event
                parts = [self._part(stream, after + 1 + i, part, states) for part in record.payload.events]
                record.payload = Several(tuple(event for part in parts for event in part))
            payload = record.payload
            for event in payload.events if type(payload) is Several else (payload,):
                for j, context in enumerate(contexts):
                    try:
                        states[j] = context.evolve(states[j], event)
                    except Exception as error:
                        why = f"its context {context.name!r} raised {type(error).__name__}: {error}"
                        raise StepFailed(
                            stream, after + 1 + i, type(event).__name__, "with context", event, why
                        ) from error
        for i, state in states.items():
            self._keep(stream, i, after + len(records), state)

    def _part(self, stream: str, at: int, part: Any, states: dict[int, Any]) -> tuple[Any, ...]:
        if type(part) is not Waiting:
            return (part,)
        lifted = self._events(stream, at, part, states)
        return lifted.events if type(lifted) is Several else (lifted,)

    def _events(self, stream: str, at: int, waiting: Waiting, states: dict[int, Any] | None) -> Any:
        def state_of(context: Context) -> Any:
            if states is not None:
                return states[self.chain.contexts.index(context)]
            return self._context(context, stream, at - 1)

        try:
            events = self.chain.lift(waiting.kind, waiting.version, waiting.payload, state_of)
        except LiftError as error:
            raise _failed(stream, at, waiting.kind, waiting.version, error) from error
        return events[0] if len(events) == 1 else Several(tuple(events))

    def _context(self, context: Context, stream: str, version: int) -> Any:
        if version == 0 or self.load_context is None:
            return context.initial()
        return self.load_context(context, stream, version)

    def _take(self, stream: str, context: int, version: int, into: dict[int, Any]) -> None:
        """Take a kept state out, if there is one: whoever has it may change it."""
        key = threading.get_ident(), stream, context, version
        with self._keeping:
            if key in self._contexts:
                into[context] = self._contexts.pop(key)

    def _keep(self, stream: str, context: int, version: int, state: Any) -> None:
        with self._keeping:
            self._contexts[threading.get_ident(), stream, context, version] = state
            while len(self._contexts) > self.contexts_kept:
                self._contexts.popitem(last=False)


def _waits(payload: Any) -> bool:
    return type(payload) is Waiting or (
        type(payload) is Several and any(type(part) is Waiting for part in payload.events)
    )


def _wait(record: Any, kind: str, version: int) -> None:
    record.payload = Waiting(kind, version, record.payload)


def _part(record: Any, lift: Callable[[Any], None]) -> None:
    lift(record)
    events = record.payload
    record.payload = events[0] if len(events) == 1 else Several(tuple(events))


def _failed(stream: str, at: int, kind: str, version: int, error: LiftError) -> StepFailed:
    return StepFailed(stream, at, tag(kind, version), error.step, error.payload, error.why)
