"""Faults: calls that fail, and stores as killed processes leave them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailfold.engine import Store
from tailfold.engine.backend.lmdb import ahead_file

from tests.domain import Deposited


def failing(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises *error*, whatever it is called with."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def left_behind(path: Path, appends: int) -> None:
    """Make a store as a killed process leaves it."""
    other = path.with_name("other")
    with Store.open(other) as store:
        for i in range(appends):
            store.append("a", Deposited(i), expected=i)
        path.mkdir()
        for name in ("data.mdb", ahead_file.FILE):
            (path / name).write_bytes((other / name).read_bytes())
