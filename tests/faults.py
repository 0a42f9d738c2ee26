"""Faults to be put in the place of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def failing(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises *error*, whatever it is called with."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail
