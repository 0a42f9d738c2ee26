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
    """Ids of the events of one run that later ones are caused by."""

    def __init__(self, last: str | None = None) -> None:
        """Begin after the event with the id *last*, if there is one."""
        self.last = last
        self.decided: str | None = None
        self.called: dict[str, str] = {}
        """By call id, the event that wrote an open call down: the key of the call, whichever run takes it up."""

    def note(self, event_id: str, event: Event) -> None:
        """Take note of an event that is in the journal."""
        match event:
            case ModelDecision():
                self.decided = event_id
            case ToolCalled(call=call):
                self.called[call.id] = event_id
            case ToolResult(call_id=call_id) | ToolError(call_id=call_id):
                self.called.pop(call_id, None)

    def of(self, event: Event) -> str | None:
        """Return the id of what causes *event*, which comes next; None for nothing."""
        match event:
            case ToolCalled() | AnswerRejected() | RunEnded(reason="answered"):
                return self.decided or self.last
            case ToolResult(call_id=call_id) | ToolError(call_id=call_id):
                return self.called.get(call_id, self.last)
        return self.last


def causes_of(store: Store, run_id: str, state: RunState) -> Causes:
    """Return the causes that a driver needs who takes up *run_id* in *state*: reads back to the last decision."""
    causes = Causes()
    wanted = {open_call.call.id for open_call in state.open_calls}
    for recorded in store.read(run_id, backwards=True):
        if causes.last is None:
            causes.last = recorded.event_id
        if isinstance(recorded.event, ToolCalled) and recorded.event.call.id in wanted:
            causes.note(recorded.event_id, recorded.event)
        if isinstance(recorded.event, ModelDecision):
            causes.note(recorded.event_id, recorded.event)
            break  # calls are of the last decision: no turn begins while one is open
    return causes
