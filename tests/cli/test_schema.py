"""The schema commands: lock, check, survey, explain, for the shipped agent and for a program of one's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tailfold.engine import Event, Store

from tests.agent_corpus import LOCK
from tests.cli.command import PROGRAM, QUESTION, environment, json_lines, tailfold
from tests.surgery import change_event

HEAD = """
from tailfold.engine import Event
from tailfold.upcasters import AddField, ConvertField, DropField, RenameField, Upcasters

"""
FIRST = f"""{HEAD}
class Bought(Event, frozen=True):
    kind = "bought"
    count: int
    note: str = ""

UPCASTERS = Upcasters(events=[Bought])
EVENTS = [Bought]
NUMBER = 3
"""
SECOND = f"""{HEAD}
class Bought(Event, frozen=True):
    kind = "bought"
    version = 2
    seats: int
    note: str = ""

UPCASTERS = Upcasters(events=[Bought])
UPCASTERS.change("bought", 1, RenameField("count", "seats"))
"""


class Bought(Event, frozen=True):
    kind = "bought"
    count: int
    note: str = ""


class Shop:
    """A program of somebody else: its folder, its events, its store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(FIRST)
        with Store.open(folder / ".tailfold") as store:
            store.append("customer", [Bought(3), Bought(4, "x"), Bought(5)], expected=0)

    def write(self, code: str) -> None:
        (self.folder / "shop.py").write_text(code)
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)

    def run(
        self, command: str, *arguments: str, events: str = "shop:UPCASTERS"
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*PROGRAM, "schema", command, *arguments, "--events", events],
            cwd=self.folder,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment(),
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    @property
    def lock(self) -> Path:
        return self.folder / "tailfold.schema.json"

    @property
    def corpus(self) -> Path:
        return self.folder / "tailfold.schema.corpus.jsonl"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_life_of_a_schema(shop: Shop) -> None:
    locked = shop.run("lock")
    assert locked.returncode == 0, locked.stderr
    assert "2 golden payloads, 2 of them new" in locked.stdout
    assert "real content" in locked.stderr
    assert "nothing has changed" in shop.run("check").stdout

    shop.write(FIRST.replace("count: int", "seats: int"))
    done = shop.run("check")
    assert done.returncode == 8
    assert "bought@1.count: needs a version and a step" in done.stdout
    assert (
        "Set version = 2 in the class, and declare change('bought', 1, RenameField('count', 'seats'))"
        in done.stdout
    )
    before = shop.lock.read_bytes(), shop.corpus.read_bytes()
    refused = shop.run("lock")
    assert refused.returncode == 8
    assert "was not written" in refused.stderr
    assert (shop.lock.read_bytes(), shop.corpus.read_bytes()) == before

    shop.write(SECOND)
    done = shop.run("check")
    assert (done.returncode, "all changes are compatible" in done.stdout) == (0, True)
    assert shop.run("lock").returncode == 0
    assert "nothing has changed" in shop.run("check").stdout

    shop.write(SECOND.replace('RenameField("count", "seats")', 'DropField("count"), AddField("seats", 0)'))
    done = shop.run("check", "--json")
    assert done.returncode == 8
    [report] = json_lines(done)
    assert (report["compatible"], report["golden"], report["failed"]) == (False, 0, 2)
    assert "seats is 0, was 3" in report["verdicts"][0]["what"]
    assert shop.run("lock", "--force").returncode == 0
    assert "nothing has changed" in shop.run("check").stdout
    assert not list(shop.folder.glob(".*.tmp"))


def test_json_of_lock_and_check(shop: Shop) -> None:
    [locked] = json_lines(shop.run("lock", "--json"))
    assert locked["written"] is True
    assert set(locked) == {
        "written",
        "lock",
        "corpus",
        "kinds",
        "versions",
        "golden",
        "taken",
        "refused",
        "verdicts",
    }
    assert (locked["kinds"], locked["versions"], locked["golden"], locked["taken"]) == (1, 1, 2, 2)
    [report] = json_lines(shop.run("check", "--json"))
    keys_of = {"compatible", "changed", "lock", "golden", "failed", "passed_over", "verdicts"}
    assert (set(report), report["compatible"], report["changed"]) == (keys_of, True, False)
    shop.write(FIRST.replace("count: int", "seats: int"))
    [report] = json_lines(shop.run("check", "--json"))
    assert set(report["verdicts"][0]) == {"kind", "version", "field", "judgement", "what", "remedy"}
    assert report["verdicts"][0]["judgement"] == "needs a version and a step"
    refused = shop.run("lock", "--json")
    assert (refused.returncode, json_lines(refused)[0]["written"]) == (8, False)


def test_a_list_of_classes_will_do_for_events_and_no_payload_has_to_be_taken(shop: Shop) -> None:
    done = shop.run("lock", "--capture", "0", "--lock", "other.json", events="shop:EVENTS")
    assert done.returncode == 0
    assert (shop.folder / "other.json").exists()
    assert (shop.folder / "other.corpus.jsonl").read_text() == ""
    assert shop.run("check", "--lock", "other.json", events="shop:EVENTS").returncode == 0


