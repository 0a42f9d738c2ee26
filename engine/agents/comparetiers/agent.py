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

_AMOUNT = re.compile(
    r"[$€£]\s?(?P<after>\d[\d,]*(?:\.\d+)?)"
    r"|(?P<before>\d[\d,]*(?:\.\d+)?)\s?(?:[$€£]|USD\b|EUR\b|GBP\b|US dollars?\b|dollars?\b|euros?\b)"
    r"|(?:USD|EUR|GBP)\s?(?P<code>\d[\d,]*(?:\.\d+)?)",
    re.IGNORECASE,
)
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


def unsupported_amounts(state: RunState, answer: str) -> str | None:
    """Say which amounts of *answer* no tool returned in this run, or None if all are supported."""
    stated = {match.group(): _decimal(match) for match in _AMOUNT.finditer(answer)}
    if not stated:
        return None
    returned: set[Decimal] = set()
    for message in state.messages:
        if message.role == "tool":
            _collect(json.loads(message.content), returned)
    wrong = [text.strip() for text, amount in stated.items() if amount not in returned]
    if not wrong:
        return None
    return (
        f"No tool returned {', '.join(wrong)}. Call the tools for what you need, then answer again with"
        " amounts that they returned, exactly."
    )


def _decimal(match: re.Match[str]) -> Decimal:
    digits = match["after"] or match["before"] or match["code"]
    return Decimal(digits.replace(",", ""))


def _collect(value: Any, amounts: set[Decimal]) -> None:
    """Add the amounts that stand in money fields anywhere inside *value*."""
    if isinstance(value, list):
        for item in value:
            _collect(item, amounts)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in _MONEY_FIELDS and isinstance(item, str):
                try:
                    amounts.add(Decimal(item))
                except InvalidOperation:
                    continue
            else:
                _collect(item, amounts)
