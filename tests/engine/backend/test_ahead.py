"""The write-ahead file: what counts as a record, what is refused, and how a failing disk is met."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine.backend.lmdb import ahead_file
from tailfold.engine.backend.lmdb.ahead_file import RECORDS_AT, SLOT_BYTES, AheadFile
from tailfold.engine.errors import StoreDamaged

from tests.faults import failing

META = b"a meta page"


def places_written(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that tells from now on where in the file something is written."""
    places: list[int] = []
    write_all = ahead_file.write_all

    def watched(handle: int, data: bytes, at: int) -> None:
        places.append(at)
        write_all(handle, data, at)

    patch.setattr(ahead_file, "write_all", watched)
    return places


def opened(path: Path) -> AheadFile:
    file = AheadFile.open(path)
    assert file is not None
    file.share()
    return file


def bodies(file: AheadFile) -> list[bytes]:
    return [record.body for record in file.records()]


@given(
    written=st.lists(st.binary(min_size=1, max_size=3000), max_size=6),
    at=st.integers(0, 20_000),
    kind=st.sampled_from(["flip", "cut"]),
)
def test_damaged_records_leave_those_before_them(
    written: list[bytes], at: int, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("f")
    file = opened(path)
    file.write_header(active=True, txn=7, meta=META, store=b"mark")
    ends = []
    for txn, body in enumerate(written, 8):
        assert file.covers(txn - 1)
        file.append(txn, body)
        ends.append(RECORDS_AT + file.used)
    assert bodies(file) == written
    at += RECORDS_AT
    with (path / ahead_file.FILE).open("r+b") as raw:
        if kind == "cut":
            raw.truncate(at)
        else:
            raw.seek(at)
            old = raw.read(1)
            raw.seek(at)
            raw.write(bytes([old[0] ^ 1]) if old else b"")
    whole = sum(end <= at for end in ends)
    again = opened(path)
    assert bodies(again) == written[:whole]
    assert again.covers(7 + whole)
    again.close()
    file.close()


def test_who_finds_a_lock_of_one_that_is_alone_waits_and_is_alone_itself(tmp_path: Path) -> None:
    """It can only be a recoverer that is dying: all others share, or stand behind the lock of `opening`."""
    one = AheadFile.open(tmp_path)
    assert one is not None
    assert one.alone
    came: list[AheadFile | None] = []
    waiting = threading.Thread(target=lambda: came.append(AheadFile.open(tmp_path)))
    waiting.start()
    waiting.join(0.1)
    assert came == [], "it waits while the first may be recovering"
    one.close()
    waiting.join(10)
    [two] = came
    assert two is not None
    assert two.alone
    two.share()
    three = AheadFile.open(tmp_path)
    assert three is not None
    assert not three.alone
    two.close()
    three.close()


def test_a_new_generation_passes_over_the_records_of_the_one_before(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.write_header(active=True, txn=1, meta=META, store=b"mark")
    for txn in (2, 3, 4):
        assert file.covers(txn - 1)
        file.append(txn, b"old")
    file.write_header(active=True, txn=1, meta=META, store=b"mark")  # the same numbers once more
    assert bodies(file) == []
    assert file.covers(1)
    file.append(2, b"new")
    assert bodies(file) == [b"new"]
    file.close()


def test_the_file_says_what_it_covers(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    one.write_header(active=True, txn=5, meta=META, store=b"mark")
    two.header()
    assert two.covers(5)
    two.append(6, b"six")
    one.header()
    assert one.covers(6), "another process has written it"
    one.append(7, b"seven, never committed")
    two.header()
    assert two.covers(6), "a transaction that was not committed is written over"
    two.append(7, b"7")
    one.forget()
    assert one.covers(7)
    assert bodies(one) == [b"six", b"7"]
    assert not one.covers(9), "something else has written to data.mdb"
    one.append(8, b"")
    assert not one.covers(8), "it is not known what that wrote"
    one.close()
    two.close()


@pytest.mark.parametrize("damaged", [0, 1])
def test_one_readable_header_is_enough_and_none_is_refused(damaged: int, tmp_path: Path) -> None:
    file = opened(tmp_path)
    for txn in (1, 2):
        file.write_header(active=True, txn=txn, meta=META, store=b"mark")
    file.close()
    name = tmp_path / ahead_file.FILE
    for slot in (damaged, 1 - damaged):
        with name.open("r+b") as raw:
            raw.seek(slot * SLOT_BYTES + 30)
            raw.write(b"\xff")
        if slot == damaged:
            assert ahead_file.peek(tmp_path).txn == (1 if damaged == 0 else 2)
    with pytest.raises(StoreDamaged, match=r"data\.wal cannot be read"):
        ahead_file.peek(tmp_path)


def test_a_header_that_was_cut_short_when_it_was_the_first_is_none(tmp_path: Path) -> None:
    (tmp_path / ahead_file.FILE).write_bytes(bytes(SLOT_BYTES) + b"tailwal1" + bytes(2 * SLOT_BYTES))
    assert ahead_file.peek(tmp_path) == ahead_file.NOTHING


def test_a_header_that_may_not_be_on_the_disk_is_flushed_before_its_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are written over those that the header on the disk still needs."""
    one, two = opened(tmp_path), opened(tmp_path)
    one.write_header(active=True, txn=5, meta=META, store=b"mark")
    one.append(6, b"six")
    with monkeypatch.context() as patch:
        patch.setattr(ahead_file, "flush", failing(OSError(errno.EIO, "broken")))
        with pytest.raises(OSError, match="broken"):
            one.write_header(active=True, txn=6, meta=META, store=b"mark")
    before = (tmp_path / ahead_file.FILE).read_bytes()
    flushed: list[bytes] = []
    flush = ahead_file.flush

    def watched(handle: int) -> None:
        flushed.append((tmp_path / ahead_file.FILE).read_bytes())
        flush(handle)

    monkeypatch.setattr(ahead_file, "flush", watched)
    written = places_written(monkeypatch)
    two.header()  # of another process, which only sees it
    assert two.covers(6)
    two.append(7, b"seven")
    assert written == [0, RECORDS_AT], "the header's slot, once more, then the record"
    assert flushed[0][RECORDS_AT:] == before[RECORDS_AT:], "no record is touched before that is flushed"
    one.header()
    one.take_back(7)
    written.clear()
    assert one.covers(6)
    one.append(7, b"7")
    assert written == [RECORDS_AT], "all know now that it is there"
    one.close()
    two.close()


def test_a_header_is_not_written_over_the_last_one_that_is_on_the_disk_for_certain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    one.write_header(active=True, txn=5, meta=META, store=b"mark")
    with monkeypatch.context() as patch:
        patch.setattr(ahead_file, "flush", failing(OSError(errno.EIO, "broken")))
        with pytest.raises(OSError, match="broken"):
            one.write_header(active=True, txn=6, meta=META, store=b"mark")
    written = places_written(monkeypatch)
    two.write_header(active=True, txn=7, meta=META, store=b"mark")
    assert written == [0, SLOT_BYTES], "what it only sees is made sure of first"
    one.close()
    two.close()
