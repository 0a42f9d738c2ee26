"""A migration and an import killed by SIGKILL after every commit: run again, they give the same store."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import msgspec
import pytest
from tailfold.engine import Blob, Durability, LmdbBackend, Store
from tailfold.engine.exporting import export
from tailfold.engine.migration import Schema, migrate

from tests import shop
from tests.shop import dump, new_shop, old_shop, till

ROOT = Path(__file__).parents[3]
COMMITS_OF_A_MIGRATION = 13
COMMITS_OF_AN_IMPORT = 4

MIGRATE = """
import os, sys
from tailfold.engine.migration import Schema, migrate, plan
from tests import shop
plan.ROWS_PER_PAGE = 2
left = int(sys.argv[3])
def after_commit(position):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), 9)
schema = Schema(shop.upcasters, (shop.till,))
report = migrate(sys.argv[1], sys.argv[2], schema, clock=lambda: 5, after_commit=after_commit)
assert report.sound, report.findings
"""

IMPORT = """
import os, sys
from tailfold.engine import Store, importing
importing.BATCH_EVENTS = 3
left = int(sys.argv[3])
def after_commit(done):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), 9)
with Store.open(sys.argv[2]) as store, open(sys.argv[1], "rb") as lines:
    checked = importing.check(lines)
    lines.seek(0)
    importing.import_stream(store.log, checked, lines, after_commit=after_commit)
"""


def run(script: str, *arguments: object) -> int:
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT, timeout=60).returncode


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("killed") / "source"
    clock = count(1_000)
    with old_shop(LmdbBackend(path, durability=Durability.RELAXED), clock=lambda: next(clock)) as store:
        store.append("a", [shop.OldPaid(3), shop.OldMoved(9, "bob"), shop.OldRated(1)], expected=0, key="k1")
        store.append("b", [shop.Foreign({"x": 1}), shop.Filed("f", Blob(b"content"))], expected=0, key="k2")
        store.append("a", [shop.OldBasket([1, 2]), shop.Pinged(1)], expected=3)
        store.append("b", [shop.OldGrown(1), shop.Jotted("hi"), shop.Filed("g", Blob(b"more"))], expected=2)
        with store.drive("b"):
            pass
        with store.subscribe(name="mailer", follow=False) as events:
            assert len(list(events)) == store.position
    return path


@pytest.fixture(scope="module")
def unkilled(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unkilled") / "destination"
    assert run(MIGRATE, source, path, 0) == 0
    return path


def digest(path: Path) -> str:
    return hashlib.sha256((path / "data.mdb").read_bytes()).hexdigest()


@pytest.mark.parametrize("commit", range(1, COMMITS_OF_A_MIGRATION + 1))
def test_a_migration_killed_after_any_commit_is_gone_on_with(
    commit: int, source: Path, unkilled: Path, tmp_path: Path
) -> None:
    before = digest(source)
    killed = run(MIGRATE, source, tmp_path / "d", commit)
    assert killed == (-signal.SIGKILL if commit < COMMITS_OF_A_MIGRATION else 0), "every commit was tried"
    if killed:
        with Store.open(tmp_path / "d", create=False) as half:
            origin = half.origin()
            assert origin is not None
            assert origin.state == ("done" if commit == COMMITS_OF_A_MIGRATION - 1 else "copying")
            assert half.verify().sound, "half a migration is a sound store all the same"
    assert run(MIGRATE, source, tmp_path / "d", 0) == 0
    assert digest(source) == before, "the source stays as it is, to the byte"
    with Store.open(tmp_path / "d", create=False) as store, Store.open(unkilled, create=False) as other:
        assert dump(store) == dump(other)


def test_snapshots_are_made_anew_and_the_source_keeps_its_own(source: Path, tmp_path: Path) -> None:
    before = digest(source)
    report = migrate(source, tmp_path / "d", Schema(shop.upcasters, (till,)))
    assert report.sound
    assert digest(source) == before
    with new_shop(LmdbBackend(tmp_path / "d")) as store, new_shop(LmdbBackend(source)) as old:
        assert store.usage()["tables"]["snapshots"]["rows"] == 0
        assert store.load("a", till) == old.load("a", till)


@pytest.mark.parametrize("commit", range(1, COMMITS_OF_AN_IMPORT + 1))
def test_an_import_killed_after_any_commit_is_gone_on_with(commit: int, unkilled: Path, tmp_path: Path) -> None:
    with Store.open(unkilled, create=False) as store:
        one = [msgspec.json.encode(line) + b"\n" for line in export(store.log, "a")]
        two = [msgspec.json.encode(line) + b"\n" for line in export(store.log, "b")]
        heads = store.backend.heads()
    for name, lines in (("a.jsonl", one), ("b.jsonl", two)):
        (tmp_path / name).write_bytes(b"".join(lines))
        run(IMPORT, tmp_path / name, tmp_path / "s", commit)
        assert run(IMPORT, tmp_path / name, tmp_path / "s", 0) == 0
        assert run(IMPORT, tmp_path / name, tmp_path / "s", 0) == 0, "once more is nothing"
    with Store.open(tmp_path / "s", create=False) as store:
        assert store.backend.heads() == heads, "times and hashes are those of the exported store"
        assert store.verify().sound
        assert store.backend.blobs() != []
