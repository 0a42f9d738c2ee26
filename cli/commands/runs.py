"""Commands that drive runs: run, resume, replay."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from tailfold.cli.console import emit, note, one_line, plain, say, thinking
from tailfold.cli.exits import Exit
from tailfold.cli.interrupts import run_async
from tailfold.cli.options import (
    STORE_DEFAULT,
    CatalogOption,
    JsonOption,
    RunArgument,
    StoreOption,
    open_run,
    open_to_resume,
    open_to_start,
    read_file,
    run_named,
    store_path,
)
from tailfold.cli.user_code import AgentOption, agent_of
from tailfold.engine import Event, Store
from tailfold.engine.agent.events import (
    ModelDecision,
    ModelFailed,
    RunRedirected,
    RunStarted,
    ToolCalled,
    TurnStarted,
)
from tailfold.engine.agent.loop import MAX_TURNS_MOST, Agent, check_max_turns
from tailfold.engine.agent.models import choose_model, named_model
from tailfold.engine.agent.replaying import Replayed
from tailfold.engine.agent.replaying import replay as replay_run
from tailfold.engine.agent.runtime import OnEvent, RunExists, begin_of, check_question
from tailfold.engine.agent.runtime import resume as resume_run
from tailfold.engine.agent.runtime import start as start_run
from tailfold.engine.agent.state import RunState, run_fold
from tailfold.engine.agents.comparetiers import NAME, comparetiers, rule, shipped
from tailfold.engine.agents.comparetiers.agent import CATALOGUE_INPUT
from tailfold.engine.errors import BadArgument, ReplayDiverged, RunEnded
from tailfold.engine.names import check_run_id

SHIPPED = "shipped with tailfold"

KillAfterOption = Annotated[
    int | None,
    typer.Option(
        "--kill-after",
        metavar="N",
        min=1,
        help="SIGKILL this process once event N is durable: for drills and demos.",
        show_default=False,
    ),
]


def run(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask.")],
    model: Annotated[
        str,
        typer.Option(
            metavar="auto|rules|ollama:NAME",
            help="auto: Ollama where it answers, else the built-in rules (no language model).",
        ),
    ] = "auto",
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", metavar="ID", help="Default: made from the time.", show_default=False),
    ] = None,
    max_turns: Annotated[int, typer.Option(metavar="N", help="Budget of model calls.")] = 8,
    catalog: CatalogOption = None,
    kill_after: KillAfterOption = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Ask the price agent a question; every step is on disk before the next is taken.

    Examples:

      tailfold run "How much is Notion Plus for 5 seats, billed monthly?"

      tailfold run "Which is cheapest for 10 seats: Slack, Zoom or Linear?" --model rules
    """
    run_id = check_run_id(run_id) if run_id is not None else _new_run_id()
    agent = _agent(catalog)

    async def work(opened: Store, on_event: OnEvent) -> RunState:
        chosen, why = await choose_model(model, rule)
        note(f"run {run_id}, model {chosen.name}: {why}")
        return await start_run(opened, run_id, agent, chosen, question, max_turns=max_turns, on_event=on_event)

    # All that can be wrong with the arguments is found before a store is made.
    check_question(question)
    check_max_turns(max_turns)
    if model != "auto":
        named_model(model, rule)
    with open_to_start(store) as opened:
        if opened.backend.head(run_id) is not None:
            raise RunExists(run_id)  # before a model is looked for
        _drive(opened, run_id, work, kill_after, as_json, store)


