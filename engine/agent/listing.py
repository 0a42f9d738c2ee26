"""The list of runs, as a projection: what `tailfold list` shows without folding a single run.

One row a run, cut to what a list needs. Streams that are no runs are passed over, also where another program uses
the same kinds of events for other things.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tailfold.engine.agent.events import (
    AGENT_EVENTS,
    EndReason,
    ModelDecision,
    ModelFailed,
    RunEnded,
    RunRedirected,
    RunResumed,
    RunStarted,
    ToolCalled,
    TurnStarted,
)
from tailfold.engine.agent.state import Status, run_fold
from tailfold.engine.backend.port import Head
from tailfold.engine.errors import RecordDamaged
from tailfold.engine.log import Recorded
from tailfold.engine.projections import Projection, Stored
from tailfold.engine.rawrecords import as_record, stored_payloads, tag_of_record, time_of_record
from tailfold.engine.store import Store
from tailfold.snapshots import Table

TEXT_CHARS_MAX = 500
"""Questions and answers are cut to this in the list."""


class RunRow(msgspec.Struct, frozen=True):
    """A run in the list."""

    run: str
    agent: str
    model: str
    question: str
    """Cut to 500 characters, as the answer is."""
    max_turns: int
    started_ns: int
    """UTC, nanoseconds since 1970."""
    status: Status = "running"
    reason: EndReason | None = None
    answer: str | None = None
    turns: int = 0
    events: int = 0
    """The version of its last event of a known kind."""
    tool_calls: int = 0
    model_failures: int = 0
    resumes: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    model_ms: int = 0
    """What the model said that its calls took."""
    model_ns: int = 0
    """From the start of each turn to the model's reply, by the times of the events: what was waited for it."""
    asked_ns: int = 0
    """When the model was asked that has not replied yet; 0 if none was."""
    last_kind: str = ""
    updated_ns: int = 0


@dataclass
class RunList:
    """The state of the projection."""

    runs: Table[str, RunRow] = field(default_factory=Table[str, RunRow])

    def rows(self) -> list[RunRow]:
        """Return all rows in byte order of the run ids."""
        return sorted(self.runs.values(), key=lambda row: row.run.encode())


@functools.cache
def run_list(agent: str | None = None) -> Projection[RunList]:
    """Return the projection of the runs of one *agent*, or of all."""

    def wants(state: RunList, stored: Stored) -> bool:
        return _begins_run(stored, agent) if stored.version == 1 else stored.stream in state.runs

    name = "runs" if agent is None else f"runs of {agent}"
    projection: Projection[RunList] = Projection(name, RunList, version=1, wants=wants)
    listed = _listed_of(agent)
    for event_type in AGENT_EVENTS:
        projection.on(event_type)(listed)
    return projection


def runs_of(store: Store, agent: str | None = None) -> list[RunRow]:
    """Return the runs of one *agent*, or of all, in byte order of their ids; forks are runs, deleted ones are not.

    Folds only what is new since the list was last saved in the store.
    """
    return complete(store, store.project(run_list(agent)).state, agent)[0]


def is_run(store: Store, stream: str) -> bool:
    """Say whether *stream* begins as an agent's run does: another program may use its kinds for other things."""
    for row in store.backend.rows(stream, after=0, upto=1, limit=1):
        with suppress(ValueError, RecordDamaged):
            for kind, version, payload in stored_payloads(row.data)[:1]:
                return _begins_run(Stored(stream, 1, kind, version, as_record(kind, version, payload)), None)
    return False


def complete(store: Store, rows: RunList, agent: str | None = None) -> tuple[list[RunRow], int]:
    """Return the rows of all runs that can be read, with those of forks, in byte order of the run ids.

    The events of a fork begin in the middle of a run, so its first row comes from its folded state; from then on
    the projection keeps it. Deleted runs have none. Also returns how many rows of forks were made: worth saving.
    """
    made = 0
    for head in store.backend.forks():
        known = rows.runs.get(head.stream)
        if known is None or known.events != head.version:
            row = _row_of_fork(store, head, agent)
            if row is not None:
                rows.runs[head.stream] = row
                made += 1
    deleted = {one.stream for one in store.backend.tombstones()}
    return [row for row in rows.rows() if row.run not in deleted], made


