"""The shipped agent's schema lock and golden corpus: every kind is there, and today's code goes with them (I9)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tailfold.engine import Store
from tailfold.engine.agent.events import AGENT_EVENTS, AGENT_UPCASTERS
from tailfold.engine.backend.memory import MemoryBackend
from tailfold.engine.schema_files import check, corpus_path, read_corpus, read_lock
from tailfold.engine.testing import LawBroken, check_schema
from tailfold.upcasters import Upcasters

from tests.agent_corpus import LOCK, main, run_all


def test_i9_the_shipped_agent_goes_with_its_lock_and_every_golden_payload_lifts_as_it_did() -> None:
    checked = check(AGENT_UPCASTERS, LOCK)
    assert checked.verdicts == [], "tailfold schema check says what to do; then tailfold schema lock"
    assert (checked.failed, checked.passed_over) == (0, 0)
    check_schema(AGENT_UPCASTERS, lock=LOCK)


def test_every_version_of_every_kind_has_a_golden_payload() -> None:
    golden = Counter((entry.kind, entry.version) for entry in read_corpus(corpus_path(LOCK)))
    locked = {(kind, int(v)) for kind, found in read_lock(LOCK).kinds.items() for v in found.versions}
    assert set(golden) == locked
    assert {kind for kind, _ in locked} >= {event.kind for event in AGENT_EVENTS}


def test_real_runs_write_every_kind_and_locking_again_changes_no_byte(tmp_path: Path) -> None:
    store = Store.open(backend=MemoryBackend())
    run_all(store)
    assert {one.kind for one in store.read_all()} == {event.kind for event in AGENT_EVENTS}
    path = tmp_path / LOCK.name
    first = main(path)
    assert first.taken >= len(AGENT_EVENTS)
    before = path.read_bytes(), corpus_path(path).read_bytes()
    assert main(path).taken == 0
    assert (path.read_bytes(), corpus_path(path).read_bytes()) == before
    assert path.read_bytes() == LOCK.read_bytes()


def test_check_schema_names_each_change_that_would_break_journals() -> None:
    with pytest.raises(LawBroken, match="run_started@1: breaking: the kind is gone"):
        check_schema([event for event in AGENT_EVENTS if event.kind != "run_started"], lock=LOCK)
    check_schema(Upcasters(events=AGENT_EVENTS), lock=LOCK)
