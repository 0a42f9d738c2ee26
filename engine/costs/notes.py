"""What has to be said beside the figures: which of them mean nothing, what was left out, what stands out."""

from __future__ import annotations

from tailfold.engine.costs.figures import Costs
from tailfold.engine.costs.walking import EVENTS_LEAST
from tailfold.snapshots.limits import SHARE_OF_EVENT_BYTES

TURNS_LEAST = 20
COLLECTOR_SHARE_SHOWN = 0.10
LATE = 2.0
"""Resumes that take more than so many budgets are remarked on."""
GROWING_SEGMENTS = 1.5
"""The last quarter of a stream against the first: above this, events get dearer as the state grows."""


def notes_on(costs: Costs) -> list[str]:
    """Return the remarks, a sentence or two each; pure."""
    found: list[str] = []
    if costs.events < EVENTS_LEAST:
        found.append(
            f"{costs.events:,} events are too few for rates: they all fold in {costs.walk.total_s * 1000:.2g} ms, and"
            " the fixed part of each step is most of that. Costs of single kinds are from folding them again and"
            " again. For a session of another length: tailfold bench --synthetic N."
        )
    if costs.context is not None and costs.context.turns is not None and costs.context.turns < TURNS_LEAST:
        found.append(
            f"{costs.context.turns} turns are too few to say how requests grow; that shows from about"
            f" {TURNS_LEAST} on."
        )
    if costs.context is not None and costs.context.stopped_at is not None:
        size = costs.context.points[-1].request_bytes / 1e6
        found.append(
            f"Requests were not measured past version {costs.context.stopped_at:,}: one has {size:.0f} MB there, more"
            " than any model takes. An agent that runs this long needs a projection that leaves out or sums up."
        )
    slower = slower_by(costs)
    if slower is not None and slower > GROWING_SEGMENTS:
        found.append(
            f"Folding an event takes {slower:.1f} times as long in the last quarter of the stream as in the first:"
            " some handler does work that grows with the state."
        )
    if any(kind.decode_us is None for kind in costs.kinds):
        found.append("Decoding single kinds was left out: steps with a context need the events in their order.")
    share = costs.conditions.collector_share
    if share is not None and share > COLLECTOR_SHARE_SHOWN:
        found.append(
            f"{share:.0%} of the time of folding is Python's garbage collector, which looks through a state that grows"
            " in memory."
        )
    policy = costs.resume.policy
    if policy is not None and policy.longest_resume_ms is not None:
        if costs.events >= EVENTS_LEAST and policy.longest_resume_ms > LATE * costs.resume.budget_ms:
            snapshot = costs.resume.snapshot
            share = snapshot.share_of_event_bytes if snapshot is not None else 0.0
            why = (
                f" It waits until a snapshot is at most {SHARE_OF_EVENT_BYTES:.0%} of the bytes since the last, and here"
                f" one is {share:.0%}: give the store every({costs.resume.interval}) if that is worth its bytes."
                if share > SHARE_OF_EVENT_BYTES and costs.resume.interval is not None
                else ""
            )
            found.append(
                f"With the default policy, {policy.policy}, a resume at the wrong moment folds {policy.longest_tail:,}"
                f" events, about {policy.longest_resume_ms:,.0f} ms.{why}"
            )
    return found


def slower_by(costs: Costs) -> float | None:
    """Return the fold time of an event in the last quarter of the stream against the first; None if too short."""
    if len(costs.segments) < 8:
        return None
    quarter = len(costs.segments) // 4
    first, last = costs.segments[:quarter], costs.segments[-quarter:]
    before = sum(s.fold_us * s.events for s in first) / sum(s.events for s in first)
    after = sum(s.fold_us * s.events for s in last) / sum(s.events for s in last)
    return after / before if before > 0 else None
