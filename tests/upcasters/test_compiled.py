"""Compiled lifting gives what walking the steps gives, or fails where it fails."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine import Event, MemoryBackend, Store
from tailfold.engine.errors import StepFailed
from tailfold.engine.events import Several
from tailfold.engine.records import Codec
from tailfold.upcasters import AddField, Change, ConvertField, DropField, Part, RenameField, Upcasters
from tailfold.upcasters.compiled import compile_lift

NAMES = ["a", "b", "c", "d"]
TYPES = [int, str, float, bool, bytes, int | None, list[int], dict[str, Any], Any, str | int]
VALUES = st.one_of(
    st.integers(-5, 2**40),
    st.text(max_size=4),
    st.floats(allow_nan=False),
    st.booleans(),
    st.binary(max_size=3),
    st.none(),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9), max_size=2),
)


def as_list(value: Any) -> Any:
    return [value]


CHANGES = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))
    .filter(lambda pair: pair[0] != pair[1])
    .map(lambda pair: RenameField(*pair)),
    st.builds(AddField, st.sampled_from(NAMES), VALUES),
    st.builds(DropField, st.sampled_from(NAMES)),
    st.builds(ConvertField, st.sampled_from(NAMES), st.sampled_from([int, str, as_list, repr, abs])),
)


@st.composite
def event_types(draw: Any, version: int) -> Any:
    fields: list[Any] = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4)):
        annotation = draw(st.sampled_from(TYPES))
        default = draw(st.sampled_from(["required", "value", "factory"]))
        if default == "required":
            fields.insert(0, (name, annotation))
        elif default == "value":
            fields.append((name, annotation, draw(st.sampled_from([0, "x", None]))))
        else:
            fields.append((name, annotation, msgspec.field(default_factory=list)))
    required = [field for field in fields if len(field) == 2]
    optional = [field for field in fields if len(field) == 3]
    made: Any = msgspec.defstruct("Now", [*required, *optional], bases=(Event,), frozen=True)
    made.kind, made.version = "thing", version
    return made


def declared(changes: list[Change]) -> Any:
    return lambda steps, version: steps.change("thing", version, *changes)


def as_function(changes: list[Change]) -> Any:
    def register(steps: Upcasters, version: int) -> None:
        @steps.step("thing", version)
        def _(payload: Any) -> Any:
            for change in changes:
                change.apply(payload)
            return payload

    return register


class OldThing(Event, frozen=True):
    kind = "thing"
    a: int = 0
    b: str = ""


class NextThing(Event, frozen=True):
    kind = "thing"
    version = 2
    b: Any = None
    c: Any = None


def as_types(changes: list[Change]) -> Any:
    def register(steps: Upcasters, version: int) -> None:
        if version > 1:
            as_function(changes)(steps, version)
            return

        @steps.typed(OldThing, NextThing)
        def _(old: OldThing) -> NextThing:
            return NextThing(old.a, old.b)

    return register


@given(data=st.data())
def test_compiled_and_walked_lifts_agree(data: st.DataObject) -> None:
    changes = data.draw(st.lists(st.lists(CHANGES, max_size=3), min_size=1, max_size=3))
    ways = data.draw(
        st.lists(st.sampled_from([declared, as_function, as_types]), min_size=len(changes), max_size=len(changes))
    )
    if data.draw(st.booleans()):
        ways = [declared] * len(changes)  # the way that is compiled to a struct
    end = data.draw(event_types(len(changes) + 1))
    steps = Upcasters(events=[end])
    for version, (way, change) in enumerate(zip(ways, changes, strict=True), 1):
        way(change)(steps, version)
    codec = Codec(lambda digest: None)
    codec.adopt(steps)
    chain = codec.lifting.chain
    payload = data.draw(st.dictionaries(st.sampled_from(NAMES), VALUES))
    try:
        walked: Any = chain.lift("thing", 1, copy.deepcopy(payload))
    except Exception:
        walked = None
    compiled = compile_lift(chain, "thing", 1)
    assert compiled.lift is not None
    try:
        holder = codec._decode_as(msgspec.msgpack.encode({"payload": payload}), holder_of(compiled.payload_type))
        compiled.lift(holder)
    except Exception:
        return  # a failure is walked again, so it only must not hide a success: the next test looks at that
    assert walked is not None, "the compiled way lets through what the steps refuse"
    assert [holder.payload] == walked
    assert same_types(holder.payload, walked[0])


def holder_of(payload_type: Any) -> Any:
    return msgspec.defstruct("Holder", [("payload", payload_type)])


def same_types(one: Any, other: Any) -> bool:
    fields = type(one).__struct_fields__
    return type(one) is type(other) and all(
        type(getattr(one, name)) is type(getattr(other, name)) for name in fields
    )


@given(changes=st.lists(CHANGES, max_size=4), data=st.data())
def test_reading_gives_what_walking_gives_or_names_the_step(changes: list[Change], data: st.DataObject) -> None:
    payload = data.draw(st.dictionaries(st.sampled_from(NAMES), VALUES))
    end = data.draw(event_types(2))
    steps = Upcasters(events=[end])
    steps.change("thing", 1, *changes)
    codec = Codec(lambda digest: None)
    codec.adopt(steps)
    stored = msgspec.msgpack.encode(["thing@1", 1, None, None, payload])
    try:
        walked = codec.lifting.chain.lift("thing", 1, copy.deepcopy(payload))
    except Exception:
        walked = None
    try:
        [record] = codec.decode_page("s", 6, [stored])
    except StepFailed as error:
        assert walked is None
        assert (error.stream, error.version, error.stored) == ("s", 7, "thing@1")
        assert repr(error.payload)[:100] in str(error)
    else:
        assert [record.payload] == walked


class Left(Event, frozen=True):
    kind = "left"
    a: Any = None


class Right(Event, frozen=True):
    kind = "right"
    version = 2
    b: Any
    c: int = 0


def split_steps() -> Upcasters:
    steps = Upcasters(events=[Left, Right])
    steps.split("both", 1, Part("left", 1, ("a",)), Part("right", 1, renamed={"x": "b"}, added={"c": 5}))
    steps.change("right", 1, RenameField("x", "b"))
    steps.drop("noise", 1)
    return steps


def test_parts_of_a_split_go_on_by_their_own_steps() -> None:
    codec = Codec(lambda digest: None)
    codec.adopt(split_steps())
    stored = [
        msgspec.msgpack.encode(["both@1", 1, None, None, {"a": 1, "b": [2]}]),
        msgspec.msgpack.encode(["noise@1", 1, None, None, {"z": 0}]),
    ]
    both, noise = codec.decode_page("s", 0, stored)
    assert both.payload == Several((Left(1), Right([2], 5)))
    assert noise.payload == Several(())
    assert codec.events(both) == (Left(1), Right([2], 5))


def test_a_payload_of_another_shape_is_no_payload() -> None:
    store = Store.open(backend=MemoryBackend(), upcasters=split_steps())
    for payload in ([1, 2], "text", None):
        data = msgspec.msgpack.encode(["both@1", 1, None, None, payload])
        try:
            store.log.codec.decode("s", 1, data)
        except StepFailed:
            continue
        raise AssertionError(payload)


def test_a_split_into_one_kind_gives_as_many_events_as_its_function_says() -> None:
    steps = Upcasters(events=[Left])

    @steps.split_by("many", 1, into=[("left", 1)])
    def _(payload: Any) -> Any:
        for value in payload["values"]:
            yield "left", {"a": value}

    steps.split("one", 1, Part("left", 1, renamed={"a": "b"}))
    codec = Codec(lambda digest: None)
    codec.adopt(steps)
    stored = [
        msgspec.msgpack.encode(["many@1", 1, None, None, {"values": [1, 2]}]),
        msgspec.msgpack.encode(["many@1", 1, None, None, {"values": []}]),
        msgspec.msgpack.encode(["one@1", 1, None, None, {"b": 3}]),
    ]
    records = codec.decode_page("s", 0, stored)
    assert [codec.events(record) for record in records] == [(Left(1), Left(2)), (), (Left(3),)]
    bad = msgspec.msgpack.encode(["many@1", 1, None, None, {"values": 5}])
    with pytest.raises(StepFailed, match="many@1"):
        codec.decode_page("s", 0, [bad])