def test_a_step_that_is_rewritten_with_the_same_outcome_passes_and_another_outcome_does_not(shop: Shop) -> None:
    function = SECOND.split("UPCASTERS.change")[0] + (
        '@UPCASTERS.step("bought", 1)\ndef lift(payload):\n    return {"seats": payload["count"] * 2, "note": ""}\n'
    )
    shop.write(function)
    assert shop.run("lock", "--force").returncode == 0
    shop.write(function.replace('payload["count"] * 2', 'payload["count"] + payload["count"]'))
    done = shop.run("check")
    assert done.returncode == 0
    assert "gives the same for 2 golden payloads" in done.stdout
    shop.write(function.replace("* 2", "* 3"))
    assert shop.run("check").returncode == 8


@pytest.mark.parametrize(
    ("events", "code", "says"),
    [
        ("shop", 2, "--events is MODULE:ATTR"),
        (":x", 2, "--events is MODULE:ATTR"),
        ("shop:", 2, "--events is MODULE:ATTR"),
        (".shop:x", 2, "--events is MODULE:ATTR"),
        ("nowhere:x", 2, "there is no module 'nowhere'"),
        ("shop.inner:x", 2, "no module"),
        ("shop:MISSING", 2, "shop has no 'MISSING'"),
        ("shop:NUMBER", 2, "is of type int, not an Upcasters"),
        ("shop:Bought", 2, "put it into a list, [Bought]"),
        ("broken:x", 2, "importing broken raised ZeroDivisionError"),
        ("leaves:x", 2, "importing leaves raised SystemExit"),
        ("lacks:x", 2, "No module named 'nowhere_at_all'"),
        ("wrong:NOT_EVENTS", 2, "is not a subclass"),
        ("wrong:UNDECODABLE", 2, "cannot be decoded"),
        ("steps:GAP", 8, "gap"),
        ("twice:UPCASTERS", 8, "two steps from bought@1"),
    ],
)
def test_events_that_cannot_be_had_are_said_plainly(shop: Shop, events: str, code: int, says: str) -> None:
    for name, text in {
        "broken": "1 / 0",
        "leaves": "raise SystemExit(3)",
        "lacks": "import nowhere_at_all",
        "wrong": f"{HEAD}NOT_EVENTS = [int]\nclass U(Event, frozen=True):\n    kind = 'u'\n    x: str | bytes\n"
        "UNDECODABLE = [U]",
        "steps": f"{SECOND.replace('version = 2', 'version = 3')}GAP = UPCASTERS",
        "twice": f"{SECOND}UPCASTERS.drop('bought', 1)",
    }.items():
        (shop.folder / f"{name}.py").write_text(text)
    done = shop.run("check", events=events)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr


def test_files_that_cannot_be_read_are_said_plainly(shop: Shop) -> None:
    missing = shop.run("check")
    assert missing.returncode == 6
    assert "write one with tailfold schema lock" in missing.stderr
    for text, code, says in (
        ("{", 2, "is not JSON"),
        ('{"lock": 99}', 8, "has format 99; this tailfold knows formats up to 1"),
        ('{"lock": 1}', 2, "cannot be read"),
    ):
        shop.lock.write_text(text)
        for command in ("check", "lock"):
            done = shop.run(command)
            assert (done.returncode, says in done.stderr) == (code, True), done.stderr
        assert shop.lock.read_text() == text, "nothing is written over"
    shop.lock.unlink()
    assert shop.run("lock").returncode == 0
    shop.corpus.write_text("no json\n")
    done = shop.run("check")
    assert (done.returncode, "line 1" in done.stderr) == (2, True)
    shop.corpus.unlink()
    done = shop.run("lock", "--lock", "no/such/folder/x.json")
    assert (done.returncode, "cannot write" in done.stderr) == (2, True)
    assert shop.run("lock", "--store", "no-such-store").returncode == 6
    for command in ("lock", "check"):
        done = shop.run(command, "--lock", ".")
        assert done.returncode == 2, done.stderr


def test_payloads_that_the_code_cannot_read_are_not_taken_and_counted(shop: Shop) -> None:
    shop.write(SECOND.replace('"seats"))', '"other"))'))
    done = shop.run("lock", "--force", "--json")
    [locked] = json_lines(done)
    assert (done.returncode, locked["taken"], locked["refused"]) == (0, 0, 2)
    shutil.rmtree(shop.folder / ".tailfold")
    assert "there is no store at .tailfold" in shop.run("lock", "--force").stderr


