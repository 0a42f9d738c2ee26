"""Guard: instruction counts of a fixed set of operations against a committed baseline. No clock is asked."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.children import ROOT

BASELINE = Path(__file__).parent / "guard_baseline.json"
TOLERANCE = {"bytecodes": 0.03, "instructions": 0.05}
"""What may come on top of the baseline. Counts of one environment differ by far less from run to run."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--update", action="store_true", help="make what is counted now the baseline")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="file of the baseline")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    counts = count()
    if arguments.update:
        update(arguments.baseline, counts)
    return compare(read(arguments.baseline), counts)


def environments() -> dict[str, str]:
    """Return what each count depends on: a baseline holds for one of these only."""
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    binaries = [f"{name} {metadata.version(name)}" for name in ("lmdb", "msgspec", "lz4")]
    exact = [f"python {platform.python_version()}", platform.python_compiler(), *binaries, platform.machine()]
    return {"bytecodes": python, "instructions": ", ".join(exact)}


def count(kinds: tuple[str, ...] = ("bytecodes", "instructions")) -> dict[str, dict[str, int]]:
    """Count in fresh processes: bytecodes everywhere, instructions of the processor where valgrind is."""
    counts = {}
    if "bytecodes" in kinds:
        counts["bytecodes"] = json.loads(_run([sys.executable, "-m", "benchmarks.guard_operations", "bytecodes"]))
    if "instructions" in kinds and (valgrind := shutil.which("valgrind")):
        counts["instructions"] = _callgrind(valgrind)
    return counts


def _run(command: list[str]) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _callgrind(valgrind: str) -> dict[str, int]:
    """Let callgrind write what it has counted, and begin anew, whenever the program calls `getppid`."""
    from benchmarks.guard_operations import OPERATIONS

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        _run(
            [
                valgrind,
                "--tool=callgrind",
                "--dump-before=getppid",
                f"--callgrind-out-file={out}",
                sys.executable,
                "-m",
                "benchmarks.guard_operations",
                "marks",
            ]
        )
        # Dump 1 ends where the first operation begins; then operation and gap take turns.
        dumps = [_total(Path(f"{out}.{2 + 2 * number}")) for number in range(len(OPERATIONS))]
    return dict(zip(OPERATIONS, dumps, strict=True))


def _total(dump: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)$", dump.read_text(), re.MULTILINE)
    assert found is not None, dump
    return int(found[1])


def read(path: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Return kind → environment → operation → count."""
    found: dict[str, dict[str, dict[str, int]]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def update(path: Path, counts: dict[str, dict[str, int]]) -> None:
    """Replace the counts of this environment; those of others stay."""
    baseline = read(path)
    for kind, found in counts.items():
        baseline.setdefault(kind, {})[environments()[kind]] = found
    path.write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n")


def compare(baseline: dict[str, dict[str, dict[str, int]]], counts: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Return the counts beside their baselines, and which of them are above by more than the tolerance."""
    result: dict[str, Any] = {"too_many": [], "without_baseline": []}
    for kind, found in counts.items():
        environment = environments()[kind]
        known = baseline.get(kind, {}).get(environment)
        if known is None:
            result["without_baseline"].append(f"{kind} of {environment}")
            known = {}
        result[kind] = {
            name: {
                "count": value,
                "baseline": known.get(name),
                "change": value / known[name] - 1 if name in known else None,
            }
            for name, value in found.items()
        }
        result["too_many"] += [
            f"{name}: {value:,} {kind}, {value / known[name] - 1:+.1%} on the baseline"
            for name, value in found.items()
            if name in known and value > known[name] * (1 + TOLERANCE[kind])
        ]
    return result
