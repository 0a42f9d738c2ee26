"""What comes from outside, in a form that can stand in an event: checked, bounded, as the model will see it.

A journal must never hold what cannot be folded again, and nothing that a tool or a model says may end a run.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tailfold.engine.agent.events import ToolCall
from tailfold.engine.agent.tools import Toolbox, ToolFailed

OUTCOME_BYTES_MAX = 16 << 20
DEPTH_MAX = 200
"""Nesting that every encoder and every Python can take."""
WORDS_CHARS_MAX = 20_000


class ToolErrorText(msgspec.Struct, frozen=True):
    """The outcome of a call that failed."""

    error: str


async def outcome_of(tools: Toolbox, call: ToolCall, key: str) -> Any | ToolErrorText:
    """Run *call* under *key* and return its result as it will be recorded, or why there is none."""
    try:
        return recordable(await tools.run(call, key))
    except ToolFailed as failure:
        return ToolErrorText(in_words(failure))
    except ValueError as error:
        return ToolErrorText(f"the result cannot be recorded: {in_words(error)}")


def recordable(value: Any) -> Any:
    """Return *value* as JSON would give it back: the form that the model sees, and that compares with itself.

    Raises ValueError for what JSON and msgpack cannot both hold, for more than 16 MiB, and for deep nesting.
    """
    try:
        encoded = msgspec.json.encode(value)
        if len(encoded) > OUTCOME_BYTES_MAX:
            raise ValueError(f"it has {len(encoded)} bytes, the most is {OUTCOME_BYTES_MAX}")
        plain = msgspec.json.decode(encoded)
        if _depth(plain) > DEPTH_MAX:
            raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
        msgspec.msgpack.encode(plain)
    except (msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return plain


def in_words(error: Exception) -> str:
    """Return the text of an error so that it can be stored: valid Unicode, and not too long."""
    words = str(error).encode(errors="backslashreplace").decode()
    return words if len(words) <= WORDS_CHARS_MAX else words[: WORDS_CHARS_MAX - 1] + "…"


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        depth += 1
    return depth