def test_survey_counts_every_version_and_names_the_first_that_cannot_be_read(shop: Shop) -> None:
    done = shop.run("survey")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split() == ["bought@1", "3", "3", "current"]
    shop.write(SECOND)
    [row] = json_lines(shop.run("survey", "--json"))
    assert (row["events"], row["readable"], row["steps"]) == (3, 3, 1)
    assert row["standing"] == "lifted by 1 step to bought@2"
    shop.write(SECOND.replace('RenameField("count", "seats")', 'ConvertField("count", lambda n: 1 // (n - 4))'))
    done = shop.run("survey", "--json")
    assert done.returncode == 8
    [row] = json_lines(done)
    assert (row["events"], row["readable"]) == (3, 0)
    assert (row["failure"]["stream"], row["failure"]["version"]) == ("customer", 1)
    assert "3 events cannot be read" in done.stderr
    shop.write(SECOND.replace('UPCASTERS.change("bought", 1, RenameField("count", "seats"))', ""))
    done = shop.run("survey")
    assert (done.returncode, "without a step" in done.stdout) == (8, True)
    shop.write(FIRST.replace('"bought"', '"sold"'))
    done = shop.run("survey")
    assert (done.returncode, "unknown kind: kept as it is" in done.stdout) == (0, True)


def test_explain_shows_every_stage_or_the_step_that_fails(shop: Shop) -> None:
    shop.write(SECOND)
    done = shop.run("explain", "customer", "2")
    assert done.returncode == 0
    assert "stored as bought@1 (lifted by 1 step to bought@2)" in done.stdout
    assert "step bought@1 → bought@2: rename count to seats" in done.stdout
    assert 'the fold sees Bought\n    {"seats":4,"note":"x"}' in done.stdout
    [found] = json_lines(shop.run("explain", "customer", "2", "--json"))
    assert found["payload"] == {"count": 4, "note": "x"}
    assert found["stages"][0]["outputs"] == [{"kind": "bought", "version": 2, "payload": {"seats": 4, "note": "x"}}]
    assert found["events"][0]["payload"] == {"seats": 4, "note": "x"}
    fails = (
        SECOND.replace('1, RenameField("count", "seats")', "1") + 'UPCASTERS.step("bought", 2)(lambda p: p["gone"])'
    )
    shop.write(fails.replace("version = 2", "version = 3"))
    done = shop.run("explain", "customer", "2", "--json")
    assert done.returncode == 8
    [found] = json_lines(done)
    assert (found["failed_step"], found["failed_given"]) == ("bought@2 → bought@3", {"count": 4, "note": "x"})
    assert (len(found["stages"]), found["events"]) == (1, [])
    assert "KeyError" in found["error"]
    assert "bought@2 → bought@3 fails" in shop.run("explain", "customer", "2").stdout
    assert shop.run("explain", "customer", "9").returncode == 6
    assert shop.run("explain", "nobody", "1").returncode == 6
    assert shop.run("explain", "customer", "0").returncode == 2


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("schema") / "store"
    assert tailfold(store, "run", QUESTION, "--model", "rules", "--run-id", "r-1").returncode == 0
    with Store.open(store) as opened:
        opened.append("other", Bought(1), expected=0)
    return store


def check_shipped(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "schema", "check", "--lock", str(LOCK), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)


def test_the_shipped_agent_passes_its_own_check() -> None:
    done = check_shipped()
    assert done.returncode == 0, done.stdout
    assert "nothing has changed" in done.stdout


def test_the_shipped_agents_events_are_surveyed_and_explained(ended: Path) -> None:
    rows: list[Any] = json_lines(tailfold(ended, "schema", "survey", "--json"))
    assert sum(row["events"] for row in rows) == 13
    assert all(row["readable"] == row["events"] for row in rows)
    standing = {row["kind"]: row["standing"] for row in rows}
    assert standing.pop("bought") == "of another program: kept as it is"
    assert set(standing.values()) == {"current"}
    [found] = json_lines(tailfold(ended, "schema", "explain", "r-1", "1", "--json"))
    assert (found["stored"], found["stages"], found["events"][0]["name"]) == ("run_started@1", [], "RunStarted")
    assert "the fold passes over bought" in tailfold(ended, "schema", "explain", "other", "1").stdout


def test_lock_takes_payloads_of_the_agents_runs_only(ended: Path, tmp_path: Path) -> None:
    done = tailfold(ended, "schema", "lock", "--lock", str(tmp_path / "x.json"), "--json")
    assert done.returncode == 0
    kinds = [msgspec.json.decode(line)["kind"] for line in (tmp_path / "x.corpus.jsonl").read_bytes().splitlines()]
    assert "bought" not in kinds
    assert {"run_started", "run_ended"} <= set(kinds)


def test_survey_goes_on_past_damaged_records_and_ends_with_7(ended: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ended, tmp_path / "copy"))
    change_event(copy, 3, lambda data: b"\xc1" * len(data))
    done = tailfold(copy, "schema", "survey", "--json")
    assert done.returncode == 7
    found = json_lines(done)
    assert sum(row["events"] for row in found) == 13
    assert [row["readable"] for row in found if row["kind"] == "?"] == [0]
    assert "damaged" in done.stderr


def test_survey_of_an_empty_store_says_so(tmp_path: Path) -> None:
    Store.open(tmp_path / "s").close()
    done = tailfold(tmp_path / "s", "schema", "survey")
    assert (done.returncode, "holds no events" in done.stderr) == (0, True)
    assert tailfold(tmp_path / "none", "schema", "survey").returncode == 6
