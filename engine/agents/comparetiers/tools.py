"""The three read-only tools of the agent, over one catalogue."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import msgspec
from tailfold.engine.agent.tools import Tool, Toolbox, ToolFailed
from tailfold.engine.agents.comparetiers.catalogue import Billing, Catalogue, Plan, Product

SEATS_MAX = 1_000_000

Seats = Annotated[int, msgspec.Meta(ge=1, le=SEATS_MAX, description="number of seats, from 1")]
ProductName = Annotated[str, msgspec.Meta(min_length=1, description="name of one product")]


class GetPlans(msgspec.Struct, frozen=True):
    """Arguments of get_plans."""

    product: ProductName


class Quote(msgspec.Struct, frozen=True):
    """Arguments of quote."""

    product: ProductName
    plan: Annotated[str, msgspec.Meta(description="name of one of the product's plans")]
    seats: Seats
    billing: Billing


class Compare(msgspec.Struct, frozen=True):
    """Arguments of compare."""

    products: Annotated[
        list[str],
        msgspec.Meta(
            min_length=1,
            max_length=50,
            description="names of products; add the name of a plan to look at that plan only",
        ),
    ]
    seats: Seats
    billing: Billing


def toolbox(catalogue: Catalogue) -> Toolbox:
    """Return the agent's tools over *catalogue*."""

    def get_plans(arguments: GetPlans) -> dict[str, Any]:
        product = _product(catalogue, arguments.product)
        plans = [
            {
                "plan": plan.name,
                "per": plan.per,
                "monthly": _money(plan.monthly),
                "yearly": _money(plan.yearly),
                "min_seats": plan.min_seats,
                "max_seats": plan.max_seats,
            }
            for plan in product.plans
        ]
        return {"product": product.name, "plans": plans, **_source(catalogue)}

    def quote(arguments: Quote) -> dict[str, Any]:
        product = _product(catalogue, arguments.product)
        plan = product.plan(arguments.plan)
        if plan is None:
            names = ", ".join(plan.name for plan in product.plans)
            raise ToolFailed(f"{product.name} has no plan {arguments.plan!r}; its plans are: {names}")
        cost = _cost(product, plan, arguments.seats, arguments.billing)
        if cost is None:
            raise ToolFailed(_why_not(product, plan, arguments.seats, arguments.billing))
        return {**cost, **_source(catalogue)}

    def compare(arguments: Compare) -> dict[str, Any]:
        offers: list[dict[str, Any]] = []
        unknown: list[str] = []
        without: list[str] = []
        free: list[str] = []
        for name in arguments.products:
            product = catalogue.find(name)
            if product is None:
                unknown.append(name)
                continue
            named = product.plan_in(name)
            plans = [named] if named else product.plans
            costs = [_cost(product, p, arguments.seats, arguments.billing) for p in plans]
            there = [cost for cost in costs if cost is not None]
            paid = [cost for cost in there if Decimal(cost["total"]) > 0]
            if len(paid) < len(there) and product.name not in free:
                free.append(product.name)
            if not paid:
                without.append(product.name)
                continue
            offer = min(paid, key=lambda cost: Decimal(cost["total"]))
            if offer not in offers:
                offers.append(offer)
        offers.sort(key=lambda cost: (Decimal(cost["total"]), cost["product"]))
        return {
            "cheapest_first": offers,
            "unknown_products": unknown,
            "without_an_offer": without,
            "also_with_a_free_plan": free,
            **_source(catalogue),
        }

    return Toolbox(
        Tool("get_plans", "List all plans and prices of one product.", GetPlans, get_plans),
        Tool(
            "quote",
            "Compute the exact price of one plan of one product for a number of seats.",
            Quote,
            quote,
        ),
        Tool(
            "compare",
            "Find the cheapest paid plan of each of several products for a number of seats, cheapest first.",
            Compare,
            compare,
        ),
    )


def _product(catalogue: Catalogue, name: str) -> Product:
    product = catalogue.find(name)
    if product is None:
        hint = catalogue.similar(name)
        known = ", ".join(product.name for product in catalogue.products)
        raise ToolFailed(
            f"there is no product {name!r} in the catalogue"
            + (f"; did you mean {' or '.join(hint)}?" if hint else ".")
            + f" It has: {known}"
        )
    return product


def _cost(product: Product, plan: Plan, seats: int, billing: Billing) -> dict[str, Any] | None:
    price = plan.price(billing)
    if price is None or (plan.max_seats is not None and seats > plan.max_seats):
        return None
    billed = max(seats, plan.min_seats)
    return {
        "product": product.name,
        "plan": plan.name,
        "billing": billing,
        "seats": seats,
        "billed_seats": billed if plan.per == "seat" else None,
        "per": plan.per,
        "price": _money(price),
        "total": _money(price * billed if plan.per == "seat" else price),
    }


def _why_not(product: Product, plan: Plan, seats: int, billing: Billing) -> str:
    if plan.max_seats is not None and seats > plan.max_seats:
        return f"{product.name} {plan.name} is for at most {plan.max_seats} seats, not {seats}"
    if plan.monthly is None and plan.yearly is None:
        return f"{product.name} {plan.name} is not sold at a listed price"
    other = "yearly" if billing == "monthly" else "monthly"
    return f"{product.name} {plan.name} is not sold with {billing} billing, only {other}"


def _money(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:.2f}"


def _source(catalogue: Catalogue) -> dict[str, str]:
    return {"currency": catalogue.currency, "as_of": catalogue.as_of, "note": catalogue.note}
