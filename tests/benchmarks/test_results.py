"""Bars are judged by what was measured, wins and losses are told apart, and the report says them all."""

from __future__ import annotations

import argparse
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.bars import MET, MISSED, UNKNOWN, judge
from benchmarks.figures import Figure, all_figures, peer_figures
from benchmarks.plot import lines

ROOT = Path(__file__).parent.parent.parent


def resume_part(**more: Any) -> dict[str, Any]:
    rows = [
        {"events": events, "resume_ms": ms, "peak_rss_mb": 58.0, "full_fold_s": events / 1e6}
        for events, ms in ((1000, 1.4), (10_000_000, 1.6))
    ]
    ratios = {"bytes_doubled": 1.99, "snapshot_and_chunk_share_of_event_bytes": 0.24}
    return {"versions": {"python": "3"}, "tail": 500, "sizes": rows, "ratios": ratios, **more}


def point(events: int, **more: Any) -> dict[str, Any]:
    found = {"events": events, "resume_ms": 2.0, "resume_first_ms": 9.0, "rss_mb": 40.0, "disk_bytes": 1000}
    return {**found, "bulk_events_per_s": 9e4, "rebuild": {"ms": 3.0}, "fork": {"fork_ms": 1.0}, **more}


def peers_part() -> dict[str, Any]:
    append = {"p50_ms": 0.3, "p99_ms": 0.5, "times_text": 1.5}
    peer = {"versions": {}, "durability": "yes", "cut_off": [], "append": append}
    listed = {"sessions": 10, "ms": 0.1}
    ours = peer | {"list": listed, "points": [point(1000), point(10_000)]}
    faster = peer | {"list": {"not_offered": "no list"}, "points": [point(1000, resume_ms=1.0)]}
    faster |= {"cut_off": ["at 4,000 of 10,000 events, after 2 s"]}
    forkless = peer | {"list": listed, "points": [point(1000, fork={"not_offered": "no forks"}), point(10_000)]}
    absent = {"not_installed": ["absent"], "install": "pip install '.[bench]'"}
    peers = {"tailfold": ours, "faster": faster, "forkless": forkless, "absent": absent}
    return {"versions": {"python": "3"}, "profile": "agent", "budget_s": 2.0, "peers": peers}


def test_a_bar_is_met_missed_or_not_measured() -> None:
    verdicts = {judged.what: judged.verdict for judged in judge({"resume": resume_part()})}
    assert verdicts["resume with a fixed tail, 10 M events against 1 k"] == MET
    assert verdicts["durable append alone, p50"] == UNKNOWN
    slow = resume_part()
    slow["sizes"][1]["resume_ms"] = 9.9
    assert judge({"resume": slow})[0].verdict == MISSED
    fat = resume_part()
    fat["sizes"][1]["peak_rss_mb"] = 65
    assert judge({"resume": fat})[0].verdict == MISSED


def test_a_bar_that_was_measured_at_less_says_at_what() -> None:
    short = resume_part()
    short["sizes"][1]["events"] = 300_000
    assert judge({"resume": short})[0].at == "at 300 k only; the bar is for 10 M"
    assert judge({"resume": resume_part()})[0].at == ""


def test_ratios_say_who_wins_whichever_way_is_better() -> None:
    slower = Figure(
        "time", "ms", 2.0, limits={"limit": 1.0}, peers={"peer": 1.0, "other": 8.0, "no": "not offered"}
    )
    assert slower.times_limit() == {"limit": 2.0}
    assert slower.times_peer() == {"peer": 0.5, "other": 4.0}
    assert slower.as_json()["peers_that_win"] == ["peer"]
    rate = Figure("rate", "events/s", 2.0, less=False, limits={"limit": 4.0}, peers={"peer": 1.0})
    assert rate.times_limit() == {"limit": 2.0}
    assert rate.times_peer() == {"peer": 2.0}


def test_what_a_peer_lacks_is_said_with_the_reason() -> None:
    found = {figure.name: figure for figure in peer_figures(peers_part())}
    assert found["peers: fork at 1 k"].peers["forkless"] == "not offered: no forks"
    assert found["peers: resume at 1 k"].peers["absent"] == "not installed: pip install '.[bench]'"
    assert found["peers: resume at 10 k"].peers["faster"] == "cut off at 4,000 of 10,000 events, after 2 s"
    assert found["peers: listing, for each session listed"].peers["faster"] == "not offered: no list"


def test_the_report_is_written_from_a_runs_files_alone(tmp_path: Path) -> None:
    source, to, readme = tmp_path / "run", tmp_path / "to", tmp_path / "README.md"
    source.mkdir()
    readme.write_text(f"before\n{report.BEGIN}\nreplaced\n{report.END}\nafter\n")
    for name, part in (("resume", resume_part()), ("peers", peers_part())):
        (source / f"{name}.json").write_text(json.dumps(part))
    (source / "run.json").write_text(json.dumps({"quick": True, "failed": {"fold": "exit 1"}}))
    written = report.measure(argparse.Namespace(source=source, to=to, readme=readme))["written"]
    page = (to / "RESULTS.md").read_text()
    assert "- resume at 1 k: faster (2x)" in page
    assert "- forkless, fork: no forks" in page
    assert "**not installed**: absent" in page
    assert "**fold failed**: exit 1" in page
    assert "replaced" not in readme.read_text()
    assert "| resume at 10 k, ms | **2** |" in readme.read_text()
    assert readme.read_text().startswith("before\n") and readme.read_text().endswith("after\n")
    for path in written:
        if path.endswith(".svg"):
            ElementTree.parse(path)
            assert f"plots/{Path(path).name}" in page


def test_a_run_that_left_nothing_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no results"):
        report.measure(argparse.Namespace(source=tmp_path, to=tmp_path, readme=tmp_path / "README.md"))


def test_plots_have_axes_with_units_and_both_colour_schemes() -> None:
    svg = lines("Resume <now>", "events", "ms", {"ours": [(1000, 1.5), (1e7, 1.6)], "theirs": [(1000, 30)]})
    texts = [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]
    assert {"Resume <now>", "events", "ms", "ours", "theirs", "1 k", "10 M"} <= set(texts)
    assert "prefers-color-scheme: dark" in svg
    assert "href" not in svg and "@import" not in svg
    with pytest.raises(ValueError, match="no place for 0"):
        lines("t", "x", "y", {"a": [(1, 0)]})
    with pytest.raises(ValueError, match="nothing to draw"):
        lines("t", "x", "y", {"a": []})


def test_every_figure_of_a_part_has_a_name_of_its_own() -> None:
    names = [figure.name for figure in all_figures({"resume": resume_part(), "peers": peers_part()})]
    assert len(names) == len(set(names))


def test_the_committed_page_and_the_readme_show_the_same_bars() -> None:
    page, readme = (ROOT / "benchmarks/RESULTS.md").read_text(), (ROOT / "README.md").read_text()
    block = readme.split(report.BEGIN)[1].split(report.END)[0]
    bars = [line for line in block.splitlines() if line.startswith("| ") and ("≤ " in line or "≥ " in line)]
    assert len(bars) >= 10
    assert all(line in page for line in bars)
    for target in re.findall(r"\(plots/(\S+)\)", page):
        assert (ROOT / "benchmarks/plots" / target).exists()
