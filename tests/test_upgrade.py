"""Stores written by every earlier format open, for ever, with the same hashes and states (I9)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tailfold.engine import Blob, Durability, LmdbBackend, MemoryBackend, Store
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import FORMAT_AHEAD, FORMAT_SEGMENTS, FORMAT_VERSION
from tailfold.engine.errors import FormatTooNew
from tailfold.engine.exporting import export
from tailfold.engine.importing import check, import_stream
from tailfold.engine.migration import Schema, migrate
from tailfold.upcasters import Upcasters

from tests import shop
from tests.cli.command import tailfold
from tests.domain import Attached, Deposited, Withdrawn, account
from tests.golden.make import EVENTS, FOLDER, SHOP, facts

FORMATS = range(1, FORMAT_VERSION + 1)


def unpack(name: str, path: Path) -> Path:
    path.mkdir()
    for packed in (FOLDER / name).glob("data.*.gz"):
        (path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return path


@pytest.mark.parametrize("version", FORMATS)
def test_i9_every_golden_store_opens_with_the_same_hashes_and_states(version: int, tmp_path: Path) -> None:
    path = unpack(f"format-{version}", tmp_path / "s")
    with Store.open(path, events=[*EVENTS, *SHOP]) as store:
        assert store.format == version
        assert facts(store) == json.loads((FOLDER / f"format-{version}" / "facts.json").read_text())
        assert store.verify().findings == []
        for recorded in store.read_all():
            assert recorded.schema_version == 1 or recorded.stream == "shop"
        [file] = store.read("files")
        assert isinstance(file.event, Attached)
        assert file.event.content.data == b"content " * 50
        repeated = store.append("account", [Deposited(10, "first"), Withdrawn(3)], expected=0, key="k")
        assert repeated.repeated, "idempotency keys are kept as well"
        store.append("account", Deposited(1), expected=3)
    assert tailfold(path, "verify").returncode == 0


def test_the_golden_store_of_format_2_holds_what_it_is_there_for(tmp_path: Path) -> None:
    path = unpack("format-2", tmp_path / "s")
    with Store.open(path, events=[*EVENTS, *SHOP]) as store:
        found = [(r.version, r.sub, r.stored) for r in store.read("shop")]
        assert found == [
            (1, 0, "paid@3"),
            (2, 0, "*@1"),
            (2, 1, "*@1"),
            (3, 0, "*@1"),
            (3, 1, "*@1"),
            (5, 0, "rated@2"),
            (6, 0, "foreign@3"),
            (7, 0, "grown@2"),
            (8, 0, "filed@1"),
        ], "lifted, split, dropped, opaque, with a blob"
        assert store.append("shop", shop.Filed("b.txt", Blob(b"more")), expected=7, key="k3").repeated
        origin = store.origin()
        assert origin is not None
        assert (origin.state, origin.source_format, origin.events) == ("done", 1, store.backend.count()[1])


@pytest.mark.parametrize("version", FORMATS)
def test_every_golden_store_is_exported_imported_and_migrated(version: int, tmp_path: Path) -> None:
    path = unpack(f"format-{version}", tmp_path / "s")
    copy = Store.open(backend=MemoryBackend(), events=[*EVENTS, *SHOP])
    with Store.open(path, events=[*EVENTS, *SHOP]) as store:
        for head in store.streams():
            lines = [json.dumps(line).encode() for line in export(store.log, head.stream)]
            import_stream(copy.log, check(lines), lines)
            if head.base:  # a fork comes back as a stream of its own, with the same events
                assert [r.event for r in copy.read(head.stream)] == [r.event for r in store.read(head.stream)]
            else:
                assert copy.head(head.stream) == head, "hashes and times"
        expected = facts(store)
    report = migrate(path, tmp_path / "d", Schema(Upcasters(events=[*EVENTS, *SHOP])))
    assert (report.sound, report.lifted, report.format) == (True, 0, FORMAT_AHEAD)
    with Store.open(tmp_path / "d", events=[*EVENTS, *SHOP]) as store:
        assert facts(store) == expected, "all was current: every byte and hash is kept"


def test_a_golden_file_from_the_future_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    path = unpack("format-99", tmp_path / "s")
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(FormatTooNew, match="format version 99"):
        Store.open(path)
    assert [p.name for p in path.iterdir()] == ["data.mdb"]
    assert (path / "data.mdb").read_bytes() == before
    done = tailfold(path, "list")
    assert done.returncode == 8
    assert "format version 99" in done.stderr


def test_the_golden_store_of_format_5_has_events_that_only_the_write_ahead_file_has(tmp_path: Path) -> None:
    path = unpack("format-5", tmp_path / "s")
    (path / "data.wal").unlink()
    with Store.open(path) as store:
        assert store.backend.head("late") is None


def test_segments_of_formats_4_and_5_are_read_as_they_are_and_packed_anew_when_they_change(tmp_path: Path) -> None:
    path = unpack("format-4", tmp_path / "s")
    with Store.open(path, events=[*EVENTS, *SHOP], durability=Durability.RELAXED) as store:
        marks = keys_of_segments(store)
        assert set(marks.values()) == {keys.SEGMENT_MARK_ZSTD}
        before = list(store.read_all())
        assert store.load("long", account).version == 600
        assert (store.format, keys_of_segments(store)) == (4, marks), "reading changes nothing"
        store.append("account", Deposited(1), expected=3)
        assert store.seal("account", whole=False).events == 1, "the last segment was not full"
        after = keys_of_segments(store)
        assert sorted(after.values()) == [keys.SEGMENT_MARK, *[keys.SEGMENT_MARK_ZSTD] * (len(marks) - 1)]
        assert store.format == FORMAT_SEGMENTS
        assert list(store.read_all())[: len(before)] == before
        assert store.verify().findings == []


def test_a_sweep_that_cuts_an_old_segment_raises_the_stamp(tmp_path: Path) -> None:
    path = unpack("format-4", tmp_path / "s")
    with Store.open(path, events=[*EVENTS, *SHOP], durability=Durability.RELAXED) as store:
        store.fork("long", at=100, name="kept")
        events = [r.event for r in store.read("kept")]
        store.delete("long", reroot=True)
        store.gc()
        assert store.format == FORMAT_SEGMENTS
        assert [r.event for r in store.read("kept")] == events
        assert store.verify().findings == []


def keys_of_segments(store: Store) -> dict[tuple[int, int], bytes]:
    """Return the mark of each segment, by stream number and last version."""
    assert isinstance(store.backend, LmdbBackend)
    backend = store.backend
    with backend._env.begin() as txn:
        stored = [key for key, _ in txn.cursor(backend._events).iternext() if len(key) == keys.SEGMENT_KEY.size]
    return {(number, last): mark for number, last, mark in map(keys.SEGMENT_KEY.unpack, stored)}


def test_a_store_of_an_older_format_is_raised_by_the_first_durable_write(tmp_path: Path) -> None:
    path = unpack("format-1", tmp_path / "s")
    with Store.open(path, durability=Durability.RELAXED) as store:
        store.append("account", Deposited(1), expected=3)
        assert store.format == 1
    with Store.open(path) as store:
        assert [r.version for r in store.read("account")] == [1, 2, 3, 4]
        assert store.format == 1, "reading changes nothing"
        store.append("account", Deposited(1), expected=4)
        assert store.format == FORMAT_AHEAD


def test_every_format_has_its_golden_store() -> None:
    names = {p.name for p in FOLDER.iterdir() if p.is_dir() and p.name.startswith("format-")}
    assert names == {f"format-{v}" for v in FORMATS} | {"format-99"}
