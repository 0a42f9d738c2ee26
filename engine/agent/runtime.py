"""Start and resume: the loop on a live journal, with a live model and live tools."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
from tailfold.engine.agent.causes import Causes, causes_of
from tailfold.engine.agent.events import AGENT_UPCASTERS, RunRedirected, RunResumed, RunStarted
from tailfold.engine.agent.loop import (
    Agent,
    Model,
    ModelError,
    Reply,
    check_max_turns,
    drive,
)
from tailfold.engine.agent.messages import ModelRequest
from tailfold.engine.agent.outcomes import ToolErrorText, in_words, outcome_of, recordable
from tailfold.engine.agent.state import OpenCall, RunState, first_event, run_fold
from tailfold.engine.agent.tools import Toolbox
from tailfold.engine.errors import BadArgument, Conflict, RunEnded
from tailfold.engine.events import Blob, Event
from tailfold.engine.live import Live
from tailfold.engine.log import event_id
from tailfold.engine.names import check_run_id
from tailfold.engine.store import Store

OnEvent = Callable[[int, Event], None]
"""Called with (version, event) once the event is durable."""

RETRY_FIRST_S = 0.25
RETRY_MOST_S = 8.0
QUESTION_CHARS_MAX = 100_000


class RunExists(Conflict):
    """The run id is taken."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} exists: resume it, or start under another id")
        self.run_id = run_id


class _LiveJournal:
    """The loop's journal on a store: durable first, then folded, then told."""

    def __init__(self, live: Live[RunState], on_event: OnEvent | None, causes: Causes) -> None:
        self._live = live
        self._on_event = on_event
        self._causes = causes

    @property
    def state(self) -> RunState:
        return self._live.state

    @state.setter
    def state(self, value: RunState) -> None:
        raise AttributeError("the state is the fold of the journal")

    async def record(self, *events: Event) -> None:
        live, causes = self._live, self._causes
        appended = await live.append_async(*events, causation=causes.of(events[0]), correlation=live.stream)
        for version, event in enumerate(events, appended.first):
            causes.last = event_id(live.stream, version)
            causes.note(causes.last, event)
            if self._on_event:
                self._on_event(version, event)

    def at_interruption(self) -> bool:
        return False


class _LiveEffects:
    """The loop's effects in the world."""

    def __init__(self, model: Model, tools: Toolbox, causes: Causes) -> None:
        self._model = model
        self._tools = tools
        self._causes = causes

    async def ask(self, request: ModelRequest, state: RunState) -> Reply | ModelError:
        if state.failures_in_row:
            # A model that just failed is given time; the wait spends no turn and needs no event.
            wait_s = RETRY_FIRST_S * 2 ** (state.failures_in_row - 1)
            await asyncio.sleep(min(wait_s, RETRY_MOST_S))
        try:
            replying = self._model.reply(request)
            if not inspect.isawaitable(replying):
                raise BadArgument(
                    f"the reply of model {self._model.name!r} is no coroutine: define it with async def"
                )
            reply = await replying
        except ModelError as error:
            return ModelError(in_words(error))
        if not isinstance(reply, Reply):
            raise BadArgument(f"model {self._model.name!r} replied a {type(reply).__name__}, not a Reply")
        if not reply.tool_calls and not reply.text.strip():
            return ModelError("the reply is empty: neither a call nor a text")
        try:
            calls = [
                msgspec.structs.replace(call, arguments=recordable(call.arguments)) for call in reply.tool_calls
            ]
            recordable([reply.text, [call.name for call in calls], msgspec.structs.asdict(reply.usage)])
        except ValueError as error:
            return ModelError(f"the reply cannot be recorded: {in_words(error)}")
        return msgspec.structs.replace(reply, tool_calls=calls)

    async def run(self, calls: Sequence[OpenCall]) -> AsyncIterator[tuple[OpenCall, Any | ToolErrorText]]:
        """Run the calls at the same time; yield each outcome when it is there."""
        called = self._causes.called
        tasks = {
            asyncio.ensure_future(outcome_of(self._tools, call.call, called[call.call.id])): call for call in calls
        }
        try:
            waiting = set(tasks)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # Of those that are done together, in the order of the calls: runs repeat exactly.
                for task in [task for task in tasks if task in done]:
                    yield tasks[task], task.result()
        finally:
            for task in tasks:
                task.cancel()


async def start(
    store: Store,
    run_id: str,
    agent: Agent,
    model: Model,
    question: str,
    *,
    max_turns: int = 8,
    on_event: OnEvent | None = None,
) -> RunState:
    """Start run *run_id* with *question* and drive it to its end; return the final state.

    Every event is durable before the agent acts on it, so a process killed anywhere leaves a run that
    `resume` takes up. Raises `RunExists`, `LeaseHeld`, or `BadArgument` for what cannot be a run.
    """
    check_run_id(run_id)
    check_max_turns(max_turns)
    check_question(question)
    _check_driven(agent, model, on_event)
    if store.backend.head(run_id) is not None:
        raise RunExists(run_id)
    with store.drive(run_id) as grant:
        live = store.live(run_id, run_fold, epoch=grant.epoch)
        if live.version:
            raise RunExists(run_id)
        causes = Causes()
        journal = _LiveJournal(live, on_event, causes)
        inputs = {name: Blob(content) for name, content in agent.inputs.items()}
        await journal.record(RunStarted(agent.name, question, model.name, max_turns, inputs, dict(agent.origins)))
        state = await drive(agent, journal, _LiveEffects(model, agent.tools, causes))
        live.snapshot()  # nobody appends to it any more: whoever looks at it folds nothing
        return state


