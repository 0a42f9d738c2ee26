"""The write-ahead file under a store: what is refused, what goes on, what is left when it is closed."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tailfold.engine import ANY, Durability, LmdbBackend, Store
from tailfold.engine.backend import keys
from tailfold.engine.backend.lmdb import ahead, ahead_file, metas, opening, writes
from tailfold.engine.backend.lmdb.ahead_file import RECORDS_AT
from tailfold.engine.errors import (
    BadArgument,
    EngineError,
    FormatTooNew,
    OutcomeUnknown,
    StoreDamaged,
    StoreFull,
    StoreReadOnly,
)

from tests.domain import Deposited
from tests.faults import failing, left_behind


def test_data_put_back_from_an_older_copy_is_refused_with_a_remedy_that_works(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s"):
        old = (tmp_path / "s" / "data.mdb").read_bytes()
    with Store.open(tmp_path / "s") as store:
        store.append("a", Deposited(0), expected=0)
    left = tmp_path / "left"
    with Store.open(tmp_path / "s") as store:
        store.append("a", Deposited(1), expected=1)
        left.mkdir()
        (left / ahead_file.FILE).write_bytes((tmp_path / "s" / ahead_file.FILE).read_bytes())
    (left / "data.mdb").write_bytes(old)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"put back from a copy, move data\.wal away"):
            Store.open(left)
        assert (left / "data.mdb").read_bytes() == old, "left as it was"
    (left / ahead_file.FILE).rename(tmp_path / "away")
    with Store.open(left) as store:
        assert list(store.streams()) == []


def test_missing_records_are_refused_with_nothing_changed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left_behind(path, 5)
    wal = bytearray((path / ahead_file.FILE).read_bytes())
    wal[RECORDS_AT + 30] ^= 1
    (path / ahead_file.FILE).write_bytes(wal)
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(StoreDamaged, match="records are missing"):
        Store.open(path)
    assert (path / "data.mdb").read_bytes() == before
    (path / ahead_file.FILE).unlink()  # the machine has run without a break: data.mdb is whole
    with Store.open(path) as store:
        assert store.head("a").version == 5


def test_a_record_of_an_unknown_table_is_refused_with_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    left_behind(path, 3)
    before = (path / "data.mdb").read_bytes()
    tables = tuple(name for name in keys.TABLES if name != "positions")
    monkeypatch.setattr(keys, "TABLES", tables)
    with pytest.raises(StoreDamaged, match="'positions'"):
        Store.open(path)
    assert (path / "data.mdb").read_bytes() == before


def test_a_closed_store_is_data_mdb_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        store.append("a", Deposited(1), expected=0)
        assert ahead_file.peek(path).active
    assert not ahead_file.peek(path).active
    assert (path / ahead_file.FILE).stat().st_size == RECORDS_AT + ahead_file.FIRST_BYTES
    assert (path / ahead_file.FILE).stat().st_mode & 0o777 == 0o600
    (path / ahead_file.FILE).unlink()
    with Store.open(path) as store:
        assert store.head("a").version == 1


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_store_that_lost_its_data_while_it_was_not_closed_is_not_made_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "s"
    left_behind(path, 3)
    data, ahead = (path / "data.mdb").read_bytes(), (path / ahead_file.FILE).read_bytes()
    if how == "missing":
        (path / "data.mdb").unlink()
    else:
        (path / "data.mdb").write_bytes(b"")
    for create in (True, False):
        with pytest.raises(StoreDamaged, match=r"data\.mdb is missing or empty"):
            Store.open(path, create=create)
    assert (path / ahead_file.FILE).read_bytes() == ahead
    (path / "data.mdb").write_bytes(data)
    with Store.open(path) as store:
        assert store.verify().sound
        assert [head.version for head in store.streams()] == [3]


def test_a_store_in_use_whose_lock_was_taken_away_admits_nobody(tmp_path: Path) -> None:
    path = tmp_path / "s"
    script = "import sys; from tailfold.engine import Store; Store.open(sys.argv[1]).head('a')"
    with Store.open(path) as store:
        store.append("a", Deposited(1), expected=0)
        (path / "lock.mdb").unlink()
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60)
        assert "lock.mdb was taken away" in done.stderr
        assert not (path / "lock.mdb").exists()
        store.append("a", Deposited(2), expected=1)
    with Store.open(path) as store:
        assert store.head("a").version == 2
        assert store.verify().sound


@pytest.mark.parametrize("durability", ["durable", "relaxed"])
def test_a_durability_may_be_named_and_a_name_that_is_none_is_refused(tmp_path: Path, durability: str) -> None:
    with Store.open(tmp_path / "s", durability=durability) as store:  # type: ignore[arg-type]
        assert store.backend.durability is Durability(durability)
        store.append("a", Deposited(1), expected=0)
        assert ahead_file.peek(tmp_path / "s").active is (durability == "durable")
    with pytest.raises(BadArgument, match="durable or relaxed"):
        Store.open(tmp_path / "t", durability="bananas")  # type: ignore[arg-type]
    assert not (tmp_path / "t").exists()


def test_a_closed_store_that_lost_its_data_is_not_made_anew_either(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        store.append("a", Deposited(1), expected=0)
    (path / "data.mdb").rename(tmp_path / "away")
    with pytest.raises(StoreDamaged, match=r"says that a store was here"):
        Store.open(path)
    (path / ahead_file.FILE).unlink()
    with Store.open(path) as store:
        assert list(store.streams()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_refuses_the_append_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with Store.open(tmp_path / "s") as store:
        store.append("a", Deposited(1), expected=0)
        with monkeypatch.context() as patch:
            patch.setattr(ahead_file, "write_all", failing(OSError(code, "full")))
            with pytest.raises(StoreFull):
                store.append("a", Deposited(2), expected=1)
        with monkeypatch.context() as patch:
            patch.setattr(ahead_file, "flush", failing(OSError(errno.EIO, "broken")))
            with pytest.raises(OutcomeUnknown):
                store.append("a", Deposited(2), expected=1)
        assert store.head("a").version == 1
        store.append("a", Deposited(3), expected=1)
    with Store.open(tmp_path / "s", events=[Deposited]) as store:
        assert [r.event for r in store.read("a")] == [Deposited(1), Deposited(3)]


def test_after_a_failed_flush_of_data_nothing_is_settled_until_it_was_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    store = Store.open(path)
    store.append("a", Deposited(1), expected=0)
    shared = store.backend._shared  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(ahead, "flush_data", failing(lmdb.Error("mdb_env_sync: Input/output error")))
        shared.ahead._pages = 1 << 20  # settle next time
        with pytest.raises(EngineError):
            store.append("a", Deposited(2), expected=1)
    header = ahead_file.peek(path)
    script = "import sys; from tailfold.engine import Store; Store.open(sys.argv[1]).backend.put(meta={b'x': b'y'})"
    other = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert "OutcomeUnknown" in other.stderr, "other processes are told"
    with pytest.raises(OutcomeUnknown, match="close the store everywhere"):
        store.append("a", Deposited(2), expected=1)
    store.close()
    assert ahead_file.peek(path) == header, "a later flush is not believed"
    with Store.open(path) as store:
        assert store.head("a").version == 1
        store.append("a", Deposited(2), expected=1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_an_append_that_was_broken_off_after_its_record_is_not_recovered(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        store.append("a", Deposited(1), expected=0)
        before_commit = ahead.Ahead.before_commit

        def broken_off(self: ahead.Ahead, *arguments: Any) -> bool:
            before_commit(self, *arguments)
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(ahead.Ahead, "before_commit", broken_off)
            with pytest.raises(type(error)):
                store.append("a", Deposited(2), expected=1)
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("data.mdb", ahead_file.FILE):
            (copy / name).write_bytes((path / name).read_bytes())
        store.append("a", Deposited(3), expected=1)
    for left, expected in ((copy, [1]), (path, [1, 3])):
        with Store.open(left, events=[Deposited]) as store:
            assert [r.event.amount for r in store.read("a") if isinstance(r.event, Deposited)] == expected


def test_an_append_that_was_broken_off_after_its_commit_stays(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        store.append("a", Deposited(1), expected=0)
        shared = store.backend._shared  # type: ignore[attr-defined]
        number = shared.env.info()["last_txnid"]
        with shared.ahead.lock:
            shared.ahead.take_back(number)  # as after Ctrl-C on the way out of the transaction
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("data.mdb", ahead_file.FILE):
            (copy / name).write_bytes((tmp_path / "s" / name).read_bytes())
    with Store.open(copy) as store:
        assert store.head("a").version == 1


def test_an_idle_process_settles_and_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "LOOK_S", 0.01)
    monkeypatch.setattr(ahead, "IDLE_S", 0.05)
    path = tmp_path / "s"
    with Store.open(path) as store:
        for i in range(3):
            store.append("a", Deposited(i), expected=i)
            assert ahead_file.peek(path).active
            for _ in range(500):
                if not ahead_file.peek(path).active:
                    break
                time.sleep(0.01)
            assert not ahead_file.peek(path).active
            with store.backend._shared.ahead.lock:  # type: ignore[attr-defined]
                assert store.backend._shared.ahead._pin is None  # type: ignore[attr-defined]


def test_the_file_does_not_stay_as_large_as_its_largest_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead_file, "KEPT_BYTES", 100_000)
    monkeypatch.setattr(ahead, "USED_MOST_BYTES", 50_000)
    path = tmp_path / "s"
    with Store.open(path) as store:
        store.append("a", Deposited(1, "x" * 300_000), expected=0)
        assert (path / ahead_file.FILE).stat().st_size > 300_000
        for i in range(1, 4):
            store.append("a", Deposited(i), expected=i)
        assert (path / ahead_file.FILE).stat().st_size < 100_000
        assert store.verify().findings == []


def test_what_was_not_closed_is_not_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "s"
    Store.open(path).close()
    opening._open_to_read(path, 1 << 28).close()
    left_behind(tmp_path / "left", 2)
    with pytest.raises(StoreReadOnly, match="open it once where it can be written to"):
        opening._open_to_read(tmp_path / "left", 1 << 28)


def test_a_file_of_another_engine_is_flushed_by_lmdb_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(tmp_path / "s").close()
    monkeypatch.setattr(metas, "read", lambda path: None)
    with Store.open(tmp_path / "s") as store:
        store.append("a", Deposited(1), expected=ANY)
        backend = store.backend
        assert isinstance(backend, LmdbBackend)
        assert backend._shared.ahead is None
        assert backend._shared.env.flags()["sync"]


def test_a_later_format_is_refused_by_name_also_with_another_write_ahead_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path, durability=Durability.RELAXED) as store:
        stamp = keys.encode(keys.Stamp(99, 1, "a later tailfold"))
        store.backend.put(meta={keys.FORMAT_KEY: stamp})
    (path / ahead_file.FILE).write_bytes(b"tailwal9" * 1024)
    before = sorted((p.name, p.read_bytes()) for p in path.iterdir())
    with pytest.raises(FormatTooNew, match="format version 99"):
        Store.open(path)
    assert sorted((p.name, p.read_bytes()) for p in path.iterdir()) == before


def test_a_large_transaction_whose_settling_fails_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "s") as store:
        store.append("a", Deposited(1), expected=0)
        monkeypatch.setattr(writes, "NOTED_BYTES_MAX", 1000)
        monkeypatch.setattr(ahead.Ahead, "settle", failing(StoreFull("no room left")))
        with pytest.raises(OutcomeUnknown, match="it was written, but may not last"):
            store.append("a", Deposited(2, "x" * 5000), expected=1)
        assert store.head("a").version == 2
        monkeypatch.undo()


def test_nothing_of_a_store_is_made_where_opening_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"not lmdb" * 2000)
    with pytest.raises(StoreDamaged):
        Store.open(tmp_path)
    assert not (tmp_path / ahead_file.FILE).exists()
