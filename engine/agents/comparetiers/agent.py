"""The agent as data: what it is told, its tools, and the check that its answers must pass."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from tailfold.engine.agent.decide import decider
from tailfold.engine.agent.loop import Agent
from tailfold.engine.agent.state import RunState
from tailfold.engine.agents.comparetiers.catalogue import read_catalogue
from tailfold.engine.agents.comparetiers.tools import toolbox

NAME = "comparetiers"
CATALOGUE_INPUT = "catalogue"

SYSTEM = """\
You answer questions about the prices of SaaS products. You know no prices yourself: use the tools.
- get_plans lists the plans of one product; quote computes the exact price of one plan; compare finds the \
cheapest of several products.
- Give only amounts that a tool returned, with the currency; never compute or estimate one yourself.
- If a product is not in the catalogue, say so and give no price.
- Say whether a price is for a month or a year, and as of which date it is.
- Answer in one to three sentences of plain text, in the language of the question."""

_NUMBER = r"\d[\d,.]*+"  # possessive: a model that repeats digits must not cost quadratic time
_CODE = r"USD|EUR|GBP|CHF|JPY|CAD|AUD|SEK|NOK|DKK|PLN|CZK|INR|CNY|BRL"
_AMOUNT = re.compile(
    rf"(?P<symbol>[$€£¥＄])\s*(?P<after>{_NUMBER})"
    rf"|\b(?P<code>{_CODE})\s*(?P<coded>{_NUMBER})"
    rf"|(?<![\d.,])(?P<before>{_NUMBER})\s*"
    rf"(?:(?P<sign>[$€£¥])(?!\s?\d)|(?P<word>{_CODE}|(?:US )?dollars?|bucks|euros?|francs?)\b)"
    rf"|(?<![\d.,])(?P<bare>{_NUMBER})\s*(?:/|per\b|an?\b)\s*(?:month|year|mo\b|yr\b)",
    re.IGNORECASE,
)
_CURRENCIES = {
    "$": "USD", "＄": "USD", "dollar": "USD", "us dollar": "USD", "buck": "USD", "€": "EUR", "euro": "EUR",
    "£": "GBP", "¥": "JPY", "franc": "CHF",
}  # fmt: skip
_MONEY_FIELDS = ("price", "total", "monthly", "yearly")


def comparetiers(catalogue: bytes, origin: str) -> Agent:
    """Return the agent over the content of a catalogue file; raise `BadArgument` if it is none."""
    return Agent(
        name=NAME,
        system=SYSTEM,
        tools=toolbox(read_catalogue(catalogue, origin)),
        decide=decider(unsupported_amounts),
        options={"temperature": 0},
        inputs={CATALOGUE_INPUT: catalogue},
        origins={CATALOGUE_INPUT: origin},
    )


REJECTION = "No tool returned"
"""How the message begins that tells a model that its answer was refused."""


def unsupported_amounts(state: RunState, answer: str) -> str | None:
    """Say which amounts of *answer* no tool returned in this run, or None if all are supported."""
    stated = {match.group(): _amount(match) for match in _AMOUNT.finditer(answer)}
    if not stated:
        return None
    returned: set[tuple[Decimal, str]] = set()
    for message in state.messages:
        if message.role == "tool":
            result = json.loads(message.content)
            currency = result.get("currency", "") if isinstance(result, dict) else ""
            _collect(result, str(currency).upper(), returned)
    wrong = [
        text.strip().rstrip(".,")
        for text, (amount, currency) in stated.items()
        if not _is_supported(amount, currency, returned)
    ]
    if not wrong:
        return None
    return (
        f"{REJECTION} {', '.join(wrong)}. Call the tools for what you need, then answer again with"
        " amounts that they returned, exactly."
    )


def _is_supported(amount: Decimal, currency: str, returned: set[tuple[Decimal, str]]) -> bool:
    # A result that names no currency supports its amounts in any, and a bare number stands for any currency.
    if currency == "":
        return any(amount == known for known, _ in returned)
    return (amount, currency) in returned or (amount, "") in returned


def _amount(match: re.Match[str]) -> tuple[Decimal, str]:
    digits = match["after"] or match["before"] or match["coded"] or match["bare"]
    name = (match["symbol"] or match["sign"] or match["code"] or match["word"] or "").lower().removesuffix("s")
    return _number(digits.rstrip(".,")), _CURRENCIES.get(name, name.upper())


def _number(digits: str) -> Decimal:
    """Read 1,234.50 and 1.234,50 and 60,00 alike: the last mark is the decimal one if two digits follow it."""
    mark = max(digits.rfind("."), digits.rfind(","))
    whole, cents = digits, ""
    if mark >= 0 and (
        len(digits) - mark - 1 in (1, 2) or (digits.count(digits[mark]) == 1 and digits[mark] == ".")
    ):
        whole, cents = digits[:mark], digits[mark + 1 :]
    return Decimal(re.sub("[.,]", "", whole) + ("." + cents if cents else ""))


def _collect(value: Any, currency: str, amounts: set[tuple[Decimal, str]]) -> None:
    """Add the amounts that stand in money fields anywhere inside *value*."""
    if isinstance(value, list):
        for item in value:
            _collect(item, currency, amounts)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in _MONEY_FIELDS and isinstance(item, str):
                try:
                    amounts.add((Decimal(item), currency))
                except InvalidOperation:
                    continue
            else:
                _collect(item, currency, amounts)
