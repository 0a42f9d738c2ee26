"""Fixtures of the agent's tests."""

from __future__ import annotations

import pytest
from tailfold.engine.agent import runtime
from tailfold.engine.agent.models import ollama as adapter


@pytest.fixture
def nothing_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no proxy and no waits between the adapter and the fake."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv(adapter.TIMEOUT_VARIABLE, raising=False)
    monkeypatch.delenv("OLLAMA_API_KEY", raising=False)
    monkeypatch.setattr(runtime, "RETRY_FIRST_S", 0.0)
