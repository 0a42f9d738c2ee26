"""Measuring one stream and one fold from end to end: what a library user calls, and the command line too."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from tailfold.engine.costs.clock import clock_cost_ns
from tailfold.engine.costs.contexts import POINTS, context_costs
from tailfold.engine.costs.figures import Conditions, Context, Costs
from tailfold.engine.costs.forking import fork_costs
from tailfold.engine.costs.kinds import count_kinds, kind_costs
from tailfold.engine.costs.lifted import upcasting
from tailfold.engine.costs.memory import memory_costs
from tailfold.engine.costs.notes import notes_on
from tailfold.engine.costs.resuming import cold_ms, resume_costs
from tailfold.engine.costs.sampling import EVENTS_MOST, state_at
from tailfold.engine.costs.scratch import Scratch, scratch_copy
from tailfold.engine.costs.walking import drop_snapshots, put_snapshot, snapshot_as_usual, walk, walks_of
from tailfold.engine.errors import BadArgument
from tailfold.engine.fold import Fold
from tailfold.engine.gathering import Gathering
from tailfold.engine.store import Store
from tailfold.snapshots.limits import RESUME_BUDGET_MS

S = TypeVar("S")
Progress = Callable[[str, float], None]
"""Called with what is being measured and the share of it that is done, 0 to 1."""
REPEATS = 5

COPY = "a copy of the stream in a temporary store; the store itself was only read"
MADE = "a made-up session in a temporary store"


def measure(
    store: Store,
    stream: str,
    fold: Fold[S],
    *,
    request: Callable[[S], Any] | None = None,
    turns: Callable[[S], int] | None = None,
    budget_ms: float = RESUME_BUDGET_MS,
    repeats: int = REPEATS,
    title: str = "",
    progress: Progress = lambda what, done: None,
) -> Costs:
    """Measure what *stream* and *fold* cost; every figure is a median of up to *repeats* (from 1).

    *store* is only read: the stream is copied to a temporary directory, with the steps that *store* has, and
    snapshots and forks are made there. *request* makes what a model is given from the state (`Agent.request`);
    without it the context projection is left out. *turns* counts the turns behind a state. *budget_ms* (above 0)
    is what a resume may take. Nothing else should run meanwhile. Raises `StreamNotFound`, or what folding the
    stream raises.
    """
    _check(budget_ms, repeats)
    total = store.head(stream).version
    with scratch_copy(store, stream, count=_counter(progress, "copying the stream", total)) as scratch:
        return measure_scratch(
            scratch,
            stream,
            fold,
            place=COPY,
            request=request,
            turns=turns,
            budget_ms=budget_ms,
            repeats=repeats,
            title=title,
            progress=progress,
        )


def measure_scratch(
    scratch: Scratch,
    stream: str,
    fold: Fold[Any],
    *,
    place: str = MADE,
    request: Callable[[Any], Any] | None = None,
    turns: Callable[[Any], int] | None = None,
    budget_ms: float = RESUME_BUDGET_MS,
    repeats: int = REPEATS,
    title: str = "",
    progress: Progress = lambda what, done: None,
) -> Costs:
    """Measure in a store that may be written to: snapshots and forks are made in it. See `measure`."""
    _check(budget_ms, repeats)
    begun = time.perf_counter()
    clock_ns = clock_cost_ns()
    with scratch.open() as store:
        head = store.head(stream).version
        walks = walks_of(head, repeats)
        count = _counter(progress, "folding the whole stream", head * walks)
        walked = walk(store, stream, fold, repeats=repeats, budget_ms=budget_ms, count=count)
        counted = count_kinds(store, stream, _counter(progress, "counting kinds", head))
        seen = min(head, EVENTS_MOST)
        kinds = kind_costs(store, stream, fold, counted, clock_ns, _counter(progress, "timing handlers", seen))
        progress("comparing steps", 0.0)
        steps = upcasting(store, stream, fold, counted, walked.walk)
        resume = resume_costs(
            store,
            stream,
            fold,
            walk=walked.walk,
            policy=walked.policy,
            budget_ms=budget_ms,
            repeats=repeats,
            count=_counter(progress, "resuming with growing tails", 16),
        )
        context: Context | None = None
        if request is not None:
            count = _counter(progress, "making requests", POINTS)
            context = context_costs(store, stream, fold, request, turns, repeats=repeats, count=count)
        progress("looking at memory", 0.0)
        usable = bool(resume.curve)
        if usable:
            drop_snapshots(store, stream, fold, after=head - 1)
            put_snapshot(store, stream, fold, state_at(store, stream, fold, head), head, Gathering())
        memory = memory_costs(store, stream, fold)
        progress("forking", 0.0)
        if usable:
            snapshot_as_usual(store, stream, fold, budget_ms)
        forks = fork_costs(store, stream, fold, repeats)
    if usable:
        progress("resuming cold", 0.0)
        resume = msgspec.structs.replace(resume, cold_ms=cold_ms(scratch, stream, fold, repeats))
    conditions = Conditions(
        place=place,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        processors=os.cpu_count() or 1,
        repeats=repeats,
        walks=walked.walks,
        collector=gc.isenabled(),
        clock_ns=clock_ns,
        took_s=time.perf_counter() - begun,
    )
    found = Costs(
        stream=stream,
        title=title,
        fold=fold.name,
        events=head,
        bytes=walked.event_bytes,
        conditions=conditions,
        walk=walked.walk,
        segments=walked.segments,
        kinds=kinds,
        upcasting=steps,
        resume=resume,
        forks=forks,
        context=context,
        memory=memory,
        notes=[],
    )
    return msgspec.structs.replace(found, notes=notes_on(found))


def _check(budget_ms: float, repeats: int) -> None:
    if not 0 < budget_ms < float("inf"):
        raise BadArgument(f"the budget of a resume is above 0 ms, not {budget_ms:g}")
    if not 1 <= repeats <= 1000:
        raise BadArgument(f"repeats are 1 to 1000, not {repeats}")


def _counter(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress(what, min(1.0, done / total) if total else 1.0)

    return count
