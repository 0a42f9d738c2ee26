"""The snapshots commands, and that no answer depends on snapshots."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tailfold.engine.backend import keys

from tests.cli.command import QUESTION, environment, json_lines, tailfold
from tests.surgery import change_row, flip

READS: tuple[tuple[str, ...], ...] = (
    ("state", "r-1"),
    ("state", "r-1", "--at", "5"),
    ("show", "r-1"),
    ("list",),
    ("export", "r-1"),
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("snapshots") / "store"
    assert tailfold(store, "run", QUESTION, "--model", "rules", "--run-id", "r-1").returncode == 0
    return store


@pytest.fixture
def copy(ended: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended, tmp_path / "copy"))


def test_an_ended_run_has_a_snapshot_and_explain_says_that_it_is_used(ended: Path) -> None:
    [listed] = json_lines(tailfold(ended, "snapshots", "list", "r-1", "--json"))
    assert (listed["version"], listed["fold"]) == (12, "agent_run")
    [explained] = json_lines(tailfold(ended, "snapshots", "explain", "r-1", "--json"))
    assert (explained["head"], explained["tail"], explained["used"]["version"]) == (12, 0, 12)
    assert "starts from version 12" in tailfold(ended, "snapshots", "explain", "r-1").stdout
    assert tailfold(ended, "snapshots", "list", "r-1").stdout.splitlines()[0].startswith("VERSION")
    assert tailfold(ended, "snapshots", "explain", "r-9").returncode == 6


def edited(store: Path, edit: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process whose agent fold has another handler."""
    script = (
        "from tailfold.engine.agent import state\nfrom tailfold.engine.agent.events import ModelFailed\n"
        f"{edit}\nfrom tailfold.cli.main import main\nmain()"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *arguments, "--store", str(store)],
        capture_output=True,
        text=True,
        env=environment(),
    )


def test_explain_names_the_reason_after_a_reducer_edit(ended: Path) -> None:
    edit = """
def changed(state, event):
    state.failures += 2
state.run_fold._handlers[ModelFailed] = changed
"""
    done = edited(ended, edit, "snapshots", "explain", "r-1")
    assert "no snapshot is usable" in done.stdout
    assert "other code: source differs" in done.stdout
    done = edited(ended, "state.run_fold.version = 2", "snapshots", "explain", "r-1")
    assert "other code: version differs" in done.stdout


def test_deleting_all_snapshot_data_changes_no_output(ended: Path, copy: Path) -> None:
    change_row(copy, "snapshots", lambda key: True, lambda *_: None)
    for command in READS:
        assert tailfold(copy, *command, "--json").stdout == tailfold(ended, *command, "--json").stdout
    [explained] = json_lines(tailfold(copy, "snapshots", "explain", "r-1", "--json"))
    assert (explained["used"], explained["tail"]) == (None, 12)


def test_verify_finds_a_snapshot_whose_bytes_were_edited_and_no_answer_changes(ended: Path, copy: Path) -> None:
    assert tailfold(copy, "snapshots", "verify").returncode == 0

    def edit(key: bytes, value: bytes) -> tuple[bytes, bytes]:
        return key, flip(value, len(value) - 9)

    change_row(copy, "snapshots", lambda key: True, edit)
    for asked in ((), ("r-1",)):
        done = tailfold(copy, "snapshots", "verify", *asked)
        assert done.returncode == 7
        assert "'r-1', snapshot at version 12" in done.stdout
    [report] = json_lines(tailfold(copy, "snapshots", "verify", "--json"))
    assert [(f["stream"], f["version"]) for f in report["findings"]] == [("r-1", 12)]
    for command in READS:
        assert tailfold(copy, *command, "--json").stdout == tailfold(ended, *command, "--json").stdout


def test_a_state_that_was_forged_with_its_hash_is_found_by_folding_anew(copy: Path) -> None:
    import msgspec
    from tailfold.snapshots.codec import hash_body
    from tailfold.snapshots.zstd import compress, decompress

    def forge(key: bytes, value: bytes) -> tuple[bytes, bytes]:
        row = keys.decode_snapshot_row(value)
        body = decompress(row.body).replace(b"60.00", b"61.00")
        forged = msgspec.structs.replace(row, body=compress(body), state_hash=hash_body(body))
        return key, keys.encode(forged)

    change_row(copy, "snapshots", lambda key: True, forge)
    done = tailfold(copy, "snapshots", "verify")
    assert done.returncode == 7
    assert "not what folding gives" in done.stdout


def test_prune_says_what_it_takes(copy: Path) -> None:
    [would] = json_lines(tailfold(copy, "snapshots", "prune", "--dry-run", "--json"))
    assert would == {"dry_run": True, "snapshots": 0, "chunks": 0, "chunk_bytes": 0}
    assert tailfold(copy, "snapshots", "prune").returncode == 0
    [listed] = json_lines(tailfold(copy, "snapshots", "list", "r-1", "--json"))
    assert listed["version"] == 12


def test_stats_says_what_the_bytes_are_for(ended: Path) -> None:
    [stats] = json_lines(tailfold(ended, "stats", "--json"))
    shares: dict[str, Any] = stats["bytes"]
    assert set(shares) == {"events", "snapshots", "chunks", "blobs", "indexes", "other"}
    assert shares["snapshots"] > 0
    assert sum(shares.values()) == sum(table["bytes"] for table in stats["tables"].values())


def test_list_of_a_stream_without_snapshots_says_so(ended: Path, tmp_path: Path) -> None:
    tailfold(tmp_path / "s", "run", QUESTION, "--model", "rules", "--run-id", "r-1", "--kill-after", "3")
    done = tailfold(tmp_path / "s", "snapshots", "list", "r-1")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no snapshots" in done.stderr
