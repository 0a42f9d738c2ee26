"""The fold: state from events. Pure: a fold sees states and events, never a store."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from tailfold.engine.errors import BadArgument, FoldFailed, UnknownKind
from tailfold.engine.events import Event, Several, check_event_type

S = TypeVar("S")
E = TypeVar("E", bound=Event)
Handler = Callable[[Any, Any], Any]


class Fold(Generic[S]):
    """A named fold: an initial state, and a handler for each type of event that it cares about.

        @dataclass
        class Seats:
            total: int = 0

        seats = Fold("seats", Seats)

        @seats.on(SeatsChanged)
        def _(state: Seats, event: SeatsChanged) -> None:
            state.total += event.seats

    A handler gets the state and the event and nothing else. It may change the state in place and return
    None, or return the next state. It must be pure in this sense: no clock, no randomness, no I/O; time and
    ids come from the event. Events without a handler are passed over, unless the fold is *strict*.
    """

    def __init__(
        self,
        name: str,
        initial: Callable[[], S],
        *,
        version: int = 1,
        strict: bool = False,
        state_type: Any = None,
        pinned: bool = False,
    ) -> None:
        """Name the fold; *initial* makes a fresh empty state; raise *version* when the meaning changes.

        *state_type* is the annotation of the state, by default the type of what *initial* gives; a builtin
        such as a dict needs it (``dict[str, int]``) for its snapshots to be trusted without a check. A change
        of the handlers' code, or of code that they use, makes older snapshots unused; a *pinned* fold relies
        on *version* alone, so that whoever changes its code has to raise it.
        """
        if not name:
            raise BadArgument("a fold needs a name")
        if version < 1:
            raise BadArgument(f"fold {name!r}: version counts from 1, not {version}")
        self.name = name
        self.initial = initial
        self.version = version
        self.strict = strict
        self.pinned = pinned
        self._state_type = state_type
        self._handlers: dict[type[Event], Handler] = {}
        self.also: Mapping[str, Any] = {}
        """More code that the state depends on, for the fold id."""

    def on(self, event_type: type[E]) -> Callable[[Callable[[S, E], S | None]], Callable[[S, E], S | None]]:
        """Register the decorated function as the handler of *event_type*."""
        check_event_type(event_type)

        def register(handler: Callable[[S, E], S | None]) -> Callable[[S, E], S | None]:
            if event_type in self._handlers:
                raise BadArgument(f"fold {self.name!r} has two handlers for {event_type.kind!r}")
            if inspect.iscoroutinefunction(handler):
                raise BadArgument(
                    f"fold {self.name!r}: the handler of {event_type.kind!r} is a coroutine, and a fold cannot wait"
                )
            self._handlers[event_type] = handler
            return handler

        return register

    @property
    def state_type(self) -> Any:
        """The annotation of the state."""
        if self._state_type is None:
            self._state_type = type(self.initial())
        return self._state_type

    @property
    def handlers(self) -> Mapping[type[Event], Handler]:
        """The registered handlers."""
        return self._handlers

    @property
    def events(self) -> tuple[type[Event], ...]:
        """The event types that this fold handles."""
        return tuple(self._handlers)

    def __fingerprint__(self) -> Any:
        """What a fold is made of, for the fold id of another fold that uses it."""
        return (self.name, self.version, self.strict, self.initial, dict(self._handlers))

    def evolve(self, state: S, event: Event) -> S:
        """Return the state after *event*. The given state may have been changed in place."""
        handler = self._handlers.get(type(event))
        if handler is None:
            return state
        result = handler(state, event)
        return state if result is None else result

    def fold(self, events: Iterable[Event], state: S | None = None) -> S:
        """Return the state after *events*, from *state* or from the start."""
        if state is None:
            state = self.initial()
        for event in events:
            state = self.evolve(state, event)
        return state

    def fold_records(self, state: S, records: list[Any], stream: str, after: int) -> S:
        """Return the state after the decoded *records* of versions *after*+1, …: the loop that must be fast.

        Raises `FoldFailed` naming the event at which a handler raised; the state is then spoilt.
        """
        find = self._handlers.get
        record: Any = None
        try:
            for record in records:
                event = record.payload
                handler = find(event.__class__)
                if handler is not None:
                    result = handler(state, event)
                    if result is not None:
                        state = result
                elif event.__class__ is Several:
                    for part in event.events:
                        if self.strict and part.__class__ not in self._handlers:
                            raise _Unhandled
                        state = self.evolve(state, part)
                elif self.strict:
                    raise _Unhandled
        except Exception as error:
            version = after + 1 + next(i for i, r in enumerate(records) if r is record)
            kind = str(type(record).__struct_config__.tag)
            if isinstance(error, _Unhandled):
                raise UnknownKind(stream, version, kind, self.name) from None
            why = f"{type(error).__name__}: {error}"
            raise FoldFailed(self.name, stream, version, kind, why) from error
        return state

    def __repr__(self) -> str:
        return f"Fold({self.name!r}, version={self.version}, {len(self._handlers)} handlers)"


class _Unhandled(Exception):
    pass
