"""Runs the real command line in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

PROGRAM = [sys.executable, "-c", "from tailfold.cli.main import main; main()"]

QUESTION = "How much is Notion Plus for 5 seats, billed monthly?"


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OLLAMA_HOST": "127.0.0.1:9", "PYTHONIOENCODING": "utf-8", **more}


def tailfold(store: Path | str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command on *store* to its end; a traceback on stderr is always a failure."""
    done = subprocess.run(
        [*PROGRAM, *arguments, "--store", str(store)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment(**more),
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def json_lines(done: subprocess.CompletedProcess[str]) -> list[Any]:
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def start(store: Path | str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *arguments, "--store", str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment(**more),
    )
