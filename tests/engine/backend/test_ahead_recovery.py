"""Recovery from the write-ahead file: from what, by whom, and what becomes of it when it is cut short."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tailfold.engine import ANY, LmdbBackend, Store
from tailfold.engine.backend.lmdb import ahead, ahead_file, environment, metas
from tailfold.engine.backend.lmdb.ahead_file import FILE, RECORDS_AT, AheadFile
from tailfold.engine.errors import EngineError, StoreDamaged

from tests.domain import Deposited
from tests.faults import failing, left_behind


class KilledError(BaseException):
    """Stands for the end of the process."""


def cut_short(path: Path, patch: pytest.MonkeyPatch, where: object, name: str) -> None:
    """Begin to recover the store, and die where *name* is called; only what the kernel keeps is left."""
    with patch.context() as patched:
        patched.setattr(where, name, failing(KilledError()))
        with pytest.raises(KilledError):
            Store.open(path)


@pytest.mark.parametrize("appends", [3, 60, 420])
def test_another_stores_data_is_not_written_over(appends: int, tmp_path: Path) -> None:
    """Put back over a killed store, with about as many transactions: numbers alone would not tell."""
    path = tmp_path / "s"
    left_behind(path, appends)
    for more in range(6):
        copy = tmp_path / f"copy-{more}"
        with Store.open(copy) as store:
            for i in range(appends + more - 3):
                store.append("mine", [Deposited(i, "a longer note" * (1 + i % 3))] * 2, expected=2 * i)
            store.append("mine", [Deposited(1)] * 2, expected=ANY)
        shutil.copy(copy / "data.mdb", path / "data.mdb")
        before = (path / "data.mdb").read_bytes()
        with pytest.raises(StoreDamaged, match=r"move data\.wal away"):
            Store.open(path)
        assert (path / "data.mdb").read_bytes() == before
        kept = (path / FILE).rename(tmp_path / "kept")
        with Store.open(path) as store:
            assert store.head("mine").version == 2 * (appends + more - 2)
        kept.rename(path / FILE)


@pytest.mark.parametrize("appends", [0, 1, 30, 90])
@pytest.mark.parametrize("killed", [True, False])
def test_a_copy_of_the_same_store_that_went_on_is_not_written_over(
    appends: int, killed: bool, tmp_path: Path
) -> None:
    """Copied whole, after a kill or before; both go on, and the copy's data is put back over a killed one's."""
    base, path, copy = tmp_path / "base", tmp_path / "s", tmp_path / "copy"
    with Store.open(base) as store:
        store.append("mine", [Deposited(i) for i in range(300)], expected=0)
    shutil.copytree(base, copy)
    with Store.open(base) as store:
        for i in range(60):
            store.append("mine", Deposited(i), expected=300 + i)
        shutil.copytree(base, path)
    if killed:
        shutil.rmtree(copy)
        shutil.copytree(path, copy)
    there = 360 if killed else 300
    with Store.open(copy) as store:
        for i in range(appends):
            store.append("mine", Deposited(i, "of the copy"), expected=there + i)
    shutil.copy(copy / "data.mdb", path / "data.mdb")
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(StoreDamaged, match=r"move data\.wal away"):
        Store.open(path)
    assert (path / "data.mdb").read_bytes() == before
    (path / FILE).unlink()
    with Store.open(path) as store:
        assert store.head("mine").version == there + appends
        assert store.verify().findings == []


def test_a_map_that_is_too_small_for_a_recovery_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the address space is limited: the process that was killed had more of it."""
    path = tmp_path / "s"
    left_behind(path, 30)
    go_on, sizes = ahead.go_on, []

    def first_full(at: Path, file: AheadFile, noted: Any, env: lmdb.Environment, tables: Any) -> None:
        sizes.append(env.info()["map_size"])
        if len(sizes) == 1:
            raise lmdb.MapFullError("full")
        go_on(at, file, noted, env, tables)

    monkeypatch.setattr(environment, "go_on", first_full)
    with Store.open(backend=LmdbBackend(path, map_bytes=1 << 20)) as store:
        assert store.head("a").version == 30
    assert sizes == [1 << 20, 1 << 21]


def test_a_recovery_that_finds_no_room_says_that_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    left_behind(path, 30)
    with monkeypatch.context() as patched:
        patched.setattr(environment, "go_on", failing(lmdb.MemoryError("Cannot allocate memory")))
        with pytest.raises(EngineError, match="Nothing is lost"):
            Store.open(path)
    with Store.open(path) as store:
        assert sum(head.version for head in store.streams()) >= 30


def test_a_compacted_copy_is_not_written_over(tmp_path: Path) -> None:
    """Its transaction is number 1, whatever it holds."""
    path, copy = tmp_path / "s", tmp_path / "copy"
    copy.mkdir()
    left_behind(path, 5)
    with Store.open(tmp_path / "live") as store:
        store.append("mine", Deposited(1), expected=0)
    with lmdb.open(str(tmp_path / "live"), max_dbs=32) as env:
        env.copy(str(copy), compact=True)
    shutil.copy(copy / "data.mdb", path / "data.mdb")
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(StoreDamaged, match=r"move data\.wal away"):
        Store.open(path)
    assert (path / "data.mdb").read_bytes() == before


def test_a_copy_taken_while_the_store_was_written_to_is_recovered(tmp_path: Path) -> None:
    """Its pages are those of this history: the records bring what came after it."""
    path = tmp_path / "s"
    with Store.open(path) as store:
        for i in range(20):
            store.append("a", Deposited(i), expected=i)
        middle = (path / "data.mdb").read_bytes()
        for i in range(20, 40):
            store.append("a", Deposited(i), expected=i)
        left = tmp_path / "left"
        left.mkdir()
        (left / "data.mdb").write_bytes(middle)
        (left / FILE).write_bytes((path / FILE).read_bytes())
    with Store.open(left) as store:
        assert store.head("a").version == 40
        assert store.verify().findings == []


