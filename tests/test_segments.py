"""Sealed segments: nobody can tell, a kill leaves one or the other, and a changed byte is found."""

from __future__ import annotations

import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine import Blob, Durability, Event, LmdbBackend, Store
from tailfold.engine.backend import chain, keys
from tailfold.engine.backend.lmdb import segment as segments
from tailfold.engine.backend.lmdb.segment import Segment, pack
from tailfold.engine.backend.port import FORMAT_SEGMENTS, Packed, Row
from tailfold.engine.errors import Corruption, RecordDamaged
from tailfold.snapshots import every, never

from tests.cli.command import json_lines, tailfold
from tests.domain import Attached, Deposited, Noted, account

EVENTS: list[type[Event]] = [Deposited, Noted, Attached]


@given(
    datas=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=40),
    first=st.integers(1, 10**6),
    frame=st.integers(1, 400),
    after=st.integers(-2, 45),
    upto=st.integers(-2, 45),
)
def test_what_is_packed_is_unpacked(datas: list[bytes], first: int, frame: int, after: int, upto: int) -> None:
    before = chain.seed("s")
    link, position, rows = before, 7, []
    for version, data in enumerate(datas, first):
        link = chain.link(link, chain.digest(data))
        position += 1 + len(data) % 5
        rows.append(Row("s", version, position, link, data, "s"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segments, "FRAME_BYTES", frame)
        segment = Segment("s", *pack(7, rows))
    assert (segment.first, segment.last) == (first, first + len(datas) - 1)
    low, high = first + after, first + upto
    wanted = [row for row in rows if low < row.version <= high]
    assert segment.rows("s", low, high, "s") == wanted
    assert segment.records(low, high) == [row.data for row in wanted]


def test_any_changed_byte_of_a_segment_is_found() -> None:
    before = chain.seed("s")
    link, rows = before, []
    for version in range(1, 20):
        data = b"some text %d" % version
        link = chain.link(link, chain.digest(data))
        rows.append(Row("s", version, version, link, data, "s"))
    key, packed = pack(7, rows)
    missed = []
    for at in range(len(packed)):
        changed = packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :]
        try:
            found = Segment("s", key, changed).rows("s", 0, 19, "s")
        except RecordDamaged:
            continue
        if found == rows:
            missed.append(at)
    assert missed == []


@given(st.data())
def test_a_fold_of_a_changed_segment_gets_what_was_packed_or_nothing(data: st.DataObject) -> None:
    """Whole frames are not looked up in the table of lengths: what is wrong there does not touch them."""
    rows = [Row("s", v, v, bytes(16), msgspec.msgpack.encode(f"text {v}" * 3), "s") for v in range(1, 20)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segments, "FRAME_BYTES", 100)
        key, packed = pack(7, rows)

    def folded(value: bytes) -> list[bytes | list[bytes]]:
        runs = Segment("s", key, value).runs(0, 19)
        return [run.unpack() if isinstance(run, Packed) else run.records for run in runs]

    at, change = data.draw(st.integers(0, len(packed) - 1)), data.draw(st.integers(1, 255))
    with suppress(RecordDamaged):
        assert folded(packed[:at] + bytes([packed[at] ^ change]) + packed[at + 1 :]) == folded(packed)


def test_a_segment_of_an_unknown_kind_or_under_another_version_is_damage() -> None:
    rows = [Row("s", 1, 1, b"h" * 16, b"data", "s")]
    key, packed = pack(7, rows)
    assert Segment("s", key, packed).rows("s", 0, 1, "s") == rows
    with pytest.raises(RecordDamaged, match="unknown kind"):
        Segment("s", key[:-1] + b"Z", packed)
    with pytest.raises(RecordDamaged, match="another version"):
        Segment("s", keys.SEGMENT_KEY.pack(7, 2, keys.SEGMENT_MARK), packed)