def resume(
    run: RunArgument,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="auto|rules|ollama:NAME",
            help="Go on with another model. Default: the run's.",
            show_default=False,
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Go on with another question; also for a fork of an ended run.", show_default=False
        ),
    ] = None,
    max_turns: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Go on with another budget of model calls, spent ones included.", show_default=False
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Push aside whoever drives it, for a driver that cannot be seen from here (another container or"
            " machine). If it lives, its next append is refused: it ends with exit 9.",
        ),
    ] = False,
    kill_after: KillAfterOption = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Take up a run where its journal ends: nothing that was done is done or paid for again.

    The run keeps its model and the catalogue that it started with, unless it is told otherwise, which is written
    into the journal. A run that has ended is not driven again: its answer is printed, and the exit code is 3. To
    ask "what if", fork it first: a fork goes on with another question, or with more turns if they had run out.

    Examples:

      tailfold resume r-1

      tailfold fork r-1 --at 4 --as r-1-gemma && tailfold resume r-1-gemma --model ollama:gemma3
    """
    check_run_id(run.removeprefix(":"))
    if question is not None:
        check_question(question)
    if max_turns is not None:
        check_max_turns(max_turns)
    if model is not None and model != "auto":
        named_model(model, rule)

    with open_to_resume(store, run) as opened:
        run = run_named(opened, run)

        async def work(opened: Store, on_event: OnEvent) -> RunState:
            name = model
            if model == "auto":
                chosen, why = await choose_model(model, rule)
                note(f"run {run}, model {chosen.name}: {why}")
                name = chosen.name
            redirect = None
            if (question, name, max_turns) != (None, None, None):
                redirect = RunRedirected(question, name, max_turns)
            return await resume_run(
                opened,
                run,
                _recorded_agent,
                lambda recorded: named_model(recorded, rule),
                redirect=redirect,
                take_over=take_over,
                on_event=on_event,
            )

        try:
            _drive(opened, run, work, kill_after, as_json, store)
        except RunEnded:
            state, version = opened.load(run, run_fold)
            if as_json:
                emit(_summary(run, version, state))
            elif state.answer is not None:
                say(state.answer)
            raise


def replay(
    run: RunArgument,
    live_tools: Annotated[
        bool,
        typer.Option("--live-tools", help="Run the tools for real and compare what they return now."),
    ] = False,
    catalog: CatalogOption = None,
    agent_name: AgentOption = None,
    after: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Take versions 1..N as they stand, and compare from there on: for a run that was resumed under"
            " another prompt.",
        ),
    ] = 1,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Replay a recorded run without a model, and stop at the first event that comes out differently.

    With --live-tools the tools read the catalogue as it is now: FILE, or the file that the run was started
    with, or the shipped one. Unsafe tools of an agent of your own are never run by a replay.

    Examples:

      tailfold replay r-1

      tailfold replay r-1 --live-tools --catalog changed.json

      tailfold replay ticket-7 --agent support:agent
    """
    check_run_id(run.removeprefix(":"))
    if agent_name is not None and catalog is not None:
        raise BadArgument("--catalog is for the shipped agent: give either that or --agent")
    with open_run(store, run) as opened:
        run = run_named(opened, run)
        started = begin_of(opened, run)
        agent = agent_of(agent_name, started) if agent_name is not None else _recorded_agent(started)
        if catalog is not None and not live_tools:
            note("without --live-tools no tool runs, so nothing is read from the catalogue")
        if catalog is not None:
            agent = _agent(catalog)
        elif live_tools and agent_name is None:
            origin = started.origins.get(CATALOGUE_INPUT, SHIPPED)
            agent = _agent(None if origin == SHIPPED else Path(origin))
        try:
            done = run_async(lambda: replay_run(opened, run, agent, live_tools=live_tools, after=after))
        except ReplayDiverged as error:
            _show_divergence(error, as_json)
            raise
        _show_replayed(run, done, as_json)


# -- driving ---------------------------------------------------------------------------------------------


def _drive(
    opened: Store,
    run_id: str,
    work: Callable[[Store, OnEvent], Coroutine[Any, Any, RunState]],
    kill_after: int | None,
    as_json: bool,
    store: Path | None,
) -> None:
    """Drive a run to its end, showing progress; say how to resume if it is interrupted."""
    failures: list[str] = []
    with _telling_how_to_resume(opened, run_id, store), thinking(f"{run_id}: thinking…") as status:

        def on_event(version: int, event: Event) -> None:
            if kill_after is not None and version >= kill_after:
                if status is not None:
                    status.stop()  # leave the terminal as it was
                os.kill(os.getpid(), signal.SIGKILL)
            if isinstance(event, ModelFailed):
                failures.append(event.error)
            if status is not None:
                status.update(plain(f"{run_id}: {_progress(event)}"))

        state = run_async(lambda: work(opened, on_event))
    version = opened.head(run_id).version
    if as_json:
        emit(_summary(run_id, version, state))
    elif state.answer is not None:
        say(state.answer)
    if state.answer is None:
        turns = "1 turn" if state.turn == 1 else f"{state.turn} turns"
        why = f"; the model's last error: {one_line(failures[-1], 300)}" if failures else ""
        note(f"run {run_id} ended without an answer: {state.reason} after {turns}{why}")
        where, fork = _where(store), f"{run_id}-on"
        note(
            f"to go on: tailfold fork {run_id} --at {version} --as {fork}{where} && tailfold resume {fork}"
            f" --max-turns {min(2 * state.max_turns, MAX_TURNS_MOST)}{where}"
        )
        raise typer.Exit(Exit.UNEXPECTED)


