"""The price tools: totals are exact, and what has no price is refused in words that help."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine.agent.events import ToolCall
from tailfold.engine.agent.tools import Toolbox, ToolFailed
from tailfold.engine.agents.comparetiers import read_catalogue, shipped
from tailfold.engine.agents.comparetiers.catalogue import Billing, Plan, Product
from tailfold.engine.agents.comparetiers.tools import SEATS_MAX, toolbox

CATALOGUE = read_catalogue(shipped(), "shipped")
TOOLS = toolbox(CATALOGUE)
PLANS = [(product, plan) for product in CATALOGUE.products for plan in product.plans]
BILLINGS: list[Billing] = ["monthly", "yearly"]


def small(*plans: dict[str, Any], currency: str = "USD") -> Toolbox:
    """Return the tools over one product, Acme, with *plans*."""
    product = {"name": "Acme", "category": "all", "plans": list(plans)}
    content = {"as_of": "2025-06-30", "note": "made up", "currency": currency, "products": [product]}
    return toolbox(read_catalogue(json.dumps(content).encode(), "my.json"))


def call(name: str, tools: Toolbox = TOOLS, /, **arguments: Any) -> Any:
    return asyncio.run(tools.run(ToolCall("c1", name, arguments), "r@4"))


def quote(
    product: str, plan: str, seats: int, billing: str = "monthly", *, tools: Toolbox = TOOLS
) -> dict[str, Any]:
    result: dict[str, Any] = call("quote", tools, product=product, plan=plan, seats=seats, billing=billing)
    return result


def compare(*products: str, seats: int = 5, billing: str = "monthly") -> dict[str, Any]:
    result: dict[str, Any] = call("compare", products=list(products), seats=seats, billing=billing)
    return result


def refused(name: str, tools: Toolbox = TOOLS, /, **arguments: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        call(name, tools, **arguments)
    return str(caught.value)


# -- quote -----------------------------------------------------------------------------------------------


def test_a_plan_per_seat_costs_its_price_for_every_seat() -> None:
    assert quote("Notion", "Plus", 5) == {
        "product": "Notion",
        "plan": "Plus",
        "billing": "monthly",
        "seats": 5,
        "billed_seats": 5,
        "per": "seat",
        "price": "12.00",
        "total": "60.00",
        "currency": "USD",
        "as_of": CATALOGUE.as_of,
        "note": CATALOGUE.note,
    }


def test_totals_are_exact_where_floats_are_not() -> None:
    assert quote("Slack", "Pro", 7)["total"] == "61.25"
    assert quote("Asana", "Starter", 333_333, "yearly")["total"] == "43959956.04"
    assert quote("Zoom", "Pro", 99)["total"] == "1583.01"
    tools = small({"name": "Dear", "monthly": "999999999.99", "yearly": None})
    assert quote("Acme", "Dear", 999_999, tools=tools)["total"] == "999998999990000.01"


def test_at_least_the_minimum_of_seats_is_billed() -> None:
    cost = quote("monday.com", "Basic", 1)
    assert (cost["seats"], cost["billed_seats"], cost["total"]) == (1, 3, "36.00")
    assert quote("monday.com", "Basic", 3)["total"] == "36.00"
    assert quote("monday.com", "Basic", 4)["total"] == "48.00"


def test_a_flat_price_is_the_same_for_any_number_of_seats() -> None:
    for seats in (1, 50, SEATS_MAX):
        cost = quote("Basecamp", "Pro Unlimited", seats)
        assert (cost["per"], cost["billed_seats"], cost["total"]) == ("flat", None, "349.00")


def test_a_plan_takes_its_maximum_of_seats_and_no_more() -> None:
    assert quote("Zoom", "Pro", 99)["billed_seats"] == 99
    told = refused("quote", product="Zoom", plan="Pro", seats=100, billing="monthly")
    assert told == "Zoom Pro is for at most 99 seats, not 100"


def test_a_plan_that_is_not_sold_in_that_billing_says_in_which_it_is() -> None:
    told = refused("quote", product="GitLab", plan="Premium", seats=5, billing="monthly")
    assert told == "GitLab Premium is not sold with monthly billing, only yearly"
    tools = small({"name": "Flex", "monthly": "5.00", "yearly": None})
    told = refused("quote", tools, product="Acme", plan="Flex", seats=5, billing="yearly")
    assert told == "Acme Flex is not sold with yearly billing, only monthly"


def test_a_plan_without_any_price_is_not_said_to_be_sold_otherwise() -> None:
    tools = small({"name": "Enterprise", "monthly": None, "yearly": None})
    told = refused("quote", tools, product="Acme", plan="Enterprise", seats=5, billing="monthly")
    assert "Acme Enterprise is not sold" in told
    assert "yearly" not in told


def test_product_and_plan_are_found_in_any_case_and_by_alias() -> None:
    assert quote("notion", "PLUS", 5) == quote("Notion", "Plus", 5)
    assert quote("MS Teams", "essentials", 5, "yearly")["product"] == "Microsoft Teams"
    assert quote("slack", "business+", 1)["plan"] == "Business+"


def test_an_unknown_product_is_refused_with_a_hint_and_without_a_price() -> None:
    told = refused("quote", product="Notoin", plan="Plus", seats=5, billing="monthly")
    assert "no product 'Notoin'" in told
    assert "did you mean Notion?" in told
    told = refused("get_plans", product="Foobar")
    assert "no product 'Foobar'" in told
    assert "did you mean" not in told
    assert all(product.name in told for product in CATALOGUE.products)


def test_an_unknown_plan_is_refused_with_those_that_there_are() -> None:
    told = refused("quote", product="Notion", plan="Enterprise", seats=5, billing="monthly")
    assert told == "Notion has no plan 'Enterprise'; its plans are: Free, Plus, Business"


@pytest.mark.parametrize("seats", [0, -1, SEATS_MAX + 1, "many", None, 2.5])
def test_a_number_of_seats_that_is_none_is_refused(seats: Any) -> None:
    assert "seats" in refused("quote", product="Notion", plan="Plus", seats=seats, billing="monthly")


def test_a_billing_that_does_not_exist_is_refused() -> None:
    assert "billing" in refused("quote", product="Notion", plan="Plus", seats=1, billing="weekly")


def test_a_quote_carries_the_catalogues_currency_date_and_note() -> None:
    tools = small({"name": "Basic", "monthly": "5.00", "yearly": "50.00"}, currency="EUR")
    cost = quote("Acme", "Basic", 2, tools=tools)
    assert (cost["currency"], cost["as_of"], cost["note"]) == ("EUR", "2025-06-30", "made up")


@given(st.sampled_from(PLANS), st.sampled_from(BILLINGS), st.integers(1, SEATS_MAX))
def test_a_quote_is_the_price_times_the_billed_seats_for_every_shipped_plan(
    offer: tuple[Product, Plan], billing: Billing, seats: int
) -> None:
    product, plan = offer
    price = plan.price(billing)
    arguments = {"product": product.name, "plan": plan.name, "seats": seats, "billing": billing}
    if price is None or seats > (plan.max_seats or seats):
        assert refused("quote", **arguments).startswith(f"{product.name} {plan.name} is ")
        return
    cost = call("quote", **arguments)
    billed = max(seats, plan.min_seats) if plan.per == "seat" else 1
    assert Decimal(cost["price"]) == price
    assert Decimal(cost["total"]) == price * billed
    assert cost["total"].partition(".")[2].isdigit()
    assert len(cost["total"].partition(".")[2]) == 2


# -- get_plans -------------------------------------------------------------------------------------------


def test_all_plans_of_a_product_are_listed_with_prices_and_limits() -> None:
    listed = call("get_plans", product="gitlab")
    assert listed["product"] == "GitLab"
    assert listed["currency"] == "USD"
    assert listed["plans"] == [
        {
            "plan": "Free",
            "per": "seat",
            "monthly": "0.00",
            "yearly": "0.00",
            "min_seats": 1,
            "max_seats": 5,
        },
        {
            "plan": "Premium",
            "per": "seat",
            "monthly": None,
            "yearly": "348.00",
            "min_seats": 1,
            "max_seats": None,
        },
    ]


@given(st.sampled_from(PLANS))
def test_every_shipped_plan_is_listed_at_its_price(offer: tuple[Product, Plan]) -> None:
    product, plan = offer
    listed = {entry["plan"]: entry for entry in call("get_plans", product=product.name)["plans"]}
    for billing in BILLINGS:
        price, told = plan.price(billing), listed[plan.name][billing]
        assert told is None if price is None else Decimal(told) == price


# -- compare ---------------------------------------------------------------------------------------------


def test_a_comparison_has_the_cheapest_paid_plan_of_each_cheapest_first() -> None:
    result = compare("Zoom", "Slack", "Linear", seats=10)
    assert [(o["product"], o["plan"], o["total"]) for o in result["cheapest_first"]] == [
        ("Slack", "Pro", "87.50"),
        ("Linear", "Basic", "100.00"),
        ("Zoom", "Pro", "159.90"),
    ]
    assert sorted(result["also_with_a_free_plan"]) == ["Linear", "Slack", "Zoom"]


def test_equal_totals_stand_by_name() -> None:
    result = compare("Notion", "monday.com", "Miro", "ClickUp", seats=10)
    assert [o["product"] for o in result["cheapest_first"]] == ["ClickUp", "Miro", "Notion", "monday.com"]


def test_amounts_are_compared_as_numbers_and_not_as_text() -> None:
    result = compare("Zoom", "Trello", seats=10)
    assert [o["total"] for o in result["cheapest_first"]] == ["60.00", "159.90"]


def test_a_plan_that_is_named_is_compared_and_not_the_cheapest() -> None:
    result = compare("Slack Business+", "Notion", "trello premium", seats=1)
    assert [(o["product"], o["plan"]) for o in result["cheapest_first"]] == [
        ("Notion", "Plus"),
        ("Trello", "Premium"),
        ("Slack", "Business+"),
    ]


def test_a_plan_that_is_named_after_an_alias_is_compared_too() -> None:
    result = compare("Zoom Workplace Business", "Office 365 Business Premium", seats=5)
    assert [(o["product"], o["plan"]) for o in result["cheapest_first"]] == [
        ("Zoom", "Business"),
        ("Microsoft 365", "Business Premium"),
    ]


def test_a_product_that_is_named_twice_is_offered_once() -> None:
    assert len(compare("Notion", "notion", "Notion Plus")["cheapest_first"]) == 1


def test_the_minimum_of_seats_and_flat_prices_count_in_a_comparison() -> None:
    result = compare("monday.com Basic", "Basecamp Pro Unlimited", "Notion", seats=2)
    assert [o["total"] for o in result["cheapest_first"]] == ["24.00", "36.00", "349.00"]
    result = compare("monday.com Basic", "Basecamp Pro Unlimited", "Notion", seats=100)
    assert [o["total"] for o in result["cheapest_first"]] == ["349.00", "1200.00", "1200.00"]


def test_unknown_products_and_those_without_an_offer_are_named_without_a_price() -> None:
    result = compare("Foobar", "Microsoft Teams", "GitLab", "Notion Free", seats=4)
    assert result["cheapest_first"] == []
    assert result["unknown_products"] == ["Foobar"]
    assert result["without_an_offer"] == ["Microsoft Teams", "GitLab", "Notion"]
    assert result["also_with_a_free_plan"] == ["GitLab", "Notion"]


def test_plans_that_are_too_small_are_not_offered() -> None:
    [offer] = compare("Zoom", seats=150)["cheapest_first"]
    assert offer["plan"] == "Business"
    assert compare("Zoom", seats=251)["cheapest_first"] == []


@pytest.mark.parametrize("products", [[], ["Notion"] * 51, "Notion", [1]])
def test_a_comparison_needs_one_to_fifty_names(products: Any) -> None:
    assert "products" in refused("compare", products=products, seats=1, billing="monthly")


@given(
    st.lists(st.sampled_from([product.name for product in CATALOGUE.products]), min_size=1, max_size=8),
    st.sampled_from(BILLINGS),
    st.integers(1, 400),
)
def test_every_offer_of_a_comparison_is_a_quote_and_none_of_the_product_is_cheaper(
    names: list[str], billing: Billing, seats: int
) -> None:
    result = compare(*names, seats=seats, billing=billing)
    offers = result["cheapest_first"]
    assert {o["product"] for o in offers} | set(result["without_an_offer"]) == set(names)
    totals = [Decimal(offer["total"]) for offer in offers]
    assert totals == sorted(totals)
    for offer in offers:
        assert offer.items() <= quote(offer["product"], offer["plan"], seats, billing).items()
        for product, plan in PLANS:
            if product.name == offer["product"]:
                try:
                    other = Decimal(quote(product.name, plan.name, seats, billing)["total"])
                except ToolFailed:
                    continue
                assert other == 0 or other >= Decimal(offer["total"])


# -- what the model is shown -----------------------------------------------------------------------------


def test_the_tools_are_read_only_and_say_what_they_take() -> None:
    schemas = {schema.name: schema.parameters for schema in TOOLS.schemas()}
    assert list(schemas) == ["get_plans", "quote", "compare"]
    assert {TOOLS.effect(name) for name in schemas} == {"read_only"}
    assert schemas["get_plans"]["required"] == ["product"]
    assert schemas["quote"]["required"] == ["product", "plan", "seats", "billing"]
    assert schemas["compare"]["required"] == ["products", "seats", "billing"]
    assert schemas["quote"]["properties"]["seats"]["type"] == "integer"
    assert schemas["quote"]["properties"]["billing"]["enum"] == ["monthly", "yearly"]
    assert all("$ref" not in json.dumps(parameters) for parameters in schemas.values())
