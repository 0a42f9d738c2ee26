"""A shop whose events have a past: every way in which an old event may become current ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tailfold.engine import Blob, Event, Fold, Store
from tailfold.engine.backend.port import Backend
from tailfold.upcasters import AddField, ConvertField, Part, RenameField, Upcasters


class OldPaid(Event, frozen=True):
    kind = "paid"
    euros: int


class OldMoved(Event, frozen=True):
    kind = "moved"
    cents: int
    to: str


class OldBasket(Event, frozen=True):
    kind = "basket"
    items: list[int]


class Pinged(Event, frozen=True):
    kind = "pinged"
    count: int


class Jotted(Event, frozen=True):
    kind = "jotted"
    text: str


class OldRated(Event, frozen=True):
    kind = "rated"
    stars: int


class OldGrown(Event, frozen=True):
    kind = "grown"
    size: int


class Foreign(Event, frozen=True):
    """Of a program whose kinds the shop does not know."""

    kind = "foreign"
    version = 3
    what: dict[str, Any]


class Paid(Event, frozen=True):
    kind = "paid"
    version = 3
    cents: int
    currency: str


class Sent(Event, frozen=True):
    kind = "sent"
    cents: int
    to: str


class Noted(Event, frozen=True):
    kind = "noted"
    text: str


class Rated(Event, frozen=True):
    kind = "rated"
    version = 2
    stars: int
    balance: int


class Grown(Event, frozen=True):
    kind = "grown"
    version = 2
    size: int
    colour: str = "green"


class Filed(Event, frozen=True):
    kind = "filed"
    name: str
    content: Blob


CURRENT: list[type[Event]] = [Paid, Sent, Noted, Rated, Grown, Filed]
OLD: list[type[Event]] = [OldPaid, OldMoved, OldBasket, Pinged, Jotted, OldRated, OldGrown, Foreign, Filed]


@dataclass
class Till:
    cents: int = 0
    notes: list[str] = field(default_factory=list)
    seen: int = 0


till: Fold[Till] = Fold("till", Till)


@till.on(Paid)
def _(state: Till, event: Paid) -> None:
    state.cents += event.cents
    state.seen += 1


@till.on(Sent)
def _(state: Till, event: Sent) -> None:
    state.cents -= event.cents
    state.seen += 1


@till.on(Noted)
def _(state: Till, event: Noted) -> None:
    state.notes.append(event.text)


@till.on(Rated)
def _(state: Till, event: Rated) -> None:
    state.notes.append(f"{event.stars} at {event.balance}")


upcasters = Upcasters(events=CURRENT)
upcasters.change("paid", 1, RenameField("euros", "cents"), ConvertField("cents", lambda euros: euros * 100))
upcasters.change("paid", 2, AddField("currency", "EUR"))
upcasters.split(
    "moved",
    1,
    Part("sent", 1, ("cents", "to")),
    Part("paid", 2, ("cents",)),
)
upcasters.drop("pinged", 1)
upcasters.rename_kind("jotted", 1, "noted")


@upcasters.split_by("basket", 1, [("paid", 1)])
def _(payload: Any) -> Iterator[tuple[str, Any]]:
    for euros in payload["items"]:
        yield "paid", {"euros": euros}


@upcasters.with_context("rated", 1, till)
def _(payload: Any, state: Till) -> Any:
    return {**payload, "balance": state.cents}


def old_shop(backend: Backend, **more: Any) -> Store:
    """Open a store as the shop's first release did."""
    return Store.open(backend=backend, events=OLD, **more)


def new_shop(backend: Backend, **more: Any) -> Store:
    return Store.open(backend=backend, upcasters=upcasters, **more)


def dump(store: Store) -> dict[str, Any]:
    """Return everything that a store says, but for snapshots and for when it was made."""
    backend = store.backend
    names = [head.stream for head in store.streams()]
    return {
        "heads": backend.heads(),
        "rows": backend.rows_by_position(after=0, limit=10**6),
        "ids": {name: backend.ids(name) for name in names},
        "leases": {name: backend.lease(name) for name in names},
        "kinds": list(backend.schemas()),
        "blobs": backend.blobs(limit=10**6),
        "meta": {key: row for key, row in backend.meta(b"").items() if key != b"format"},
        "format": store.format,
    }
