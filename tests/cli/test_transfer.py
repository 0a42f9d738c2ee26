"""export and import on the command line: what comes out goes in again, and what is not that is refused by line."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tailfold.engine import ANY, Blob, LmdbBackend, Store

from tests import shop
from tests.cli.command import PROGRAM, QUESTION, environment, json_lines, tailfold
from tests.shop import old_shop


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("transfer") / "store"
    assert tailfold(path, "run", QUESTION, "--model", "rules", "--run-id", "r-1").returncode == 0
    with old_shop(LmdbBackend(path)) as opened:
        events = [shop.Foreign({"x": 1}), shop.Filed("f", Blob(b"content")), shop.Filed("g", Blob(b"content"))]
        opened.append("other", events, expected=ANY)
    return path


@pytest.fixture(scope="module")
def exported(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("exported") / "r-1.jsonl"
    assert tailfold(store, "export", "r-1", "--output", str(file)).returncode == 0
    return file


def piped(store: Path, lines: list[Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return subprocess.run(
        [*PROGRAM, "import", "-", *arguments, "--store", str(store)],
        input=text,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )


@pytest.mark.parametrize("run", ["r-1", "other"])
def test_what_is_imported_is_exported_to_the_byte(run: str, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    assert tailfold(store, "export", run, "--output", str(file)).returncode == 0
    done = tailfold(tmp_path / "s", "import", str(file))
    assert done.returncode == 0
    assert f"imported {run}" in done.stdout
    again = tailfold(tmp_path / "s", "export", run).stdout.splitlines()
    for ours, theirs in zip(again, file.read_text().splitlines(), strict=True):
        new, old = json.loads(ours), json.loads(theirs)
        assert new.pop("position") <= old.pop("position")
        assert new == old
    assert tailfold(tmp_path / "s", "verify").returncode == 0
    assert "there already" in tailfold(tmp_path / "s", "import", str(file)).stdout


def test_an_imported_run_is_one_like_any_other(exported: Path, tmp_path: Path) -> None:
    [done] = json_lines(tailfold(tmp_path / "s", "import", str(exported), "--as", "copy", "--json"))
    assert (done["stream"], done["events"], done["added"]) == ("copy", 12, 12)
    assert tailfold(tmp_path / "s", "replay", "copy").returncode == 0
    assert "answered" in tailfold(tmp_path / "s", "list").stdout
    assert tailfold(tmp_path / "s", "verify", "copy", "--head", done["head"]).returncode == 0


def test_a_blob_is_in_the_file_once_and_an_unknown_kind_with_its_fields(store: Path) -> None:
    lines = json_lines(tailfold(store, "export", "other"))
    assert [len(line.get("blobs", {})) for line in lines] == [0, 1, 0]
    assert base64.b64decode(next(iter(lines[1]["blobs"].values()))) == b"content"
    assert (lines[0]["opaque"], lines[0]["stored"]) == (True, "foreign@3")
    assert lines[0]["fields"]["foreign@3"][0][0]["name"] == "what"
    assert "fields" not in lines[2]


def test_a_file_that_goes_on_continues_and_another_one_is_a_conflict(
    store: Path, exported: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in exported.read_text().splitlines()]
    del lines[0]["events"]
    assert piped(tmp_path / "s", lines[:5]).returncode == 0
    done = piped(tmp_path / "s", lines)
    assert "12 events (5 were there already)" in done.stdout
    shorter = piped(tmp_path / "s", lines[:5])
    assert shorter.returncode == 9
    assert "--as" in shorter.stderr
    other = json_lines(tailfold(store, "export", "other"))
    conflict = piped(tmp_path / "s", other, "--as", "r-1")
    assert conflict.returncode == 9
    assert "r-1" in conflict.stderr


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda lines: [*lines[:3], "{"], 2, "line 4 is no line of an export"),
        (lambda lines: [*lines[:3], {"version": 4}], 2, "line 4 is no line of an export"),
        (lambda lines: lines[1:], 2, "line 1 is of version 2, version 1 is due"),
        (lambda lines: lines[:2] + lines[3:], 2, "line 3 is of version 4, version 3 is due"),
        (lambda lines: lines[:5], 2, "it was cut off"),
        (lambda lines: [], 2, "no event"),
        (lambda lines: [lines[0], lines[1] | {"stream": "x"}], 2, "line 2 is of stream 'x'"),
        (lambda lines: [lines[0], lines[1] | {"record": None}], 2, "--records"),
        (lambda lines: [lines[0], lines[1] | {"record": "%"}], 2, "line 2: its record is no base64"),
        (lambda lines: [lines[0], lines[1] | {"record": "kwE="}], 2, "line 2: its bytes are no record"),
        (lambda lines: [lines[0], lines[1] | {"record": lines[2]["record"]}], 7, "line 2: the records up to"),
        (lambda lines: [lines[0] | {"blobs": {}}, *lines[1:]], 2, "line 1 refers to blob"),
        (
            lambda lines: [lines[0] | {"blobs": {next(iter(lines[0]["blobs"])): "AAAA"}}, *lines[1:]],
            7,
            "line 1: the content of blob",
        ),
        (lambda lines: [lines[0], lines[1] | {"sub": 3}], 2, "line 2 is part 3"),
    ],
)
def test_a_spoilt_file_is_refused_by_line_and_nothing_is_written(
    spoil: Any, code: int, said: str, exported: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in exported.read_text().splitlines()]
    done = piped(tmp_path / "s", spoil(lines))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    if (tmp_path / "s").exists():
        with Store.open(tmp_path / "s", create=False) as opened:
            assert opened.backend.count() == (0, 0)


def test_an_export_without_records_says_how_to_export(store: Path, tmp_path: Path) -> None:
    lines = json_lines(tailfold(store, "export", "r-1", "--no-records"))
    done = piped(tmp_path / "s", lines)
    assert done.returncode == 2
    assert "--records" in done.stderr
    assert tailfold(tmp_path / "s", "import", str(tmp_path / "none")).returncode == 2


@pytest.mark.parametrize("name", ["../x", ":q", "", "a b"])
def test_a_name_that_no_run_may_have_is_refused(name: str, exported: Path, tmp_path: Path) -> None:
    assert tailfold(tmp_path / "s", "import", str(exported), "--as", name).returncode == 2
    assert not (tmp_path / "s").exists()
