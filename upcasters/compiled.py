"""The chain made fast: one function for each old (kind, version), built once, equal to walking the steps.

What cannot be made faster, or fails, is left to `Chain.lift`, which knows how to say what went wrong. Declared
changes become a generated struct: the old payload is decoded straight into the types of the new fields, so that
such a step costs a constructor call. tests/upcasters/test_compiled.py states that both ways give the same.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET
from tailfold.upcasters.chain import Build, Chain, Plain, into
from tailfold.upcasters.changes import AddField, Change, ConvertField, DropField, RenameField
from tailfold.upcasters.steps import FieldStep, FunctionStep, RenameKind, Step, TypedStep

ATOMIC = (int, str, float, bool, bytes, type(None))
"""Types whose values need no decoding and no copy."""


class Compiled(NamedTuple):
    """How to lift payloads of one (kind, version) at once."""

    payload_type: Any
    """What the stored payload has to be decoded as."""
    lift: Callable[[Any], None] | None
    """Puts the event in place of the `payload` of an object, or a list of events if `several`; raises anything.

    One call for each record, so it is one function of generated code. None: a step needs its context.
    """
    several: bool


def compile_lift(chain: Chain, kind: str, version: int) -> Compiled:
    """Compile the way from (kind, version), which the chain has."""
    steps = list(chain.steps_from(kind, version))
    if any(step.context is not None for step in steps):
        return Compiled(Any, None, True)
    # A split into one kind is still a split: its function says how many events come out.
    if not all(isinstance(step, FieldStep | RenameKind | FunctionStep | TypedStep) for step in steps):
        space: dict[str, Any] = {"walk": lambda payload: chain.lift(kind, version, payload)}
        return Compiled(Any, _lift("walk(old)", space), True)
    end = chain.current[steps[-1].targets[0][0]]
    if all(isinstance(step, FieldStep | RenameKind) for step in steps):
        declared = _declared(_changes(steps), end, chain.build)
        if declared is not None:
            return declared
    return _composed(steps, end, chain.build, chain.plain)


# -- declared changes: a struct of the old fields, and a constructor call ----------------------------------


class _Source:
    """Where a field comes from: a stored name or nowhere, then defaults and converters in their order."""

    def __init__(self, stored: str | None, ops: tuple[Change, ...] = ()) -> None:
        self.stored = stored
        self.ops = ops

    def then(self, op: Change) -> _Source:
        return _Source(self.stored, (*self.ops, op))


def _changes(steps: Sequence[Step]) -> list[Change]:
    return [change for step in steps if isinstance(step, FieldStep) for change in step.changes]


def _declared(changes: Sequence[Change], end: Any, build: Build) -> Compiled | None:
    """Follow every current field back to what is stored; None if a field cannot come out right this way."""
    if end.__struct_config__.forbid_unknown_fields:
        return None
    sources: dict[str, _Source] = {}

    def source(name: str) -> _Source:
        return sources.get(name, _Source(name))

    for change in changes:
        if isinstance(change, RenameField):
            found = source(change.old)
            sources[change.old] = _Source(None)
            sources[change.new] = found
        elif isinstance(change, AddField):
            sources[change.name] = source(change.name).then(change)
        elif isinstance(change, DropField):
            sources[change.name] = _Source(None)
        elif isinstance(change, ConvertField):
            sources[change.name] = source(change.name).then(change)
        else:
            return None
    used = [op for field in msgspec.structs.fields(end) for op in source(field.encode_name).ops]
    if any(isinstance(change, ConvertField) and not any(change is op for op in used) for change in changes):
        return None  # the value goes nowhere, but its converter may refuse it
    stored: list[tuple[str, Any, Any]] = []
    names: dict[str, str] = {}
    given: list[str] = []
    space: dict[str, Any] = {"Event": end, "UNSET": UNSET}
    for i, field in enumerate(msgspec.structs.fields(end)):
        found = source(field.encode_name)
        missing = _when_missing(found, field, build)
        if found.stored is None and missing is None:
            return None  # nothing gives this field a value: the steps will say so
        space[f"missing{i}"] = missing
        if found.stored is None:
            given.append(f"missing{i}()")
            continue
        attribute = f"f{i}"
        names[attribute] = found.stored
        converters = [op.converter for op in found.ops if isinstance(op, ConvertField)]
        if converters:
            space[f"convert{i}"] = _converter(converters, field, build)
            expression = f"convert{i}(old.f{i})"
            if missing is not None:
                expression = f"({expression} if old.f{i} is not UNSET else missing{i}())"
            given.append(expression)
            stored.append((attribute, Any, UNSET if missing is not None else NODEFAULT))
            continue
        given.append(f"old.f{i}")
        if missing is None:
            stored.append((attribute, field.type, NODEFAULT))
            continue
        try:
            missing()
        except Exception:
            return None  # a default that the class refuses: only payloads without the field are wrong
        stored.append((attribute, field.type, msgspec.field(default_factory=missing)))
    return Compiled(_struct(stored, names), _lift(f"Event({_arguments(end, given)})", space), False)


def _when_missing(found: _Source, field: Any, build: Build) -> Callable[[], Any] | None:
    """Return what makes the value of a field that is not in what is stored; None if nothing does."""
    for i, op in enumerate(found.ops):
        if isinstance(op, AddField):
            default = op.default
            later = [op.converter for op in found.ops[i + 1 :] if isinstance(op, ConvertField)]
            convert = _converter(later, field, build)
            if type(default) in ATOMIC:
                return lambda: convert(default)
            return lambda: convert(copy.deepcopy(default))
    if field.default is not NODEFAULT:
        own = field.default
        return lambda: own
    return None if field.required else cast(Callable[[], Any], field.default_factory)


def _converter(functions: Sequence[Callable[[Any], Any]], field: Any, build: Build) -> Callable[[Any], Any]:
    exact = field.type if field.type in ATOMIC else None

    def convert(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value if type(value) is exact else build(value, field.type)

    return convert


def _struct(stored: list[tuple[str, Any, Any]], names: dict[str, str]) -> type[Any]:
    required = [(name, annotation) for name, annotation, default in stored if default is NODEFAULT]
    optional = [entry for entry in stored if entry[2] is not NODEFAULT]
    return msgspec.defstruct("OldPayload", [*required, *optional], rename=names, gc=False)


def _lift(expression: str, space: dict[str, Any]) -> Callable[[Any], None]:
    """Return a function that puts the value of *expression*, made of the payload *old*, in the payload's place."""
    text = f"def lift(record):\n    old = record.payload\n    record.payload = {expression}"
    exec(text, space)  # our own text: names and numbers only
    return cast(Callable[[Any], None], space["lift"])