def fill(path: Path, count: int = 1000) -> None:
    with Store.open(path, snapshots=never, durability=Durability.RELAXED) as store:
        for at in range(0, count, 100):
            store.append("s", [Deposited(i, f"note {i}") for i in range(at, at + 100)], expected=at)
            store.append("t", [Noted(f"other {at}")], expected=at // 100)
        store.append("s", Attached("f", Blob(b"content")), expected=count, key="k")


def seen(path: Path) -> list[object]:
    with Store.open(path, events=EVENTS, snapshots=never) as store:
        rows = [store.backend.rows(s, after=0, upto=10**6, limit=10**6) for s in ("s", "t")]
        back = [r.version for r in store.read("s", backwards=True)]
        everything = list(store.read_all())
        assert store.verify().findings == []
        return [rows, back, everything, store.load("s", account), list(store.streams()), store.backend.count()]


def test_a_sealed_store_reads_as_it_did_and_goes_on(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    before = seen(tmp_path / "s")
    with Store.open(tmp_path / "s", durability=Durability.RELAXED) as store:
        assert store.format == 1
        done = store.seal("s")
        assert (done.events, done.segments) == (768, 3)
        assert store.format == FORMAT_SEGMENTS
        assert store.seal("s").events == 0
        assert done.segment_bytes < done.record_bytes * 0.8
    assert seen(tmp_path / "s") == before
    with Store.open(tmp_path / "s") as store:
        rest = store.seal("s", whole=False)
        assert (rest.events, rest.segments) == (1001 - 768, 1)
        assert store.usage()["tables"]["events"]["rows"] == 4 + 10
    assert seen(tmp_path / "s") == before
    with Store.open(tmp_path / "s", events=EVENTS) as store:
        assert store.append("s", Attached("f", Blob(b"content")), expected=0, key="k").repeated
        store.append("s", [Deposited(i) for i in range(30)], expected=1001)
        store.fork("s", at=500, name="f")
        again = store.seal("s", whole=False)
        assert (again.events, again.segments) == (30, 2), "the last segment was not full, and is filled up"
        assert store.verify().findings == []
        assert store.load("f", account).version == 500
        [one] = store.read("f", after=499)
        assert one.version == 500


@given(data=st.data())
def test_a_fold_of_packed_runs_reads_what_single_records_say(data: st.DataObject) -> None:
    """Whole frames are decoded in one call: the same records, wherever a page begins and ends."""
    folder = tempfile.mkdtemp()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(segments, "FRAME_BYTES", data.draw(st.integers(1, 3000)))
            with Store.open(Path(folder) / "s", events=EVENTS, durability=Durability.RELAXED) as store:
                count = data.draw(st.integers(1, 300))
                kinds: list[Event] = [Deposited(1, "note"), Noted("x" * 40), Attached("f", Blob(b"content"))]
                store.append("s", [kinds[i % 3] for i in range(count)], expected=0)
                store.seal("s", whole=data.draw(st.booleans()))
                after = data.draw(st.integers(0, count - 1))
                upto = data.draw(st.integers(after + 1, count))
                # Its code knows fewer kinds: what it meets for the first time inside a run becomes opaque.
                reader = Store.open(backend=store.backend, events=data.draw(st.sampled_from([EVENTS, [Noted]])))
                runs = reader.backend.runs("s", after=after, upto=upto)
                found = [one for _, some in reader.log.codec.decode_runs("s", after, runs) for one in some]
                single = reader.backend.data("s", after=after, upto=upto)
                again = reader.log.codec.decode_page("s", after, single)
                assert list(map(reader.log.codec.events, found)) == list(map(reader.log.codec.events, again))
                assert len(found) == upto - after
                if store.usage()["tables"]["events"]["rows"] < count - 256:
                    assert any(type(run) is Packed for run in reader.backend.runs("s", after=0, upto=count))
    finally:
        shutil.rmtree(folder)


def test_a_packed_run_that_is_not_what_it_says_is_damage(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", events=EVENTS) as store:
        store.append("s", [Deposited(1), Deposited(2)], expected=0)
        one, two = store.backend.data("s", after=0, upto=2)
        decode = store.log.codec.decode_runs
        for array, records in ((b"\x92" + one + two, 3), (b"\x93" + one + two, 3), (b"\x92" + one + b"\xc1", 2)):
            with pytest.raises(RecordDamaged, match="version 8"):
                list(decode("s", 7, [Packed(lambda array=array: array, records, len(array))]))  # type: ignore[misc]


def test_a_kill_while_sealing_leaves_one_or_the_other(tmp_path: Path) -> None:
    fill(tmp_path / "base", 3000)
    before = seen(tmp_path / "base")
    chance = random.Random(5)
    script = (
        "import sys; from tailfold.engine import Store\n"
        "store = Store.open(sys.argv[1]); print('go', flush=True); store.seal('s', whole=False)"
    )
    for i in range(5):
        path = tmp_path / f"k{i}"
        shutil.copytree(tmp_path / "base", path)
        process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.12))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert seen(path) == before
        with Store.open(path) as store:
            store.seal("s", whole=False)
        assert seen(path) == before


def test_damage_in_a_segment_is_named(tmp_path: Path) -> None:
    import lmdb

    fill(tmp_path / "s")
    with Store.open(tmp_path / "s") as store:
        store.seal("s")
    with lmdb.open(str(tmp_path / "s"), max_dbs=32) as env, env.begin(write=True) as txn:
        table = env.open_db(b"events", txn=txn)
        cursor = txn.cursor(table)
        assert cursor.set_range((1).to_bytes(8, "big"))
        key, value = cursor.item()
        assert len(key) == 17
        middle = len(value) - 10  # inside the frame
        txn.put(key, value[:middle] + bytes([value[middle] ^ 255]) + value[middle + 1 :], db=table)
    done = tailfold(tmp_path / "s", "verify")
    assert done.returncode == 7
    assert "'s' version 1" in done.stdout
    assert "1..256" in done.stdout
    with Store.open(tmp_path / "s", events=EVENTS) as store, pytest.raises(Corruption):
        store.load("s", account)
    shown = tailfold(tmp_path / "s", "show", "s")
    assert shown.returncode == 7
    assert shown.stdout == "", "half a journal is none"


def test_long_runs_are_sealed_by_themselves_behind_their_snapshots(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", snapshots=every(500), durability=Durability.RELAXED) as store:
        live = store.live("s", account)
        for _ in range(40):
            live.append(*[Deposited(1, "a note") for _ in range(50)])
        until = time.monotonic() + 20
        while store.usage()["tables"]["events"]["rows"] > 2000 - 4 * 255 and time.monotonic() < until:
            time.sleep(0.02)
        assert store.usage()["tables"]["events"]["rows"] <= 2000 - 4 * 255
        assert live.state.balance == 2000
    with Store.open(tmp_path / "s", events=EVENTS, snapshots=never) as store:
        assert store.load("s", account).state.balance == 2000
        assert len(list(store.read("s"))) == 2000
        assert store.verify().findings == []
    quiet = LmdbBackend(tmp_path / "q", durability=Durability.RELAXED)
    with Store.open(backend=quiet, snapshots=every(500), sealing=False) as store:
        live = store.live("s", account)
        for _ in range(40):
            live.append(*[Deposited(1, "a note") for _ in range(50)])
        assert store.usage()["tables"]["events"]["rows"] == 2000


def test_the_command_says_what_it_saved(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    [done] = json_lines(tailfold(tmp_path / "s", "seal", "--json"))
    assert (done["streams"], done["events"]) == (2, 1011)
    assert done["segment_bytes"] < done["record_bytes"]
    assert tailfold(tmp_path / "s", "seal", "s").stdout == "everything is sealed that can be\n"
    assert tailfold(tmp_path / "s", "seal", "nobody").returncode == 6
    assert tailfold(tmp_path / "s", "verify").returncode == 0
    [stats] = json_lines(tailfold(tmp_path / "s", "stats", "--json"))
    assert stats["events"] == 1011


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep their heap in other ways")
def test_a_fold_of_sealed_history_does_not_give_its_memory_back_again_and_again(tmp_path: Path) -> None:
    """Counted in a fresh process: any larger block that was freed before would hide it."""
    with Store.open(tmp_path / "s", snapshots=never, durability=Durability.RELAXED) as store:
        for at in range(0, 8000, 500):
            texts = [" ".join(str(i * j % 997) for j in range(350)) for i in range(at, at + 500)]
            store.append("s", [Deposited(1, text) for text in texts], expected=at)
        store.seal("s", whole=False)
    script = (
        "import resource, sys\n"
        "from tailfold.engine import Store\n"
        "from tailfold.snapshots import never\n"
        "from tests.domain import account\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "with Store.open(sys.argv[1], snapshots=never) as store:\n"
        "    store.load('s', account)\n"
        "    before = faults()\n"
        "    store.load('s', account)\n"
        "    print(faults() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True, timeout=120
    )
    assert int(done.stdout) < 100, done


def test_a_segment_is_full_by_bytes_too(tmp_path: Path) -> None:
    """Large events: what is unpacked, compared and committed as a whole stays small."""
    with Store.open(tmp_path / "s", snapshots=never, durability=Durability.RELAXED, sealing=False) as store:
        large = [Deposited(i, f"{i} " * 100_000) for i in range(100)]
        for at in range(0, 100, 10):
            store.append("s", large[at : at + 10], expected=at)
        size = sum(len(row.data) for row in store.backend.rows("s", after=0, upto=100, limit=100))
        some = store.seal("s")
        assert some.segments == size // segments.SEGMENT_BYTES, "whole ones only"
        assert 60 < some.events < 100
        assert store.seal("s").events == 0
        assert store.seal("s", whole=False).events == 100 - some.events
        assert [one.event for one in store.read("s")] == large
        store.append("s", large[:60], expected=100)
        again = store.seal("s")
        assert again.segments == 2, "the last one, which was not full, together with what came"
        assert [one.event for one in store.read("s", after=100)] == large[:60]
        assert store.verify("s").sound


def test_a_segment_without_records_is_damage() -> None:
    with pytest.raises(RecordDamaged, match="no record"):
        Segment("s", keys.SEGMENT_KEY.pack(7, 9, keys.SEGMENT_MARK), keys.SEGMENT_FRONT.pack(10, 0, 0))


@pytest.mark.parametrize("zstd", [False, True])
def test_too_little_memory_is_no_damage(zstd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row("s", v, v, bytes(16), b"data %d" % v, "s") for v in (1, 2)]
    key, packed = pack(7, rows)
    if zstd:
        key = key[:-1] + keys.SEGMENT_MARK_ZSTD

    def no_room(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("lz4.frame.decompress", no_room)
    monkeypatch.setattr("tailfold.engine.backend.lmdb.segment.decompress", no_room)
    with pytest.raises(MemoryError):
        Segment("s", key, packed).rows("s", 0, 2, "s")


def test_a_frame_that_says_an_impossible_size_is_damage_and_takes_no_memory() -> None:
    rows = [Row("s", v, v, bytes(16), b"data %d" % v, "s") for v in (1, 2)]
    key, packed = pack(7, rows)
    begin = packed.index(b"\x04\x22\x4d\x18")
    for check in range(256):  # one of them is right for the header
        header = (1 << 62).to_bytes(8, "little") + bytes([check])
        changed = packed[: begin + 6] + header + packed[begin + 15 :]
        with pytest.raises(RecordDamaged, match="cannot be unpacked"):
            Segment("s", key, changed).rows("s", 0, 2, "s")
