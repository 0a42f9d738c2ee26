"""A projection that tests share: balances and a ledger over the whole store. Tests themselves are rewritten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailfold.engine import Projection, Recorded
from tailfold.snapshots import Series, Table

from tests.domain import Deposited


@dataclass
class Books:
    balance: Table[str, int] = field(default_factory=Table[str, int])
    ledger: Series[tuple[str, int, int]] = field(default_factory=Series[tuple[str, int, int]])
    last_ns: int = 0


def deposited(state: Books, recorded: Recorded) -> None:
    assert isinstance(recorded.event, Deposited)
    state.balance[recorded.stream] = state.balance.get(recorded.stream, 0) + recorded.event.amount
    state.ledger.append((recorded.stream, recorded.version, recorded.position))
    state.last_ns = recorded.time_ns


def books(name: str = "books", version: int = 1, **options: Any) -> Projection[Books]:
    projection: Projection[Books] = Projection(name, Books, version=version, **options)
    projection.on(Deposited)(deposited)
    return projection


BOOKS = books()
