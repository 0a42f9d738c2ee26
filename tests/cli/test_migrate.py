"""migrate on the command line: what it says, where its report stands, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tailfold.engine import ANY, Blob, Event, LmdbBackend, Store
from tailfold.engine.backend.port import FORMAT_AHEAD

from tests import shop
from tests.cli.command import PROGRAM, QUESTION, environment, json_lines, tailfold
from tests.shop import CURRENT, new_shop, old_shop, till
from tests.surgery import change_event

ROOT = Path(__file__).parents[2]
SHOP = ("--events", "tests.shop:upcasters", "--fold", "tests.shop:till")


def migrate(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*PROGRAM, "migrate", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    assert tailfold(path, "run", QUESTION, "--model", "rules", "--run-id", "r-1").returncode == 0
    with old_shop(LmdbBackend(path)) as store:
        events = [shop.OldPaid(3), shop.OldMoved(9, "bob"), shop.Pinged(1), shop.Foreign({"x": 1})]
        store.append("shop", [*events, shop.Filed("f", Blob(b"content"))], expected=ANY)
    return path


def test_a_dry_run_says_what_would_change_and_writes_nothing(source: Path, tmp_path: Path) -> None:
    before = (source / "data.mdb").read_bytes()
    done = migrate(source, tmp_path / "d", "--dry-run", *SHOP)
    assert done.returncode == 0
    for part in ("17 events of 2 streams", "1 lifted", "1 split", "1 dropped", "moved@1 → sent@1 + paid@2"):
        assert part in done.stdout
    assert not (tmp_path / "d").exists()
    assert (source / "data.mdb").read_bytes() == before


def test_a_migrated_store_is_used_like_any_other(source: Path, tmp_path: Path) -> None:
    before = (source / "data.mdb").read_bytes()
    destination = tmp_path / "d"
    [report] = json_lines(migrate(source, destination, "--json", *SHOP))
    assert (report["sound"], report["copied"], report["format"]) == (True, 17, FORMAT_AHEAD)
    assert report["compared"]["states"] == 2
    assert json.loads((destination / "migration-report.json").read_text()) == report
    assert (destination / "migration-report.json").stat().st_mode & 0o777 == 0o600
    assert (source / "data.mdb").read_bytes() == before
    for command in (("verify",), ("replay", "r-1"), ("show", "shop"), ("list",)):
        assert tailfold(destination, *command).returncode == 0, command
    assert tailfold(source, "state", "r-1").stdout == tailfold(destination, "state", "r-1").stdout
    [stats] = json_lines(tailfold(destination, "stats", "--json"))
    assert (stats["format"], stats["kinds"]["*@1"]["events"]) == (FORMAT_AHEAD, 2)
    lines = json_lines(tailfold(destination, "export", "shop"))
    assert [(line["version"], line["kind"], line.get("dropped", False)) for line in lines] == [
        (1, "paid", False),
        (2, "sent", False),
        (2, "paid", False),
        (3, "*", True),
        (4, "foreign", False),
        (5, "filed", False),
    ]
    assert ["record" in line for line in lines] == [True, True, False, True, True, True]
    with Store.open(destination, events=CURRENT) as now, new_shop(LmdbBackend(source)) as was:
        assert [r.event for r in now.read("shop")] == [r.event for r in was.read("shop")]
        assert now.load("shop", till).state == was.load("shop", till).state
    again = migrate(source, destination, *SHOP)
    assert again.returncode == 0
    assert "copied 0 events now, 17 were there" in again.stdout


def test_a_composite_store_is_exported_and_imported(source: Path, tmp_path: Path) -> None:
    assert migrate(source, tmp_path / "d", *SHOP).returncode == 0
    file = tmp_path / "shop.jsonl"
    assert tailfold(tmp_path / "d", "export", "shop", "--output", str(file)).returncode == 0
    assert tailfold(tmp_path / "e", "import", str(file)).returncode == 0
    with Store.open(tmp_path / "d") as one, Store.open(tmp_path / "e") as two:
        assert one.head("shop") == two.head("shop")


def test_streams_of_other_programs_are_copied_as_they_are(source: Path, tmp_path: Path) -> None:
    [report] = json_lines(migrate(source, tmp_path / "d", "--json"))
    assert (report["opaque"], report["unchanged"], report["format"]) == (5, 12, FORMAT_AHEAD)
    with Store.open(tmp_path / "d") as one, Store.open(source) as two:
        assert list(one.streams()) == list(two.streams())


def test_what_is_no_destination_is_refused_and_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    for same in (source, tmp_path / "link", source / ".." / "source"):
        done = migrate(source, same)
        assert done.returncode == 2
        assert "in place" in done.stderr
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thing").write_text("mine")
    assert migrate(source, foreign).returncode == 2
    assert [p.name for p in foreign.iterdir()] == ["thing"]
    other = tmp_path / "other"
    with Store.open(other) as store:
        store.append("a", shop.Noted("here"), expected=0)
    before = (other / "data.mdb").read_bytes()
    assert migrate(source, other).returncode == 9
    assert (other / "data.mdb").read_bytes() == before
    assert migrate(tmp_path / "none", tmp_path / "d").returncode == 6
    assert not (tmp_path / "d").exists()
    assert migrate(source, tmp_path / "d", "--events", "nonsense").returncode == 2
    assert migrate(source, tmp_path / "d", "--events", "tests.shop:nothing").returncode == 2
    assert migrate(source, tmp_path / "d", "--events", "tests.shop:ROOT").returncode == 2
    assert migrate(source, tmp_path / "d", *SHOP[:2], "--fold", "tests.shop:dump").returncode == 2
    assert migrate(source).returncode == 2


def test_what_cannot_be_lifted_is_exit_8_and_damage_exit_7(source: Path, tmp_path: Path) -> None:
    class Later(Event, frozen=True):
        kind = "paid"
        version = 9
        cents: int

    with Store.open(source) as store:
        store.append("shop", Later(1), expected=ANY)
    done = migrate(source, tmp_path / "d", *SHOP)
    assert done.returncode == 8
    assert "version 6" in done.stderr
    assert not (tmp_path / "d").exists()
    dry = migrate(source, tmp_path / "d", "--dry-run", *SHOP)
    assert dry.returncode == 8
    assert "'paid' was written at schema version 9" in dry.stdout
    change_event(source, 3, lambda data: data[:-1] + b"\x01", stream=1)
    assert migrate(source, tmp_path / "d").returncode == 7
    assert not (tmp_path / "d").exists()


def test_ctrl_c_says_how_to_go_on(source: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom tailfold.engine.migration import copying\nput = copying.heads\n"
        "def slow(backend):\n    print('copied', flush=True)\n    time.sleep(5)\n    return put(backend)\n"
        "copying.heads = slow\nfrom tailfold.cli.main import main\nmain()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "migrate", str(source), str(tmp_path / "d")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "copied\n"
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "unfinished. Go on with the same command" in said
    done = migrate(source, tmp_path / "d")
    assert (done.returncode, "the same" in done.stdout) == (0, True)
