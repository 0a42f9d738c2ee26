"""The rules that stand in for a language model. No LLM: they read the questions that the agent is made for.

They see what a model would see, the question and the tools' results, and know no product themselves: what
the question names is looked up with the tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tailfold.engine.agent.events import ToolCall
from tailfold.engine.agent.loop import Reply
from tailfold.engine.agent.messages import Message, ModelRequest
from tailfold.engine.agents.comparetiers.agent import REJECTION

_ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WORDS = {word: i for i, word in enumerate(_ONES, 1)} | {word: 10 * i for i, word in enumerate(_TENS, 2)}
_WORDS |= {f"{tens}-{one}": _WORDS[tens] + _WORDS[one] for tens in _TENS for one in _ONES[:9]}
_WORDS |= {"a dozen": 12, "a hundred": 100, "one hundred": 100}
_WORD = "|".join(sorted(map(re.escape, _WORDS), key=len, reverse=True)).replace("\\-", "[- ]")
_NUMBER = r"(?:\d{1,3}(?:,\d{3})++|\d++)(?!,\d)|" + _WORD
_UNIT = r"(?:seats?|users?|people|persons?|members?|licen[cs]es?|employees|developers)\b"
_SEATS = re.compile(
    rf"(?<![\w,.-])({_NUMBER})[\s-]*+{_UNIT}|\b(?:team|company|group) of ({_NUMBER})\b", re.IGNORECASE
)
_ODD_SEATS = re.compile(
    rf"(?:\b(?:no|zero|half an?)|(?<![-−\d.,–])[-−\d.,–]*+(?<=\d))[\s-]*+{_UNIT}", re.IGNORECASE
)
_MONTHLY = re.compile(r"\b(?:monthly|(?:per|a|each|by the) month)\b", re.IGNORECASE)
_YEARLY = re.compile(r"\b(?:yearly|annual(?:ly)?|(?:per|a|each|by the) year)\b", re.IGNORECASE)
_COMPARE = re.compile(
    r"\b(?:cheap(?:er|est)?|compare|comparing|lowest|least|less|vs|versus|better price|best price)\b",
    re.IGNORECASE,
)
_MONEY = re.compile(
    r"[$€£]\s?\d[\d,.]*+|(?<![\d,.])\d[\d,.]*+\s?(?:[$€£]|(?:USD|EUR|GBP|dollars?|euros?)\b)", re.IGNORECASE
)
_TOKEN = re.compile(r"[^\W_]+(?:[.+&'-][^\W_]+)*\+?|[,;:?!()\"/]")
_STOP = frozenset(
    [
        "a",
        "about",
        "all",
        "am",
        "among",
        "an",
        "and",
        "annual",
        "annually",
        "any",
        "are",
        "at",
        "be",
        "best",
        "better",
        "between",
        "billed",
        "billing",
        "bill",
        "buy",
        "by",
        "can",
        "charge",
        "cheap",
        "cheaper",
        "cheapest",
        "compare",
        "comparing",
        "cost",
        "costs",
        "could",
        "do",
        "does",
        "each",
        "expensive",
        "find",
        "for",
        "from",
        "get",
        "give",
        "has",
        "have",
        "how",
        "i",
        "if",
        "in",
        "is",
        "it",
        "its",
        "least",
        "less",
        "lowest",
        "many",
        "me",
        "month",
        "monthly",
        "months",
        "more",
        "much",
        "my",
        "need",
        "of",
        "on",
        "one",
        "or",
        "our",
        "out",
        "over",
        "paid",
        "pay",
        "paying",
        "per",
        "plan",
        "plans",
        "please",
        "price",
        "priced",
        "prices",
        "pricing",
        "product",
        "products",
        "seat",
        "seats",
        "should",
        "show",
        "subscription",
        "take",
        "tell",
        "than",
        "that",
        "the",
        "their",
        "there",
        "these",
        "they",
        "this",
        "tier",
        "tiers",
        "to",
        "two",
        "three",
        "four",
        "under",
        "us",
        "use",
        "user",
        "users",
        "using",
        "versus",
        "vs",
        "want",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "will",
        "with",
        "would",
        "year",
        "yearly",
        "years",
        "yes",
        "you",
        "your",
        "company",
        "people",
        "price-wise",
        "it's",
        "what's",
    ]
)
_ONLY_INSIDE = frozenset({"team", "group", "plus", "pro", "basic", "free", "business", "enterprise"})
PRODUCTS_MAX = 12
SEATS_DIGITS_MAX = 9
"""More digits are more seats than there are people; the tools refuse them in words."""
PLANS_MAX = 8


class Asked(NamedTuple):
    """What a question asks, as far as the rules understand it."""

    phrases: list[str]
    """Names of products, possibly followed by the name of a plan."""
    seats: int
    billings: list[str]
    compare: bool
    odd_seats: str = ""
    """What is said of seats and is no whole number of them: no price for one seat answers that."""


def rule(request: ModelRequest) -> Reply:
    """Return the next reply: look the products up, have the prices computed, answer."""
    messages = request.messages
    # The newest question: a run may be asked another one on its way. Refused answers come as user messages too.
    asked_at = max(
        i for i, m in enumerate(messages) if m.role == "user" and (i == 0 or not m.content.startswith(REJECTION))
    )
    question = messages[asked_at].content
    asked = understand(question)
    results = _results(messages[asked_at:])
    if not asked.phrases:
        return Reply(
            "I am the built-in rules, not a language model, and found no product in the question. Ask, for"
            ' example: "How much is Notion Plus for 5 seats, billed monthly?"'
        )
    if asked.odd_seats:
        return Reply(f'I give no price for {asked.odd_seats!r}: name a whole number of seats, such as "5 seats".')
    if not results:
        return _look_up(asked)
    if all(call.name == "get_plans" for call, _ in results):
        quotes = _quotes(asked, question, results)
        if quotes:
            return Reply("", quotes)
    return Reply(_answer(asked, results))


def understand(question: str) -> Asked:
    """Read a question in plain English."""
    seats_found = _SEATS.search(question)
    seats = 1
    if seats_found:
        said = (seats_found[1] or seats_found[2]).casefold()
        digits = said.replace(",", "").lstrip("0") or "0"
        if not said[0].isdigit():
            seats = next(
                count for word, count in _WORDS.items() if word.replace("-", " ") == said.replace("-", " ")
            )
        else:
            seats = int(digits) if len(digits) <= SEATS_DIGITS_MAX else 10**SEATS_DIGITS_MAX
    rest = _MONEY.sub(" , ", _SEATS.sub(" , ", question))
    odd = _ODD_SEATS.search(rest)
    billings = [name for name, pattern in (("monthly", _MONTHLY), ("yearly", _YEARLY)) if pattern.search(rest)]
    phrases: list[str] = []
    words: list[str] = []
    for token in [*_TOKEN.findall(rest), ","]:
        lower = token.casefold()
        inside = bool(words)
        ends = not token[0].isalnum() or lower in _STOP or (lower in _ONLY_INSIDE and not inside)
        if ends or (token[0].isdigit() and not inside):
            if words and " ".join(words) not in phrases:
                phrases.append(" ".join(words))
            words = []
        else:
            words.append(token)
    return Asked(
        phrases[:PRODUCTS_MAX],
        seats,
        billings or ["monthly", "yearly"],
        bool(_COMPARE.search(question)),
        odd[0] if odd else "",
    )


def _results(messages: Sequence[Message]) -> list[tuple[ToolCall, dict[str, Any]]]:
    calls = {call.id: call for m in messages for call in m.tool_calls}
    return [(calls[m.call_id], json.loads(m.content)) for m in messages if m.role == "tool" and m.call_id in calls]


def _look_up(asked: Asked) -> Reply:
    if asked.compare and len(asked.phrases) > 1:
        return Reply(
            "",
            [
                _call("compare", products=asked.phrases, seats=asked.seats, billing=billing)
                for billing in asked.billings
            ],
        )
    return Reply("", [_call("get_plans", product=phrase) for phrase in asked.phrases])


def _quotes(asked: Asked, question: str, results: list[tuple[ToolCall, dict[str, Any]]]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for call, result in results:
        if "error" in result:
            continue
        product, plans = result["product"], result["plans"]
        named = _named_plan(str(call.arguments["product"]), product, plans)
        if named is None and len(results) == 1:  # of several products, none takes a plan named for another
            named = _named_plan(_SEATS.sub(" ", question), product, plans)
        for plan in [named] if named else plans[:PLANS_MAX]:
            for billing in asked.billings:
                # A plan that was named is quoted even if it is not sold so: the tool says why.
                if plan[billing] is not None or (named and len(asked.billings) == 1):
                    calls.append(
                        _call(
                            "quote",
                            product=product,
                            plan=plan["plan"],
                            seats=asked.seats,
                            billing=billing,
                        )
                    )
    return calls


def _named_plan(text: str, product: str, plans: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the plan whose name stands in *text* (the longest, if several do)."""
    text = re.sub(re.escape(product), " ", text, flags=re.IGNORECASE)
    found = [
        plan for plan in plans if re.search(rf"(?<!\w){re.escape(plan['plan'])}(?![\w+])", text, re.IGNORECASE)
    ]
    return max(found, key=lambda plan: len(plan["plan"]), default=None)


