"""The check of answers: an amount that no tool returned does not get through, one that was returned does."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine.agent.events import (
    ModelDecision,
    RunStarted,
    ToolCall,
    ToolCalled,
    ToolError,
    ToolResult,
    TurnStarted,
    Usage,
)
from tailfold.engine.agent.state import RunState, run_fold
from tailfold.engine.agents.comparetiers.agent import unsupported_amounts
from tailfold.engine.events import Event

QUOTE = {"price": "12.00", "total": "60.00", "currency": "USD"}


def state(*results: Any) -> RunState:
    """Return the state of a run in which tools returned *results*."""
    events: list[Event] = [RunStarted("comparetiers", "Is it under $99?", "m", 9), TurnStarted(1)]
    for number, result in enumerate(results, 1):
        events.append(ToolCalled(1, ToolCall(f"c{number}", "quote", {}), "read_only"))
        events.append(ToolResult(1, f"c{number}", result))
    return run_fold.fold(events)


def check(answer: str, *results: Any) -> str | None:
    return unsupported_amounts(state(*(results or (QUOTE,))), answer)


@pytest.mark.parametrize(
    "answer",
    [
        "It is $60.00 a month.",
        "It is $60.",
        "It is $60.0, that is $12 per seat.",
        "It is $ 60.00.",
        "It is 60 USD a month.",
        "It is 60.00 usd.",
        "It is USD 60.",
        "It is US$60.",
        "60 dollars, or 60 US dollars.",
        "**$60.00**/month ($12.00 × 5)",
        "$60",
    ],
)
def test_an_amount_that_a_tool_returned_is_supported_however_it_is_written(answer: str) -> None:
    assert check(answer) is None


@pytest.mark.parametrize(
    ("answer", "amounts"),
    [
        ("It is $61.00 a month.", ["$61.00"]),
        ("It is 61 USD.", ["61 USD"]),
        ("It is USD 61.", ["USD 61"]),
        ("It is €5.", ["€5"]),
        ("It is EUR 5.", ["EUR 5"]),
        ("It is 5 euros.", ["5 euros"]),
        ("It is £7.50.", ["£7.50"]),
        ("It is 61 dollars.", ["61 dollars"]),
        ("It is $1,200.00.", ["$1,200.00"]),
        ("It is $600.", ["$600"]),
        ("It is $60.01.", ["$60.01"]),
        ("It is $60.00, with tax $71.40, yearly $720.", ["$71.40", "$720"]),
        ("It is\n$61.", ["$61"]),
    ],
)
def test_every_amount_that_no_tool_returned_is_named(answer: str, amounts: list[str]) -> None:
    problem = check(answer)
    assert problem is not None
    assert problem.startswith(f"No tool returned {', '.join(amounts)}.")
    assert "Call the tools" in problem


@pytest.mark.parametrize(
    "answer",
    ["", "I do not know.", "It has 60 seats.", "Prices as of 2025-01-31.", "99 people in 3 teams", "USD"],
)
def test_an_answer_without_an_amount_is_supported(answer: str) -> None:
    assert check(answer) is None
    assert unsupported_amounts(state(), answer) is None


def test_without_any_result_no_amount_is_supported() -> None:
    assert unsupported_amounts(state(), "It is $60.00.") is not None


def test_thousands_may_be_grouped() -> None:
    returned = {"total": "1200.00"}
    assert check("It is $1,200.00.", returned) is None
    assert check("It is $1200.", returned) is None
    assert check("It is 1,200 USD.", returned) is None
    assert check("It is $1,200.50.", returned) is not None


def test_an_amount_in_euros_is_supported_by_a_result_in_euros() -> None:
    returned = {"total": "5.00", "currency": "EUR"}
    for answer in ("It is EUR 5.", "It is €5.00.", "It is 5 euros.", "It is 5 €."):
        assert check(answer, returned) is None


def test_an_amount_in_another_currency_than_the_tool_returned_is_not_supported() -> None:
    assert check("It is €60.00.") is not None
    assert check("It is 60 EUR.") is not None


def test_prices_of_plans_and_offers_count_wherever_they_stand_in_a_result() -> None:
    plans = {"plans": [{"plan": "Plus", "monthly": "12.00", "yearly": "120.00"}, {"yearly": None}]}
    offers = {"cheapest_first": [{"total": "87.50"}, {"total": "100.00"}]}
    answer = "$12 a month, $120 a year; cheapest is $87.50, then $100."
    assert check(answer, plans, offers) is None
    assert check(answer, plans) is not None


def test_numbers_that_are_no_money_support_nothing() -> None:
    returned = {"seats": 5, "billed_seats": 7, "as_of": "2025-01-31", "note": "from $99 on", "plan": "365"}
    for answer in ("$5", "$7", "$2025", "$99", "$365"):
        assert check(answer, returned) is not None


def test_an_error_of_a_tool_supports_nothing() -> None:
    failed = [ToolCalled(1, ToolCall("c1", "quote", {}), "read_only"), ToolError(1, "c1", "the total is $60")]
    assert unsupported_amounts(run_fold.fold(failed), "It is $60.") is not None


def test_what_the_user_or_the_model_said_supports_nothing() -> None:
    said = [
        RunStarted("comparetiers", "Is it $60?", "m", 9),
        ModelDecision(1, [], "It is $60.", "hash", Usage()),
    ]
    assert unsupported_amounts(run_fold.fold(said), "It is $60.") is not None


def test_a_result_that_is_no_object_is_no_problem() -> None:
    for returned in (None, 5, "60.00", [], [["60.00"]], {"total": "a lot"}, {"total": {"price": "1.00"}}):
        assert check("$60", returned) is not None


def test_a_number_before_an_amount_is_not_taken_for_one() -> None:
    assert check("As of 2025 $60.00 a month.") is None
    assert check("Seats: 5 $60.00") is None


def test_an_amount_right_after_a_supported_one_is_still_checked() -> None:
    assert check("12.00 $99.00") is not None


AMOUNTS = st.decimals(0, 10_000_000, places=2)
FORMS = st.sampled_from(["${:.2f}", "${:,.2f}", "{:.2f} USD", "{:,.2f} USD", "USD {:.2f}", "{:,.2f} dollars"])


@given(AMOUNTS, AMOUNTS, FORMS)
def test_an_amount_is_supported_if_and_only_if_it_equals_a_returned_one(
    returned: Any, stated: Any, form: str
) -> None:
    result = {"total": f"{returned:.2f}"}
    assert check(f"It is {form.format(returned)} a month.", result) is None
    problem = check(f"It is {form.format(stated)} a month.", result)
    assert (problem is None) == (returned == stated)


@given(st.text() | st.from_regex(r"([$€£]|USD|EUR)? ?[\d,.]{0,12} ?(USD|dollars|€)?"))
def test_the_check_says_yes_or_no_to_any_text(answer: str) -> None:
    problem = check(answer)
    assert problem is None or problem.startswith("No tool returned ")


def test_a_reply_of_nothing_but_digits_is_checked_in_no_time() -> None:
    begun = time.perf_counter()
    assert check("1" * 8000) is None
    assert time.perf_counter() - begun < 0.5
