"""The documents are true: commands and code run, tables equal constants, the reference is current."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tailfold.cli.exits import Exit
from tailfold.cli.main import app
from tailfold.cli.reference import EXIT_MEANINGS, render
from tailfold.engine import Blob, Durability
from tailfold.engine.agent.decide import __doc__ as decide_doc
from tailfold.engine.agent.events import AGENT_EVENTS
from tailfold.engine.agent.state import run_fold
from tailfold.engine.backend import keys
from tailfold.engine.backend.commit import GROUP_MAX
from tailfold.engine.backend.port import FORMAT_AHEAD, FORMAT_LEAST, FORMAT_VERSION, HASH_BYTES
from tailfold.engine.fold_facts import FoldFacts
from tailfold.engine.names import KIND_MAX_BYTES, RUN_ID_MAX_CHARS, STREAM_NAME_MAX_BYTES
from tailfold.engine.rawrecords import RECORD_BYTES_MAX, RECORD_FIELDS

from tests.cli.command import PROGRAM, environment

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DESIGN = (ROOT / "docs/design.md").read_text()
EVENTS = (ROOT / "docs/events.md").read_text()
AGENTS = (ROOT / "docs/agents.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def first_column(text: str, header: str) -> list[str]:
    """Return the first cells of the table that has this header row."""
    table = text[text.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1].strip().strip("`") for row in table]


def as_pattern(expected: str) -> str:
    """Turn a line of a transcript into a pattern: an ellipsis stands for anything."""
    return ".*".join(re.escape(part) for part in re.split("…", expected))


def test_the_readmes_transcript_is_what_the_commands_print(tmp_path: Path) -> None:
    [transcript] = blocks(README, "console")
    steps = re.split(r"^\$ ", transcript, flags=re.MULTILINE)[1:]
    assert len(steps) >= 6
    for step in steps:
        command, *expected = step.splitlines()
        assert command.startswith("tailfold ")
        script = command.replace("tailfold", f"'{PROGRAM[0]}' -c '{PROGRAM[2]}'", 1)
        done = subprocess.run(
            script, shell=True, cwd=tmp_path, capture_output=True, text=True, env=environment(), timeout=60
        )
        printed = [line for line in (done.stdout + done.stderr).splitlines() if line != "Killed"]
        assert len(printed) == len(expected), (command, printed)
        for line, wanted in zip(printed, expected, strict=True):
            assert re.fullmatch(as_pattern(wanted), line), (command, wanted, line)


@pytest.mark.parametrize("document", [EVENTS, AGENTS], ids=["events", "agents"])
def test_the_walk_through_is_what_happens(tmp_path: Path, document: str) -> None:
    """Files are written as they come, commands run, and what they print compared, line by line."""
    text = document[document.index("## A walk-through") :]
    steps = re.findall(r"^```(python|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(steps) >= 6
    for language, block in steps:
        if language == "python":
            (tmp_path / re.match(r"# (\S+)", block)[1]).write_text(block)  # type: ignore[index]
            continue
        for command, *expected in (one.splitlines() for one in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]):
            program = [PROGRAM[0], *(PROGRAM[1:] if command.startswith("tailfold") else [])]
            done = subprocess.run(
                [*program, *shlex.split(command)[1:]],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                env=environment(PYTHONDONTWRITEBYTECODE="1"),
                timeout=60,
            )
            codes = {"(exit 8)": 8, "(killed)": -signal.SIGKILL}
            code = codes.get(expected[-1] if expected else "", 0)
            assert done.returncode == code, (command, done.stdout, done.stderr)
            wanted = "\n".join(line for line in expected if line not in codes)
            assert re.fullmatch(as_pattern(wanted), (done.stdout + done.stderr).strip(), re.DOTALL), (
                command,
                done.stdout + done.stderr,
            )


def _python_of_the_readme() -> list[str]:
    found = blocks(README, "python")
    assert len(found) == 6
    return found


def test_the_readmes_python_runs(tmp_path: Path) -> None:
    first, chat_room, talk, following, laws, forking = _python_of_the_readme()
    programs = {
        "first.py": first,
        "chat_room.py": chat_room,
        "talk.py": talk,
        "third.py": following,
        "fourth.py": re.split(r"\n+with Store", first, maxsplit=1)[0] + "\n\n\n" + forking,
        "test_readme.py": laws,
    }
    for name, code in programs.items():
        said = re.match(r"# (\S+\.py)", code)
        assert said is None or said[1] == name
        (tmp_path / name).write_text(code)
    for name, printed in (
        ("first.py", "seats_bought"),
        ("talk.py", ""),
        ("talk.py", ""),
        ("third.py", "mail about customer-7@2"),
        ("fourth.py", ""),
    ):
        done = subprocess.run(
            [sys.executable, "-W", "error", name], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert printed in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_readme.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "2 passed" in done.stdout, done.stdout


def test_exactly_two_commands_set_everything_up() -> None:
    install = [line for block in blocks(README, "sh") for line in block.splitlines() if "pip install" in line]
    assert install == [
        'pip install . && tailfold run "How much is Notion Plus for 5 seats, billed monthly?"',
        "pip install '.[test]' && python -m pytest -n 2",
    ]


def test_relative_links_lead_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), (document.name, target)


def test_the_cli_reference_is_generated_from_this_code() -> None:
    assert (ROOT / "docs/cli.md").read_text() == render(), "python -m tailfold.cli.reference > docs/cli.md"
    assert set(EXIT_MEANINGS) == set(Exit)
    for command in app.registered_commands:
        assert f"## tailfold {command.name}" in render()


def test_the_design_tables_are_the_constants() -> None:
    assert first_column(DESIGN, "| table | key | value |") == list(keys.TABLES)
    assert first_column(DESIGN, "| field | type |") == list(RECORD_FIELDS)
    assert first_column(DESIGN, "| field | what |") == list(keys.SnapshotRow.__struct_fields__)
    assert first_column(DESIGN, "| checkpoint | what |") == list(keys.CheckpointRow.__struct_fields__)
    parts = first_column(DESIGN, "| part | covers |")
    assert parts == list(FoldFacts(run_fold).parts)
    assert first_column(DESIGN, "| durability | acknowledged means") == [d.value for d in Durability]
    constants = {
        "format version": f"{FORMAT_VERSION}",
        "format of a new store": f"{FORMAT_AHEAD} (durable), {FORMAT_LEAST} (relaxed)",
        "event key": f"{keys.EVENT_KEY.size} bytes",
        "chain hash": f"{HASH_BYTES} bytes",
        "blob digest": f"{Blob.DIGEST_BYTES} bytes",
        "stream name": f"1 to {STREAM_NAME_MAX_BYTES} bytes",
        "kind": f"1 to {KIND_MAX_BYTES} bytes",
        "run id": f"1 to {RUN_ID_MAX_CHARS} characters",
        "largest record": f"{RECORD_BYTES_MAX} bytes",
        "appends in one commit": f"{GROUP_MAX}",
    }
    for name, value in constants.items():
        assert f"| {name} | {value} |" in DESIGN
    assert first_column(DESIGN, "| constant | value |") == list(constants)


def test_the_invariants_name_tests_that_exist() -> None:
    rows = re.findall(r"^\| (I\d+) \|.*\| (tests/\S+) \|$", DESIGN, re.MULTILINE)
    assert len(rows) == 15
    for invariant, path in rows:
        assert f"def test_{invariant.lower()}_" in (ROOT / path).read_text(), (invariant, path)


def test_the_events_of_a_run_are_documented_with_their_fields() -> None:
    for event in AGENT_EVENTS:
        row = next(line for line in EVENTS.splitlines() if line.startswith(f"| {event.kind} |"))
        assert row.split("|")[3].strip().split(", ") == list(event.__struct_fields__)


def test_the_resume_table_is_the_one_in_the_code() -> None:
    for row in first_column(DESIGN, "| the journal ends with |"):
        assert row.split(",")[0] in str(decide_doc)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/decisions").glob("*.md")), ids=lambda p: p.stem)
def test_decisions_are_numbered_and_say_what_and_why(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"# {path.name[:4]} ")
    assert "**Decided.**" in text or "| why" in text
