"""Replay: the same loop, fed from a recorded run, comparing every event that it would write.

Decisions come from the journal, so no model is needed; tool results too, unless the tools are to run for
real. Kind and content are compared, times and token usage are not. The request is built anew and its hash
compared, so a changed prompt, tool schema or context shows at the first decision that saw it (I15).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from tailfold.engine.agent.causes import Causes
from tailfold.engine.agent.events import (
    AGENT_UPCASTERS,
    ModelDecision,
    ModelFailed,
    RunRedirected,
    RunResumed,
    ToolCalled,
    ToolError,
    ToolResult,
    Usage,
)
from tailfold.engine.agent.loop import (
    Agent,
    ModelError,
    RecordingEnds,
    Reply,
    drive,
)
from tailfold.engine.agent.messages import ModelRequest
from tailfold.engine.agent.outcomes import ToolErrorText, outcome_of
from tailfold.engine.agent.runtime import begin_of
from tailfold.engine.agent.state import OpenCall, RunState, run_fold
from tailfold.engine.agent.tools import Toolbox
from tailfold.engine.errors import BadArgument, ReplayDiverged, StreamNotFound
from tailfold.engine.events import Event
from tailfold.engine.log import Recorded
from tailfold.engine.store import Store


class Replayed(NamedTuple):
    """A replay that did not diverge."""

    state: RunState
    events: int
    """Events of the journal that were compared or taken in."""
    ended: bool
    """False if the recorded run stops before run_ended (it was interrupted)."""


class _Recording:
    """A recorded run as the loop's journal: `record` compares, and folds what was recorded."""

    def __init__(self, run_id: str, events: Iterator[Recorded]) -> None:
        self.run_id = run_id
        self.state = RunState()
        self.causes = Causes()
        self.done = 0
        self._events = (r for r in events if isinstance(r.event, Event))
        self._next = next(self._events, None)

    @property
    def version(self) -> int:
        """Version of the next recorded event, or past the last one."""
        return self._next.version if self._next is not None else sys.maxsize

    def peek(self) -> Event | None:
        """Return the next recorded event without taking it."""
        return self._next.event if self._next and isinstance(self._next.event, Event) else None

    def take(self) -> None:
        """Fold the next recorded event."""
        event = self.peek()
        assert event is not None and self._next is not None
        self.causes.note(self._next.event_id, event)
        self.state = run_fold.evolve(self.state, event)
        self.done += 1
        self._next = next(self._events, None)

    async def record(self, *events: Event) -> None:
        for event in events:
            self.compare(event)
            self.take()

    def at_interruption(self) -> bool:
        if isinstance(self.peek(), RunResumed | RunRedirected):
            self.take()
            return True
        return False

    def compare(self, event: Event) -> None:
        recorded = self.peek()
        if recorded is None:
            raise RecordingEnds
        if _compared(recorded) != _compared(event):
            self.diverge(event, _difference(recorded, event))

    def diverge(self, replayed: Any, why: str) -> None:
        assert self._next is not None
        raise ReplayDiverged(self.run_id, self._next.version, self._next.event, replayed, why)


class _RecordedEffects:
    """Effects that give back what they once said; tools may run for real."""

    def __init__(self, recording: _Recording, live_tools: Toolbox | None) -> None:
        self._recording = recording
        self._live_tools = live_tools

    async def ask(self, request: ModelRequest, state: RunState) -> Reply | ModelError:
        match self._recording.peek():
            case ModelDecision(tool_calls=calls, text=text, usage=usage):
                return Reply(text, calls, usage)
            case ModelFailed(error=error):
                return ModelError(error)
            case None:
                raise RecordingEnds
            case other:
                self._recording.diverge(request, f"the loop asks the model, the journal has {other.kind}")
                raise AssertionError

    async def run(self, calls: Sequence[OpenCall]) -> AsyncIterator[tuple[OpenCall, Any | ToolErrorText]]:
        """Yield the outcomes in the order in which they were recorded, up to an interruption."""
        waiting = {open_call.call.id: open_call for open_call in calls}
        while waiting:
            match self._recording.peek():
                case ToolResult(call_id=call_id, result=result) if call_id in waiting:
                    outcome = result
                case ToolError(call_id=call_id, error=error) if call_id in waiting:
                    outcome = ToolErrorText(error)
                case RunResumed() | RunRedirected():
                    return
                case None:
                    raise RecordingEnds
                case other:
                    open_call = next(iter(waiting.values()))
                    self._recording.diverge(open_call.call, f"the loop runs a tool, the journal has {other.kind}")
                    raise AssertionError
            open_call = waiting.pop(call_id)
            tools = self._live_tools
            if tools is not None and "unsafe" not in (open_call.effect, tools.effect(open_call.call.name)):
                key = self._recording.causes.called[call_id]
                outcome = await outcome_of(tools, open_call.call, key)
            yield open_call, outcome


async def replay(store: Store, run_id: str, agent: Agent, *, live_tools: bool = False, after: int = 1) -> Replayed:
    """Replay run *run_id* through *agent*; raise `ReplayDiverged` at the first difference, with both sides.

    The journal is checked against its hash chain first, so that an edited result cannot pass
    (`RecordDamaged`). With *live_tools* the agent's tools run for real, in the recorded order: a divergence
    then means that what they read has changed. Unsafe ones never do: their results come from the journal.
    What stands up to version *after* is taken as it is, for a run that went on under another prompt than it began
    with; from there on every event is compared. Nothing is written.
    """
    if not isinstance(agent, Agent):
        raise BadArgument(f"the agent is an Agent, not {agent!r:.60}")
    started = begin_of(store, run_id)
    if agent.name != started.agent:
        raise BadArgument(f"run {run_id!r} belongs to agent {started.agent!r}, not to {agent.name!r}")
    head = store.head(run_id).version
    if after < 1:
        raise BadArgument(f"after is a version from 1 on, not {after}")
    if after > head:
        raise StreamNotFound(run_id, version=after, head=head)
    store.log.codec.adopt(AGENT_UPCASTERS)
    store.check_readable(run_id)
    recording = _Recording(run_id, store.read(run_id))
    last: Event | None = None
    # run_started at least: what came from outside. Calls that were written together are taken together.
    while recording.version <= after or (isinstance(last, ToolCalled) and isinstance(recording.peek(), ToolCalled)):
        last = recording.peek()
        recording.take()
    effects = _RecordedEffects(recording, agent.tools if live_tools else None)
    try:
        await drive(agent, recording, effects)
    except RecordingEnds:
        return Replayed(recording.state, recording.done, False)
    left = recording.peek()
    if left is not None:
        recording.diverge(None, f"the loop has ended, the journal goes on with {left.kind}")
    return Replayed(recording.state, recording.done, True)


def _compared(event: Event) -> Event:
    """Return the part of an event that replay compares: what was decided, not what it cost."""
    return msgspec.structs.replace(event, usage=Usage()) if isinstance(event, ModelDecision) else event


def _difference(recorded: Event, replayed: Event) -> str:
    if type(recorded) is not type(replayed):
        return f"the loop writes {replayed.kind}, the journal has {recorded.kind}"
    names = [
        f.name
        for f in msgspec.structs.fields(recorded)
        if getattr(_compared(recorded), f.name) != getattr(_compared(replayed), f.name)
    ]
    why = f"{recorded.kind} differs in {', '.join(names)}"
    if names == ["request_hash"]:
        why += " (the prompt, a tool's schema or the context that the model sees has changed)"
    return why
