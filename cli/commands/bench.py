"""The command bench: what replay costs, for a user's own journal and fold."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from tailfold.cli.bench_html import page
from tailfold.cli.bench_text import say_costs
from tailfold.cli.console import emit, note, one_line, stages
from tailfold.cli.options import JsonOption, StoreOption, open_run, run_named
from tailfold.cli.user_code import EventsOption, FoldOption, fold_of, request_of, upcasters_of
from tailfold.engine import Fold, Store
from tailfold.engine.agent.listing import is_run
from tailfold.engine.agent.runtime import begin_of
from tailfold.engine.agent.state import RunState, run_fold
from tailfold.engine.agents.comparetiers import NAME, comparetiers, shipped
from tailfold.engine.costs import STREAM, Costs, measure, measure_scratch, synthetic_session
from tailfold.engine.errors import BadArgument
from tailfold.snapshots.limits import RESUME_BUDGET_MS


def bench(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="The run or stream to measure.", show_default=False),
    ] = None,
    synthetic: Annotated[
        int | None,
        typer.Option(
            "--synthetic",
            metavar="N",
            min=1,
            max=10_000_000,
            help="Instead of RUN: a made-up agent session of N events, up to 10,000,000, about 300 bytes each.",
            show_default=False,
        ),
    ] = None,
    budget_ms: Annotated[
        float, typer.Option("--budget-ms", metavar="MS", help="What a resume may take, in milliseconds.")
    ] = RESUME_BUDGET_MS,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat",
            metavar="N",
            min=1,
            max=1000,
            help="Repeats of each measurement; quick ones are repeated more often. Medians are shown.",
        ),
    ] = 5,
    events: EventsOption = None,
    fold: FoldOption = None,
    request: Annotated[
        str | None,
        typer.Option(
            "--request",
            metavar="MODULE:ATTR",
            help="An Agent, or a function that makes a model's request from the state. Default: the shipped agent,"
            " for its own runs.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with plots as well.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --html write over FILE.")] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Measure what replay costs: folding, kinds, resumes, forks, upcasting, a model's requests, memory.

    Recommends how many events should lie between snapshots for a resume within the budget. The store is only
    read: everything is measured in a temporary copy of the one stream, made where temporary files go (TMPDIR).
    Let nothing else run meanwhile.

    Examples:

      tailfold bench r-1

      tailfold bench --synthetic 1000000 --html report.html

      tailfold bench customer-7 --fold shop.states:basket --events shop.events:UPCASTERS --json
    """
    if (run is None) == (synthetic is None):
        raise BadArgument("give either RUN or --synthetic N")
    if synthetic is not None and (events or fold or request):
        raise BadArgument("--events, --fold and --request are for a RUN of your own; --synthetic has its own")
    if not 0 < budget_ms < float("inf"):
        raise BadArgument(f"--budget-ms is above 0, not {budget_ms:g}")
    if html is not None:
        _check_target(html, force)
    how = _How(budget_ms, repeat)
    if synthetic is not None:
        costs = _measure_synthetic(synthetic, how)
    else:
        assert run is not None
        subject = _Subject(
            fold_of(fold) if fold is not None else None, request_of(request) if request is not None else None
        )
        costs = _measure_run(run, subject, events, how, store)
    if html is not None:
        _write(html, page(costs), force)
    if as_json:
        emit(costs)
    else:
        say_costs(costs)
    if html is not None:
        note(f"wrote {html}")


class _How(NamedTuple):
    budget_ms: float
    repeats: int


class _Subject(NamedTuple):
    fold: Fold[Any] | None
    request: Callable[[Any], Any] | None


def _measure_synthetic(events: int, how: _How) -> Costs:
    agent = comparetiers(shipped(), "shipped")
    done = 0
    with stages() as show:

        def count(more: int) -> None:
            nonlocal done
            done += more
            show("making the session", done / events)

        with synthetic_session(events, count=count) as scratch:
            return measure_scratch(
                scratch,
                STREAM,
                run_fold,
                request=agent.request,
                turns=_turns,
                budget_ms=how.budget_ms,
                repeats=how.repeats,
                title=f"a made-up session of {events:,} events",
                progress=show,
            )


def _measure_run(run: str, subject: _Subject, events: str | None, how: _How, store: Path | None) -> Costs:
    upcasters = upcasters_of(events) if events is not None else None
    with open_run(store, run) as opened:
        stream = run_named(opened, run)
        if upcasters is not None:
            opened.log.codec.adopt(upcasters)
        own = subject.fold is None and is_run(opened, stream)
        if subject.fold is None and not own:
            raise BadArgument(
                f"stream {stream!r} is no run of an agent, so there is no fold for it: name yours with --fold"
                " MODULE:ATTR"
            )
        request = subject.request
        if request is None and own and begin_of(opened, stream).agent == NAME:
            request = comparetiers(shipped(), "shipped").request
        with stages() as show:
            return measure(
                opened,
                stream,
                subject.fold or run_fold,
                request=request,
                turns=_turns if own else None,
                budget_ms=how.budget_ms,
                repeats=how.repeats,
                title=_title(opened, stream) if own else "",
                progress=show,
            )


def _turns(state: RunState) -> int:
    return state.turn


def _title(opened: Store, stream: str) -> str:
    return one_line(begin_of(opened, stream).question, 300)


def _check_target(file: Path, force: bool) -> None:
    """Refuse what could not be written, before minutes are spent on it."""
    if file.is_dir() or (file.exists() and not force):
        raise BadArgument(
            f"{file} exists: --force writes over it" if not file.is_dir() else f"{file} is a directory"
        )
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        raise BadArgument(f"cannot write {file}: there is no directory {file.parent} that can be written to")


def _write(file: Path, text: str, force: bool) -> None:
    """Write the page whole or not at all."""
    target = file.with_name(f".{file.name}.new") if force else file
    try:
        with target.open("w" if force else "x", encoding="utf-8") as opened:
            try:
                opened.write(text)
                opened.flush()
            except BaseException:
                target.unlink()
                raise
        if force:
            target.replace(file)
    except FileExistsError:
        raise BadArgument(f"{file} exists: --force writes over it") from None
    except OSError as error:
        raise BadArgument(f"cannot write {file}: {error.strerror}") from None
