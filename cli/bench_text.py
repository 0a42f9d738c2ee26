"""`tailfold bench` as text: the answer first, then the figures behind it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tailfold.cli import charts
from tailfold.cli.amounts import digits, duration, percent, rate, size
from tailfold.cli.console import say, table, width_of_terminal
from tailfold.engine.costs import Costs

BAR = 20


def say_costs(costs: Costs) -> None:
    """Print *costs* for a person."""
    drawn = charts.drawable()
    width = min(100, width_of_terminal())
    conditions = costs.conditions
    say(f"{costs.stream}: {costs.events:,} events, {size(costs.bytes)} of records, fold {costs.fold}")
    repeats = f"medians of {conditions.repeats} repeats or more, {conditions.walks} walks through the stream"
    collector = "on" if conditions.collector else "off"
    _wrapped(
        f"measured in {conditions.place}; {repeats}; warm unless it says cold; {conditions.python}, garbage"
        f" collector {collector}",
        width,
    )
    if costs.notes:
        say("")
        for note in costs.notes:
            _wrapped(note, width, "- ")
    _resume(costs, drawn, width)
    _replay(costs, drawn, width)
    _kinds(costs, drawn)
    _steps(costs)
    _forks(costs)
    _context(costs, drawn)
    _memory(costs)


def _resume(costs: Costs, drawn: bool, width: int) -> None:
    resume = costs.resume
    say("\nRESUME")
    _wrapped(resume.reason, width)
    if resume.curve:
        say("")
        points = [*resume.curve, resume.whole] if resume.whole.tail != resume.curve[-1].tail else resume.curve
        top = max(point.resume_ms for point in resume.curve)
        rows = []
        for point in points:
            over = "over the budget" if point.resume_ms > resume.budget_ms else ""
            tail = f"{point.tail:,}" + (" (all, no snapshot)" if point is resume.whole else "")
            rows.append((tail, duration(point.resume_ms / 1000), *_bar(drawn, point.resume_ms / top), over))
        table(("TAIL", "RESUME", *_bar_head(drawn), ""), rows)
    if resume.cold_ms is not None:
        say(
            f"cold (store just opened, file dropped from the page cache), tail 0: {duration(resume.cold_ms / 1000)}"
        )
    if resume.snapshot is not None:
        one = resume.snapshot
        _wrapped(
            f"a snapshot after {one.events:,} events: {duration(one.encode_ms / 1000)} to encode,"
            f" {duration(one.write_ms / 1000)} to write (durable), {size(one.bytes)},"
            f" {percent(one.share_of_event_bytes)} of their bytes, {percent(one.share_of_fold_time)} of the time of"
            " folding them",
            width,
        )
    if resume.policy is not None and costs.walk.events_per_s is not None:
        policy = resume.policy
        _wrapped(
            f"the default policy, {policy.policy}: {_snapshots(policy.snapshots)} in {policy.events:,} events,"
            f" {percent(policy.share_of_event_bytes)} of event bytes, longest tail {policy.longest_tail:,} events",
            width,
        )


def _replay(costs: Costs, drawn: bool, width: int) -> None:
    walk = costs.walk
    say("\nREPLAY of all events, without a snapshot")
    if walk.events_per_s is None:
        say(f"{duration(walk.total_s)} in all")
        return
    parts = [("read", walk.read_s), ("decode", walk.decode_s), ("fold", walk.fold_s)]
    parts.append(("garbage collection", walk.collector_s))
    total = walk.total_s or 1.0
    rows = [(n, duration(s), percent(s / total), *_bar(drawn, s / total), _rate(costs, n)) for n, s in parts]
    rows.append(("all", duration(walk.total_s), "", *_bar(drawn, None), _rate(costs, "all")))
    table(("PART", "TIME", "SHARE", *_bar_head(drawn), "RATE"), rows)
    if len(costs.segments) >= 4:
        each = [
            segment.decode_us + segment.fold_us for segment in costs.segments
        ]  # the collector is not the fold's
        line = f" {charts.sparkline(each)}" if drawn else ""
        _wrapped(
            f"along the stream, an event:{line} {digits(each[0])} µs at first, {digits(each[-1])} µs at the end,"
            f" {digits(max(each))} µs at most",
            width,
        )


def _rate(costs: Costs, part: str) -> str:
    walk = costs.walk
    per_s = {"decode": walk.decode_events_per_s, "fold": walk.fold_events_per_s, "all": walk.events_per_s}.get(part)
    if per_s is None:
        return ""
    return rate(per_s) + (f", {size(walk.bytes_per_s)}/s" if part == "all" and walk.bytes_per_s else "")


def _kinds(costs: Costs, drawn: bool) -> None:
    say("\nKINDS, those that cost most in all first; times for one event")
    rows = [
        (
            kind.stored,
            f"{kind.events:,}",
            size(kind.bytes),
            f"{digits(kind.decode_us)} µs" if kind.decode_us is not None else "-",
            f"{digits(kind.handler_us)} µs" if kind.handler_us is not None else "no handler",
            *_bar(drawn, kind.share),
            percent(kind.share) if kind.share is not None else "-",
        )
        for kind in costs.kinds
    ]
    table(("KIND", "EVENTS", "BYTES", "DECODE", "HANDLER", *_bar_head(drawn), "SHARE"), rows)


def _steps(costs: Costs) -> None:
    steps = costs.upcasting
    say("\nUPCASTING")
    if not steps.old_events:
        say("no event is of an old schema version that steps lift: nothing to pay")
        return
    say(f"{steps.old_events:,} events are lifted, by up to {steps.steps} steps")
    if steps.lifted_us is not None and steps.current_us is not None:
        say(
            f"decoding one takes {digits(steps.lifted_us)} µs; stored at the current version it would take"
            f" {digits(steps.current_us)} µs"
        )
    if steps.share_of_walk is not None and steps.share_of_decode is not None:
        say(
            f"steps are {percent(steps.share_of_decode)} of decoding, {percent(steps.share_of_walk)} of the replay:"
            " what tailfold migrate would save"
        )


def _forks(costs: Costs) -> None:
    say("\nFORKS (durable)")
    rows = [
        (
            f"{fork.at:,}",
            duration(fork.fork_ms / 1000),
            duration(fork.first_load_ms / 1000),
            f"{fork.tail:,}",
            size(fork.added_bytes),
        )
        for fork in costs.forks
    ]
    table(("AT", "FORK", "FIRST LOAD", "ITS TAIL", "ADDED"), rows)


def _context(costs: Costs, drawn: bool) -> None:
    context = costs.context
    if context is None:
        return
    say("\nREQUESTS: making what the model is given from the state")
    top = max(point.build_ms + point.encode_ms for point in context.points) or 1.0
    rows = [
        (
            f"{point.version:,}",
            f"{point.turn:,}" if point.turn is not None else "-",
            duration(point.build_ms / 1000),
            duration(point.encode_ms / 1000),
            duration(point.first_ms / 1000),
            *_bar(drawn, (point.build_ms + point.encode_ms) / top),
            size(point.request_bytes),
        )
        for point in context.points
    ]
    table(("AT", "TURN", "BUILD", "ENCODE", "1ST, RESUMED", *_bar_head(drawn), "SIZE"), rows)
    if context.growth is not None:
        say(f"twice the conversation makes a request {digits(context.growth)} times as dear")
    if context.total_s is not None and context.turns:
        say(f"all requests up to turn {context.turns:,} together: {duration(context.total_s)}")


def _memory(costs: Costs) -> None:
    memory = costs.memory
    say("\nMEMORY")
    say(f"a resumed state keeps {size(memory.resume_bytes)} (at most {size(memory.resume_peak_bytes)} on the way)")
    say(f"{memory.folded_events:,} events folded without a snapshot keep {size(memory.folded_bytes)}")
    if memory.process_peak_bytes is not None:
        say(f"peak of this process, measuring and mapped pages included: {size(memory.process_peak_bytes)}")


def _snapshots(number: int) -> str:
    return f"{number:,} snapshot{'s' * (number != 1)}"


def _bar_head(drawn: bool) -> Iterator[str]:
    if drawn:
        yield ""


def _bar(drawn: bool, share: float | None) -> Iterator[str]:
    if drawn:
        yield charts.bar(share or 0.0, BAR)


def _wrapped(text: str, width: int, first: str = "") -> None:
    for line in textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first)):
        say(line)