def _row_of_fork(store: Store, head: Head, agent: str | None) -> RunRow | None:
    versions = (1, head.version)
    first, last = (store.backend.rows(head.stream, after=v - 1, upto=v, limit=1)[0] for v in versions)
    if not _begins_run(Stored(head.stream, 1, *tag_of_record(first.data), first.data), agent):
        return None
    state = store.load(head.stream, run_fold).state
    return RunRow(
        head.stream,
        state.agent,
        state.model,
        _cut(state.question),
        state.max_turns,
        time_of_record(first.data),
        state.status,
        state.reason,
        _cut(state.answer),
        state.turn,
        head.version,
        state.tool_calls,
        state.failures,
        state.resumes,
        state.prompt_tokens,
        state.output_tokens,
        state.model_ms,
        state.model_ms * 1_000_000,
        0,
        tag_of_record(last.data)[0],
        time_of_record(last.data),
    )


def _begins_run(stored: Stored, agent: str | None) -> bool:
    if stored.kind != RunStarted.kind:
        return False
    payload = stored.payload()
    if not isinstance(payload, dict) or (agent is not None and payload.get("agent") != agent):
        return False
    if stored.schema_version > RunStarted.version:  # of newer code: whoever decodes it says so
        return isinstance(payload.get("agent"), str) and isinstance(payload.get("question"), str)
    return _fits(payload)


def _fits(payload: dict[str, Any]) -> bool:
    try:
        msgspec.convert(payload, _Begin)
    except msgspec.ValidationError:
        return False
    return True


class _Begin(msgspec.Struct):
    agent: str
    question: str
    model: str
    max_turns: int


def _listed_of(agent: str | None) -> Callable[[RunList, Recorded], None]:
    def listed(state: RunList, recorded: Recorded) -> None:
        event = recorded.event
        if isinstance(event, RunStarted) and recorded.version == 1:
            if agent is None or event.agent == agent:
                state.runs[recorded.stream] = _begun(recorded, event)
            return
        row = state.runs.get(recorded.stream)
        if row is not None:
            state.runs[recorded.stream] = _gone_on(row, recorded)

    return listed


def _begun(recorded: Recorded, event: RunStarted) -> RunRow:
    return RunRow(
        recorded.stream,
        event.agent,
        event.model,
        _cut(event.question),
        event.max_turns,
        recorded.time_ns,
        events=1,
        last_kind=recorded.kind,
        updated_ns=recorded.time_ns,
    )


def _gone_on(row: RunRow, recorded: Recorded) -> RunRow:
    changes: dict[str, Any] = {}
    match recorded.event:
        case TurnStarted(turn=turn):
            changes = {"turns": turn, "asked_ns": recorded.time_ns}
        case ModelDecision(usage=usage):
            changes = _replied(row, recorded.time_ns) | {
                "prompt_tokens": row.prompt_tokens + usage.prompt_tokens,
                "output_tokens": row.output_tokens + usage.output_tokens,
                "model_ms": row.model_ms + usage.duration_ms,
            }
        case ModelFailed():
            changes = _replied(row, recorded.time_ns) | {"model_failures": row.model_failures + 1}
        case ToolCalled():
            changes = {"tool_calls": row.tool_calls + 1}
        case RunResumed():
            changes = {"resumes": row.resumes + 1, "asked_ns": 0}  # the reply that was waited for is lost
        case RunRedirected(question=question, model=model, max_turns=max_turns):
            changes = {"model": model or row.model, "max_turns": max_turns or row.max_turns}
            if max_turns is not None and row.reason == "budget_exhausted":
                changes |= {"status": "running", "reason": None}
            if question is not None:
                changes |= {"question": _cut(question), "status": "running", "reason": None, "answer": None}
        case RunEnded(reason=reason, answer=answer):
            changes = {"status": "ended", "reason": reason, "answer": _cut(answer), "asked_ns": 0}
    return msgspec.structs.replace(
        row, events=recorded.version, last_kind=recorded.kind, updated_ns=recorded.time_ns, **changes
    )


def _replied(row: RunRow, time_ns: int) -> dict[str, int]:
    waited = max(0, time_ns - row.asked_ns) if row.asked_ns else 0
    return {"model_ns": row.model_ns + waited, "asked_ns": 0}


def _cut(text: Any) -> Any:
    if isinstance(text, str) and len(text) > TEXT_CHARS_MAX:
        return text[: TEXT_CHARS_MAX - 1] + "…"
    return text