def test_data_that_is_cut_off_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path, other = tmp_path / "s", tmp_path / "other"
    with Store.open(other) as store:
        store.append("first", [Deposited(i, "a note" * 200) for i in range(200)], expected=0)
    with Store.open(other) as store:
        for i in range(30):
            store.append("a", Deposited(i), expected=i)
        path.mkdir()
        for name in ("data.mdb", FILE):
            shutil.copy(other / name, path / name)
    whole = (path / "data.mdb").read_bytes()
    short = whole[:100_000]  # less than the events of the first process, which closed the store
    (path / "data.mdb").write_bytes(short)
    noted = (path / FILE).read_bytes()
    with pytest.raises(StoreDamaged, match="its settled state ends at"):
        Store.open(path)
    assert (path / "data.mdb").read_bytes() == short
    assert (path / FILE).read_bytes()[:4096] == noted[:4096]
    (path / "data.mdb").write_bytes(whole)
    with Store.open(path) as store:
        assert store.verify().sound


def test_the_only_record_that_is_damaged_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left_behind(path, 1)
    wal = bytearray((path / FILE).read_bytes())
    wal[RECORDS_AT + 60] ^= 1
    (path / FILE).write_bytes(wal)
    with pytest.raises(StoreDamaged, match="records are missing"):
        Store.open(path)


def test_a_store_that_was_killed_before_it_wrote_is_as_it_was(tmp_path: Path) -> None:
    """Nothing to recover: no transaction is made for it, and the number of the last one stays."""
    path = tmp_path / "s"
    with Store.open(path) as store:
        store.append("a", Deposited(1), expected=0)
    with Store.open(path) as store:
        ahead_of = store.backend._shared.ahead  # type: ignore[attr-defined]
        with store.backend._env.begin(write=True) as txn:  # type: ignore[attr-defined]
            ahead_of._settle(txn.id() - 1, active=True)
        left = tmp_path / "left"
        shutil.copytree(path, left)
    before = metas.read(left / "data.mdb")
    assert ahead_file.peek(left).active
    with Store.open(left) as store:
        assert store.head("a").version == 1
    assert metas.read(left / "data.mdb") == before
    assert not ahead_file.peek(left).active


@pytest.mark.parametrize(
    ("where", "name"),
    [(metas, "put_back"), (environment, "open_environment"), (environment, "go_on"), (ahead, "flush_data"),
     (AheadFile, "write_header"), (AheadFile, "share")],
)  # fmt: skip
def test_a_recovery_that_is_cut_short_is_done_again(
    where: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    left_behind(path, 30)
    for _ in range(2):
        cut_short(path, monkeypatch, where, name)
    with Store.open(path) as store:
        assert store.head("a").version == 30
        assert store.verify().findings == []
        assert store.backend.check() == []
        store.append("a", Deposited(1), expected=30)


def test_a_recovery_beside_another_program_that_is_cut_short_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has LMDB's lock file open makes numbers go on from a state that is gone: past the last record."""
    path = tmp_path / "s"
    with Store.open(path) as store:
        for i in range(20):
            store.append("a", Deposited(i), expected=i)
        left = tmp_path / "left"
        shutil.copytree(path, left)
    reader = "import lmdb, sys; env = lmdb.open(sys.argv[1], max_dbs=32, readonly=True); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", reader, str(left)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        cut_short(left, monkeypatch, AheadFile, "write_header")
        program.communicate(b"\n")
    with Store.open(left) as store:
        assert store.head("a").version == 20


def test_who_finds_a_recoverer_dying_recovers_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its locks go one by one: that of the file may be held a little longer, and seem to be a sharer's."""
    path = tmp_path / "s"
    left_behind(path, 21)
    cut_short(path, monkeypatch, environment, "go_on")
    dying = os.open(path / FILE, os.O_RDWR)
    fcntl.flock(dying, fcntl.LOCK_SH)  # as if it went from alone to gone between two questions

    def die() -> None:
        time.sleep(0.2)
        os.close(dying)

    thread = threading.Thread(target=die)
    thread.start()
    with Store.open(path) as store:
        thread.join()
        assert store.head("a").version == 21
        store.append("b", Deposited(1), expected=0)
    with Store.open(path) as store:
        assert {head.stream: head.version for head in store.streams()} == {"a": 21, "b": 1}


def test_an_open_that_failed_holds_no_lock_while_its_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        store.append("a", Deposited(1), expected=0)
    kept: list[BaseException] = []
    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", failing(OSError(12, "Cannot allocate memory")))
        try:
            Store.open(path)
        except EngineError as error:
            kept.append(error)
    assert "Cannot allocate memory" in str(kept[0])
    handle = os.open(path / FILE, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
    with Store.open(path) as store:
        assert store.head("a").version == 1


def test_a_store_whose_directory_is_moved_goes_on_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, moved = tmp_path / "s", tmp_path / "moved"
    monkeypatch.setattr(ahead, "PAGES_LEAST", 20)
    monkeypatch.setattr(ahead, "PAGES_MOST", 20)
    store = Store.open(path)
    store.append("a", Deposited(1), expected=0)
    path.rename(moved)
    shutil.copytree(moved, path)  # and a copy is put in its place
    for i in range(50):
        store.append("a", Deposited(i), expected=i + 1)
    store.close()
    with Store.open(moved) as store:
        assert store.head("a").version == 51
