"""The register of steps: at most one for each (kind, version), and the current events that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from tailfold.upcasters.changes import Change, RenameField
from tailfold.upcasters.errors import StepsError
from tailfold.upcasters.steps import (
    Context,
    ContextStep,
    DropStep,
    FieldStep,
    FunctionStep,
    Part,
    RenameKind,
    SplitByFunction,
    SplitStep,
    Step,
    Tag,
    TypedStep,
)

F = TypeVar("F", bound=Callable[..., Any])


class Upcasters:
    """The steps that lift old events, one for each (kind, version) that is no longer current.

        steps = Upcasters(events=[SeatsChanged])

        steps.change("seats_changed", 1, RenameField("count", "seats"), AddField("currency", "USD"))

        @steps.step("seats_changed", 2)
        def _(payload):
            payload["seats"] = max(payload["seats"], 0)
            return payload

    Give it to `Store.open`. A step must be pure, as a fold is: no clock, no randomness, no I/O. A field that is
    added with a default, while the version stands, needs no step.
    """

    def __init__(self, events: Iterable[Any] = ()) -> None:
        """Begin without steps; *events* are the current event classes that the steps lead to."""
        self.events: list[Any] = list(events)
        self._steps: dict[Tag, Step] = {}
        self.retired: set[Tag] = set()

    def change(self, kind: str, version: int, *changes: Change, to: int | None = None) -> None:
        """Declare that *changes* in their order lift *version* to *to* (by default the next one).

        Without changes the payload stays as it is: for a version that was raised because a meaning changed.
        """
        for change in changes:
            if isinstance(change, RenameField) and change.old == change.new:
                raise StepsError(f"{kind}@{version}: {change.old!r} is renamed to itself")
        self.add(FieldStep(kind, version, _next(version, to), changes))

    def step(self, kind: str, version: int, *, to: int | None = None) -> Callable[[F], F]:
        """Register the decorated function of the payload (plain values), which it returns; it may change it."""

        def register(function: F) -> F:
            self.add(FunctionStep(kind, version, _next(version, to), function))
            return function

        return register

    def typed(self, old: type, new: type) -> Callable[[F], F]:
        """Register the decorated function from the struct *old* to the struct *new*, which may be of another kind.

        *old* is the class as it was, kept under another name: a frozen struct with its kind and version.
        """
        for cls in (old, new):
            if not (
                isinstance(cls, type)
                and issubclass(cls, msgspec.Struct)
                and isinstance(getattr(cls, "kind", None), str)
            ):
                raise StepsError(f"{cls!r} is no event class: a frozen struct with a kind and a version")

        def register(function: F) -> F:
            self.add(TypedStep(old, new, function))
            return function

        return register

    def rename_kind(self, kind: str, version: int, new_kind: str, new_version: int = 1) -> None:
        """Declare that *kind* at *version* is *new_kind* at *new_version* from now on, with the same fields."""
        self.add(RenameKind(kind, version, [(new_kind, new_version)]))

    def split(self, kind: str, version: int, *parts: Part) -> None:
        """Declare that one event becomes several, in the order of *parts*; all keep the stored version."""
        if not parts:
            raise StepsError(f"a split of {kind}@{version} into nothing: use drop")
        self.add(SplitStep(kind, version, parts))

    def split_by(self, kind: str, version: int, into: Sequence[Tag]) -> Callable[[F], F]:
        """Register the decorated function, which gives (kind, payload) pairs, as a split into kinds of *into*."""

        def register(function: F) -> F:
            if len(dict(into)) != len(into) or not into:
                raise StepsError(
                    f"a split of {kind}@{version} names each kind that it makes once, with its version"
                )
            self.add(SplitByFunction(kind, version, into, function))
            return function

        return register

    def drop(self, kind: str, version: int) -> None:
        """Declare that events of *kind* at *version* say nothing any more."""
        self.add(DropStep(kind, version, ()))

    def with_context(self, kind: str, version: int, context: Context, *, to: int | None = None) -> Callable[[F], F]:
        """Register the decorated function of (payload, state): the state of the fold *context* before the event.

        The state is the fold of all earlier events of the stream, lifted; it must not be changed.
        """

        def register(function: F) -> F:
            self.add(ContextStep(kind, version, _next(version, to), context, function))
            return function

        return register

    def retire(self, kind: str, *versions: int) -> None:
        """Say that no store holds these versions of *kind* any more, or ever did: they need no step."""
        self.retired |= {(kind, version) for version in versions}

    def add(self, step: Step) -> None:
        """Register a step; raise `StepsError` if there is one from its (kind, version) already."""
        rival = self._steps.get(step.source)
        if rival is not None:
            raise StepsError(f"two steps from {step.kind}@{step.version}: {rival.does} and {step.does}; keep one")
        for kind, version in (step.source, *step.targets):
            if not isinstance(kind, str) or type(version) is not int or version < 1:
                raise StepsError(f"step {step.label}: a kind is a text, a version an integer from 1 on")
        self._steps[step.source] = step

    def include(self, other: Upcasters) -> None:
        """Take over the events and steps of *other*."""
        self.retired |= other.retired
        self.events += [event for event in other.events if event not in self.events]
        for step in other:
            if self._steps.get(step.source) is not step:
                self.add(step)

    def get(self, kind: str, version: int) -> Step | None:
        """Return the step from (kind, version), if there is one."""
        return self._steps.get((kind, version))

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps in the order of what they lift."""
        yield from (self._steps[source] for source in sorted(self._steps))

    def __len__(self) -> int:
        return len(self._steps)

    def reaching(self, kinds: Iterable[str]) -> list[Step]:
        """Return the steps that decide which events of *kinds* come out of older ones, and what they say."""
        wanted = set(kinds)
        found: dict[Tag, Step] = {}
        grown = True
        while grown:
            grown = False
            for source, step in self._steps.items():
                # Also a step that leads away from a wanted kind: without it the event would count.
                leads = step.kind in wanted or any(kind in wanted for kind, _ in step.targets)
                if source not in found and leads:
                    found[source] = step
                    wanted.add(step.kind)
                    if step.context is not None:  # what its state is made of decides, too
                        wanted.update(event.kind for event in step.context.events)
                    grown = True
        return [found[source] for source in sorted(found)]

    def __repr__(self) -> str:
        return f"Upcasters({len(self._steps)} steps, {len(self.events)} events)"


def _next(version: int, to: int | None) -> int:
    return version + 1 if to is None else to
