"""Events and folds that tests share: a small account, in several schema versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailfold.engine import Blob, Event, Fold


class Deposited(Event, frozen=True):
    kind = "deposited"
    amount: int
    note: str = ""


class Withdrawn(Event, frozen=True):
    kind = "withdrawn"
    amount: int


class Noted(Event, frozen=True):
    kind = "noted"
    text: str
    extra: dict[str, Any] = {}


class Attached(Event, frozen=True):
    kind = "attached"
    name: str
    content: Blob


@dataclass
class Account:
    balance: int = 0
    events: int = 0
    notes: list[str] = field(default_factory=list)


account: Fold[Account] = Fold("account", Account)


@account.on(Deposited)
def _(state: Account, event: Deposited) -> None:
    state.balance += event.amount
    state.events += 1


@account.on(Withdrawn)
def _(state: Account, event: Withdrawn) -> None:
    state.balance -= event.amount
    state.events += 1


@account.on(Noted)
def _(state: Account, event: Noted) -> None:
    state.notes.append(event.text)
    state.events += 1
