"""Steps, and their register: each lifts the payload of one (kind, version) to a later version or other kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from tailfold.upcasters.changes import Change, RenameField
from tailfold.upcasters.errors import StepsError

Payload = dict[str, Any]
Tag = tuple[str, int]
"""(kind, schema version)."""


class EventType(Protocol):
    """What steps need to know of an event class."""

    kind: str
    version: int


class Output(NamedTuple):
    """A payload on its way, and the (kind, version) that it stands at."""

    kind: str
    version: int
    payload: Any
    """Plain values; out of a typed step, the struct that it returned."""


class Context(Protocol):
    """The fold that a step with context looks into: a `tailfold.engine.Fold` is one."""

    name: str

    @property
    def initial(self) -> Callable[[], Any]:
        """Makes the state of a stream without events."""

    @property
    def events(self) -> tuple[Any, ...]:
        """The event classes that it handles."""

    def evolve(self, state: Any, event: Any) -> Any:
        """Return the state after *event*."""


class Step:
    """A step from one (kind, version). The classes below differ in what they do with the payload."""

    context: Context | None = None
    """The fold whose state, after all earlier events of the stream, the step is given."""

    def __init__(self, kind: str, version: int, targets: Sequence[Tag]) -> None:
        self.kind = kind
        self.version = version
        self.targets = tuple(targets)
        """Where its outputs stand. Empty for a step that drops the event."""

    @property
    def source(self) -> Tag:
        """The (kind, version) that it lifts."""
        return self.kind, self.version

    @property
    def label(self) -> str:
        """Name the step: ``seats_changed@1 → seats_changed@2``."""
        goal = " + ".join(f"{kind}@{version}" for kind, version in self.targets) or "dropped"
        return f"{self.kind}@{self.version} → {goal}"

    @property
    def does(self) -> list[str]:
        """Say what it does, for people and for the schema lock."""
        raise NotImplementedError

    @property
    def code(self) -> list[Any]:
        """The functions and classes whose code decides the result, for fingerprints."""
        return []

    def run(self, payload: Any, context: Any) -> list[Output]:
        """Return what comes out for *payload*, which may be changed. Raises whatever the user's code does."""
        raise NotImplementedError


class FieldStep(Step):
    """Declared changes of fields."""

    def __init__(self, kind: str, version: int, to: int, changes: Sequence[Change]) -> None:
        super().__init__(kind, version, [(kind, to)])
        self.changes = tuple(changes)

    @property
    def does(self) -> list[str]:  # noqa: D102 - Step
        return [str(change) for change in self.changes] or ["leave every field as it is"]

    @property
    def code(self) -> list[Any]:  # noqa: D102
        return [change.converter for change in self.changes if hasattr(change, "converter")]

    def run(self, payload: Any, context: Any) -> list[Output]:  # noqa: D102
        for change in self.changes:
            change.apply(payload)
        return [Output(*self.targets[0], payload)]


class RenameKind(Step):
    """The event is of another kind from now on, with the same fields."""

    @property
    def does(self) -> list[str]:  # noqa: D102
        return [f"rename the kind to {self.targets[0][0]}"]

    def run(self, payload: Any, context: Any) -> list[Output]:  # noqa: D102
        return [Output(*self.targets[0], payload)]


class FunctionStep(Step):
    """A function on the payload as plain values; it may change it in place, and returns it."""

    def __init__(self, kind: str, version: int, to: int, function: Callable[[Any], Any]) -> None:
        super().__init__(kind, version, [(kind, to)])
        self.function = function

    @property
    def does(self) -> list[str]:  # noqa: D102
        return [f"call {_name(self.function)}"]

    @property
    def code(self) -> list[Any]:  # noqa: D102
        return [self.function]

    def run(self, payload: Any, context: Any) -> list[Output]:  # noqa: D102
        return [Output(*self.targets[0], self.function(payload))]


class TypedStep(Step):
    """A function from the old struct to the new one."""

    def __init__(self, old: Any, new: Any, function: Callable[[Any], Any]) -> None:
        super().__init__(old.kind, old.version, [(new.kind, new.version)])
        self.old, self.new, self.function = old, new, function

    @property
    def does(self) -> list[str]:  # noqa: D102
        return [f"call {_name(self.function)} from {self.old.__name__} to {self.new.__name__}"]

    @property
    def code(self) -> list[Any]:  # noqa: D102
        return [self.function, self.old, self.new]

    def run(self, payload: Any, context: Any) -> list[Output]:  # noqa: D102
        return [Output(*self.targets[0], self.function(payload))]