def _check_driven(agent: Agent, model: Model, on_event: OnEvent | None) -> None:
    """Refuse what would fail in the middle of a run, before anything of it is written."""
    if not isinstance(agent, Agent):
        raise BadArgument(f"the agent is an Agent, not {agent!r:.60}")
    if isinstance(model, type) or not callable(getattr(model, "reply", None)):
        raise BadArgument(f"a model has a method reply, and {model!r:.60} has none (or is a class: make one of it)")
    if not isinstance(getattr(model, "name", None), str) or not model.name:
        raise BadArgument(f"a model has a name, a text that goes into the journal, and {model!r:.60} has none")
    if on_event is not None and inspect.iscoroutinefunction(on_event):
        raise BadArgument("on_event is a plain function: it is called, not awaited")


def check_question(question: str) -> str:
    """Return *question* if a run can be started with it; raise `BadArgument`."""
    if not isinstance(question, str):
        raise BadArgument(f"the question is a text, not {question!r:.60}")
    if not question.strip():
        raise BadArgument("the question is empty")
    if len(question) > QUESTION_CHARS_MAX:
        raise BadArgument(f"the question has {len(question)} characters, the most is {QUESTION_CHARS_MAX}")
    if any("\ud800" <= char <= "\udfff" for char in question):
        raise BadArgument("the question is not valid text (is the terminal's encoding UTF-8?)")
    return question


async def resume(
    store: Store,
    run_id: str,
    make_agent: Callable[[RunStarted], Agent],
    make_model: Callable[[str], Model],
    *,
    redirect: RunRedirected | None = None,
    take_over: bool = False,
    on_event: OnEvent | None = None,
) -> RunState:
    """Take run *run_id* up where its journal ends and drive it to its end; return the final state.

    *make_agent* gets the first event, *make_model* the name of the model. The new driver and the process it
    took over from are recorded as run_resumed. With *redirect* the run goes on with another question, model or
    budget, recorded as well; a fork whose inherited history has ended is opened again by another question, or by a
    larger budget if that is what it had run out of. Spent turns stay spent: a question to a run that has none left
    needs a larger budget as well.
    Raises `StreamNotFound`, `errors.RunEnded`, `LeaseHeld` (another process drives it; *take_over* pushes a holder
    aside that cannot be judged from here).
    """
    for name, made in (("make_agent", make_agent), ("make_model", make_model)):
        if not callable(made):
            raise BadArgument(f"{name} is a function, not {made!r:.60}: lambda _: … if there is but one")
    started = begin_of(store, run_id)
    state = store.load(run_id, run_fold).state
    _check_open(store, run_id, state, redirect)
    agent, model = make_agent(started), make_model((redirect and redirect.model) or state.model)
    _check_driven(agent, model, on_event)
    if agent.name != started.agent:
        raise BadArgument(f"run {run_id!r} belongs to agent {started.agent!r}, and {agent.name!r} was to drive it")
    if redirect is not None and redirect.model is not None:
        redirect = msgspec.structs.replace(redirect, model=model.name)
    with store.drive(run_id, take_over=take_over) as grant:
        live = store.live(run_id, run_fold, epoch=grant.epoch)
        _check_open(store, run_id, live.state, redirect)  # a driver may have been faster than our look
        causes = causes_of(store, run_id, live.state)
        journal = _LiveJournal(live, on_event, causes)
        resumed = RunResumed(grant.epoch, grant.previous.pid if grant.previous else None)
        await journal.record(*([resumed, redirect] if redirect is not None else [resumed]))
        state = await drive(agent, journal, _LiveEffects(model, agent.tools, causes))
        live.snapshot()
        return state


def _check_open(store: Store, run_id: str, state: RunState, redirect: RunRedirected | None) -> None:
    """Raise `RunEnded` unless there is something to drive."""
    if state.status != "ended":
        return
    head = store.head(run_id)
    opens = redirect is not None and (
        redirect.question is not None
        or (state.reason == "budget_exhausted" and (redirect.max_turns or 0) > state.turn)
    )
    if not opens or head.base != head.version:
        raise RunEnded(run_id, str(state.reason))


def begin_of(store: Store, run_id: str) -> RunStarted:
    """Return the first event of a run; raise `StreamNotFound`, or `BadArgument` if the stream is no run."""
    store.log.codec.adopt(AGENT_UPCASTERS)
    [recorded] = store.read(check_run_id(run_id), limit=1)
    if not isinstance(recorded.event, Event):
        raise BadArgument(f"stream {run_id!r} is no run: it begins with {recorded.kind!r}")
    return first_event(recorded.event)
