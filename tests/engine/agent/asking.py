"""What the tests of the Ollama adapter ask, and whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from tailfold.engine.agent.loop import Agent
from tailfold.engine.agents.comparetiers import comparetiers, shipped

RUN = "r-1"
QUESTION = "How much is Notion Plus for 5 seats, billed monthly?"
NOTION = {"product": "Notion", "plan": "Plus", "seats": 5, "billing": "monthly"}
SLACK = {"product": "Slack", "plan": "Pro", "seats": 5, "billing": "monthly"}
LONG_S = 30.0

R = TypeVar("R")


def agent() -> Agent:
    return comparetiers(shipped(), "shipped")


def within(seconds: float, work: Coroutine[Any, Any, R]) -> R:
    """Run *work*; fail if it does not end, well or badly, within *seconds*."""
    begun = time.monotonic()
    try:
        return asyncio.run(work)
    finally:
        assert time.monotonic() - begun < seconds
