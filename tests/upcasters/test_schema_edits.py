"""Random edits of a schema against its lock: what is called compatible reads all that was written, unchanged."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_origin

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tailfold.engine import Event
from tailfold.engine.schema_files import chain_of
from tailfold.upcasters import LiftError, Upcasters, corpus
from tailfold.upcasters.lock import EMPTY, Lock, lock_of, merged, parse, render
from tailfold.upcasters.schema import describe
from tailfold.upcasters.verdicts import Judgement, judge
from tailfold.upcasters.widening import compare

NOTHING = corpus.CorpusChecked([], [], [], 0)


class Inner(msgspec.Struct, frozen=True):
    a: int
    b: str = "b"


class InnerMore(msgspec.Struct, frozen=True):
    a: int
    b: str = "b"
    c: list[int] = []


class InnerLess(msgspec.Struct, frozen=True):
    a: int


class InnerOther(msgspec.Struct, frozen=True):
    a: int
    b: str = "other"


class InnerOmits(msgspec.Struct, frozen=True, omit_defaults=True):
    a: int
    b: str = "b"


class InnerOmitsOther(msgspec.Struct, frozen=True, omit_defaults=True):
    a: int
    b: str = "other"


class InnerStrict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    a: int
    b: str = "b"


class InnerPlaced(msgspec.Struct, frozen=True, array_like=True):
    a: int
    b: str = "b"


class InnerTagged(msgspec.Struct, frozen=True, tag="inner"):
    a: int
    b: str = "b"


class OtherTagged(msgspec.Struct, frozen=True, tag="other"):
    z: int


class Pair(NamedTuple):
    a: int
    b: str = "b"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class MoreColours(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


# Every type with values that tell it from the others.
POOL: list[tuple[Any, list[Any]]] = [
    (int, [0, -1, 7, 2**40]),
    (float, [0.5, -1.0, 3.25]),
    (int | float, [1, 0.5]),
    (int | None, [None, 4, -4]),
    (float | None, [None, 0.5]),
    (bool, [True, False]),
    (str, ["", "red", "longer"]),
    (str | None, [None, "x"]),
    (str | int, ["x", 3, -2]),
    (bytes, [b"", b"\x00\xff"]),
    (Any, [None, {"q": [1]}, "x", 1.5]),
    (list[int], [[], [1, 2, 2]]),
    (list[int | None], [[None, 1]]),
    (list[float], [[], [0.5]]),
    (tuple[int, ...], [(1, 2, 2), ()]),
    (tuple[int, str], [(1, "a")]),
    (tuple[int, str | None], [(1, None)]),
    (set[int], [set(), {1, 2}]),
    (frozenset[int], [frozenset({3})]),
    (dict[str, int], [{}, {"k": 1}]),
    (dict[str, Any], [{"k": [None]}, {"a": 1}]),
    (dict[str, int | None], [{"k": None}]),
    (Literal["red", "blue"], ["red", "blue"]),
    (Literal["red", "blue", "green"], ["green", "red"]),
    (Literal["red"], ["red"]),
    (Colour, [Colour.RED, Colour.BLUE]),
    (MoreColours, [MoreColours.GREEN]),
    (Level, [Level.LOW, Level.HIGH]),
    (Inner, [Inner(1), Inner(2, "x")]),
    (InnerMore, [InnerMore(1), InnerMore(2, "x", [1])]),
    (InnerLess, [InnerLess(1)]),
    (InnerOther, [InnerOther(1)]),
    (InnerOmits, [InnerOmits(1), InnerOmits(1, "x")]),
    (InnerOmitsOther, [InnerOmitsOther(1), InnerOmitsOther(1, "x")]),
    (InnerStrict, [InnerStrict(1)]),
    (InnerPlaced, [InnerPlaced(1), InnerPlaced(2, "x")]),
    (Pair, [Pair(1), Pair(2, "x")]),
    (InnerTagged, [InnerTagged(1)]),
    (InnerTagged | OtherTagged, [InnerTagged(1), OtherTagged(2)]),
    (list[Inner], [[], [Inner(1, "x")]]),
    (list[InnerMore], [[InnerMore(1), InnerMore(2, "x", [1])]]),
    (Inner | None, [None, Inner(3)]),
    (Annotated[int, msgspec.Meta(ge=0, le=10)], [0, 10]),
    (Annotated[int, msgspec.Meta(ge=0)], [0, 11]),
    (Annotated[str, msgspec.Meta(max_length=3)], ["", "abc"]),
]


class Spec(NamedTuple):
    """One field of a class under edit."""

    pool: int
    default: int | None
    """Which of the type's values is the default; None for a required field."""


Fields = dict[str, Spec]
NAMES = ("one", "two", "three", "four")


@st.composite
def specs(draw: st.DrawFn, *, required: bool | None = None) -> Spec:
    pool = draw(st.integers(0, len(POOL) - 1))
    if required or (required is None and draw(st.booleans())):
        return Spec(pool, None)
    return Spec(pool, draw(st.integers(0, len(POOL[pool][1]) - 1)))