def _arguments(end: Any, given: Sequence[str]) -> str:
    parameters = inspect.signature(end).parameters.values()
    by_name = dict(zip(end.__struct_fields__, given, strict=True))
    return ", ".join(
        f"{p.name}={by_name[p.name]}" if p.kind is p.KEYWORD_ONLY else by_name[p.name] for p in parameters
    )


# -- functions: called one after another, the result checked field by field ---------------------------------


def _composed(steps: Sequence[Step], end: Any, build: Build, plain: Plain) -> Compiled:
    calls: list[Callable[[Any], Any]] = []
    held: Any = dict
    first: Any = Any
    for i, step in enumerate(steps):
        if isinstance(step, TypedStep):
            if i == 0:
                first = held = step.old
            if held is not step.old:
                calls.append(_to_plain(plain) if held is not dict else _same)
                calls.append(_into(step.old, build))
            calls += [step.function, _only(step.new, build, plain)]
            held = step.new
            continue
        if held is not dict:
            calls.append(_to_plain(plain))
            held = dict
        if isinstance(step, FunctionStep):
            calls.append(step.function)
        elif isinstance(step, FieldStep):
            calls += [_apply(change) for change in step.changes]
    if held is not end:
        if held is not dict:
            calls.append(_to_plain(plain))
        calls.append(_into(end, build))
    space: dict[str, Any] = {}
    expression = "old"
    for i, call in enumerate(call for call in calls if call is not _same):
        space[f"f{i}"] = call
        expression = f"f{i}({expression})"
    return Compiled(first, _lift(expression, space), False)