def _answer(asked: Asked, results: list[tuple[ToolCall, dict[str, Any]]]) -> str:
    lines: list[str] = []
    source: dict[str, Any] = {}
    for call, result in results:
        if "error" in result:
            if call.name == "get_plans":
                lines.append(_unknown([str(call.arguments["product"])]))
            else:
                lines.append(result["error"][:1].upper() + result["error"][1:] + ".")
            continue
        source = result
        if call.name == "quote":
            lines.append(_quoted(result))
        elif call.name == "compare":
            lines += _compared(call, result)
    if not lines:
        for call, result in results:
            plans = ", ".join(plan["plan"] for plan in result.get("plans", ()))
            wanted = " or ".join(asked.billings)
            lines.append(f"{result.get('product', call.name)} has no plan with {wanted} billing; it has: {plans}.")
    if source and any(call.name != "get_plans" for call, _ in results):
        lines.append(f"Prices as of {source['as_of']}; they drift, so check the vendor's page.")
    return "\n".join(lines)


def _unknown(names: list[str]) -> str:
    listed = " or ".join(repr(name) for name in names)
    return f"The catalogue has no product {listed}, so I give no price for it."


def _quoted(cost: dict[str, Any]) -> str:
    period = "month" if cost["billing"] == "monthly" else "year"
    total, price = _amount(cost, "total"), _amount(cost, "price")
    if cost["per"] == "flat":
        detail = "a flat price for all seats"
    else:
        detail = f"{price} per seat per {period}"
        if cost["billed_seats"] > cost["seats"]:
            detail += f", {cost['billed_seats']} seats at least"
    what = f"{cost['product']} {cost['plan']} for {_seats(cost['seats'])}, billed {cost['billing']}"
    return f"{what}: {total} per {period} ({detail})."


