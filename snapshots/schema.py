"""What a type is as text, and what a state of that type needs from the codec. Pure looking at annotations."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from tailfold.snapshots.series import Series
from tailfold.snapshots.table import Table


class Survey(NamedTuple):
    """What a walk over a type found."""

    text: str
    """The names and types of all fields, for the fold id."""
    loose: bool
    """Somewhere the annotations do not say what a value is (Any, bare list, …): decoding must be checked."""
    sets: bool
    """Somewhere a set may stand: its order must be fixed before encoding."""
    floats: bool
    """Somewhere a float stands: an int that is put there is written as a float."""
    growing: bool
    """Somewhere a `Series` or a `Table` stands."""
    classes: tuple[type, ...]
    """The user's classes that were met."""


def survey(annotation: Any) -> Survey:
    """Walk a type and everything that its fields are made of."""
    walk = _Walk()
    text = walk.describe(annotation)
    parts = [text, *(f"{name}={walk.shapes[name]}" for name in sorted(walk.shapes))]
    return Survey("\n".join(parts), walk.loose, walk.sets, walk.floats, walk.growing, tuple(walk.classes))


@lru_cache(maxsize=512)
def hints_of(cls: Any) -> dict[str, Any]:
    """Return the resolved annotations of a class; raises whatever resolving them does. Evaluating them is slow."""
    return typing.get_type_hints(cls, include_extras=True)


class _Walk:
    def __init__(self) -> None:
        self.shapes: dict[str, str] = {}
        self.classes: list[type] = []
        self.loose = False
        self.sets = False
        self.floats = False
        self.growing = False

    def describe(self, annotation: Any) -> str:
        if annotation is None or annotation is type(None):
            return "None"
        origin = typing.get_origin(annotation)
        arguments = typing.get_args(annotation)
        if origin is typing.Annotated:
            return self.describe(arguments[0])
        if origin is typing.Literal:
            return f"Literal[{', '.join(map(repr, arguments))}]"
        if origin in (typing.Union, types.UnionType):
            return " | ".join(sorted(self.describe(a) for a in arguments))
        if origin is typing.ClassVar or annotation is Ellipsis:
            return "…"
        if isinstance(annotation, typing.TypeAliasType if hasattr(typing, "TypeAliasType") else ()):
            return self.describe(annotation.__value__)
        if origin is not None:
            if origin in (set, frozenset, collections.abc.Set, collections.abc.MutableSet):
                self.sets = True
            if origin in (Series, Table):
                self.growing = True
            name = self._name(origin)
            if origin not in (list, dict, tuple, set, frozenset, Series, Table):
                self._shape(origin)
            return f"{name}[{', '.join(self.describe(a) for a in arguments)}]"
        if isinstance(annotation, type):
            self.floats = self.floats or annotation is float
            self._class(annotation)
            return self._name(annotation)
        self.loose = self.sets = True  # Any, a TypeVar, a forward reference that did not resolve
        return str(annotation)

    def _class(self, cls: type) -> None:
        if cls in (list, dict, tuple, set, frozenset, object, Series, Table):
            self.loose = True
            self.sets = True
            self.growing = self.growing or cls in (Series, Table)
        elif issubclass(cls, Enum):
            self.classes.append(cls)
            self.shapes[self._name(cls)] = ", ".join(f"{m.name}={m.value!r}" for m in cls)
        else:
            self._shape(cls)

    def _shape(self, cls: Any) -> None:
        name = self._name(cls)
        if name in self.shapes:
            return
        if not (isinstance(cls, type) and (dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct))):
            if isinstance(cls, type) and hasattr(cls, "__annotations__") and issubclass(cls, dict | tuple):
                self.shapes[name] = ""  # a TypedDict or NamedTuple
                self.shapes[name] = self._fields(cls)
            return
        self.shapes[name] = ""  # first, so that a type that contains itself ends
        self.classes.append(cls)
        self.shapes[name] = self._fields(cls)

    def _fields(self, cls: Any) -> str:
        try:
            hints = hints_of(cls)
        except Exception:
            self.loose = self.sets = True
            hints = dict(getattr(cls, "__annotations__", {}))
        fields = []
        if isinstance(cls, type) and issubclass(cls, msgspec.Struct):
            config = cls.__struct_config__
            fields.append(f"tag={config.tag!r}/{config.tag_field!r} array={config.array_like}")
            fields += [f"{i.name} as {i.encode_name} default {i.default!r}" for i in msgspec.structs.fields(cls)]
        for field, annotation in hints.items():
            if typing.get_origin(annotation) is typing.ClassVar:
                continue
            fields.append(f"{field}: {self.describe(annotation)}")
        return "; ".join(fields)

    @staticmethod
    def _name(cls: Any) -> str:
        # Not the module: a class may move without becoming another state.
        return getattr(cls, "__qualname__", str(cls)).split("<locals>.")[-1]
