"""The laws of folds that users get: good folds keep them, and a fold that breaks one is found."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tailfold.engine import Event, Fold, MemoryBackend, Store
from tailfold.engine.testing import LawBroken, check_fold, check_hash_seeds
from tailfold.engine.testing import given as given_
from tailfold.snapshots import Series

from tests.domain import Account, Deposited, Noted, Withdrawn, account
from tests.growing import Said, talk

DOES = """
from pathlib import Path
from tailfold.engine import Event, Fold
from tailfold.engine.testing import check_hash_seeds
class E(Event, frozen=True):
    kind = "e"
fold = Fold("f", dict, state_type=dict[str, int])
@fold.on(E)
def _(state, event): state["n"] = 1
assert not Path("done").exists(), "twice"
Path("done").touch()
"""


@pytest.mark.parametrize("events", [0, 1, 40])
def test_the_shipped_laws_hold_for_the_tests_own_folds(events: int) -> None:
    chance = random.Random(3)
    history: list[Event] = [Said(f"p{chance.randrange(9)}", "x" * (i % 5)) for i in range(events)]
    check_fold(talk, history)
    check_fold(account, [Deposited(i) for i in range(events)])


def test_the_agents_own_fold_keeps_the_laws() -> None:
    import asyncio

    from tailfold.engine.agent.models import RuleModel
    from tailfold.engine.agent.runtime import start
    from tailfold.engine.agent.state import run_fold
    from tailfold.engine.agents.comparetiers import comparetiers, shipped
    from tailfold.engine.agents.comparetiers import rule as price_rule

    store = Store.open(backend=MemoryBackend())
    question = "Which is cheapest for 10 seats: Slack, Zoom or Linear?"
    asyncio.run(start(store, "r", comparetiers(shipped(), "x"), RuleModel(price_rule), question))
    check_fold(run_fold, [r.event for r in store.read("r") if isinstance(r.event, Event)])


# -- folds that break a law are found --------------------------------------------------------------------


def test_a_fold_that_reads_the_clock_or_randomness_is_found() -> None:
    import time

    for impure in (lambda s, e: [*s, time.time()], lambda s, e: [*s, random.random()]):
        bad: Fold[list[float]] = Fold("bad", list, state_type=list[float])
        bad.on(Deposited)(impure)
        with pytest.raises(LawBroken, match="not deterministic"):
            check_fold(bad, [Deposited(1)])


def test_a_fold_that_depends_on_the_hash_seed_is_found() -> None:
    from tests import seeded

    with pytest.raises(LawBroken, match="hash seed"):
        check_hash_seeds(seeded.first_of_a_set, [Noted(str(i)) for i in range(20)])


def test_a_fold_is_found_in_a_package_that_imports_it_by_itself(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("from shop.rules import largest\n")
    (package / "rules.py").write_text("from shop.states import fold\ndef largest(state): return max(state)\n")
    (package / "states.py").write_text("import shop.events\n" + DOES.split("assert not")[0])
    (package / "events.py").write_text("")
    (tmp_path / "test_it.py").write_text(
        "from shop.states import *\ndef test():\n    check_hash_seeds(fold, [E()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_a_fold_whose_module_cannot_be_imported_alone_is_told_why(tmp_path: Path) -> None:
    (tmp_path / "does.py").write_text(DOES)
    (tmp_path / "test_it.py").write_text("from does import *\ndef test():\n    check_hash_seeds(fold, [E()])\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "may do nothing but define" in done.stdout
    assert "does.py" in done.stdout
    assert "AssertionError: twice" in done.stdout


def test_a_check_at_the_top_of_a_script_starts_no_processes_without_end(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(DOES.split("assert not")[0] + "check_hash_seeds(fold, [E()])\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "put it into a test" in done.stderr


def test_a_fold_that_changes_an_item_after_appending_it_is_found() -> None:
    @dataclass
    class Box:
        n: int = 0

    @dataclass
    class Boxes:
        items: Series[Box] = field(default_factory=Series[Box])
        first: Box | None = None

    bad: Fold[Boxes] = Fold("boxes", Boxes)

    @bad.on(Deposited)
    def _(state: Boxes, event: Deposited) -> None:
        box = Box(event.amount)
        state.items.append(box)
        if state.first is None:
            state.first = box
        state.first.n += 1  # two fields hold one object: a snapshot makes two of it

    with pytest.raises(LawBroken):
        check_fold(bad, [Deposited(1), Deposited(2), Deposited(3)])


def test_a_state_that_would_not_come_back_is_found() -> None:
    bad: Fold[Any] = Fold("loose", list)
    bad.on(Deposited)(lambda s, e: [*s, (e.amount, e.amount)])
    with pytest.raises(LawBroken, match="annotate"):
        check_fold(bad, [Deposited(1)])


def test_given_when_then() -> None:
    given_(account, Deposited(5)).when(Withdrawn(2)).then(Account(balance=3, events=2))
    given_(account, Deposited(5)).when(lambda state: state.balance).then(5)
    given_(account).then(lambda state: state.balance == 0)
    with pytest.raises(LawBroken):
        given_(account).when(Deposited(1)).then(Account())
