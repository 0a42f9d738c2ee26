"""The catalogue: the shipped one is usable, a bad one is refused by name, and products are found as people
write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine.agents.comparetiers import Catalogue, comparetiers, read_catalogue, shipped
from tailfold.engine.errors import BadArgument

SHIPPED = read_catalogue(shipped(), "shipped")


def small(**changes: Any) -> dict[str, Any]:
    """Return a catalogue of one product, as JSON would give it."""
    plan = {"name": "Plus", "monthly": "12.00", "yearly": "120.00"}
    product = {"name": "Notion", "category": "notes", "plans": [plan]}
    return {"as_of": "2025-01-31", "note": "", "currency": "USD", "products": [product], **changes}


def read(value: Any) -> Catalogue:
    return read_catalogue(json.dumps(value).encode(), "my.json")


# -- the shipped one -------------------------------------------------------------------------------------


def test_the_shipped_catalogue_has_a_dozen_products_or_more_with_plans() -> None:
    assert len(SHIPPED.products) >= 12
    assert all(product.plans and product.category for product in SHIPPED.products)


def test_the_shipped_catalogue_says_as_of_when_it_is_and_that_prices_drift() -> None:
    assert date.fromisoformat(SHIPPED.as_of) <= date.today()
    assert "drift" in SHIPPED.note
    assert SHIPPED.currency == "USD"


def test_every_shipped_plan_is_sold_somehow_at_a_price_of_whole_cents() -> None:
    for product in SHIPPED.products:
        for plan in product.plans:
            prices = [price for price in (plan.monthly, plan.yearly) if price is not None]
            assert prices, f"{product.name} {plan.name}"
            assert all(price == price.quantize(Decimal("0.01")) for price in prices)


def test_the_plans_of_every_shipped_product_stand_cheapest_first() -> None:
    for product in SHIPPED.products:
        for billing in ("monthly", "yearly"):
            prices = [price for plan in product.plans if (price := plan.price(billing)) is not None]
            assert prices == sorted(prices), product.name


def test_the_agent_keeps_the_very_bytes_of_its_catalogue() -> None:
    agent = comparetiers(shipped(), "shipped")
    assert agent.inputs == {"catalogue": shipped()}
    assert agent.origins == {"catalogue": "shipped"}


# -- reading ---------------------------------------------------------------------------------------------


def test_a_small_catalogue_is_read_with_its_defaults() -> None:
    [product] = read(small()).products
    [plan] = product.plans
    assert (plan.per, plan.min_seats, plan.max_seats) == ("seat", 1, None)
    assert (plan.monthly, plan.yearly) == (Decimal("12.00"), Decimal("120.00"))


def test_a_price_may_be_a_json_number_and_stays_exact() -> None:
    catalogue = small()
    catalogue["products"][0]["plans"][0]["monthly"] = 0.1
    [product] = read(catalogue).products
    assert product.plans[0].monthly == Decimal("0.1")


def broken(change: Callable[[dict[str, Any]], Any]) -> bytes:
    catalogue = small()
    change(catalogue)
    return json.dumps(catalogue).encode()


def plan_with(**changes: Any) -> bytes:
    return broken(lambda c: c["products"][0]["plans"][0].update(changes))


def product_with(**changes: Any) -> bytes:
    return broken(lambda c: c["products"][0].update(changes))


def second_product(**changes: Any) -> bytes:
    def add(catalogue: dict[str, Any]) -> None:
        catalogue["products"].append({**catalogue["products"][0], **changes})

    return broken(add)


def second_plan(name: str) -> bytes:
    def add(catalogue: dict[str, Any]) -> None:
        plans = catalogue["products"][0]["plans"]
        plans.append({**plans[0], "name": name})

    return broken(add)


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "truncated"),
    "not JSON": (b"prices: 12", "malformed"),
    "cut off": (shipped()[:-10], "truncated|malformed"),
    "not text": (b"\xff\xfe\x00", "malformed|utf-8"),
    "a list": (b"[]", "Expected `object`, got `array`"),
    "nested too deeply": (b'{"as_of":' + b"[" * 100_000, "is not a catalogue"),
    "a missing field": (json.dumps({"as_of": "2025-01-31"}).encode(), "missing required field `note`"),
    "a plan without a price": (
        broken(lambda c: c["products"][0]["plans"][0].pop("yearly")),
        r"missing required field `yearly`.*plans",
    ),
    "an unknown field": (json.dumps(small(vat=20)).encode(), "unknown field `vat`"),
    "an unknown field of a product": (product_with(url="x"), "unknown field `url`"),
    "an unknown field of a plan": (plan_with(montly="1.00"), "unknown field `montly`"),
    "a negative price": (plan_with(monthly="-0.01"), "Notion Plus has the price -0.01"),
    "a negative yearly price": (plan_with(yearly=-5), "Notion Plus has the price -5"),
    "a price that is not a number": (plan_with(monthly="NaN"), "Notion Plus has the price NaN"),
    "a price that signals": (plan_with(monthly="sNaN"), "Notion Plus has the price sNaN"),
    "a price without end": (plan_with(monthly="Infinity"), "Notion Plus has the price Infinity"),
    "a huge price": (plan_with(monthly="1000000000.01"), "Notion Plus has the price 1000000000.01"),
    "a price with a huge exponent": (plan_with(yearly="1e999999"), r"Notion Plus has the price 1E\+999999"),
    "a price in words": (plan_with(monthly="free"), r"Invalid decimal|Expected `decimal`"),
    "a price that is true": (plan_with(monthly=True), "Expected"),
    "an unknown unit": (plan_with(per="team"), "'team'"),
    "no seats at least": (plan_with(min_seats=0), "Notion Plus has impossible seat limits"),
    "fewer seats at most than at least": (
        plan_with(min_seats=3, max_seats=2),
        "Notion Plus has impossible seat limits",
    ),
    "no seats at most": (plan_with(max_seats=0), "Notion Plus has impossible seat limits"),
    "less than no seats at most": (plan_with(max_seats=-1), "Notion Plus has impossible seat limits"),
    "one product twice": (second_product(), "'Notion' is empty or stands twice"),
    "one name in another case": (second_product(name="NOTION"), "'NOTION' is empty or stands twice"),
    "an alias that is a name": (
        second_product(name="Slack", aliases=["notion"]),
        "'notion' is empty or stands twice",
    ),
    "an alias that is its own name": (product_with(aliases=["Notion"]), "stands twice"),
    "a name of nothing": (product_with(name=" "), "' ' is empty"),
    "an alias of nothing": (product_with(aliases=["!"]), "'!' is empty"),
    "one plan twice": (second_plan("plus"), "Notion has two plans with one name"),
    "a plan without a name": (second_plan("…"), "Notion has two plans with one name, or one without"),
    "no products": (json.dumps(small(products=[])).encode(), "it has no products"),
    "no plans": (product_with(plans=[]), "Notion has no plans"),
    "too large": (b" " * ((8 << 20) + 1), "8388609 bytes are too many"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_catalogue_is_refused_with_the_file_and_the_problem(name: str) -> None:
    content, problem = BAD[name]
    with pytest.raises(BadArgument, match=problem) as caught:
        read_catalogue(content, "my.json")
    assert str(caught.value).startswith("my.json")


def test_the_agent_refuses_a_bad_catalogue_likewise() -> None:
    with pytest.raises(BadArgument, match=r"my\.json is not a catalogue"):
        comparetiers(b"{}", "my.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["as_of", "note", "currency", "products", "name"]), inner, max_size=4)
    ),
    max_leaves=6,
)


@given(st.binary(max_size=200) | JSON.map(json.dumps).map(str.encode))
def test_any_bytes_that_are_no_catalogue_are_a_bad_argument(content: bytes) -> None:
    with pytest.raises(BadArgument, match=r"^my\.json"):
        read_catalogue(content, "my.json")


# -- finding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phrase", "product"),
    [
        ("Notion", "Notion"),
        ("notion", "Notion"),
        ("  NOTION ", "Notion"),
        ("Notion Plus", "Notion"),
        ("Notion, the Plus plan", "Notion"),
        ("Teams", "Microsoft Teams"),
        ("ms teams", "Microsoft Teams"),
        ("Microsoft Teams Essentials", "Microsoft Teams"),
        ("Microsoft 365 Business Basic", "Microsoft 365"),
        ("Office 365", "Microsoft 365"),
        ("m365", "Microsoft 365"),
        ("G Suite", "Google Workspace"),
        ("gsuite business plus", "Google Workspace"),
        ("zoom workplace pro", "Zoom"),
        ("Slack Business+", "Slack"),
        ("monday.com", "monday.com"),
        ("Monday", "monday.com"),
        ("GitHub", "GitHub"),
        ("GitLab", "GitLab"),
    ],
)
def test_a_product_is_found_by_name_or_alias_in_any_case_and_with_more_words(phrase: str, product: str) -> None:
    found = SHIPPED.find(phrase)
    assert found is not None
    assert found.name == product


@pytest.mark.parametrize(
    "phrase", ["", " ", "Foobar", "Not", "Notions", "Microsoft", "Google", "Plus", "the Notion", "365", "☃"]
)
def test_a_phrase_that_begins_with_no_product_finds_none(phrase: str) -> None:
    assert SHIPPED.find(phrase) is None


def test_the_longest_name_wins() -> None:
    catalogue = small()
    plans = catalogue["products"][0]["plans"]
    catalogue["products"].append({"name": "Notion Calendar", "category": "calendar", "plans": plans})
    found = [read(catalogue).find(phrase) for phrase in ("notion", "notion calendar plus", "notion plus")]
    assert [product.name for product in found if product] == ["Notion", "Notion Calendar", "Notion"]


NAMES = [(name, product) for product in SHIPPED.products for name in (product.name, *product.aliases)]


@given(st.sampled_from(NAMES), st.data())
def test_every_name_finds_its_product_in_any_case_and_before_a_plan(name: Any, data: st.DataObject) -> None:
    text, product = name
    written = "".join(data.draw(st.sampled_from([c.upper(), c.lower()])) for c in text)
    after = data.draw(st.sampled_from(["", "!", " ", *(f" {plan.name}" for plan in product.plans)]))
    assert SHIPPED.find(written + after) == product


@given(st.sampled_from(NAMES), st.data())
def test_a_plan_after_any_name_of_its_product_is_the_plan_that_is_meant(name: Any, data: st.DataObject) -> None:
    text, product = name
    plan = data.draw(st.sampled_from(product.plans))
    assert product.plan(plan.name.upper()) == plan
    assert product.plan_in(f"{text} {plan.name.lower()}") == plan


def test_a_phrase_without_a_plan_or_with_a_strange_one_names_none() -> None:
    notion = SHIPPED.find("Notion")
    assert notion is not None
    for phrase in ("Notion", "Notion Enterprise", "Notion Plus Ultra", "Plus", "Slack Plus", ""):
        assert notion.plan_in(phrase) is None
    assert notion.plan("Enterprise") is None


def test_a_misspelt_name_has_similar_ones_and_nonsense_has_none() -> None:
    assert SHIPPED.similar("Notoin") == ["Notion"]
    assert "GitHub" in SHIPPED.similar("githib")
    assert SHIPPED.similar("xyzzyxyzzy") == []
