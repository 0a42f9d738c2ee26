"""The command line as a contract: names, flags, exit codes, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tailfold.cli.main import app
from tailfold.engine import ANY, Store
from tailfold.engine.agent.events import AGENT_EVENTS, RunStarted
from tailfold.engine.agents.comparetiers import shipped

from tests.cli.command import PROGRAM, QUESTION, environment, json_lines, tailfold
from tests.domain import Deposited, Noted


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "store"
    done = tailfold(path, "run", QUESTION, "--model", "rules", "--run-id", "r-1")
    assert done.returncode == 0
    return path


def changed_catalogue(tmp_path: Path, price: str = "13.00") -> Path:
    catalogue = json.loads(shipped())
    catalogue["products"][0]["plans"][1]["monthly"] = price
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(catalogue))
    return path


def test_run_prints_the_answer_and_says_which_model_on_stderr(tmp_path: Path) -> None:
    done = tailfold(tmp_path / "s", "run", QUESTION)
    assert done.returncode == 0
    assert "$60.00 per month" in done.stdout
    assert "model rules" in done.stderr
    assert "no Ollama answers" in done.stderr
    assert "model" not in done.stdout


def test_run_as_json(tmp_path: Path) -> None:
    done = tailfold(tmp_path / "s", "run", QUESTION, "--model", "rules", "--run-id", "mine", "--json")
    [summary] = json_lines(done)
    assert summary["run"] == "mine"
    assert summary["status"] == "ended"
    assert summary["reason"] == "answered"
    assert "$60.00" in summary["answer"]
    assert (summary["turns"], summary["events"], summary["model"]) == (3, 12, "rules")


def test_exit_codes_of_a_runs_life(store: Path, tmp_path: Path) -> None:
    assert tailfold(store, "resume", "r-1").returncode == 3
    assert tailfold(store, "replay", "r-1").returncode == 0
    assert tailfold(store, "show", "r-9").returncode == 6
    again = tailfold(store, "run", QUESTION, "--run-id", "r-1")
    assert again.returncode == 9
    assert again.stderr == "tailfold: run 'r-1' exists: resume it, or start under another id\n", (
        "no model was looked for"
    )
    assert tailfold(store, "run").returncode == 2
    assert tailfold(store, "nonsense").returncode == 2
    assert tailfold(store, "show", "r-1", "--at", "99").returncode == 6
    assert tailfold(tmp_path / "none", "list").returncode == 6


def test_live_tools_find_a_changed_catalogue_and_show_both_sides(store: Path, tmp_path: Path) -> None:
    changed = str(changed_catalogue(tmp_path))
    assert tailfold(store, "replay", "r-1", "--live-tools").returncode == 0
    done = tailfold(store, "replay", "r-1", "--live-tools", "--catalog", changed)
    assert done.returncode == 5
    assert "version 5" in done.stdout
    journal, replay = done.stdout.splitlines()[1:3]
    assert journal.lstrip().startswith("journal:")
    assert '"monthly":"12.00"' in journal
    assert replay.lstrip().startswith("replay:")
    assert '"monthly":"13.00"' in replay
    [shown] = json_lines(tailfold(store, "replay", "r-1", "--live-tools", "--catalog", changed, "--json"))
    assert shown["diverged"]
    assert (shown["version"], shown["recorded"]["kind"], shown["replayed"]["kind"]) == (
        5,
        "tool_result",
        "tool_result",
    )


def test_a_run_is_resumed_with_the_catalogue_that_it_started_with(tmp_path: Path) -> None:
    changed = changed_catalogue(tmp_path, "99.00")
    tailfold(tmp_path / "s", "run", QUESTION, "--run-id", "r", "--catalog", str(changed), "--kill-after", "3")
    changed.unlink()
    done = tailfold(tmp_path / "s", "resume", "r")
    assert done.returncode == 0
    assert "$495.00" in done.stdout
    assert tailfold(tmp_path / "s", "replay", "r").returncode == 0
    gone = tailfold(tmp_path / "s", "replay", "r", "--live-tools")
    assert gone.returncode == 2
    assert "changed.json" in gone.stderr


def test_list_show_state_export_verify_stats_as_json(store: Path) -> None:
    [listed] = json_lines(tailfold(store, "list", "--json"))
    assert (listed["run"], listed["status"], listed["turns"], listed["events"]) == ("r-1", "ended", 3, 12)
    shown = json_lines(tailfold(store, "show", "r-1", "--json"))
    assert [line["version"] for line in shown] == list(range(1, 13))
    assert shown[0]["kind"] == "run_started"
    assert shown[0]["payload"]["question"] == QUESTION
    assert shown[4]["causation"] == "r-1@4"
    exported = json_lines(tailfold(store, "export", "r-1", "--no-records"))
    assert exported == shown
    with_records = json_lines(tailfold(store, "export", "r-1"))
    assert [{k: line[k] for k in shown[0]} for line in with_records] == shown
    [state] = json_lines(tailfold(store, "state", "r-1", "--at", "5", "--json"))
    assert (state["version"], state["state"]["status"], state["state"]["turn"]) == (5, "running", 1)
    [verified] = json_lines(tailfold(store, "verify", "r-1", "--json"))
    assert verified["sound"]
    assert verified["head"] == shown[-1]["hash"]
    [stats] = json_lines(tailfold(store, "stats", "--json"))
    assert (stats["events"], stats["kinds"]["tool_called@1"]["events"]) == (12, 2)


def test_export_recomputes_the_chain_from_the_stored_bytes(store: Path) -> None:
    import base64

    from tailfold.engine.backend import chain

    previous = chain.seed("r-1")
    for line in json_lines(tailfold(store, "export", "r-1", "--records")):
        previous = chain.link(previous, chain.digest(base64.b64decode(line["record"])))
        assert line["hash"] == previous.hex()


def test_export_to_a_file_never_overwrites(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    assert tailfold(store, "export", "r-1", "--output", str(out)).returncode == 0
    assert len(out.read_text().splitlines()) == 12
    assert tailfold(store, "export", "r-1", "--output", str(out)).returncode == 2


def test_human_output_is_one_line_an_event(store: Path) -> None:
    lines = tailfold(store, "show", "r-1").stdout.splitlines()
    assert len(lines) == 12
    assert lines[0].split()[0] == "1"
    assert "run_started" in lines[0]
    assert len(tailfold(store, "show", "r-1", "--at", "3").stdout.splitlines()) == 3
    table = tailfold(store, "list").stdout.splitlines()
    assert table[0].startswith("RUN")
    assert table[1].startswith("r-1")


def test_verify_against_a_noted_head(store: Path) -> None:
    head = json_lines(tailfold(store, "verify", "r-1", "--json"))[0]["head"]
    assert tailfold(store, "verify", "r-1", "--head", head).returncode == 0
    assert tailfold(store, "verify", "r-1", "--head", head.upper()).returncode == 0
    assert tailfold(store, "verify", "r-1", "--head", "0" * 32).returncode == 7
    assert tailfold(store, "verify", "--head", head).returncode == 2
    assert tailfold(store, "verify", "r-1", "--head", "xyz").returncode == 2


@pytest.mark.parametrize(
    "run_id", ["", "x" * 129, "../up", "a/b", "a\nb", "..", "-x", ".hidden", "é", "a b", "a..b"]
)
def test_invalid_run_ids_are_refused_at_the_edge(run_id: str, tmp_path: Path) -> None:
    done = tailfold(tmp_path / "s", "run", QUESTION, f"--run-id={run_id}", "--model", "rules")
    assert done.returncode == 2
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-turns", "0"),
        ("--max-turns", "x"),
        ("--model", "gpt"),
        ("--model", "ollama:"),
        ("--kill-after", "0"),
        ("--catalog", "nowhere.json"),
        ("--catalog", os.devnull),
    ],
)
def test_bad_options_are_usage_errors_and_start_nothing(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = tailfold(tmp_path / "s", "run", QUESTION, "--run-id", "r-1", *arguments)
    assert done.returncode == 2, done.stderr
    assert tailfold(tmp_path / "s", "show", "r-1").returncode == 6


def test_an_empty_question_is_refused(tmp_path: Path) -> None:
    assert tailfold(tmp_path / "s", "run", "   ", "--model", "rules").returncode == 2


def test_the_store_is_found_by_option_then_environment_then_here(store: Path, tmp_path: Path) -> None:
    def listed(*arguments: str, **more: str) -> int:
        done = subprocess.run([*PROGRAM, *arguments], cwd=tmp_path, env=environment(**more), capture_output=True)
        return done.returncode

    assert listed("list") == 6
    assert listed("list", TAILFOLD_STORE=str(store)) == 0
    assert listed("--store", str(store), "list") == 0
    assert listed("list", "--store", str(store), TAILFOLD_STORE=str(tmp_path / "no")) == 0
    (tmp_path / ".tailfold").symlink_to(store)
    assert listed("list") == 0
    assert listed("list", "--store=") == listed("--store=", "list") == 2, "an unset variable of a script"


def test_foreign_streams_are_shown_and_verified_but_are_no_runs(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as opened:
        opened.append("orders", [Deposited(1), Noted("x\x1b[31mred", {"k": [1, 2]})], expected=0)
        opened.append("of another agent", RunStarted("theirs", "q", "m", 3), expected=0)
    shown = json_lines(tailfold(tmp_path / "s", "show", "orders", "--json"))
    assert [(e["kind"], e["opaque"]) for e in shown] == [("deposited", True), ("noted", True)]
    assert shown[1]["payload"] == {"text": "x\x1b[31mred", "extra": {"k": [1, 2]}}
    human = tailfold(tmp_path / "s", "show", "orders").stdout
    assert "\x1b" not in human, "a journal must not steer the terminal"
    assert tailfold(tmp_path / "s", "state", "orders").returncode == 2
    assert tailfold(tmp_path / "s", "resume", "orders").returncode == 2
    assert tailfold(tmp_path / "s", "verify").returncode == 0
    done = tailfold(tmp_path / "s", "replay", "orders")
    assert done.returncode == 2
    assert "no run" in done.stderr
    spaced = tailfold(tmp_path / "s", "show", "of another agent")
    assert spaced.returncode == 0


def test_a_newer_schema_is_exit_8(tmp_path: Path) -> None:
    from tailfold.engine import Event

    class TurnStartedLater(Event, frozen=True):
        kind = "turn_started"
        version = 7
        turn: int

    with Store.open(tmp_path / "s", events=AGENT_EVENTS[:1]) as opened:
        opened.append("r-1", [RunStarted("comparetiers", "q", "rules", 3), TurnStartedLater(1)], expected=ANY)
    for command in ("show", "state", "replay", "resume", "export"):
        done = tailfold(tmp_path / "s", command, "r-1")
        assert done.returncode == 8, command
        assert done.stdout == ""
        for part in ("'r-1'", "version 2", "turn_started", "7", "1"):
            assert part in done.stderr


def test_a_closed_pipe_is_quiet(store: Path) -> None:
    done = subprocess.run(
        f"'{PROGRAM[0]}' -c '{PROGRAM[2]}' show r-1 --store '{store}' | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_every_command_has_help_with_an_example() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        text = command.callback.__doc__ or ""
        assert "Example" in text, command.name
        assert f"tailfold {command.name}" in text, command.name


@pytest.mark.parametrize("program", [PROGRAM, [sys.executable, "-m", "tailfold.cli"]], ids=["script", "module"])
def test_the_version_is_printed(program: list[str]) -> None:
    done = subprocess.run([*program, "--version"], capture_output=True, text=True, env=environment())
    assert done.stdout.startswith("tailfold 0.")


def test_unexpected_errors_are_one_line_and_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    from tailfold.cli import main
    from tailfold.cli.commands import store as commands

    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(commands, "open_all", broken)
    assert main.run(["stats", "--store", str(store)]) == 1
    assert "unexpected RuntimeError: a fault" in capsys.readouterr().err
    monkeypatch.setenv(main.DEBUG_VARIABLE, "1")
    with pytest.raises(RuntimeError):
        main.run(["stats", "--store", str(store)])
