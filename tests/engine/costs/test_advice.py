"""What is recommended and remarked on follows from the figures alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine.costs.contexts import growth, total_s, versions_of
from tailfold.engine.costs.figures import ContextPoint, ResumePoint, Segment
from tailfold.engine.costs.notes import growing
from tailfold.engine.costs.resuming import longest_within, recommend, tail_estimate, tails_of
from tailfold.engine.costs.sampling import places
from tailfold.engine.costs.walking import POLICY_EVENTS_MOST, segment_ends, walks_of


def curve(*points: tuple[int, float]) -> list[ResumePoint]:
    return [ResumePoint(tail, ms, 5) for tail, ms in points]


MEASURED = curve((0, 1.0), (100, 1.2), (1000, 3.0), (10_000, 21.0))
WHOLE = ResumePoint(1_000_000, 2001.0, 1)


def test_the_interval_lies_where_the_curve_reaches_the_budget() -> None:
    interval, reason = recommend(MEASURED, WHOLE, 11.0, 2.0)
    assert interval == 5000
    assert "every 5,000 events" in reason
    assert longest_within(MEASURED, 11.0) == pytest.approx(5000)


def test_a_stream_that_fits_the_budget_needs_no_snapshot() -> None:
    interval, reason = recommend(MEASURED, ResumePoint(20_000, 40.0, 5), 50.0, 2.0)
    assert interval is None
    assert "no snapshot is needed" in reason
    assert "up to about 24,000 events" in reason


def test_too_few_events_give_no_forecast() -> None:
    interval, reason = recommend(curve((0, 0.2), (11, 0.21)), ResumePoint(12, 0.2, 15), 10.0, None)
    assert interval is None
    assert "12 events are too few" in reason


def test_no_interval_meets_a_budget_below_the_fixed_part() -> None:
    interval, reason = recommend(MEASURED, WHOLE, 0.5, 2.0)
    assert interval is None
    assert "no interval meets it" in reason


def test_a_curve_that_ends_below_the_budget_gives_its_longest_tail() -> None:
    interval, reason = recommend(MEASURED, WHOLE, 1000.0, 2.0)
    assert interval == 10_000
    assert "the longest tail that was measured, 10,000 events, takes 21 ms" in reason


@given(st.integers(1, 10_000_000), st.floats(0.01, 1000), st.floats(0.01, 10_000))
def test_tails_fall_to_0_and_stay_inside_the_stream(head: int, event_us: float, budget_ms: float) -> None:
    longest = tail_estimate(head, event_us, budget_ms)
    tails = tails_of(head, longest)
    assert tails[0] == longest
    assert tails == sorted(set(tails), reverse=True)
    assert tails[-1] == 0
    assert tails[0] < head


@given(st.integers(1, 10_000_000))
def test_places_segments_and_versions_lie_in_order_inside_the_stream(head: int) -> None:
    before = 0
    for after, upto in places(head):
        assert before <= after < upto <= head
        before = upto
    ends = segment_ends(head)
    assert ends == sorted(set(ends))
    assert ends[-1] == head
    versions = versions_of(head)
    assert versions == sorted(set(versions))
    assert versions[0] >= 1
    assert versions[-1] == head
    assert walks_of(head, 5) >= (2 if head <= POLICY_EVENTS_MOST else 1)


def point(version: int, ms: float, turn: int | None = None) -> ContextPoint:
    return ContextPoint(version, turn, ms / 2, ms / 2, ms, 100)


def test_growth_is_2_when_a_request_costs_twice_as_much_for_twice_the_conversation() -> None:
    assert growth([point(100, 1.0), point(200, 2.0), point(400, 4.0)]) == pytest.approx(2.0)
    assert growth([point(100, 1.0), point(200, 1.0), point(400, 1.0)]) == pytest.approx(1.0)
    assert growth([point(100, 0.001), point(200, 0.002)]) is None


def test_the_requests_of_all_turns_add_up_along_the_points() -> None:
    assert total_s([point(100, 10.0, 10), point(200, 20.0, 20)]) == pytest.approx((10 * 5 + 10 * 15) / 1000)
    assert total_s([point(100, 10.0)]) is None


def segments(*fold_us: float) -> list[Segment]:
    return [Segment((i + 1) * 1000, 1000, 0.5, us, 0.0) for i, us in enumerate(fold_us)]


def test_only_a_clear_and_steady_rise_along_the_stream_is_remarked_on() -> None:
    assert growing(segments(*(float(i) for i in range(1, 13)))) == pytest.approx((2.0, 11.0))
    assert growing(segments(*[0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.11, 0.12])) is None, "too little to tell"
    assert growing(segments(1, 1, 5, 5, 1, 1, 3, 3)) is None, "not steady"
    assert growing(segments(1, 2, 3, 4)) is None, "too short"
