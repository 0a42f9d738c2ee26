"""On a real terminal, in pipes and under signals: what a user sees, and that nothing a model says breaks it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.command import PROGRAM, QUESTION, environment, tailfold
from tests.engine.agent.fake_ollama import calls, fails, fake_ollama, says


def on_a_terminal(*arguments: str, **more: str) -> tuple[int, str]:
    """Run a command with a terminal of its own; return (exit code, what it showed)."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdin=terminal, stdout=terminal, stderr=terminal, env=environment(**more)
    )
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(controller, 65536):
            shown += chunk
    except OSError:
        pass  # the other end is closed: the process has ended
    os.close(controller)
    return process.wait(timeout=30), shown.decode(errors="replace")


def test_progress_is_shown_on_a_terminal_and_the_cursor_comes_back(tmp_path: Path) -> None:
    code, shown = on_a_terminal("run", QUESTION, "--model", "rules", "--store", str(tmp_path / "s"))
    assert code == 0
    assert "$60.00 per month" in shown
    assert shown.rfind("\x1b[?25h") >= shown.rfind("\x1b[?25l"), "the cursor is visible again"


def test_markup_in_what_a_model_says_does_not_stop_a_run_on_a_terminal(tmp_path: Path) -> None:
    script = (calls(("[/inst]", {})), fails(500, "[/INST] [bold"), says("It is [/red] unknown."))
    with fake_ollama(*script, models=["m"]) as server:
        code, shown = on_a_terminal(
            "run", QUESTION, "--model", "ollama:m", "--store", str(tmp_path / "s"), OLLAMA_HOST=server.host
        )
    assert code == 0, shown
    assert "It is [/red] unknown." in shown


def test_a_killed_drill_leaves_the_cursor_visible(tmp_path: Path) -> None:
    arguments = ("run", QUESTION, "--model", "rules", "--kill-after", "4", "--store", str(tmp_path / "s"))
    code, shown = on_a_terminal(*arguments)
    assert code == -signal.SIGKILL
    assert shown.rfind("\x1b[?25h") >= shown.rfind("\x1b[?25l")


def test_sigterm_is_as_ctrl_c(tmp_path: Path) -> None:
    script = (
        "import time\nimport tailfold.cli.commands.runs as runs\nrule = runs.rule\n"
        "def slow(request):\n    print('asked', flush=True)\n    time.sleep(1)\n    return rule(request)\n"
        "runs.rule = slow\nfrom tailfold.cli.main import main\nmain()"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", script, "run", QUESTION, "--model", "rules", "--run-id", "r-1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TAILFOLD_STORE=str(tmp_path / "a store")),
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "asked\n"
    driver.send_signal(signal.SIGTERM)
    _, said = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert f"tailfold resume r-1 --store '{tmp_path / 'a store'}'" in said
    assert tailfold(tmp_path / "a store", "resume", "r-1").returncode == 0


def test_a_closed_pipe_ends_quietly_with_0(tmp_path: Path) -> None:
    tailfold(tmp_path / "s", "run", QUESTION, "--model", "rules", "--run-id", "r-1")
    for command in ("show r-1", "export r-1", "list"):
        program = f"'{PROGRAM[0]}' -c '{PROGRAM[2]}' {command} --store '{tmp_path / 's'}'"
        done = subprocess.run(
            ["bash", "-c", f"{program} | true; exit ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            env=environment(),
        )
        assert (done.returncode, done.stderr) == (0, ""), command


def test_closed_streams_do_not_stop_a_run(tmp_path: Path) -> None:
    for number, redirect in enumerate((">&-", "2>&-", ">&- 2>&- <&-")):
        program = f"'{PROGRAM[0]}' -c '{PROGRAM[2]}' run '{QUESTION}' --model rules --run-id r-{number}"
        done = subprocess.run(
            ["bash", "-c", f"{program} --store '{tmp_path / 's'}' {redirect}"],
            env=environment(),
            capture_output=True,
        )
        assert done.returncode == 0, redirect
    assert len(tailfold(tmp_path / "s", "list", "--json").stdout.splitlines()) == 3


def test_json_is_utf8_whatever_the_terminal(tmp_path: Path) -> None:
    question = "How much is Nötion Plus for 5 seats?"
    tailfold(tmp_path / "s", "run", question, "--model", "rules", "--run-id", "r-1")
    done = subprocess.run(
        [*PROGRAM, "show", "r-1", "--json", "--store", str(tmp_path / "s")],
        capture_output=True,
        env=environment(PYTHONIOENCODING="ascii", LC_ALL="C"),
    )
    assert done.returncode == 0
    assert "Nötion" in done.stdout.decode()


def test_a_line_that_turns_the_direction_of_text_is_shown_not_sent(tmp_path: Path) -> None:
    tailfold(tmp_path / "s", "run", "How much is \u202eabc?", "--model", "rules", "--run-id", "r-1")
    assert "\u202e" not in tailfold(tmp_path / "s", "list").stdout


def test_ctrl_c_while_the_command_is_imported_leaves_no_traceback() -> None:
    script = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tailfold.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from tailfold.cli.entry import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")
