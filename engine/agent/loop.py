"""The one loop that start, resume and replay share: ask `decide`, do what it says, write it down.

Write, sync, then act: an action that touches the world is preceded by the durable event that announces it.
The two ports say what differs: a `Journal` appends to the store or compares with a recorded run, `Effects`
call the model and the tools or give back what they once said.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec
from tailfold.engine.agent.decide import (
    AskModel,
    Decide,
    Done,
    End,
    GiveUpCall,
    RejectAnswer,
    RunTools,
    StartTurn,
    WriteCalls,
    decider,
)
from tailfold.engine.agent.events import (
    AnswerRejected,
    ModelDecision,
    ModelFailed,
    RunEnded,
    ToolCall,
    ToolCalled,
    ToolError,
    ToolResult,
    TurnStarted,
    Usage,
)
from tailfold.engine.agent.messages import ModelRequest
from tailfold.engine.agent.outcomes import ToolErrorText
from tailfold.engine.agent.state import OpenCall, RunState
from tailfold.engine.agent.tools import Toolbox
from tailfold.engine.errors import BadArgument
from tailfold.engine.events import Event

MAX_TURNS_MOST = 10_000


class Reply(msgspec.Struct, frozen=True):
    """What a model replied: calls to make, or a text."""

    text: str
    tool_calls: list[ToolCall] = []
    usage: Usage = Usage()


class ModelError(Exception):
    """A model gave no usable reply: unreachable, too slow, or not understandable."""


class Model(Protocol):
    """The port of a model. `name` goes into the journal; `reply` raises `ModelError` and nothing else."""

    name: str

    async def reply(self, request: ModelRequest) -> Reply:
        """Return the model's reply to exactly this request."""


class Agent(msgspec.Struct, frozen=True):
    """An agent as data: what is the same for all of its runs."""

    name: str
    system: str
    tools: Toolbox
    decide: Decide = msgspec.field(default_factory=decider)
    options: dict[str, Any] = {}
    inputs: dict[str, bytes] = {}
    """Content that the tools read; a run keeps it, so that it is resumed with what it started with."""
    origins: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Raise `BadArgument` for what would fail in the middle of a run."""
        if not self.name or not isinstance(self.name, str):
            raise BadArgument("an agent needs a name")
        if not isinstance(self.tools, Toolbox):
            raise BadArgument(f"agent {self.name!r}: its tools are a Toolbox, not {self.tools!r:.60}")
        if not callable(self.decide):
            raise BadArgument(f"agent {self.name!r}: decide is a function, as decider() gives one")
        for name, content in self.inputs.items():
            if not isinstance(content, bytes):
                raise BadArgument(f"agent {self.name!r}: input {name!r} is bytes, not {type(content).__name__}")

    def request(self, state: RunState) -> ModelRequest:
        """Return the request that the model is given in this state: the context projection."""
        return ModelRequest(state.model, self.system, list(state.messages), self.tools.schemas(), self.options)


class Journal(Protocol):
    """Where the loop's events go. `state` is always the fold of what was recorded."""

    state: RunState

    async def record(self, *events: Event) -> None:
        """Make *events* durable as one unit, and fold them, before returning."""

    def at_interruption(self) -> bool:
        """Replay: take a recorded run_resumed into the state if it comes next. Live: False, always."""


class Effects(Protocol):
    """What reaches outside."""

    async def ask(self, request: ModelRequest, state: RunState) -> Reply | ModelError:
        """Return the reply, or why there is none."""

    def run(self, calls: Sequence[OpenCall]) -> AsyncIterator[tuple[OpenCall, Any | ToolErrorText]]:
        """Run the calls and yield each outcome as it comes."""


class RecordingEnds(Exception):
    """Replay: the recorded run goes no further than this."""


OUTCOME_UNKNOWN = (
    "the run was interrupted while this call was under way, so it may or may not have taken effect;"
    " it was not run again"
)


async def drive(agent: Agent, journal: Journal, effects: Effects) -> RunState:
    """Drive the run until it has ended; return its state."""
    while True:
        if journal.at_interruption():
            continue
        match agent.decide(journal.state):
            case Done():
                return journal.state
            case StartTurn(turn):
                await journal.record(TurnStarted(turn))
            case AskModel(turn):
                request = agent.request(journal.state)
                outcome = await effects.ask(request, journal.state)
                await journal.record(_reply_event(journal.state, turn, request.hash(), outcome))
            case WriteCalls(turn, calls):
                written = [ToolCalled(turn, call, agent.tools.effect(call.name)) for call in calls]
                await journal.record(*written)
            case RunTools(calls):
                async for open_call, result in effects.run(calls):
                    await journal.record(_result_event(open_call, result))
            case GiveUpCall(open_call):
                await journal.record(ToolError(open_call.turn, open_call.call.id, OUTCOME_UNKNOWN))
            case RejectAnswer(turn, problem):
                await journal.record(AnswerRejected(turn, problem))
            case End(reason, answer):
                await journal.record(RunEnded(reason, answer))
            case other:
                raise BadArgument(
                    f"agent {agent.name!r}: decide returned {other!r:.60}, not an action: StartTurn, AskModel,"
                    " WriteCalls, RunTools, GiveUpCall, RejectAnswer, End or Done"
                )


def _reply_event(state: RunState, turn: int, request_hash: str, outcome: Reply | ModelError) -> Event:
    if isinstance(outcome, ModelError):
        return ModelFailed(turn, str(outcome), request_hash)
    calls = [
        # A model's own ids may repeat or be missing. Ours count the run's calls: unique, and the same
        # whether or not turns were lost on the way.
        ToolCall(f"c{number}", call.name, call.arguments)
        for number, call in enumerate(outcome.tool_calls, state.tool_calls + 1)
    ]
    return ModelDecision(turn, calls, outcome.text, request_hash, outcome.usage)


def _result_event(open_call: OpenCall, result: Any | ToolErrorText) -> Event:
    call_id = open_call.call.id
    if isinstance(result, ToolErrorText):
        return ToolError(open_call.turn, call_id, result.error)
    return ToolResult(open_call.turn, call_id, result)


def check_max_turns(max_turns: int) -> int:
    """Return *max_turns* if it is 1..10,000."""
    if not 1 <= max_turns <= MAX_TURNS_MOST:
        raise BadArgument(f"max_turns is 1..{MAX_TURNS_MOST}, not {max_turns}")
    return max_turns
