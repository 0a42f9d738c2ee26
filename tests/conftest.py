"""Profiles: quick by default, long with TAILFOLD_TESTS=long. Nothing here reaches beyond loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from tailfold.engine import Durability, LmdbBackend, MemoryBackend, Store
from tailfold.engine.backend.port import Backend

settings.register_profile(
    "quick",
    max_examples=40,
    deadline=timedelta(seconds=5),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("quick"), max_examples=2000, deadline=None)
settings.register_profile(
    "noshrink", settings.get_profile("quick"), phases=[Phase.explicit, Phase.generate], print_blob=True
)
settings.load_profile(
    "long" if os.environ.get("TAILFOLD_TESTS") == "long" else os.environ.get("TAILFOLD_TESTS", "quick")
)


@pytest.fixture(autouse=True)
def _no_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a developer's own store and Ollama out of the tests."""
    monkeypatch.delenv("TAILFOLD_STORE", raising=False)
    monkeypatch.delenv("TAILFOLD_DEBUG", raising=False)
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")


@pytest.fixture(params=["lmdb", "memory"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    opened: Backend
    if request.param == "lmdb":
        opened = LmdbBackend(tmp_path / "store", durability=Durability.RELAXED)
    else:
        opened = MemoryBackend()
    yield opened
    opened.close()


@pytest.fixture
def store(backend: Backend) -> Store:
    return Store.open(backend=backend)
