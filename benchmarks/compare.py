"""Peers: the same sessions kept by tailfold and by others, each in processes of its own, bounded by a budget."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.children import Cut, run_child
from benchmarks.compare_child import child
from benchmarks.peers.catalogue import CATALOGUE, INSTALL, Entry
from benchmarks.workload import PROFILES

SIZES = "1000,10000,100000,1000000"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", default=",".join(CATALOGUE), help="which, comma-separated")
    parser.add_argument("--sizes", default=SIZES, help="events of the session, comma-separated, growing")
    parser.add_argument("--appends", type=int, default=1000, help="events appended one by one")
    parser.add_argument("--sessions", type=int, default=10_000, help="sessions that are listed")
    parser.add_argument("--budget-s", type=float, default=60.0, help="a peer's time to append, for each stage")
    parser.add_argument("--profile", default="agent", choices=PROFILES, help="shape of the session")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.child:
        child(arguments)
    found = {}
    for name in arguments.peers.split(","):
        found[name] = _peer(CATALOGUE[name], arguments)
    _check_agreement(found)
    return {
        "profile": arguments.profile,
        "appends": arguments.appends,
        "budget_s": arguments.budget_s,
        "peers": found,
    }


def _peer(entry: Entry, arguments: argparse.Namespace) -> dict[str, Any]:
    if missing := entry.missing():
        return {"not_installed": missing, "install": INSTALL}
    result: dict[str, Any] = {"versions": entry.versions(), "cut_off": []}
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        for stage in ("each", "sessions"):
            (Path(folder) / stage).mkdir()
            result |= _stage(entry, arguments, stage, Path(folder) / stage, result)
        result |= _stage(entry, arguments, "list", Path(folder) / "sessions", result)
        (Path(folder) / "long").mkdir()
        result["points"] = _grow(entry, arguments, Path(folder) / "long", result)
    return result


def _grow(
    entry: Entry, arguments: argparse.Namespace, folder: Path, result: dict[str, Any]
) -> list[dict[str, Any]]:
    """Let the session grow from size to size, and resume it in a fresh process at each."""
    points: list[dict[str, Any]] = []
    reached = 0
    for size in (int(size) for size in arguments.sizes.split(",")):
        grown = _stage(entry, arguments, f"grow:{reached}:{size}", folder, result)
        if not grown.get("events"):
            break
        reached = grown["events"]
        point = grown | _stage(entry, arguments, f"come:{reached}", folder, result)
        points.append(point)
        if "resume_ms" in point:
            print(f"{entry.name}: {reached} events, resume {point['resume_ms']:.2f} ms", file=sys.stderr)
        if reached < size:
            result["cut_off"].append(f"at {reached:,} of {size:,} events, after {grown['append_s']:.0f} s")
            break
        if "resume_ms" not in point:
            break
    return points


def _stage(
    entry: Entry, arguments: argparse.Namespace, stage: str, folder: Path, result: dict[str, Any]
) -> dict[str, Any]:
    command = ["peers", "--child", f"{entry.name}:{stage}", "--dir", str(folder)]
    command += ["--appends", str(arguments.appends), "--sessions", str(arguments.sessions)]
    command += ["--budget-s", str(arguments.budget_s), "--profile", arguments.profile]
    try:
        return run_child(command, timeout_s=arguments.budget_s * 4 + 60)
    except Cut as cut:
        result["cut_off"].append(f"{stage}: {cut}")
        return {}


def _check_agreement(found: dict[str, Any]) -> None:
    """Peers that hold a session of one length hold the same state, or the comparison means nothing."""
    seen: dict[int, tuple[str, Any]] = {}
    for name, peer in found.items():
        for point in peer.get("points", ()):
            if "state" not in point:
                continue
            first, state = seen.setdefault(point["events"], (name, point["state"]))
            if state != point["state"]:
                raise AssertionError(f"{name} and {first} differ at {point['events']} events")
