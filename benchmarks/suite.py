"""All: every benchmark, each in a process of its own; every figure with its peers and limits; every bar judged."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.bars import judge
from benchmarks.children import Cut, run_child
from benchmarks.figures import Parts, all_figures

RESULTS = Path(__file__).parent / "results"

PLAN: dict[str, tuple[str, str]] = {
    "append": ("--appends 300 --sessions 1,100,1000", ""),
    "fold": ("--events 50000 --peer-events 4000", "--events 500000 --peer-events 50000"),
    "upcast": ("--events 50000", ""),
    "resume": (
        "--sizes 1000,300000 --repeats 60 --append-events 8000",
        "--sizes 1000,10000,100000,1000000,10000000",
    ),
    "fork": ("--sizes 1000,300000 --depths 1,100", "--sizes 1000,100000,10000000 --depths 1,100,10000"),
    "follow": ("--appends 50 --burst 10000", ""),
    "list": ("--streams 1000", "--streams 1000,10000,100000"),
    "seal": ("--streams 400 --each 64 --events 12000", ""),
    "sessions": ("--events 15000 --appends 100", "--events 300000 --appends 2000"),
    "peers": (
        "--sizes 1000,10000 --appends 200 --sessions 400 --budget-s 2",
        "--sizes 1000,10000,100000,1000000 --appends 2000 --sessions 10000 --budget-s 60",
    ),
}
"""Arguments of each part: of the quick run, and of the full one."""

LONGEST_S = 3 * 3600


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="within two minutes: smaller, the same figures")
    parser.add_argument("--only", default=",".join(PLAN), help="parts, comma-separated")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON of each part")
    parser.add_argument("--dir", default=None, help="where to write stores; default: the temporary directory")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    arguments.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    run = {"quick": arguments.quick, "machine": machine(), "load_at_start": list(os.getloadavg())}
    parts: Parts = {}
    failed: dict[str, str] = {}
    for name in arguments.only.split(","):
        command = [name, *PLAN[name][0 if arguments.quick else 1].split(), "--json"]
        command += ["--dir", arguments.dir] if arguments.dir else []
        part_begun = time.monotonic()
        try:
            parts[name] = run_child(command, timeout_s=LONGEST_S)
        except Cut as cut:
            failed[name] = str(cut)
            print(f"{name}: {cut}", file=sys.stderr, flush=True)
            continue
        parts[name]["arguments"] = " ".join(command)
        parts[name]["took_s"] = round(time.monotonic() - part_begun, 1)
        (arguments.out / f"{name}.json").write_text(json.dumps(parts[name], indent=1) + "\n")
        print(f"{name}: {parts[name]['took_s']} s", file=sys.stderr, flush=True)
    run |= {"took_s": round(time.monotonic() - begun, 1), "load_at_end": list(os.getloadavg()), "failed": failed}
    (arguments.out / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    return {
        "run": run,
        "bars": [judged.as_json() for judged in judge(parts)],
        "figures": [figure.as_json() for figure in all_figures(parts)],
        "parts": parts,
    }


def machine() -> dict[str, Any]:
    """Return what the figures depend on, and nothing that names a machine or a person."""
    found: dict[str, Any] = {"system": platform.system(), "kernel": platform.release(), "cores": os.cpu_count()}
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            found["processor"] = line.split(":", 1)[1].strip()
            break
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            found["memory_gb"] = round(int(line.split()[1]) / (1 << 20))
            break
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def show(result: dict[str, Any]) -> None:
    """Print bars and figures for people."""
    print("Bars")
    for bar in result["bars"]:
        print(f"  {bar['verdict']:<13}{bar['what']}: {bar['measured']}  (bar: {bar['bar']}) {bar['at']}".rstrip())
    print("Figures")
    for figure in result["figures"]:
        print(f"  {figure['name']}: {figure['ours']:,.4g} {figure['unit']}")
        for name, value in figure["limits"].items():
            print(f"      limit {name}: {value:,.4g}; ours is {figure['times_limit'].get(name, 0):.2f}x of it")
        for name, value in figure["peers"].items():
            if isinstance(value, str):
                print(f"      {name}: {value}")
                continue
            times = figure["times_better_than_peer"].get(name, 0)
            who = (
                f"ours is {times:.1f}x better" if times >= 1 else f"{name} wins, {1 / times:.1f}x" if times else ""
            )
            print(f"      {name}: {value:,.4g}; {who}")
    for name, why in result["run"]["failed"].items():
        print(f"  FAILED {name}: {why}")
    print(f"Took {result['run']['took_s']} s")
