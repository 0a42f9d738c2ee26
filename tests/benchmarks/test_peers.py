"""Peers hold the same state as we do, by the same protocol; what is missing or not offered is said."""

from __future__ import annotations

import argparse
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.children import Cut, run_child
from benchmarks.compare_child import digest
from benchmarks.peers.catalogue import CATALOGUE, Entry
from benchmarks.peers.protocol import State
from benchmarks.workload import AGENT, items

INSTALLED = [name for name, entry in CATALOGUE.items() if not entry.missing()]
OF_THE_STANDARD_LIBRARY = [name for name, entry in CATALOGUE.items() if not entry.packages]


def arguments(folder: Path, peers: str, **more: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    compare.options(parser)
    given = ["--peers", peers, "--sizes", "60,120", "--appends", "20", "--sessions", "5", "--budget-s", "20"]
    found = parser.parse_args([*given, "--dir", str(folder)])
    return argparse.Namespace(**{**vars(found), **more})


def folded(events: int) -> str:
    state = State()
    for item in items(AGENT, events):
        state.take(item)
    return digest(state.resumed())


@pytest.mark.parametrize("name", OF_THE_STANDARD_LIBRARY)
def test_a_fork_sees_what_was_there_and_goes_on_by_itself(name: str, tmp_path: Path) -> None:
    todo = list(items(AGENT, 30))
    peer = CATALOGUE[name].load()(tmp_path)
    peer.append_bulk("s", todo[:20])
    peer.fork("s", 15, "f")
    assert len(peer.append_each("f", todo[20:25])) == 5
    peer.append_each("s", todo[25:])
    peer.short_session("other", todo[:3])
    assert peer.sessions() == 3
    for session, wanted in (("s", [*todo[:20], *todo[25:]]), ("f", [*todo[:15], *todo[20:25]])):
        for found in (peer.resume(session), peer.rebuild(session)):
            assert found.events == len(wanted)
            assert found.characters == sum(len(item.text) for item in wanted)
            assert list(found.context) == [item.text for item in wanted][-20:]
    peer.close()
    again = CATALOGUE[name].load()(tmp_path)
    assert again.resume("f").events == 20
    again.close()


@pytest.mark.parametrize("name", ["jsonl", *(name for name in INSTALLED if name not in OF_THE_STANDARD_LIBRARY)])
def test_a_peer_is_measured_from_end_to_end(name: str, tmp_path: Path) -> None:
    if name == "dbos" and sys.version_info >= (3, 12) and sqlite3.sqlite_version_info < (3, 42):
        pytest.skip("on Python 3.12 and later dbos asks SQLite for unixepoch('subsec'), which came with 3.42")
    found = compare.measure(arguments(tmp_path, name))["peers"][name]
    assert found["cut_off"] == []
    assert [point["events"] for point in found["points"]] == [60, 120]
    assert [point["state"] for point in found["points"]] == [folded(60), folded(120)], "the same for every peer"
    assert found["append"]["events"] == 20
    assert found["sessions_made"] == 5
    assert found["list"]["sessions"] >= 5
    for point in found["points"]:
        assert point["resume_ms"] > 0
        assert point["rss_mb"] > 10
        assert point["disk_bytes"] > 0
        for what in ("rebuild", "fork"):
            assert "not_offered" in point[what] or min(point[what].values()) > 0


def test_a_peer_that_is_not_installed_is_named_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = replace(CATALOGUE["eventsourcing"], packages=("no-such-distribution",))
    monkeypatch.setitem(CATALOGUE, "eventsourcing", absent)
    found = compare.measure(arguments(tmp_path, "eventsourcing"))["peers"]["eventsourcing"]
    assert found == {"not_installed": ["no-such-distribution"], "install": "pip install '.[bench]'"}


def test_a_peer_that_is_too_slow_is_cut_off_and_says_where(tmp_path: Path) -> None:
    found = compare.measure(arguments(tmp_path, "json_files", sizes="100000", budget_s=0.3))
    peer = found["peers"]["json_files"]
    assert peer["cut_off"]
    assert peer["points"][-1]["events"] < 100_000
    assert "of 100,000 events" in peer["cut_off"][-1]


def test_sessions_that_differ_are_not_compared(tmp_path: Path) -> None:
    one, other = ({"points": [{"events": 5, "state": state}]} for state in ("a", "b"))
    with pytest.raises(AssertionError, match="y and x differ at 5 events"):
        compare._check_agreement({"x": one, "y": other})


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(Cut, match="exit 2"):
        run_child(["no-such-benchmark"], timeout_s=60)


def test_entries_are_found_by_their_own_names() -> None:
    for name, entry in CATALOGUE.items():
        assert isinstance(entry, Entry)
        assert entry.name == name
        if not entry.missing():
            assert entry.module
    assert "tailfold" in INSTALLED
