"""Old journals through a store: every way of reading lifts alike, and snapshots know which steps they rest on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine import Event, Fold, MemoryBackend, Newer, Opaque, Store, loading, log
from tailfold.engine.backend.port import Backend
from tailfold.engine.errors import BadArgument, SchemaTooNew, SchemaTooOld, StepFailed
from tailfold.snapshots import every, never, state_hash
from tailfold.upcasters import AddField, ConvertField, Part, RenameField, Upcasters

# -- a kind in four versions, one that was renamed, one that was split, one that says nothing any more ---------


class Bought1(Event, frozen=True):
    kind = "bought"
    count: str
    by: str


class Bought2(Event, frozen=True):
    kind = "bought"
    version = 2
    seats: str
    by: str


class Bought3(Event, frozen=True):
    kind = "bought"
    version = 3
    seats: int
    by: str


class Bought(Event, frozen=True):
    kind = "bought"
    version = 4
    seats: int
    by: str
    price: int


class PriceSet(Event, frozen=True):
    kind = "price_set"
    price: int


class Tariff(Event, frozen=True):
    kind = "tariff"
    price: int


class Sold(Event, frozen=True):
    kind = "sold"
    seats: int


class Deal(Event, frozen=True):
    kind = "deal"
    bought: int
    sold: int
    by: str


class Noise(Event, frozen=True):
    kind = "noise"
    text: str


@dataclass
class Prices:
    price: int = 0


prices: Fold[Prices] = Fold("prices", Prices)


@prices.on(PriceSet)
def _(state: Prices, event: PriceSet) -> None:
    state.price = event.price


def lifting(*, bonus: int = 0, by_two: bool = False) -> Upcasters:
    steps = Upcasters(events=[Bought, PriceSet, Sold])
    if by_two:

        @steps.step("bought", 1, to=3)
        def _(payload: dict[str, Any]) -> dict[str, Any]:
            return {"seats": int(payload["count"]), "by": payload["by"]}
    else:
        steps.change("bought", 1, RenameField("count", "seats"))

    @steps.typed(Bought2, Bought3)
    def _(old: Bought2) -> Bought3:
        return Bought3(int(old.seats), old.by)

    @steps.with_context("bought", 3, prices)
    def _(payload: dict[str, Any], before: Prices) -> dict[str, Any]:
        payload["price"] = before.price + bonus
        return payload

    steps.rename_kind("tariff", 1, "price_set")
    bought = Part("bought", 3, ("by",), renamed={"seats": "bought"})
    steps.split("deal", 1, bought, Part("sold", 1, renamed={"seats": "sold"}))
    steps.drop("noise", 1)
    return steps


@dataclass
class Licence:
    seats: int = 0
    paid: int = 0
    events: int = 0
    buyers: list[str] = field(default_factory=list)


licence: Fold[Licence] = Fold("licence", Licence)


@licence.on(Bought)
def _(state: Licence, event: Bought) -> None:
    state.seats += event.seats
    state.paid += event.seats * event.price
    state.events += 1
    state.buyers.append(event.by)


@licence.on(Sold)
def _(state: Licence, event: Sold) -> None:
    state.seats -= event.seats
    state.events += 1


# -- what happened, and how it may have been written ------------------------------------------------------------

FACTS = st.lists(
    st.one_of(
        st.tuples(st.just("buy"), st.integers(0, 9), st.sampled_from(["ann", "bob"])),
        st.tuples(st.just("sell"), st.integers(0, 9), st.just("")),
        st.tuples(st.just("price"), st.integers(0, 9), st.just("")),
        st.tuples(st.just("deal"), st.integers(0, 9), st.just("cy")),
        st.tuples(st.just("noise"), st.just(0), st.just("")),
    ),
    max_size=12,
)
Fact = tuple[str, int, str]


def as_current(facts: list[Fact]) -> list[list[Event]]:
    price = 0
    found: list[list[Event]] = []
    for what, number, who in facts:
        if what == "price":
            price = number
        written: dict[str, list[Event]] = {
            "buy": [Bought(number, who, price)],
            "sell": [Sold(number)],
            "price": [PriceSet(number)],
            "deal": [Bought(number, who, price), Sold(number + 1)],
            "noise": [],
        }
        found.append(written[what])
    return found


def as_written(fact: Fact, price: int, age: int) -> Event:
    what, number, who = fact
    ages: dict[str, list[Event]] = {
        "buy": [
            Bought1(str(number), who),
            Bought2(str(number), who),
            Bought3(number, who),
            Bought(number, who, price),
        ],
        "sell": [Sold(number)],
        "price": [Tariff(number), PriceSet(number)],
        "deal": [Deal(number, number + 1, who)],
        "noise": [Noise("…")],
    }
    return ages[what][age % len(ages[what])]


def write(backend: Backend, facts: list[Fact], ages: list[int]) -> None:
    """Write each fact as the release of its age did: every one through a store of its own code."""
    price = 0
    for version, (fact, age) in enumerate(zip(facts, ages, strict=True)):
        if fact[0] == "price":
            price = fact[1]
        Store.open(backend=backend).append("s", as_written(fact, price, age), expected=version)


AGES = st.lists(st.integers(0, 3), min_size=12, max_size=12)


@given(facts=FACTS, ages=AGES, at=st.integers(0, 12), page=st.sampled_from([1, 2, 5, 1024]))
def test_a_journal_of_mixed_ages_folds_as_the_same_one_at_current_versions(
    facts: list[Fact], ages: list[int], at: int, page: int
) -> None:
    backend = MemoryBackend()
    write(backend, facts, ages[: len(facts)])
    wanted = as_current(facts)
    at = min(at, len(facts))
    truth = licence.fold([event for events in wanted[:at] for event in events])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "RECORDS_PER_PAGE", page)
        patched.setattr(log, "RECORDS_PER_PAGE", page)
        for policy in (never, every(1), every(3), never):  # the last one starts from what the others left
            opened = Store.open(backend=backend, upcasters=lifting(), snapshots=policy)
            assert opened.load("s", licence, at).state == truth
            assert opened.load("s", licence).state == licence.fold([e for events in wanted for e in events])
    if facts:
        opened = Store.open(backend=backend, upcasters=lifting())
        read = [(r.version, r.sub, r.event) for r in opened.read("s")]
        assert read == [(v, i, e) for v, events in enumerate(wanted, 1) for i, e in enumerate(events)]
        assert [(r.version, r.sub, r.event) for r in opened.read("s", backwards=True)] == read[::-1]
        assert [(r.version, r.sub, r.event) for r in opened.read_all()] == read
        assert [r.version for r in opened.read("s", after=at)] == [v for v, _, _ in read if v > at]
        live = opened.live("s", licence)
        live.append(Bought(1, "dee", 2))
        assert live.state == licence.fold([*(e for events in wanted for e in events), Bought(1, "dee", 2)])
        assert opened.verify().sound


@given(facts=FACTS)
def test_one_step_over_two_versions_gives_what_two_steps_give(facts: list[Fact]) -> None:
    backend = MemoryBackend()
    write(backend, facts, [0] * len(facts))
    states = [Store.open(backend=backend, upcasters=lifting(by_two=x)).load("s", licence) for x in (False, True)]
    assert state_hash(states[0].state) == state_hash(states[1].state)


def old_store(backend: Backend) -> list[Fact]:
    facts: list[Fact] = [
        ("price", 3, ""),
        ("buy", 2, "ann"),
        ("noise", 0, ""),
        ("deal", 1, "cy"),
        ("buy", 4, "bob"),
    ]
    write(backend, facts, [0] * len(facts))
    return facts


def test_a_step_with_context_sees_the_state_before_its_event_from_any_snapshot(backend: Backend) -> None:
    facts = old_store(backend)
    truth = licence.fold([e for events in as_current(facts) for e in events])
    opened = Store.open(backend=backend, upcasters=lifting(), snapshots=every(2))
    assert opened.load("s", licence).state == truth
    again = Store.open(backend=backend, upcasters=lifting(), snapshots=never)
    assert again.load("s", licence).state == truth
    assert again.counters.hits >= 1
    [last] = again.read("s", after=4)  # alone, without what stands before it in a page
    assert last.event == Bought(4, "bob", 3)


def test_a_changed_step_discards_the_snapshots_that_it_could_have_changed_and_no_others(backend: Backend) -> None:
    old_store(backend)
    sales: Fold[Prices] = Fold("sales", Prices)

    @sales.on(Sold)
    def _(state: Prices, event: Sold) -> None:
        state.price += event.seats

    before = Store.open(backend=backend, upcasters=lifting(), snapshots=every(1))
    before.load("s", licence)
    before.load("s", sales)
    after = Store.open(backend=backend, upcasters=lifting(bonus=100), snapshots=never)
    assert after.load("s", licence).state.paid == (2 + 1 + 4) * 103
    assert any("upcasters" in why for why in after.counters.missed), after.counters.missed
    hits = after.counters.hits
    after.load("s", sales)
    assert after.counters.hits == hits + 1, "the step for bought says nothing about sold"
    same = Store.open(backend=backend, upcasters=lifting(), snapshots=never)
    assert same.load("s", licence).state.paid == (2 + 1 + 4) * 3
    assert not same.counters.missed


def counting(worth: int, events: list[type[Event]]) -> Upcasters:
    """Steps to `Bought` that ask what a context has gathered of another kind, which has a step of its own."""
    steps = Upcasters(events=events)
    gathered: Fold[Prices] = Fold("gathered", Prices)

    @gathered.on(PriceSet)
    def _(state: Prices, event: PriceSet) -> None:
        state.price += event.price

    steps.change("tariff", 1, ConvertField("price", cents if worth == 100 else int))
    steps.rename_kind("tariff", 2, "price_set")
    for version in (1, 2):
        steps.change("bought", version)

    @steps.with_context("bought", 3, gathered)
    def _(payload: dict[str, Any], before: Prices) -> dict[str, Any]:
        return payload | {"price": before.price}

    return steps


def cents(price: int) -> int:
    return price * 100


def test_a_changed_step_of_what_only_a_context_sees_discards_snapshots_too(backend: Backend) -> None:
    old = Store.open(backend=backend, events=[Bought3, Tariff])
    old.append("s", [Tariff(1), Bought3(2, "ann"), Tariff(2), Bought3(1, "bob")], expected=0)
    before = Store.open(backend=backend, upcasters=counting(1, [Bought, PriceSet]), snapshots=every(1))
    assert before.load("s", licence).state.paid == 2 * 1 + 1 * 3
    after = Store.open(backend=backend, upcasters=counting(100, [Bought, PriceSet]), snapshots=never)
    assert after.load("s", licence).state.paid == (2 * 1 + 1 * 3) * 100


def test_a_context_sees_its_events_though_nobody_else_made_them_known(backend: Backend) -> None:
    old = Store.open(backend=backend, events=[Bought3, PriceSet])
    old.append("s", [PriceSet(3), Bought3(2, "ann"), PriceSet(4), Bought3(1, "bob")], expected=0)
    steps = Upcasters(events=[Bought])
    for version in (1, 2):
        steps.change("bought", version)

    @steps.with_context("bought", 3, prices)
    def _(payload: dict[str, Any], before: Prices) -> dict[str, Any]:
        return payload | {"price": before.price}

    reading = Store.open(backend=backend, upcasters=steps, snapshots=never)
    assert reading.load("s", licence).state.paid == 2 * 3 + 1 * 4


def bad_steps() -> Upcasters:
    steps = Upcasters(events=[Bought, Sold, PriceSet])
    steps.change("bought", 1, RenameField("count", "seats"))
    steps.change("bought", 2, ConvertField("seats", int))

    @steps.step("bought", 3)
    def _(payload: dict[str, Any]) -> dict[str, Any]:
        return {"seats": payload["seats"], "by": payload["by"], "price": "a lot"}

    return steps


@pytest.mark.parametrize(
    "way",
    [
        lambda store: store.load("s", licence),
        lambda store: list(store.read("s")),
        lambda store: list(store.read_all()),
        lambda store: store.live("s", licence),
        lambda store: store.check_readable("s"),
    ],
)
def test_a_failing_step_is_named_by_every_way_of_reading(backend: Backend, way: Callable[[Store], Any]) -> None:
    Store.open(backend=backend).append("s", [Sold(1), Bought1("2", "ann")], expected=0)
    with pytest.raises(StepFailed) as caught:
        way(Store.open(backend=backend, upcasters=bad_steps()))
    error = caught.value
    assert (error.stream, error.version, error.stored) == ("s", 2, "bought@1")
    assert "bought@4" in error.step
    assert error.payload == {"seats": 2, "by": "ann", "price": "a lot"}
    assert "a lot" in str(error)
    assert "bought@1" in str(error)


def test_a_default_that_is_added_needs_no_step_with_or_without_a_new_version(backend: Backend) -> None:
    class Grown(Event, frozen=True):
        kind = "bought"
        count: str
        by: str
        currency: str = "USD"

    class Raised(Event, frozen=True):
        kind = "bought"
        version = 2
        count: str
        by: str
        currency: str = "USD"

    class Changed(Event, frozen=True):
        kind = "bought"
        version = 2
        count: int
        by: str
        currency: str = "USD"

    Store.open(backend=backend).append("s", Bought1("2", "ann"), expected=0)
    [grown] = Store.open(backend=backend, events=[Grown]).read("s")
    assert grown.event == Grown("2", "ann")
    [raised] = Store.open(backend=backend, events=[Raised]).read("s")
    assert (raised.event, raised.schema_version, raised.stored) == (Raised("2", "ann"), 1, "bought@1")
    with pytest.raises(SchemaTooOld):
        list(Store.open(backend=backend, events=[Changed]).read("s"))


def test_a_newer_version_is_refused_or_kept_opaque_and_counted(backend: Backend) -> None:
    Store.open(backend=backend).append("s", [Sold(1), Bought3(5, "ann"), Sold(2)], expected=0)
    old: Fold[Prices] = Fold("old", Prices)

    @old.on(Bought1)
    def _(state: Prices, event: Bought1) -> None:
        state.price += 1

    @old.on(Sold)
    def _(state: Prices, event: Sold) -> None:
        state.price += event.seats

    with pytest.raises(SchemaTooNew):
        Store.open(backend=backend).load("s", old)
    lenient = Store.open(backend=backend, newer=Newer.OPAQUE, snapshots=every(1))
    assert lenient.load("s", old).state.price == 3
    assert lenient.newer_read == {"bought@3": 1}
    event = [r.event for r in lenient.read("s")][1]
    assert isinstance(event, Opaque)
    assert event.newer
    assert event.builtins() == {"seats": 5, "by": "ann"}
    with pytest.raises(SchemaTooNew):  # no snapshot of the lenient fold stands in for what it passed over
        Store.open(backend=backend, snapshots=never).load("s", old)


def test_what_was_read_as_opaque_is_lifted_once_its_kind_is_known(backend: Backend) -> None:
    old_store(backend)
    store = Store.open(backend=backend)
    assert all(isinstance(r.event, Opaque) for r in store.read("s"))
    store.log.codec.adopt(lifting())
    assert [r.event for r in store.read("s", limit=2)] == [PriceSet(3), Bought(2, "ann", 3)]
    with pytest.raises(BadArgument, match="a step lifts it"):
        store.log.codec.register([Tariff])


def test_two_sets_of_steps_may_be_given_one_after_the_other(backend: Backend) -> None:
    Store.open(backend=backend).append("s", [Tariff(4), Bought1("1", "ann")], expected=0)
    first = Upcasters(events=[PriceSet])
    first.rename_kind("tariff", 1, "price_set")
    second = Upcasters(events=[Bought])
    second.change("bought", 1, RenameField("count", "seats"))
    second.change("bought", 2, ConvertField("seats", int))
    second.change("bought", 3, AddField("price", 0))
    store = Store.open(backend=backend, upcasters=first)
    store.log.codec.adopt(second)
    assert [r.event for r in store.read("s")] == [PriceSet(4), Bought(1, "ann", 0)]


@given(data=st.data())
def test_steps_never_touch_what_is_stored(data: st.DataObject) -> None:
    facts = data.draw(FACTS)
    backend = MemoryBackend()
    write(backend, facts, [0] * len(facts))
    rows = backend.rows("s", after=0, upto=len(facts), limit=100)
    store = Store.open(backend=backend, upcasters=lifting(), snapshots=every(1))
    store.load("s", licence)
    assert backend.rows("s", after=0, upto=len(facts), limit=100) == rows