@contextmanager
def _telling_how_to_resume(opened: Store, run_id: str, store: Path | None) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        if opened.backend.head(run_id) is None:
            note("interrupted before the run was started; nothing was written")
        else:
            note(f"interrupted; nothing is lost. Go on with: tailfold resume {run_id}{_where(store)}")
        raise KeyboardInterrupt from None


def _where(store: Path | None) -> str:
    """Return the option that names the store in a command for the user, empty if it needs none."""
    path = store_path(store)
    return "" if path == Path(STORE_DEFAULT) else f" --store {shlex.quote(str(path))}"


def _progress(event: Event) -> str:
    match event:
        case TurnStarted(turn=turn):
            return f"turn {turn}, the model thinks…"
        case ToolCalled(call=call):
            return f"runs {call.name}…"
        case ModelFailed(error=error):
            return f"the model failed ({one_line(error, 60)})"
        case ModelDecision():
            return "decided"
    return event.kind


def _summary(run_id: str, version: int, state: RunState) -> dict[str, Any]:
    return {
        "run": run_id,
        "status": state.status,
        "reason": state.reason,
        "answer": state.answer,
        "question": state.question,
        "agent": state.agent,
        "model": state.model,
        "turns": state.turn,
        "max_turns": state.max_turns,
        "events": version,
        "tool_calls": state.tool_calls,
        "model_failures": state.failures,
        "resumes": state.resumes,
        "prompt_tokens": state.prompt_tokens,
        "output_tokens": state.output_tokens,
        "model_ms": state.model_ms,
    }


def _new_run_id() -> str:
    return f"r-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _agent(catalog: Path | None) -> Agent:
    if catalog is None:
        return comparetiers(shipped(), SHIPPED)
    return comparetiers(read_file(catalog), str(catalog.absolute()))


def _recorded_agent(started: RunStarted) -> Agent:
    """Return the agent of a recorded run, over the very catalogue that it started with."""
    if started.agent != NAME or CATALOGUE_INPUT not in started.inputs:
        raise BadArgument(
            f"the run belongs to agent {started.agent!r}; this command knows {NAME!r}. Resume it from the program"
            " that started it; tailfold replay takes its --agent MODULE:ATTR"
        )
    return comparetiers(started.inputs[CATALOGUE_INPUT].data, started.origins.get(CATALOGUE_INPUT, SHIPPED))


# -- showing a replay ------------------------------------------------------------------------------------


def _show_replayed(run: str, done: Replayed, as_json: bool) -> None:
    state = done.state
    if as_json:
        emit(
            {
                "run": run,
                "diverged": False,
                "ended": done.ended,
                "events": done.events,
                "reason": state.reason,
                "answer": state.answer,
            }
        )
        return
    if state.answer is not None:
        say(state.answer)
    end = "to its end" if done.ended else "as far as it goes (it was interrupted; resume takes it up)"
    note(f"replayed {run} {end}: {done.events} events, no divergence, no model call")


def _show_divergence(error: ReplayDiverged, as_json: bool) -> None:
    recorded, replayed = _side(error.recorded), _side(error.replayed)
    if as_json:
        emit(
            {
                "run": error.stream,
                "diverged": True,
                "version": error.version,
                "why": error.why,
                "recorded": recorded,
                "replayed": replayed,
            }
        )
        return
    say(f"diverged at version {error.version}: {error.why}")
    say(f"  journal: {one_line(recorded, 2000)}")
    say(f"  replay:  {one_line(replayed, 2000)}")


def _side(value: Any) -> Any:
    content = msgspec.to_builtins(value, enc_hook=str)
    return {"kind": value.kind, **content} if isinstance(value, Event) else content
