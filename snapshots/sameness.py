"""Whether a value that was encoded and decoded is the very same: types at every level, not only equality."""

from __future__ import annotations

import dataclasses
from datetime import datetime, time
from enum import Enum
from typing import Any

import msgspec


def same(one: Any, other: Any) -> bool:
    """Say whether *other* can stand for *one* in every respect that a handler may see.

    An int where a float is declared counts as the float that it comes back as (type checkers accept it, too).
    """
    if type(one) is not type(other):
        return type(one) is int and type(other) is float and one == other
    if isinstance(one, str | bytes | int | None) or one is other:
        return bool(one == other)
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is dict:
        return len(one) == len(other) and all(
            same(key, key_back) and same(value, back)
            for (key, value), (key_back, back) in zip(one.items(), other.items(), strict=True)
        )
    if type(one) in (set, frozenset):
        return bool(one == other)
    if isinstance(one, Enum):
        return one is other
    if isinstance(one, msgspec.Struct):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    if hasattr(one, "_same_root"):  # a growing container: equal references are equal items
        return bool(one._same_root(other))
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        extra = getattr(one, "__dict__", {}).keys() - set(names)
        return not extra and all(same(getattr(one, name, None), getattr(other, name, None)) for name in names)
    if isinstance(one, datetime | time):
        return bool(one == other) and one.tzinfo == other.tzinfo
    return not isinstance(one, dict | set | frozenset) and bool(one == other)  # their subclasses do not come back
