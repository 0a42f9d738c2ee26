"""LangGraph's SQLite checkpointer under a graph that loops over one node: a step of the agent is a superstep.

Two peers: messages in an ordinary reducer channel, whose whole value is in every checkpoint, and in a delta
channel (beta), which keeps the writes and a snapshot now and then. ``durability="sync"``: a checkpoint is written
before the next step begins, as ours is; the default of the library is ``async``.
"""

from __future__ import annotations

import operator
import sqlite3
import time
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from benchmarks.peers.protocol import CONTEXT, NotOffered, Peer, Resumed
from benchmarks.workload import Item

BATCH = 500


def _extended(messages: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*messages, *(message for write in writes for message in write)]


class FullState(TypedDict):
    messages: Annotated[list[dict[str, Any]], operator.add]


class DeltaState(TypedDict):
    messages: Annotated[list[dict[str, Any]], DeltaChannel(_extended)]


class LangGraphFull(Peer):
    name = "langgraph"
    durability = "sync; WAL, SQLite's default synchronous=FULL"
    state: type = FullState

    def __init__(self, folder: Path) -> None:
        # As the documentation shows it; the saver itself sets WAL.
        self.db = sqlite3.connect(folder / "checkpoints.db", check_same_thread=False)
        self.saver = SqliteSaver(self.db)
        self._todo: list[dict[str, Any]] = []
        self._begun: list[float] = []
        self._forks: dict[str, Any] = {}
        graph = StateGraph(self.state)
        graph.add_node("step", self._step)
        graph.add_edge(START, "step")
        graph.add_conditional_edges("step", lambda _: "step" if self._todo else END)
        self.graph = graph.compile(checkpointer=self.saver)

    def _step(self, _: Any) -> dict[str, Any]:
        """What the model or a tool answers next: the outside world, so not in the state."""
        self._begun.append(time.perf_counter())
        return {"messages": [self._todo.pop()]}

    def _config(self, session: str, limit: int = 25) -> Any:
        return self._forks.get(session) or {"configurable": {"thread_id": session}, "recursion_limit": limit}

    def append_each(self, session: str, items: Sequence[Item]) -> list[float]:
        self._todo = [msgspec.to_builtins(item) for item in reversed(items)]
        self._begun = []
        self.graph.invoke({"messages": []}, self._config(session, len(items) + 10), durability="sync")
        times = [*self._begun, time.perf_counter()]
        return [after - before for before, after in pairwise(times)]

    def append_bulk(self, session: str, items: Iterable[Item]) -> None:
        rest = iter(items)
        while batch := [msgspec.to_builtins(item) for item in islice(rest, BATCH)]:
            self.graph.update_state(self._config(session), {"messages": batch}, as_node="step")

    def rebuild(self, session: str) -> Resumed:
        raise NotOffered("checkpoints are states: there is no log of events to fold from the start")

    def resume(self, session: str) -> Resumed:
        return _resumed(self.graph.get_state(self._config(session)).values["messages"])

    def fork(self, session: str, at: int, name: str) -> None:
        """Branch off an earlier checkpoint of the same thread, found in its history."""
        for found in self.graph.get_state_history(self._config(session)):
            if len(found.values.get("messages", ())) == at:
                self._forks[name] = self.graph.update_state(found.config, {"messages": []}, as_node="step")
                return
        raise NotOffered(f"there is no checkpoint at {at} messages")

    def sessions(self) -> int:
        """There is no list of threads: walk all checkpoints."""
        return len({found.config["configurable"]["thread_id"] for found in self.saver.list(None)})

    def close(self) -> None:
        self.db.close()


class LangGraphDelta(LangGraphFull):
    name = "langgraph_delta"
    state = DeltaState


def _resumed(messages: list[dict[str, Any]]) -> Resumed:
    """The messages are the state; only what a resume is checked by is counted here."""
    characters = sum(len(message["text"]) for message in messages)
    return Resumed(len(messages), characters, [message["text"] for message in messages[-CONTEXT:]])
