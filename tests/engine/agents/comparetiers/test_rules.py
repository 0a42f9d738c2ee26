"""The built-in rules: the questions that they are made for, and that no question takes a run down."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine import MemoryBackend, Store
from tailfold.engine.agent import runtime
from tailfold.engine.agent.models import RuleModel
from tailfold.engine.agent.replaying import replay
from tailfold.engine.agent.runtime import start
from tailfold.engine.agent.state import RunState
from tailfold.engine.agents.comparetiers import comparetiers, read_catalogue, rule, shipped
from tailfold.engine.agents.comparetiers.rules import PRODUCTS_MAX, understand

RUN = "r-1"
AGENT = comparetiers(shipped(), "shipped")
CATALOGUE = read_catalogue(shipped(), "shipped")


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "RETRY_FIRST_S", 0.0)


def run(question: str) -> tuple[Store, RunState]:
    store = Store.open(backend=MemoryBackend())
    return store, asyncio.run(start(store, RUN, AGENT, RuleModel(rule), question))


def ask(question: str) -> str:
    """Return the answer to *question*; there has to be one, and its replay must not diverge."""
    store, state = run(question)
    assert state.reason == "answered", question
    assert state.answer
    assert state.failures == 0
    replayed = asyncio.run(replay(store, RUN, AGENT, live_tools=True))
    assert replayed.ended
    assert replayed.state == state
    return state.answer


def amounts(answer: str) -> list[str]:
    return re.findall(r"\$[\d.,]*\d", answer)


# -- understand ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "phrases"),
    [
        ("How much is Notion Plus for 5 seats, billed monthly?", ["Notion Plus"]),
        ("how much is notion plus for 5 seats, billed monthly?", ["notion plus"]),
        ("What would 5 seats of the Notion Plus plan cost per year?", ["Notion Plus"]),
        ("Which is cheapest for 10 seats: Slack, Zoom or Linear?", ["Slack", "Zoom", "Linear"]),
        ("Slack vs Zoom", ["Slack", "Zoom"]),
        ("Compare Slack Business+ with monday.com", ["Slack Business+", "monday.com"]),
        (
            "Is Microsoft 365 Business Basic cheaper than G Suite?",
            ["Microsoft 365 Business Basic", "G Suite"],
        ),
        ("Notion, notion and Notion", ["Notion", "notion"]),
        ("GitHub for a team of 10", ["GitHub"]),
        ("GitHub Team for a team of 10", ["GitHub Team"]),
        ('"Notion Plus"/(Slack)!', ["Notion Plus", "Slack"]),
        ("How much is it for our team?", []),
        ("What does the pro plan cost?", []),
        ("", []),
        ("5 $60.00 ?!", []),
    ],
)
def test_the_products_are_read_out_of_a_question(question: str, phrases: list[str]) -> None:
    assert understand(question).phrases == phrases


@pytest.mark.parametrize(
    ("question", "seats"),
    [
        ("Notion for 5 seats", 5),
        ("Notion for 5 users", 5),
        ("Notion for 12 people", 12),
        ("Notion, 1,200 seats", 1200),
        ("a 7-seat Notion", 7),
        ("Notion for a team of 8", 8),
        ("Notion for a Company of 30 at 2 locations", 30),
        ("Notion for 20 licenses", 20),
        ("Notion for 20 licences", 20),
        ("Notion Plus for five seats, billed monthly", 5),
        ("Notion for Twenty-Five people", 25),
        ("Notion for a dozen users", 12),
        ("Notion for a team of twelve", 12),
        ("Notion", 1),
        ("Microsoft 365", 1),
    ],
)
def test_the_number_of_seats_is_read_and_is_one_if_none_is_stated(question: str, seats: int) -> None:
    assert understand(question).seats == seats


@pytest.mark.parametrize("said", ["-3 seats", "2.5 seats", "2,5 seats", "5-10 users", "no seats", "zero seats"])
def test_what_is_no_whole_number_of_seats_gets_no_price_for_one(said: str) -> None:
    answer = ask(f"How much is Notion Plus for {said}, billed monthly?")
    assert answer == f'I give no price for {said!r}: name a whole number of seats, such as "5 seats".'


@pytest.mark.parametrize(
    ("question", "billings"),
    [
        ("Notion, billed monthly", ["monthly"]),
        ("Notion per month", ["monthly"]),
        ("Notion a month", ["monthly"]),
        ("Notion YEARLY", ["yearly"]),
        ("Notion annually", ["yearly"]),
        ("Notion with annual billing", ["yearly"]),
        ("Notion per year", ["yearly"]),
        ("Notion monthly and yearly", ["monthly", "yearly"]),
        ("Notion", ["monthly", "yearly"]),
    ],
)
def test_the_billing_is_read_and_is_both_if_none_is_stated(question: str, billings: list[str]) -> None:
    assert understand(question).billings == billings


@pytest.mark.parametrize(
    ("question", "compares"),
    [
        ("Which is cheaper, Slack or Zoom?", True),
        ("the cheapest of Slack and Zoom", True),
        ("compare Slack and Zoom", True),
        ("Slack versus Zoom", True),
        ("Does Slack cost less than Zoom?", True),
        ("How much are Slack and Zoom?", False),
    ],
)
def test_a_comparison_is_told_from_a_list(question: str, compares: bool) -> None:
    assert understand(question).compare is compares


def test_no_more_products_are_looked_up_than_the_most() -> None:
    many = ", ".join(f"Product{number}x" for number in range(50))
    assert len(understand(many).phrases) == PRODUCTS_MAX


def test_a_long_question_is_read_in_no_time() -> None:
    begun = time.perf_counter()
    understand("1," * 5000)
    assert time.perf_counter() - begun < 0.5


# -- answers ---------------------------------------------------------------------------------------------


def test_one_plan_billed_monthly_has_the_exact_total() -> None:
    answer = ask("How much is Notion Plus for 5 seats, billed monthly?")
    assert amounts(answer) == ["$60.00", "$12.00"]
    assert "Notion Plus for 5 seats, billed monthly: $60.00 per month" in answer
    assert CATALOGUE.as_of in answer


def test_one_plan_billed_yearly_has_the_exact_total() -> None:
    answer = ask("How much is Notion Plus for 5 seats, billed yearly?")
    assert amounts(answer) == ["$600.00", "$120.00"]
    assert "$600.00 per year" in answer


def test_a_question_without_a_billing_is_answered_for_both() -> None:
    answer = ask("How much is Notion Plus for 5 seats?")
    assert "billed monthly: $60.00 per month" in answer
    assert "billed yearly: $600.00 per year" in answer


def test_a_lower_case_question_has_the_same_answer() -> None:
    question = "How much is Notion Plus for 5 seats, billed monthly?"
    assert ask(question.lower()) == ask(question)


def test_a_product_without_a_plan_is_answered_for_all_of_its_plans() -> None:
    answer = ask("How much is Notion for 5 seats, billed monthly?")
    assert [line.partition(" for")[0] for line in answer.splitlines()[:3]] == [
        "Notion Free",
        "Notion Plus",
        "Notion Business",
    ]
    assert "$90.00 per month" in answer


def test_the_cheapest_of_several_is_named_first_with_its_total() -> None:
    answer = ask("Which is cheapest for 10 seats, billed monthly: Zoom, Slack or Linear?")
    assert answer.startswith("Cheapest for 10 seats, billed monthly: Slack Pro at $87.50 per month.")
    assert amounts(answer) == ["$87.50", "$100.00", "$159.90"]


def test_a_comparison_looks_at_the_plans_that_are_named() -> None:
    answer = ask("Which is cheaper for 5 seats, billed monthly: Slack Business+ or Notion Plus?")
    assert "Notion Plus at $60.00" in answer
    assert "Slack Business+ $75.00" in answer


def test_a_comparison_names_what_it_does_not_know() -> None:
    answer = ask("Which is cheaper for 5 seats, billed monthly: Notion or Foobar?")
    assert amounts(answer) == ["$60.00"]
    assert "no product 'Foobar'" in answer


def test_an_unknown_product_gets_no_amount_and_is_said_to_be_unknown() -> None:
    answer = ask("How much is Foobar for 5 seats, billed monthly?")
    assert "no product 'Foobar'" in answer
    assert not re.search(r"\d", answer)


@pytest.mark.parametrize("question", ["How much is Foobar 60 USD?", "Is Foobar 60 EUR per month?"])
def test_an_unknown_product_is_said_to_be_unknown_though_the_question_states_an_amount(question: str) -> None:
    answer = ask(question)
    assert "Foobar" in answer
    assert "catalogue has no product" in answer


def test_several_products_are_all_answered() -> None:
    answer = ask("How much are Notion Plus, Slack Pro and Foobar for 4 seats, billed monthly?")
    assert "Notion Plus for 4 seats, billed monthly: $48.00" in answer
    assert "Slack Pro for 4 seats, billed monthly: $35.00" in answer
    assert "no product 'Foobar'" in answer


def test_two_plans_of_one_product_are_both_answered() -> None:
    answer = ask("How much are Notion Plus and Notion Business for 2 seats, billed monthly?")
    assert "Notion Plus for 2 seats, billed monthly: $24.00" in answer
    assert "Notion Business for 2 seats, billed monthly: $36.00" in answer


def test_a_plan_that_is_not_sold_monthly_says_so_without_an_amount() -> None:
    answer = ask("How much is GitLab Premium for 5 seats, billed monthly?")
    assert "GitLab Premium is not sold with monthly billing, only yearly." in answer
    assert amounts(answer) == []


def test_a_product_that_is_not_sold_monthly_at_all_says_so() -> None:
    answer = ask("How much is Microsoft Teams for 5 seats, billed monthly?")
    assert "Microsoft Teams" in answer
    assert amounts(answer) == []


def test_too_many_seats_for_a_plan_are_said_to_be_too_many() -> None:
    answer = ask("How much is Zoom Pro for 500 seats, billed monthly?")
    assert "at most 99 seats" in answer
    assert amounts(answer) == []


def test_the_minimum_of_seats_is_said_and_a_flat_price_called_flat() -> None:
    assert "$36.00 per month ($12.00 per seat per month, 3 seats at least)" in ask(
        "How much is monday.com Basic for 1 seat, billed monthly?"
    )
    assert "$349.00 per month (a flat price for all seats)" in ask(
        "How much is Basecamp Pro Unlimited for 50 seats, billed monthly?"
    )


def test_an_alias_is_answered_under_the_products_name() -> None:
    answer = ask("How much is Office 365 Business Basic for 3 users per month?")
    assert "Microsoft 365 Business Basic for 3 seats, billed monthly: $21.60" in answer


def test_a_team_is_a_number_of_seats_and_not_the_plan_of_that_name() -> None:
    answer = ask("How much is GitHub for a team of 10, billed monthly?")
    assert "GitHub Team for 10 seats, billed monthly: $40.00" in answer
    assert "GitHub Enterprise for 10 seats, billed monthly: $210.00" in answer


def test_a_plan_that_is_named_for_one_product_is_not_read_into_another() -> None:
    answer = ask("How much are Miro Starter and Figma for 5 seats, billed monthly?")
    assert "Miro Starter for 5 seats, billed monthly: $50.00" in answer
    assert "Figma Professional for 5 seats, billed monthly: $75.00" in answer


@pytest.mark.parametrize("question", ["How much is it?", "?", "…", "1 2 3", "for 5 seats, billed monthly"])
def test_a_question_without_a_product_says_what_can_be_asked(question: str) -> None:
    answer = ask(question)
    assert "not a language model" in answer
    assert "found no product" in answer
    assert amounts(answer) == []


def test_no_seats_are_refused_in_words() -> None:
    answer = ask("How much is Notion Plus for 0 seats, billed monthly?")
    assert "seats" in answer
    assert amounts(answer) == []


@pytest.mark.parametrize("digits", [7, 20, 25, 5000])
def test_more_seats_than_there_are_people_are_refused_in_words(digits: int) -> None:
    answer = ask(f"How much is Notion Plus for {'9' * digits} seats, billed monthly?")
    assert amounts(answer) == []


# -- any text --------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [
        *(product.name for product in CATALOGUE.products),
        *(plan.name for product in CATALOGUE.products for plan in product.plans),
        *("5 seats", "12 users", "0 seats", "1,200", "team of 4", "99999999", "60 USD", "$60.00", "€5"),
        *("per month", "yearly", "cheapest", "compare", "or", "and", "for", "a", ",", "?", "!", "/"),
        *("Foobar", "<b>", "\\", "ß", "\x00"),
    ]
)
QUESTIONS = st.one_of(st.text(), st.lists(WORDS, min_size=1, max_size=8).map(" ".join)).filter(str.strip)


@given(QUESTIONS)
def test_any_question_ends_in_an_answer_or_a_spent_budget_and_replays(question: str) -> None:
    store, state = run(question)
    assert state.reason in ("answered", "budget_exhausted")
    assert (state.answer is None) == (state.reason == "budget_exhausted")
    replayed = asyncio.run(replay(store, RUN, AGENT, live_tools=True))
    assert replayed.ended
    assert replayed.state == state


@given(QUESTIONS)
def test_any_question_is_understood_within_bounds(question: str) -> None:
    asked = understand(question)
    assert len(asked.phrases) <= PRODUCTS_MAX
    assert len(set(asked.phrases)) == len(asked.phrases)
    assert all(phrase.strip() for phrase in asked.phrases)
    assert asked.seats >= 0
    assert asked.billings in (["monthly"], ["yearly"], ["monthly", "yearly"])