@st.composite
def edits(draw: st.DrawFn, fields: Fields) -> Fields:
    """Change one or two things of a class."""
    after = dict(fields)
    for _ in range(draw(st.integers(1, 2))):
        free = [name for name in NAMES if name not in after]
        name = draw(st.sampled_from(sorted(after))) if after else None
        match draw(st.sampled_from(["add", "add", "remove", "rename", "retype", "retype", "default", "swap"])):
            case "add" if free:
                after[free[0]] = draw(specs())
            case "remove" if name:
                del after[name]
            case "rename" if name and free:
                after[free[-1]] = after.pop(name)
            case "retype" if name:
                after[name] = draw(specs(required=after[name].default is None))
            case "default" if name:
                values = POOL[after[name].pool][1]
                after[name] = Spec(after[name].pool, draw(st.integers(0, len(values) - 1)))
            case "swap" if name:
                after[name] = Spec(after[name].pool, None if after[name].default is not None else 0)
    return after


def event_class(fields: Fields, version: int = 1) -> Any:
    declared: list[Any] = []
    for name, spec in fields.items():
        annotation, values = POOL[spec.pool]
        if spec.default is None:
            declared.append((name, annotation))
        else:
            value = values[spec.default]
            if isinstance(value, list | dict | set):
                value = msgspec.field(default_factory=partial(copy.copy, value))
            declared.append((name, annotation, value))
    namespace = {"kind": "edited", "version": version}
    return msgspec.defstruct("Edited", declared, bases=(Event,), namespace=namespace, frozen=True, kw_only=True)


def values_of(fields: Fields, draw: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: draw(st.sampled_from(POOL[spec.pool][1])) for name, spec in fields.items()}


def judged(lock: Lock, cls: Any) -> list[Judgement]:
    return [v.judgement for v in judge(lock, chain_of(Upcasters(events=[cls])), NOTHING)]


def read(cls: Any, payload: Any) -> Any:
    """Return what the code sees of a stored payload, every attribute of it."""
    [event] = chain_of(Upcasters(events=[cls])).lift("edited", 1, payload)
    return seen(event)


def seen(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: seen(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Pair):
        return value._asdict()
    if isinstance(value, dict):
        return {key: seen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [seen(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return set(value) if isinstance(value, frozenset) else value


def stored(cls: Any, values: dict[str, Any]) -> Any:
    return chain_of(Upcasters(events=[cls])).plain(cls(**values))


def kept(before: Any, after: Any) -> bool:
    """Say whether *after* says all that *before* said: an int may have become the same float."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(name in after and kept(value, after[name]) for name, value in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(kept, before, after))
    return bool(before == after) and isinstance(before, bool) == isinstance(after, bool)


@settings(deadline=None)
@given(st.data())
def test_payloads_of_every_compatible_schema_are_read_as_they_were_by_all_later_ones(data: st.DataObject) -> None:
    fields: Fields = {name: data.draw(specs()) for name in NAMES[: data.draw(st.integers(1, 3))]}
    cls = event_class(fields)
    lock = merged(EMPTY, lock_of(Upcasters(events=[cls])))
    history: list[tuple[Any, dict[str, Any]]] = []
    for _ in range(data.draw(st.integers(1, 5))):
        values = values_of(fields, data.draw)
        payload = stored(cls, values)
        history.append((payload, read(cls, payload)))
        edited = data.draw(edits(fields))
        after = event_class(edited)
        verdicts = judged(lock, after)
        if all(verdict is Judgement.COMPATIBLE for verdict in verdicts):
            fields, cls = edited, after
            lock = parse(render(merged(lock, lock_of(Upcasters(events=[cls])))))
            for payload, before in history:
                assert kept(before, read(cls, payload))
            # What a payload that lacks a field was read as stands from now on.
            history = [(payload, read(cls, payload)) for payload, _ in history]
        else:
            assert Judgement.BREAKING not in verdicts, "fields under the same version can always be lifted"


def refused_or_changed(old: Any, new: Any, value: Any) -> bool:
    payload = stored(old, {"one": value})
    before = read(old, payload)
    try:
        return not kept(before, read(new, payload))
    except LiftError:
        return True


def sort_of(annotation: Any) -> str:
    """Name what values of a type are to a fold."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        config = annotation.__struct_config__
        return f"struct {config.tag} {config.array_like}"
    if get_origin(annotation) is Annotated:
        return sort_of(annotation.__origin__)
    return str(get_origin(annotation) or annotation)


def one_field(annotation: Any) -> Any:
    namespace = {"kind": "edited"}
    return msgspec.defstruct("Edited", [("one", annotation)], bases=(Event,), namespace=namespace, frozen=True)


def test_no_type_change_is_refused_without_a_value_that_shows_why() -> None:
    """Unless the decoder would take it for something else: a set for a list, a struct for a dictionary."""
    for annotation, values in POOL:
        old = one_field(annotation)
        for other, _ in POOL:
            new = one_field(other)
            changes = compare(describe(old), describe(new)).changes
            harmed = any(refused_or_changed(old, new, value) for value in values)
            if all(change.compatible for change in changes):
                assert not harmed, (annotation, other)
            elif not harmed:
                assert sort_of(annotation) != sort_of(other), (annotation, other, changes)


def test_a_class_is_compatible_with_itself_and_with_its_own_rendered_lock() -> None:
    for annotation, _ in POOL:
        cls = one_field(annotation)
        lock = lock_of(Upcasters(events=[cls]))
        assert parse(render(lock)) == lock
        assert judge(lock, chain_of(Upcasters(events=[cls])), NOTHING) == []
        assert merged(lock, lock) == lock
