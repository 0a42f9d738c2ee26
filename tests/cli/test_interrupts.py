"""Ctrl-C at the moments when Python would pass over it, or complain: it ends the command, and that is all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import QUESTION

INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"
MOMENTS = {
    "in a callback of the import system": f"""
class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            try:
                {INTERRUPT}
                sum(range(1000))
            except KeyboardInterrupt:
                pass  # as it is there
sys.meta_path.insert(0, Finder())
""",
    "while arguments are read": f"""
import typer.core
read = typer.core.TyperCommand.make_context
def make_context(*a, **k):
    try:
        {INTERRUPT}
        sum(range(1000))
    except KeyboardInterrupt:
        pass
    return read(*a, **k)
typer.core.TyperCommand.make_context = make_context
""",
    "in a hook after a fork": f"os.register_at_fork(after_in_parent=lambda: {INTERRUPT})",
    "while the loop is made": f"""
import asyncio
make = asyncio.BaseEventLoop.__init__
def init(self):
    {INTERRUPT}
    make(self)
asyncio.BaseEventLoop.__init__ = init
""",
}


def run(moment: str, store: Path) -> subprocess.CompletedProcess[str]:
    command = ["tailfold", "run", QUESTION, "--model", "rules", "--run-id", "r-1", "--store", str(store)]
    script = (
        f"import os, signal, sys\n{moment}\nsys.argv = {command!r}\nfrom tailfold.cli.entry import main\nmain()"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_is_never_lost_and_never_a_traceback(moment: str, tmp_path: Path) -> None:
    done = run(MOMENTS[moment], tmp_path / "store")
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr
    assert "never awaited" not in done.stderr


def test_ctrl_c_after_the_answer_changes_nothing(tmp_path: Path) -> None:
    done = run(f"import atexit\natexit.register(lambda: {INTERRUPT})", tmp_path / "store")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert "$60.00" in done.stdout
