"""Real runs in which every kind of event of the shipped agent is written: what its golden corpus is taken from.

``python -m tests.agent_corpus`` adds payloads of kinds that the committed corpus lacks, and writes the lock anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from tailfold.engine import Store
from tailfold.engine.agent.events import AGENT_UPCASTERS, RunRedirected, ToolCall
from tailfold.engine.agent.loop import ModelError, Reply
from tailfold.engine.agent.messages import ModelRequest
from tailfold.engine.agent.models import RuleModel
from tailfold.engine.agent.runtime import resume, start
from tailfold.engine.agents.comparetiers import comparetiers, rule, shipped
from tailfold.engine.backend.memory import MemoryBackend
from tailfold.engine.schema_files import LOCK_DEFAULT, Locked, corpus_path, read_corpus, write
from tailfold.engine.schema_report import take_payloads

ROOT = Path(__file__).parent.parent
LOCK = ROOT / LOCK_DEFAULT
QUESTION = "How much is Notion Plus for 5 seats, billed monthly?"


class Stopped(BaseException):
    """The process ends here."""


class Scripted:
    """A model that says what it is told to; an exception is raised."""

    name = "scripted"

    def __init__(self, *replies: Reply | BaseException) -> None:
        self._replies: Iterator[Reply | BaseException] = iter(replies)

    async def reply(self, request: ModelRequest) -> Reply:
        said = next(self._replies)
        if isinstance(said, BaseException):
            raise said
        return said


def run_all(store: Store) -> None:
    """Write runs that have every kind between them."""
    agent = comparetiers(shipped(), "shipped")
    asyncio.run(start(store, "answered", agent, RuleModel(rule), QUESTION))
    asyncio.run(start(store, "cut-short", agent, RuleModel(rule), QUESTION, max_turns=1))
    troubled = Scripted(
        ModelError("the model did not answer within 300 s"),
        Reply("", [ToolCall("c1", "quote", {"product": "Notion", "plan": "Plus", "seats": -1})]),
        Reply("It costs $1.00."),
        Stopped(),
    )
    try:
        asyncio.run(start(store, "troubled", agent, troubled, QUESTION, max_turns=5))
    except Stopped:
        given_up = Scripted(Reply("It costs nothing."), Reply("I do not know."))
        asked = RunRedirected(question="And for 6 seats?", max_turns=6)
        asyncio.run(resume(store, "troubled", lambda started: agent, lambda name: given_up, redirect=asked))


def main(path: Path = LOCK) -> Locked:
    """Lock the shipped agent's schemas at *path*."""
    clock = iter(range(1_700_000_000_000_000_000, 1_800_000_000_000_000_000, 1_000_000))
    store = Store.open(backend=MemoryBackend(), clock=lambda: next(clock), upcasters=AGENT_UPCASTERS)
    run_all(store)
    payloads = take_payloads(store.log, read_corpus(corpus_path(path)), most=3)
    return write(AGENT_UPCASTERS, path, payloads=payloads)


if __name__ == "__main__":
    print(main())
