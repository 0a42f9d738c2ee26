"""What has to be said beside the figures: which of them mean nothing, what was left out, what stands out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tailfold.engine.costs.contexts import TURNS_LEAST
from tailfold.engine.costs.figures import Context, Costs, PolicyCost, Segment
from tailfold.engine.costs.walking import EVENTS_LEAST
from tailfold.snapshots.limits import SHARE_OF_EVENT_BYTES, SHARE_OF_TIME

COLLECTOR_SHARE_SHOWN = 0.10
LATE = 2.0
"""Resumes that take more than so many budgets are remarked on."""
GROWING, GROWING_LEAST_US = 1.5, 0.2
"""The last quarter of a stream against the first, and by how much at least: less may be chance."""


def notes_on(costs: Costs) -> list[str]:
    """Return the remarks, a sentence or two each; pure."""
    found: list[str] = []
    if costs.events < EVENTS_LEAST:
        found.append(
            f"{costs.events:,} events are too few for rates: they all fold in {costs.walk.total_s * 1000:.2g} ms,"
            " and most of that is the fixed part of each step. Single kinds were folded again and again to see"
            " anything."
        )
    if costs.context is not None:
        found += _on_requests(costs.context)
    grown = growing(costs.segments)
    if grown is not None:
        found.append(
            f"Folding an event takes {grown[0]:.2g} µs in the first quarter of the stream and {grown[1]:.2g} µs"
            " in the last, rising all the way, garbage collection apart: some handler seems to do work that grows"
            " with the state."
        )
    if any(kind.decode_us is None for kind in costs.kinds):
        found.append("Decoding single kinds was left out: steps with a context need the events in their order.")
    if costs.events >= EVENTS_LEAST and costs.walk.collector_s > COLLECTOR_SHARE_SHOWN * costs.walk.total_s:
        found.append(
            f"{costs.walk.collector_s / costs.walk.total_s:.0%} of the whole replay is Python's garbage collector,"
            " which looks through a state that grows in memory."
        )
    if costs.events >= EVENTS_LEAST and costs.resume.policy is not None:
        found += _on_policy(costs, costs.resume.policy)
    return found


def _on_requests(context: Context) -> list[str]:
    found = []
    if context.turns is not None and context.turns < TURNS_LEAST:
        found.append(f"{context.turns} turns are too few to say how requests grow: it takes about {TURNS_LEAST}.")
    if context.stopped_at is not None:
        size = context.points[-1].request_bytes / 1e6
        found.append(
            f"Requests were not measured past version {context.stopped_at:,}: one has {size:.0f} MB there, more"
            " than any model takes. An agent that runs this long needs a projection that leaves out or sums up."
        )
    return found


def _on_policy(costs: Costs, policy: PolicyCost) -> list[str]:
    resume = costs.resume
    if policy.longest_resume_ms is None or policy.longest_resume_ms <= LATE * resume.budget_ms:
        return []
    why = ""
    one = resume.snapshot
    if one is not None and resume.interval is not None and one.events == resume.interval:
        bytes_share, time_share = one.share_of_event_bytes, one.share_of_fold_time
        if bytes_share > SHARE_OF_EVENT_BYTES or time_share > SHARE_OF_TIME:
            why = (
                f" It waits until a snapshot is at most {SHARE_OF_EVENT_BYTES:.0%} of the bytes and"
                f" {SHARE_OF_TIME:.0%} of the fold time since the last; here one after {one.events:,} events is"
                f" {bytes_share:.0%} and {time_share:.0%}. If appends can bear that, give the store"
                f" every({resume.interval})."
            )
    return [
        f"With the default policy, {policy.policy}, a resume at the wrong moment folds"
        f" {policy.longest_tail:,} events, about {policy.longest_resume_ms:,.0f} ms.{why}"
    ]


def growing(segments: Sequence[Segment]) -> tuple[float, float] | None:
    """Return the fold time of an event (µs) in the first and the last quarter, if it rises clearly all the way."""
    if len(segments) < 8:
        return None
    edges = [len(segments) * i // 4 for i in range(5)]
    quarters = [segments[first:last] for first, last in pairwise(edges)]
    each = [sum(s.fold_us * s.events for s in quarter) / sum(s.events for s in quarter) for quarter in quarters]
    rises = all(before < after for before, after in pairwise(each))
    if not rises or each[3] < GROWING * each[0] or each[3] - each[0] < GROWING_LEAST_US:
        return None
    return each[0], each[3]