class ContextStep(FunctionStep):
    """A function on the payload and the state of *context* after all earlier events of the stream."""

    def __init__(
        self, kind: str, version: int, to: int, context: Context, function: Callable[[Any, Any], Any]
    ) -> None:
        super().__init__(kind, version, to, lambda payload: payload)
        self.context = context
        self._with_context = function

    @property
    def does(self) -> list[str]:  # noqa: D102
        assert self.context is not None
        return [f"call {_name(self._with_context)} with the state of {self.context.name}"]

    @property
    def code(self) -> list[Any]:  # noqa: D102
        return [self._with_context, self.context]

    def run(self, payload: Any, context: Any) -> list[Output]:  # noqa: D102
        return [Output(*self.targets[0], self._with_context(payload, context))]


class Part(msgspec.Struct, frozen=True):
    """One of the events that a declared split makes: which fields it takes, under which names, and what it adds."""

    kind: str
    version: int
    fields: tuple[str, ...] = ()
    """Fields that it takes under their own names; a field may go into several parts."""
    renamed: dict[str, str] = {}
    """Fields that it takes under another name: new name → old name."""
    added: dict[str, Any] = {}

    def make(self, payload: Payload) -> Payload:
        """Return the part's payload."""
        made = {name: payload[name] for name in self.fields if name in payload}
        made |= {new: payload[old] for new, old in self.renamed.items() if old in payload}
        return made | self.added

    def __str__(self) -> str:
        taken = [*self.fields, *(f"{old} as {new}" for new, old in self.renamed.items())]
        taken += [f"{name} = {value!r}" for name, value in self.added.items()]
        return f"{self.kind}@{self.version}({', '.join(taken)})"


class SplitStep(Step):
    """One event becomes several, by declared parts."""

    def __init__(self, kind: str, version: int, parts: Sequence[Part]) -> None:
        super().__init__(kind, version, [(part.kind, part.version) for part in parts])
        self.parts = tuple(parts)

    @property
    def does(self) -> list[str]:  # noqa: D102
        return [f"split off {part}" for part in self.parts]

    def run(self, payload: Any, context: Any) -> list[Output]:  # noqa: D102
        # Each its own copy: what a later step does to one part must not show in another.
        return [
            Output(part.kind, part.version, msgspec.msgpack.decode(msgspec.msgpack.encode(part.make(payload))))
            for part in self.parts
        ]


class SplitByFunction(Step):
    """One event becomes as many as the function yields: pairs of kind and payload, kinds out of the targets."""

    def __init__(self, kind: str, version: int, into: Sequence[Tag], function: Callable[[Any], Any]) -> None:
        super().__init__(kind, version, into)
        self.function = function

    @property
    def does(self) -> list[str]:  # noqa: D102
        return [f"split with {_name(self.function)}"]

    @property
    def code(self) -> list[Any]:  # noqa: D102
        return [self.function]

    def run(self, payload: Any, context: Any) -> list[Output]:  # noqa: D102
        versions = dict(self.targets)
        made = []
        for pair in self.function(payload):
            kind, part = pair
            if kind not in versions:
                raise ValueError(f"gave kind {kind!r}, which is none of its declared {sorted(versions)}")
            made.append(Output(kind, versions[kind], part))
        return made


class DropStep(Step):
    """The event says nothing any more: folds and reads pass over it. It stays in the log."""

    @property
    def does(self) -> list[str]:  # noqa: D102
        return ["drop the event"]

    def run(self, payload: Any, context: Any) -> list[Output]:  # noqa: D102
        return []


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


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", repr(function))).split("<locals>.")[-1]


__all__ = [
    "ContextStep",
    "DropStep",
    "FieldStep",
    "FunctionStep",
    "Output",
    "Part",
    "RenameKind",
    "SplitByFunction",
    "SplitStep",
    "Step",
    "TypedStep",
    "Upcasters",
]
