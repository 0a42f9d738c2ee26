"""What caused each event of a run: what the loop acted on, which is not always the event before it.

A call is caused by the decision that wanted it, its result by the call, an end or a rejection by the proposal, and
everything else by the event before it. Whoever traces an event finds the tree of the run (`tracing`).
"""

from __future__ import annotations

from tailfold.engine.agent.events import (
    AnswerRejected,
    ModelDecision,
    RunEnded,
    ToolCalled,
    ToolError,
    ToolResult,
)
from tailfold.engine.agent.state import RunState
from tailfold.engine.events import Event
from tailfold.engine.store import Store


class Causes:
    """Versions of the events of one run that later ones are caused by."""

    def __init__(self) -> None:
        self.decided = 0
        self.called: dict[str, int] = {}

    def note(self, version: int, event: Event) -> None:
        """Take note of an event that is in the journal."""
        match event:
            case ModelDecision():
                self.decided = version
            case ToolCalled(call=call):
                self.called[call.id] = version
            case ToolResult(call_id=call_id) | ToolError(call_id=call_id):
                self.called.pop(call_id, None)

    def of(self, event: Event, last: int) -> int:
        """Return the version of what causes *event*, in a journal at version *last*; 0 for nothing."""
        match event:
            case ToolCalled() | AnswerRejected() | RunEnded(reason="answered"):
                return self.decided or last
            case ToolResult(call_id=call_id) | ToolError(call_id=call_id):
                return self.called.get(call_id, last)
        return last


def causes_of(store: Store, run_id: str, state: RunState) -> Causes:
    """Return the causes that a driver needs who takes up *run_id* in *state*: reads back to the last decision."""
    causes = Causes()
    wanted = {open_call.call.id for open_call in state.open_calls}
    for recorded in store.read(run_id, backwards=True):
        if isinstance(recorded.event, ToolCalled) and recorded.event.call.id in wanted:
            causes.note(recorded.version, recorded.event)
        if isinstance(recorded.event, ModelDecision):
            causes.note(recorded.version, recorded.event)
            break  # calls are of the last decision: no turn begins while one is open
    return causes
