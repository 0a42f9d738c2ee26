"""The chain: all steps against the code's current events. Built once; what does not fit is an error then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from tailfold.upcasters.errors import LiftError, StepsError
from tailfold.upcasters.register import Upcasters
from tailfold.upcasters.steps import Context, Output, Step, Tag, TypedStep
from tailfold.upcasters.versions import Standing, stand

Build = Callable[[Any, Any], Any]
"""Makes a struct of the given class out of plain values; raises if the class refuses them."""
Plain = Callable[[Any], Any]
"""Makes plain values out of a struct."""
Contexts = Callable[[Context], Any]
"""Gives the state of a context fold before the event that is lifted."""


class Stage(NamedTuple):
    """One step on the way of one payload, for people to look at."""

    step: Step
    given: Any
    """What the step was given, as plain values."""
    outputs: list[Output]
    """What came out, as plain values."""


class Chain:
    """The way of every old (kind, version) to current events.

    `trace` walks it step by step: the meaning of a chain. `compiled.compile_lift` gives the same, faster.
    """

    def __init__(self, upcasters: Upcasters, current: Mapping[str, Any], build: Build, plain: Plain) -> None:
        """Check *upcasters* against *current*, the event class of every kind that the code has.

        Raises `StepsError` naming the first fault: a gap, a cycle, a target that is no current event, a step for
        a kind that nobody knows, a step past the current version.
        """
        self.upcasters = upcasters
        self.current = dict(current)
        self.build, self.plain = build, plain
        for kind, event_type in self.current.items():
            if event_type.kind != kind:
                raise StepsError(f"{event_type!r} is not of kind {kind!r}")
        for step in upcasters:
            self._check(step)
        self._check_gaps()
        self.contexts: list[Context] = []
        for step in upcasters:
            if step.context is not None and step.context not in self.contexts:
                self.contexts.append(step.context)

    def standing_among(self, kind: str, version: int, known: Mapping[str, int]) -> Standing:
        """Place a stored (kind, version) against *known*, the current version of every kind that the code has."""
        return Standing.OLDER if self.lifts(kind, version) else stand(kind, version, known)

    def lifts(self, kind: str, version: int) -> bool:
        """Say whether there is a way from (kind, version)."""
        return self.upcasters.get(kind, version) is not None

    def steps_from(self, kind: str, version: int) -> Iterator[Step]:
        """Yield every step on the way from (kind, version), each once, in the order in which it is met."""
        todo, seen = [(kind, version)], set()
        while todo:
            tag = todo.pop(0)
            step = self.upcasters.get(*tag)
            if step is None or tag in seen:
                continue
            seen.add(tag)
            yield step
            todo += step.targets

    def ends_of(self, kind: str, version: int) -> list[Tag]:
        """Return the current (kind, version)s at which the way from here may end."""
        steps = list(self.steps_from(kind, version))
        ends = {tag for step in steps for tag in step.targets if self.upcasters.get(*tag) is None}
        return sorted(ends)

    def trace(self, kind: str, version: int, payload: Any, contexts: Contexts | None = None) -> list[Stage]:
        """Lift *payload* step by step and return every stage; raise `LiftError` at the step that fails.

        *payload* is plain values and is not changed.
        """
        stages: list[Stage] = []
        todo = [Output(kind, version, payload)]
        while todo:
            at = todo.pop(0)
            step = self.upcasters.get(at.kind, at.version)
            if step is None:
                continue
            given = _copy(at.payload)
            try:
                outputs = self._run(step, at.payload, contexts)
            except LiftError as error:
                error.stages = stages
                raise
            stages.append(Stage(step, given, outputs))
            todo[:0] = outputs  # depth first: the parts of a split come out in their order
        return stages

    def lift(self, kind: str, version: int, payload: Any, contexts: Contexts | None = None) -> list[Any]:
        """Return the current events that a stored payload stands for; raise `LiftError`."""
        return [event for event, _ in self._lifted(Output(kind, version, payload), contexts)]

    def _lifted(self, at: Output, contexts: Contexts | None) -> list[tuple[Any, Output]]:
        step = self.upcasters.get(at.kind, at.version)
        if step is None:
            return [(self.finish(at), at)]
        found = []
        for output in self._run(step, at.payload, contexts):
            found += self._lifted(output, contexts)
        return found

    def finish(self, at: Output) -> Any:
        """Return the current event of an output at the end of its way; raise `LiftError` if its class refuses."""
        event_type = self.current[at.kind]
        try:
            return into(at.payload, event_type, self.build)
        except Exception as error:
            raise LiftError(
                f"into {event_type.__name__} ({at.kind}@{at.version})", at.payload, str(error)
            ) from error

    def _run(self, step: Step, payload: Any, contexts: Contexts | None) -> list[Output]:
        """Run one step on plain values and return plain values, checked as far as the step's types say."""
        given = _copy(payload)
        try:
            context = contexts(step.context) if step.context is not None and contexts is not None else None
            value = _copy(payload)
            if isinstance(step, TypedStep):
                value = into(value, step.old, self.build)
            outputs = []
            for output in step.run(value, context):
                made = output.payload
                if isinstance(step, TypedStep):
                    if type(made) is not step.new:
                        raise TypeError(f"gave {type(made).__name__}, not {step.new.__name__}")
                    made = self.plain(made)
                    self.build(made, step.new)  # what a constructor lets through, a decoder may not
                if not isinstance(made, dict):
                    raise TypeError(f"gave {type(made).__name__}, not a payload (did it return it?)")
                outputs.append(Output(output.kind, output.version, made))
            return outputs
        except LiftError:
            raise
        except Exception as error:
            raise LiftError(step.label, given, _why(error)) from error

    # -- building --------------------------------------------------------------------------------------

    def _check(self, step: Step) -> None:
        known = self.current.get(step.kind)
        if known is not None and step.version >= known.version:
            raise StepsError(
                f"step {step.label}: {step.kind!r} is at version {known.version} in the code, there is nothing to"
                " lift from there. Raise the version of the class, or take the step away"
            )
        for kind, version in step.targets:
            self._check_target(step, kind, version)
        self._check_cycle(step)

    def _check_target(self, step: Step, kind: str, version: int) -> None:
        if kind == step.kind and version <= step.version:
            raise StepsError(f"step {step.label} does not lead forward")
        onward = self.upcasters.get(kind, version)
        current = self.current.get(kind)
        if current is None:
            if onward is None:
                raise StepsError(
                    f"step {step.label} leads to {kind}@{version}, but the code has no event of kind {kind!r} and"
                    " no step leads on. Is the name misspelt? Name the class among the events, or drop the event"
                )
        elif version > current.version:
            raise StepsError(
                f"step {step.label} leads past {kind!r}, which is at version {current.version} in the code"
            )
        elif version < current.version and onward is None:
            raise StepsError(
                f"gap: step {step.label} leads to {kind}@{version}, the code is at {kind}@{current.version}, and no"
                f" step lifts {kind}@{version}. Register it; if no field has to change, change({kind!r}, {version})"
            )

    def _check_gaps(self) -> None:
        """Every version below the current one has a step or is retired, of each kind that has steps at all."""
        tops: dict[str, int] = {}
        for step in self.upcasters:
            tops[step.kind] = max(tops.get(step.kind, 0), step.version)
        for kind, top in tops.items():
            current = self.current.get(kind)
            last = current.version - 1 if current is not None else top
            for version in range(1, last + 1):
                tag = (kind, version)
                if self.upcasters.get(*tag) is None and tag not in self.upcasters.retired:
                    raise StepsError(
                        f"gap: no step lifts {kind}@{version}. Register it; as change({kind!r}, {version}) if no"
                        f" field has to change, as retire({kind!r}, {version}) if no store holds it"
                    )

    def _check_cycle(self, first: Step) -> None:
        todo = list(first.targets)
        seen: set[Tag] = set()
        while todo:
            tag = todo.pop()
            if tag == first.source:
                raise StepsError(f"the steps from {first.kind}@{first.version} lead back to it")
            step = self.upcasters.get(*tag)
            if step is not None and tag not in seen:
                seen.add(tag)
                todo += step.targets


def current_events(events: Iterable[Any]) -> dict[str, Any]:
    """Return event classes by kind; raise `StepsError` if two claim one."""
    found: dict[str, Any] = {}
    for event in events:
        if found.setdefault(event.kind, event) is not event:
            raise StepsError(f"kind {event.kind!r} is declared by {found[event.kind]!r} and by {event!r}")
    return found


def into(payload: Any, wanted: Any, build: Build) -> Any:
    """Make the struct *wanted* of a payload; raise whatever it refuses. What it does not know is not looked at."""
    if isinstance(payload, dict) and not wanted.__struct_config__.forbid_unknown_fields:
        payload = {name: payload[name] for name in wanted.__struct_encode_fields__ if name in payload}
    return build(payload, wanted)


def _copy(payload: Any) -> Any:
    """Return a copy of plain values that a step may change."""
    if isinstance(payload, dict):
        return {key: _copy(value) for key, value in payload.items()}
    if isinstance(payload, list):
        return [_copy(value) for value in payload]
    return payload


def _why(error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        return str(error)
    return f"{type(error).__name__}: {error}"
