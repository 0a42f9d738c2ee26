"""Runs a benchmark, or a part of one, in a process of its own, and takes its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class Cut(Exception):
    """A child took too long or failed; the message says which."""


def run_child(arguments: list[str], *, timeout_s: float) -> dict[str, Any]:
    """Run ``python -m benchmarks ARGUMENTS`` and return the JSON object that it prints last."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)
    except subprocess.TimeoutExpired as late:
        raise Cut(f"stopped after {timeout_s:.0f} s") from late
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise Cut(f"exit {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found
