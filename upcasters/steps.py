"""Steps: each lifts the payload of one (kind, version) to a later version or other kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from tailfold.upcasters.changes import Change

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


class Step(ABC):
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
    @abstractmethod
    def does(self) -> list[str]:
        """Say what it does, for people and for the schema lock."""

    @property
    def code(self) -> list[Any]:
        """The functions and classes whose code decides the result, for fingerprints."""
        return []

    @abstractmethod
    def run(self, payload: Any, context: Any) -> list[Output]:
        """Return what comes out for *payload*, which may be changed. Raises whatever the user's code does."""


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
]
