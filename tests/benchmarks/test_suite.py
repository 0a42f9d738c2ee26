"""`all` runs each part in a process of its own, keeps its JSON, and says what failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.__main__ import BENCHMARKS, versions
from benchmarks.children import ROOT
from benchmarks.peers.catalogue import CATALOGUE
from benchmarks.suite import PLAN


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_run_prints_bars_and_figures_and_keeps_each_parts_json(tmp_path: Path) -> None:
    done = run("all", "--quick", "--only", "list", "--json", "--out", str(tmp_path), "--dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [figure["name"] for figure in found["figures"]] == ["list of 1 k runs with status, warm"]
    assert {bar["verdict"] for bar in found["bars"]} == {"not measured"}
    assert json.loads((tmp_path / "list.json").read_text()) == found["parts"]["list"]
    assert json.loads((tmp_path / "run.json").read_text()) == found["run"]
    assert "list: " in done.stderr


def test_a_part_that_fails_is_named_and_the_exit_code_says_so(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    done = run("all", "--quick", "--only", "list", "--out", str(tmp_path), "--dir", nowhere)
    assert done.returncode == 1
    assert "FAILED list: exit 1" in done.stdout


def test_every_benchmark_is_a_part_of_all_or_works_on_its_results() -> None:
    assert set(BENCHMARKS) - set(PLAN) == {"all", "guard", "report"}


def test_versions_name_every_peers_packages() -> None:
    assert set(versions()) >= {package for entry in CATALOGUE.values() for package in entry.packages}
