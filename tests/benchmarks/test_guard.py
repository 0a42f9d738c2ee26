"""The guard counts the same twice, and finds work that was not there before. It asks no clock."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import guard
from benchmarks.guard_operations import OPERATIONS, count_bytecodes


def test_operations_take_no_more_bytecodes_than_the_baseline() -> None:
    environment = guard.environments()["bytecodes"]
    if environment not in guard.read(guard.BASELINE)["bytecodes"]:
        pytest.skip(f"no baseline for {environment}: python -m benchmarks guard --update")
    counts = guard.count(("bytecodes",))
    assert set(counts["bytecodes"]) == set(OPERATIONS)
    assert guard.compare(guard.read(guard.BASELINE), counts)["too_many"] == []


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_operations_take_no_more_instructions_than_the_baseline() -> None:
    environment = guard.environments()["instructions"]
    if environment not in guard.read(guard.BASELINE)["instructions"]:
        pytest.skip(f"no baseline for {environment}: python -m benchmarks guard --update")
    counts = guard.count(("instructions",))
    assert guard.compare(guard.read(guard.BASELINE), counts)["too_many"] == []


def test_the_same_work_counts_the_same_and_more_work_counts_more() -> None:
    def work(times: int) -> int:
        def turn() -> None:
            for i in range(times):
                str(i)

        return count_bytecodes(turn)

    assert work(100) == work(100)
    assert work(200) > work(100) * 1.5


def test_a_regression_is_named_and_an_improvement_passes() -> None:
    environments = guard.environments()
    baseline = {"bytecodes": {environments["bytecodes"]: dict.fromkeys(OPERATIONS, 1000)}}
    worse = {"bytecodes": {**dict.fromkeys(OPERATIONS, 900), "fold": 1031}}
    assert guard.compare(baseline, worse)["too_many"] == ["fold: 1,031 bytecodes, +3.1% on the baseline"]
    assert guard.compare(baseline, {"bytecodes": dict.fromkeys(OPERATIONS, 1030)})["too_many"] == []


def test_an_environment_without_a_baseline_is_named_and_can_be_added(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    counts = {"bytecodes": dict.fromkeys(OPERATIONS, 10)}
    assert guard.compare(guard.read(path), counts)["without_baseline"]
    path.write_text('{"bytecodes": {"python 2.7": {"fold": 1}}}')
    guard.update(path, counts)
    assert guard.compare(guard.read(path), counts)["without_baseline"] == []
    assert guard.read(path)["bytecodes"]["python 2.7"] == {"fold": 1}
