"""Changes of fields that need no function: they say what they do, so that a machine can check and compile them.

Each works on a payload as plain values, in place. A field that is missing is no error here: it may have been added
with a default while the version stood, so older payloads of that version lack it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import msgspec


class Change(Protocol):
    """One change of a payload's fields."""

    def apply(self, payload: dict[str, Any]) -> None:
        """Change *payload* in place."""

    def fields(self, names: set[str]) -> set[str]:
        """Return the names of the fields after the change, of a payload that has *names*."""

    def needs(self) -> str | None:
        """Return the field that has to be there for the change to mean anything, if there is one."""

    def __str__(self) -> str:
        """Say what the change does."""


class RenameField(msgspec.Struct, frozen=True):
    """The field *old* is called *new* from now on."""

    old: str
    new: str

    def apply(self, payload: dict[str, Any]) -> None:  # noqa: D102 - Change
        payload.pop(self.new, None)
        if self.old in payload:
            payload[self.new] = payload.pop(self.old)

    def fields(self, names: set[str]) -> set[str]:  # noqa: D102
        return (names - {self.old}) | {self.new}

    def needs(self) -> str | None:  # noqa: D102
        return self.old

    def __str__(self) -> str:
        return f"rename {self.old} to {self.new}"


class AddField(msgspec.Struct, frozen=True):
    """Payloads without the field *name* get *default*, a plain value (each its own copy)."""

    name: str
    default: Any

    def apply(self, payload: dict[str, Any]) -> None:  # noqa: D102
        if self.name not in payload:
            payload[self.name] = copy.deepcopy(self.default)

    def fields(self, names: set[str]) -> set[str]:  # noqa: D102
        return names | {self.name}

    def needs(self) -> str | None:  # noqa: D102
        return None

    def __str__(self) -> str:
        return f"add {self.name} = {self.default!r}"


class DropField(msgspec.Struct, frozen=True):
    """The field *name* is no longer there. What was stored stays in the log."""

    name: str

    def apply(self, payload: dict[str, Any]) -> None:  # noqa: D102
        payload.pop(self.name, None)

    def fields(self, names: set[str]) -> set[str]:  # noqa: D102
        return names - {self.name}

    def needs(self) -> str | None:  # noqa: D102
        return self.name

    def __str__(self) -> str:
        return f"drop {self.name}"


class ConvertField(msgspec.Struct, frozen=True):
    """The field *name* changes its type: *converter* gets the old plain value and returns the new one."""

    name: str
    converter: Callable[[Any], Any]

    def apply(self, payload: dict[str, Any]) -> None:  # noqa: D102
        if self.name in payload:
            payload[self.name] = self.converter(payload[self.name])

    def fields(self, names: set[str]) -> set[str]:  # noqa: D102
        return names

    def needs(self) -> str | None:  # noqa: D102
        return self.name

    def __str__(self) -> str:
        return f"convert {self.name} with {getattr(self.converter, '__qualname__', repr(self.converter))}"