def _same(value: Any) -> Any:
    return value


def _to_plain(plain: Plain) -> Callable[[Any], Any]:
    return plain


def _apply(change: Change) -> Callable[[Any], Any]:
    if isinstance(change, RenameField):
        old, new = change.old, change.new

        def rename(payload: Any) -> Any:
            payload.pop(new, None)
            if old in payload:
                payload[new] = payload.pop(old)
            return payload

        return rename
    apply = change.apply

    def other(payload: Any) -> Any:
        apply(payload)
        return payload

    return other


def _exact_types(cls: Any) -> list[tuple[Any, ...]] | None:
    """Return the types that the values of each field must have exactly; None if looking at them is not enough."""
    found = []
    for field in msgspec.structs.fields(cls):
        options = get_args(field.type) if get_origin(field.type) in (Union, type(int | str)) else (field.type,)
        if not all(option in ATOMIC for option in options):
            return None
        found.append(options)
    return found


def _tests(types: list[tuple[Any, ...]], space: dict[str, Any], values: Sequence[str]) -> str:
    """Return the text of a test that every one of *values* has exactly one of its types."""
    tests = []
    for i, options in enumerate(types):
        space |= {f"t{i}_{j}": option for j, option in enumerate(options)}
        tests.append("(" + " or ".join(f"type({values[i]}) is t{i}_{j}" for j in range(len(options))) + ")")
    return " and ".join(tests) or "True"


def _into(cls: Any, build: Build) -> Callable[[Any], Any]:
    """Return what makes *cls* out of plain values, by looking at exact types where that is enough."""
    types = _exact_types(cls)
    if types is None or cls.__struct_config__.forbid_unknown_fields:
        return lambda payload: into(payload, cls, build)
    space: dict[str, Any] = {"Event": cls, "build": lambda payload: into(payload, cls, build)}
    lines = ["def make(payload):"]
    for i, field in enumerate(msgspec.structs.fields(cls)):
        if field.required:
            lines.append(f"    v{i} = payload[{field.encode_name!r}]")
        elif field.default is not NODEFAULT:
            space[f"d{i}"] = field.default
            lines.append(f"    v{i} = payload.get({field.encode_name!r}, d{i})")
        else:
            return lambda payload: into(payload, cls, build)
    values = [f"v{i}" for i in range(len(types))]
    lines.append(f"    if {_tests(types, space, values)}:")
    lines.append(f"        return Event({_arguments(cls, values)})")
    lines.append("    return build(payload)")
    exec("\n".join(lines), space)  # our own text: names, numbers, and field names as literals
    return cast(Callable[[Any], Any], space["make"])


def _only(cls: Any, build: Build, plain: Plain) -> Callable[[Any], Any]:
    """Return what lets an instance of *cls* through if a decoder would have made it, and raises otherwise."""
    types = _exact_types(cls)
    space: dict[str, Any] = {"Event": cls, "thorough": lambda event: _thorough(event, cls, build, plain)}
    if types is None:
        return cast(Callable[[Any], Any], space["thorough"])
    tests = _tests(types, space, [f"event.{name}" for name in cls.__struct_fields__])
    make = eval(f"lambda event: event if type(event) is Event and {tests} else thorough(event)", space)
    return cast(Callable[[Any], Any], make)


def _thorough(event: Any, cls: Any, build: Build, plain: Plain) -> Any:
    if type(event) is not cls:
        raise TypeError(f"gave {type(event).__name__}, not {cls.__name__}")
    return build(plain(event), cls)
