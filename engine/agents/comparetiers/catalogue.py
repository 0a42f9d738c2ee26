"""The catalogue: products, plans and prices, as a JSON file that can be replaced. Pure but for reading it."""

from __future__ import annotations

import difflib
import re
from decimal import Decimal
from importlib import resources
from typing import Literal

import msgspec
from tailfold.engine.errors import BadArgument

Billing = Literal["monthly", "yearly"]

CATALOGUE_BYTES_MAX = 8 << 20
PRICE_MOST = Decimal(1_000_000_000)


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One plan of a product. A price that is None is not on offer in that billing."""

    name: str
    monthly: Decimal | None
    """Price for one month when billed monthly: for a seat, or for all if `per` is ``flat``."""
    yearly: Decimal | None
    """Price for one year when billed yearly, likewise."""
    per: Literal["seat", "flat"] = "seat"
    min_seats: int = 1
    max_seats: int | None = None

    def price(self, billing: Billing) -> Decimal | None:
        """Return the price of one billing period."""
        return self.monthly if billing == "monthly" else self.yearly


class Product(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A product with its plans, cheapest first."""

    name: str
    category: str
    plans: list[Plan]
    aliases: list[str] = []

    def plan(self, name: str) -> Plan | None:
        """Return the plan with this name, whatever its case and punctuation."""
        wanted = _words(name)
        return next((plan for plan in self.plans if _words(plan.name) == wanted), None)

    def plan_in(self, phrase: str) -> Plan | None:
        """Return the plan that *phrase* names after the product (``Slack Business+``), if it does."""
        words = _words(phrase)
        for name in (self.name, *self.aliases):
            own = _words(name)
            if words[: len(own)] == own:
                rest = words[len(own) :]
                found = next((plan for plan in self.plans if _words(plan.name) == rest), None)
                if found is not None:
                    return found
        return None


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All products, in one currency each, as of one date."""

    as_of: str
    note: str
    currency: str
    products: list[Product]

    def find(self, phrase: str) -> Product | None:
        """Return the product that *phrase* names, alone or followed by more words (``Notion Plus``)."""
        words = _words(phrase)
        best: tuple[int, Product] | None = None
        for product in self.products:
            for name in (product.name, *product.aliases):
                own = _words(name)
                if words[: len(own)] == own and (best is None or len(own) > best[0]):
                    best = (len(own), product)
        return best[1] if best else None

    def similar(self, phrase: str) -> list[str]:
        """Return names of products that look like *phrase*, for a hint."""
        names = {product.name.lower(): product.name for product in self.products}
        return [names[name] for name in difflib.get_close_matches(phrase.lower(), names, 3, 0.6)]


def read_catalogue(data: bytes, origin: str) -> Catalogue:
    """Read a catalogue file's content; raise `BadArgument` naming *origin* and what does not fit."""
    if len(data) > CATALOGUE_BYTES_MAX:
        raise BadArgument(f"{origin}: {len(data)} bytes are too many for a catalogue")
    try:
        catalogue = msgspec.json.decode(data, type=Catalogue)
    except msgspec.MsgspecError as error:
        raise BadArgument(f"{origin} is not a catalogue: {error}") from None
    problem = _problem(catalogue)
    if problem:
        raise BadArgument(f"{origin} is not a catalogue: {problem}")
    return catalogue


def shipped() -> bytes:
    """Return the content of the catalogue in the package."""
    return resources.files(__package__).joinpath("catalogue.json").read_bytes()


def _problem(catalogue: Catalogue) -> str | None:
    """Say what the types cannot."""
    if not catalogue.products:
        return "it has no products"
    seen: set[tuple[str, ...]] = set()
    for product in catalogue.products:
        for name in (product.name, *product.aliases):
            words = _words(name)
            if not words or words in seen:
                return f"the name {name!r} is empty or stands twice"
            seen.add(words)
        if not product.plans:
            return f"{product.name} has no plans"
        for plan in product.plans:
            where = f"{product.name} {plan.name}"
            for price in (plan.monthly, plan.yearly):
                if price is not None and (not price.is_finite() or not 0 <= price <= PRICE_MOST):
                    return f"{where} has the price {price}"
            if plan.min_seats < 1 or (plan.max_seats is not None and plan.max_seats < plan.min_seats):
                return f"{where} has impossible seat limits"
        names = [_words(plan.name) for plan in product.plans]
        if len(set(names)) < len(names) or () in names:
            return f"{product.name} has two plans with one name, or one without"
    return None


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W_]+(?:[.+&'][^\W_]+)*\+?", text.casefold()))
