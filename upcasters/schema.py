"""What an event class looks like to a decoder: fields, types, defaults, and the shapes nested in them, as data.

Types are texts that read like annotations; `widening` parses them. The texts in a store's registry of kinds
(`engine.records.fields_of`) are bytes on disk, and those of fold ids name what snapshots need: neither may follow
what this one says.
"""

from __future__ import annotations

import keyword
import re
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
from msgspec import NODEFAULT, UNSET, UnsetType, inspect
from tailfold.upcasters.errors import StepsError

Value = Any
"""A value as JSON has it."""


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """One field, by its stored name."""

    type: str
    required: bool
    default: Value | UnsetType = UNSET
    """As JSON; unset if there is none, or if it is not the same each time."""
    varies: str | UnsetType = UNSET
    """What makes the default, if it gives something else each time."""
    added: bool = False
    """It came later than its version: payloads from before lack it."""
    at: int | UnsetType = UNSET
    """Its place, where fields are stored by place."""

    @property
    def sure(self) -> bool:
        """Whether every payload of the version has it: events are stored with all their fields."""
        return not self.added


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A class whose values are stored inside a field, or an event itself."""

    fields: dict[str, Field] = {}
    stored: str = "map"
    """``map`` (by field name), ``array`` (by place) or ``enum`` (one of `values`)."""
    values: list[Value] = []
    tag: str | int | None = None
    tag_field: str | None = None
    strict: bool = False
    """It refuses fields that it does not know."""
    omits: bool = False
    """It leaves out fields that have their default."""


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """One (kind, version): its own fields, and the shapes that their types name."""

    fields: dict[str, Field]
    shapes: dict[str, Shape] = {}
    strict: bool = False

    @property
    def shape(self) -> Shape:
        """The event as a shape."""
        return Shape(fields=self.fields, strict=self.strict)


def describe(event_type: Any) -> Description:
    """Describe an event class all the way down; raise `StepsError` if msgspec cannot look at it."""
    walk = _Walk()
    try:
        info = inspect.type_info(event_type)
        assert isinstance(info, inspect.StructType)
        fields = walk.fields(info, by_place=False)
    except Exception as error:
        raise StepsError(f"{event_type.__qualname__} cannot be described: {error}") from None
    return Description(fields, walk.shapes, info.forbid_unknown_fields)


_ATOMS = {
    "AnyType": "Any",
    "NoneType": "None",
    "BoolType": "bool",
    "IntType": "int",
    "FloatType": "float",
    "StrType": "str",
    "BytesType": "bytes",
    "ByteArrayType": "bytearray",
    "MemoryViewType": "memoryview",
    "DateTimeType": "datetime",
    "DateType": "date",
    "TimeType": "time",
    "TimeDeltaType": "timedelta",
    "UUIDType": "UUID",
    "DecimalType": "Decimal",
    "ExtType": "Ext",
    "RawType": "Raw",
}
_COLLECTIONS = {"ListType": "list", "SetType": "set", "FrozenSetType": "frozenset"}
_TAKEN = {*_ATOMS.values(), *_COLLECTIONS.values(), "tuple", "dict", "Literal"}
"""Words of type texts: a class of such a name gets another one."""
_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")


class _Walk:
    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}
        self._names: dict[Any, str] = {}

    def text(self, info: Any) -> str:
        kind = type(info).__name__
        if isinstance(info, inspect.Metadata):
            return self.text(info.type)
        if kind in _ATOMS:
            return _ATOMS[kind] + _limits(info)
        if kind in _COLLECTIONS:
            return f"{_COLLECTIONS[kind]}[{self.text(info.item_type)}]{_limits(info)}"
        if isinstance(info, inspect.VarTupleType):
            return f"tuple[{self.text(info.item_type)}, ...]{_limits(info)}"
        if isinstance(info, inspect.TupleType):
            return f"tuple[{', '.join(map(self.text, info.item_types)) or '()'}]"
        if hasattr(info, "key_type"):
            return f"dict[{self.text(info.key_type)}, {self.text(info.value_type)}]{_limits(info)}"
        if isinstance(info, inspect.UnionType):
            texts = sorted(map(self.text, info.types))
            return " | ".join([*(t for t in texts if t != "None"), *(t for t in texts if t == "None")])
        if isinstance(info, inspect.LiteralType):
            return f"Literal[{', '.join(map(repr, info.values))}]"
        if isinstance(info, inspect.CustomType):
            return _identifier(getattr(info.cls, "__name__", str(info.cls)))
        return self._shape(info)

    def _shape(self, info: Any) -> str:
        cls = info.cls
        if cls in self._names:
            return self._names[cls]
        name = wanted = _identifier(getattr(cls, "__qualname__", str(cls)).split("<locals>.")[-1])
        more = 2
        while name in self.shapes:
            name, more = f"{wanted}_{more}", more + 1
        self._names[cls] = name
        self.shapes[name] = Shape()  # first, so that a type that contains itself ends
        if isinstance(info, inspect.EnumType):
            values = sorted((member.value for member in cls), key=lambda v: (str(type(v)), v))
            self.shapes[name] = Shape(stored="enum", values=values)
            return name
        by_place = isinstance(info, inspect.NamedTupleType) or bool(getattr(info, "array_like", False))
        struct = isinstance(info, inspect.StructType)
        self.shapes[name] = Shape(
            fields=self.fields(info, by_place=by_place),
            stored="array" if by_place else "map",
            tag=info.tag if struct else None,
            tag_field=info.tag_field if struct and info.tag is not None else None,
            strict=struct and info.forbid_unknown_fields,
            omits=struct and cls.__struct_config__.omit_defaults,
        )
        return name

    def fields(self, info: Any, *, by_place: bool) -> dict[str, Field]:
        return {
            field.encode_name: Field(
                self.text(field.type), field.required, *default_of(field), at=i if by_place else UNSET
            )
            for i, field in enumerate(info.fields)
        }


def default_of(field: Any) -> tuple[Value | UnsetType, str | UnsetType]:
    """Return (default as JSON, what makes it): one of them is unset, or both if the field has to be given."""
    if field.default is not NODEFAULT:
        return view(field.default), UNSET
    factory = field.default_factory
    if factory is NODEFAULT:
        return UNSET, UNSET
    try:
        first = view(factory())
        if factory not in (list, dict, set, frozenset, tuple, bytearray):
            time.sleep(0.002)  # long enough for any clock that it may read
            if view(factory()) != first:
                return UNSET, _name(factory)
    except Exception:
        return UNSET, _name(factory)
    return first, UNSET


def view(value: Any) -> Value:
    """Return *value* as JSON can hold it, without loss: what JSON has no word for becomes a small object.

    Takes plain values as decoded from storage, and what defaults are made of (structs, enumerations, sets).
    """
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else {"float": str(value)}
    if isinstance(value, list | tuple):
        return [view(item) for item in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"key {view(key)!r}": view(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((view(item) for item in value), key=repr)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "bytes": bytes(value.data).hex()}
    if isinstance(value, Enum):
        return view(value.value)
    try:
        return msgspec.to_builtins(value, order="deterministic")
    except TypeError:
        return {"repr": repr(value)}


def _limits(info: Any) -> str:
    given = [(name, getattr(info, name, None)) for name in _LIMITS]
    text = ", ".join(f"{name}={value!r}" for name, value in given if value is not None)
    return f"({text})" if text else ""


def _identifier(name: str) -> str:
    name = re.sub(r"\W+", "_", name).strip("_") or "unnamed"
    return f"{name}_" if name in _TAKEN or keyword.iskeyword(name) else name


def _name(factory: Callable[..., Any]) -> str:
    return str(getattr(factory, "__qualname__", repr(factory))).split("<locals>.")[-1]