def _compared(call: ToolCall, result: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    offers = result["cheapest_first"]
    billing = call.arguments["billing"]
    period = "month" if billing == "monthly" else "year"
    if offers:
        first, *others = offers
        line = (
            f"Cheapest for {_seats(first['seats'])}, billed {billing}: {first['product']} {first['plan']}"
            f" at {_amount(first, 'total')} per {period}."
        )
        if others:
            rest = ", ".join(f"{o['product']} {o['plan']} {_amount(o, 'total')}" for o in others)
            line += f" Then {rest}."
        lines.append(line)
    else:
        lines.append(f"None of them has a paid plan with {billing} billing for that many seats.")
    if result["also_with_a_free_plan"]:
        lines.append(f"A free plan is there too from {', '.join(result['also_with_a_free_plan'])}.")
    if result["without_an_offer"]:
        lines.append(f"No paid plan, billed {billing}: {', '.join(result['without_an_offer'])}.")
    if result["unknown_products"]:
        lines.append(_unknown(result["unknown_products"]))
    return lines


def _seats(count: int) -> str:
    return "1 seat" if count == 1 else f"{count} seats"


def _amount(cost: dict[str, Any], field: str) -> str:
    currency = cost.get("currency", "USD")
    return f"${cost[field]}" if currency == "USD" else f"{cost[field]} {currency}"


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("", name, arguments)
