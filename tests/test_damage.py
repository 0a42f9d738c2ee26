"""Damaged stores: every changed byte is found and named; nothing crashes, nothing is half shown."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tailfold.engine import ANY, Blob, Store
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import FORMAT_VERSION
from tailfold.engine.errors import BlobDamaged, FormatTooNew, RecordDamaged, StoreDamaged, StoreNotFound
from tailfold.snapshots import never

from tests.cli.command import QUESTION, json_lines, tailfold
from tests.domain import Attached, Deposited, Noted, account
from tests.surgery import change_event, change_row, flip

COMMANDS = (
    ("verify",),
    ("verify", "r-1"),
    ("show", "r-1"),
    ("state", "r-1"),
    ("replay", "r-1"),
    ("export", "r-1"),
    ("list",),
    ("stats",),
    ("tail",),
    ("tail", "r-1"),
    ("trace", "r-1", "1"),
    ("resume", "r-1"),
    ("run", "How much is Slack Pro for 2 seats?", "--model", "rules"),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("sound") / "store"
    assert tailfold(store, "run", QUESTION, "--model", "rules", "--run-id", "r-1").returncode == 0
    return store


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "copy"))


def small_store(path: Path) -> Path:
    with Store.open(path) as store:
        store.append("a", [Deposited(1), Noted("two", {"k": 3}), Deposited(3)], expected=0)
    return path


def test_every_single_byte_of_every_record_counts(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s")
    with Store.open(path) as store:
        sizes = [len(row.data) for row in store.log.rows("a", after=0, upto=3)]
    for version, size in enumerate(sizes, 1):
        for index in range(size):
            change_event(path, version, lambda data, index=index: flip(data, index))  # type: ignore[misc]
            with Store.open(path) as store:
                found = [(f.stream, f.version) for f in store.verify().findings]
                assert found == [("a", version)]
                with pytest.raises(RecordDamaged) as damaged:
                    store.check_readable("a")
                assert damaged.value.version == version
            change_event(path, version, lambda data, index=index: flip(data, index))  # type: ignore[misc]
    with Store.open(path) as store:
        assert store.verify().sound


@pytest.mark.parametrize("index", range(8, 40))
def test_every_byte_of_an_event_key_counts(index: int, tmp_path: Path) -> None:
    path = small_store(tmp_path / "s")
    change_row(
        path,
        "events",
        lambda key: keys.split_event_key(key).version == 2,
        lambda key, value: (flip(key, index), value),
    )
    with Store.open(path) as store:
        assert "a" in {f.stream for f in store.verify().findings}


def test_a_missing_event_is_named_by_every_reader(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s")
    change_row(path, "events", lambda key: keys.split_event_key(key).version == 2, lambda *_: None)
    with Store.open(path) as store:
        for read in (
            lambda: list(store.read("a")),
            lambda: list(store.read("a", backwards=True)),
            lambda: store.load("a", account),
            lambda: store.check_readable("a"),
            lambda: list(store.read_all()),
        ):
            with pytest.raises(RecordDamaged) as damaged:
                read()
            assert (damaged.value.stream, damaged.value.version) == ("a", 2)
        assert ("a", 2) in [(f.stream, f.version) for f in store.verify().findings]


def test_cutting_off_the_newest_events_shows_against_a_noted_head(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s")
    with Store.open(path) as store:
        noted = store.head("a").hash.hex()
        store.append("a", Deposited(4), expected=3)
        assert store.verify("a", head=noted).sound, "more events are fine"
    shorter = tmp_path / "t"
    with Store.open(shorter) as store:
        store.append("a", [Deposited(1), Noted("two", {"k": 3})], expected=0)
        assert store.verify("a").sound, "by itself it cannot know"
        assert not store.verify("a", head=noted).sound


def test_indexes_that_disagree_are_found(tmp_path: Path) -> None:
    row = lambda key, value: (key, keys.POSITION_ROW.pack(1, 1))  # noqa: E731
    for table, pick, change in (
        ("positions", lambda key: key == keys.POSITION_KEY.pack(2), row),
        ("positions", lambda key: key == keys.POSITION_KEY.pack(3), lambda *_: None),
        (
            "streams",
            lambda key: True,
            lambda key, value: (
                key,
                keys.encode(keys.StreamRow("a", 2, keys.decode_stream_row(value).hash, 0, 0)),
            ),
        ),
        (
            "streams",
            lambda key: True,
            lambda key, value: (key, keys.encode(keys.StreamRow("a", 3, b"x" * 16, 0, 0))),
        ),
    ):
        path = small_store(tmp_path / f"s{random.random()}")
        change_row(path, table, pick, change)
        with Store.open(path) as store:
            assert store.verify().findings, table


@pytest.mark.parametrize("sealed", [False, True])
def test_a_follower_never_believes_a_position_that_is_not_where_it_stands(sealed: bool, tmp_path: Path) -> None:
    """It goes on from the position of an event: one that says another would have it pass over events."""
    path = tmp_path / "s"
    with Store.open(path, snapshots=never) as store:
        store.append("a", [Deposited(i) for i in range(300)], expected=0)
        if sealed:
            store.seal("a")

    def change(key: bytes, value: bytes) -> tuple[bytes, bytes]:
        if sealed:
            at = keys.SEGMENT_FRONT.size + 8 * 99 + 6
            return key, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
        return keys.EVENT_KEY.pack(1, 100, 100 ^ 256, key[24:]), value

    size = keys.SEGMENT_KEY.size if sealed else keys.EVENT_KEY.size
    wanted = keys.EVENT_PREFIX.pack(1, 256 if sealed else 100)
    change_row(path, "events", lambda key: len(key) == size and key.startswith(wanted), change)
    with Store.open(path) as store:
        assert [f.version for f in store.verify().findings][:1] == [100]
        for follow in (store.read_all, lambda: store.subscribe(name="mails", follow=False)):
            with pytest.raises(RecordDamaged, match="it stands at position 100"):
                list(follow())


@pytest.mark.parametrize("deleted", [False, True])
def test_verify_goes_on_past_a_segment_that_a_fork_rests_on(deleted: bool, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path, snapshots=never) as store:
        store.append("a", [Deposited(i) for i in range(600)], expected=0)
        store.seal("a")
        store.fork("a", at=300, name="b")
        store.append("z", Deposited(1), expected=0)
        if deleted:
            store.delete("a", reroot=True)
            store.gc()
    change_row(
        path,
        "events",
        lambda key: len(key) == keys.SEGMENT_KEY.size and keys.SEGMENT_KEY.unpack(key)[1] > 256,
        lambda key, value: (key, flip(value, -20)),
    )
    change_row(
        path,
        "events",
        lambda key: len(key) == keys.EVENT_KEY.size and key.startswith(keys.EVENT_PREFIX.pack(3, 1)),
        lambda key, value: (key, flip(value, 3)),
    )
    with Store.open(path) as store:
        found = {(f.stream, f.version) for f in store.verify().findings}
        assert {("a", 257), ("z", 1)} <= found
    done = tailfold(path, "verify", "--json")
    assert done.returncode == 7
    assert {(f["stream"], f["version"]) for f in json_lines(done)[0]["findings"]} == found


def test_verify_names_a_fork_whose_base_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path, snapshots=never) as store:
        store.append("a", [Deposited(i) for i in range(10)], expected=0)
        store.fork("a", at=5, name="b")
        store.append("b", Deposited(1), expected=5)
    base = keys.EVENT_PREFIX.pack(1, 5)
    change_row(path, "events", lambda key: key.startswith(base), lambda *_: None)
    with Store.open(path) as store:
        found = [(f.stream, f.version) for f in store.verify().findings]
    assert found[:2] == [("a", 5), ("b", 5)]


def test_a_damaged_blob_is_found_and_never_given_out(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        store.append("a", Attached("x", Blob(b"content " * 100)), expected=0)
    change_row(path, "blobs", lambda key: True, lambda key, value: (key, flip(value, 5)))
    with Store.open(path, events=[Attached]) as store:
        [recorded] = store.read("a")
        assert isinstance(recorded.event, Attached)
        with pytest.raises(BlobDamaged):
            _ = recorded.event.content.data
        assert [(f.stream, f.version) for f in store.verify("a").findings] == [("a", 1)]
    change_row(path, "blobs", lambda key: True, lambda *_: None)
    with Store.open(path) as store:
        assert [(f.stream, f.version) for f in store.verify().findings] == [("a", 1)]


def test_a_checkpoint_that_cannot_be_read_or_is_past_the_end_is_found(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s")
    with Store.open(path) as store:
        list(store.subscribe(name="mails", follow=False))
        list(store.subscribe("a", name="of a", follow=False))
        store.append("gone", Deposited(1), expected=0)
        list(store.subscribe("gone", name="of gone", follow=False))
        list(store.subscribe("never", name="of none", follow=False))
        store.delete("gone")
        store.rewind("a", at=1)
        assert store.verify().findings == []

    def at(stream: str | None) -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
        return lambda key, _: (key, keys.encode(keys.CheckpointRow(9, stream, 0)))

    for change, says in (
        (at(None), "checkpoint 'mails' is at 9, and the store ends at 4: drop it"),
        (at("a"), "checkpoint 'mails' is at 9, and stream 'a' ends at 3: drop it"),
        (at("never"), "checkpoint 'mails' is at 9, and stream 'never' ends at 0: drop it"),
        (lambda key, row: (key, row[:-1]), "checkpoint 'mails' cannot be read"),
    ):
        change_row(path, "checkpoints", lambda key: key == b"mails", change)
        with Store.open(path) as store:
            [finding] = store.verify().findings
            assert says in str(finding)


# -- from the command line -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 5, 12])
def test_one_changed_byte_of_one_event_is_exit_7_naming_stream_and_version(version: int, copy: Path) -> None:
    change_event(copy, version, lambda data: flip(data, len(data) // 2))
    before = (copy / "data.mdb").read_bytes()
    for command in COMMANDS[:7]:
        done = tailfold(copy, *command)
        assert done.returncode == 7, command
        said = done.stdout + done.stderr
        assert f"version {version}" in said, command
        assert "'r-1'" in said, command
        if command[0] != "verify":
            assert done.stdout == "", "never a half-read answer"
    [report] = json_lines(tailfold(copy, "verify", "--json"))
    assert [(f["stream"], f["version"]) for f in report["findings"]] == [("r-1", version)]
    assert not report["sound"]
    assert (copy / "data.mdb").read_bytes() == before, "the store is left as it was"


def test_the_store_goes_on_without_a_damaged_run(copy: Path) -> None:
    change_event(copy, 7, lambda data: flip(data, 40))
    assert tailfold(copy, "run", QUESTION, "--model", "rules", "--run-id", "r-2").returncode == 0
    listed = tailfold(copy, "list")
    assert listed.returncode == 7
    assert "fork --at 6, delete --reroot, gc" in listed.stderr
    for at in ("7", "600"):
        assert tailfold(copy, "fork", "r-1", "--at", at).returncode == 7
    assert tailfold(copy, "fork", "r-1", "--at", "6", "--as", "kept").returncode == 0
    assert tailfold(copy, "resume", "kept").returncode == 0
    assert tailfold(copy, "delete", "r-1").returncode == 9, "the fork rests on it"
    assert tailfold(copy, "delete", "r-1", "--reroot").returncode == 0
    assert tailfold(copy, "gc").returncode == 0
    assert sorted(row["run"] for row in json_lines(tailfold(copy, "list", "--json"))) == ["kept", "r-2"]
    assert tailfold(copy, "verify").returncode == 0


def test_an_edited_result_does_not_pass_replay(copy: Path) -> None:
    change_event(copy, 9, lambda data: data.replace(b"60.00", b"61.00"))
    assert tailfold(copy, "replay", "r-1").returncode == 7


def test_an_earlier_version_can_still_be_shown(copy: Path) -> None:
    change_event(copy, 8, lambda data: flip(data, 30))
    done = tailfold(copy, "show", "r-1", "--at", "7")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 7


@pytest.mark.parametrize("seed", range(10))
def test_damaged_pages_never_crash_a_command_and_never_change_an_answer(seed: int, sound: Path, copy: Path) -> None:
    truth = {command: tailfold(sound, *command).stdout for command in COMMANDS[1:7]}
    chance = random.Random(seed)
    with (copy / "data.mdb").open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        page = chance.randrange(size // 4096)
        match seed % 4:
            case 0:
                file.seek(page * 4096)
                file.write(chance.randbytes(4096))
            case 1:
                file.seek(page * 4096)
                file.write(b"\xff" * 4096)
            case 2:
                file.truncate(chance.randrange(4096, size))
            case _:
                for _ in range(30):
                    file.seek(chance.randrange(size))
                    file.write(chance.randbytes(1))
    for command in COMMANDS:
        done = tailfold(copy, *command)
        # 0 and 3: the damage lies where this command does not look.
        assert done.returncode in (0, 3, 7), (command, done.stderr)
        if done.returncode == 0 and command in truth:
            assert done.stdout == truth[command]
        if done.returncode == 7 and command[0] != "verify":
            assert done.stdout == ""


def test_what_is_no_store_is_refused_untouched(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear all")
    file = tmp_path / "file"
    file.write_text("x")
    junk = tmp_path / "junk"
    junk.mkdir()
    (junk / "data.mdb").write_bytes(b"not lmdb" * 2000)
    for path, code in ((other, 6), (file, 6), (tmp_path / "absent", 6), (junk, 7)):
        for command in COMMANDS:
            if command[0] == "run" and path.name == "absent":
                continue
            done = tailfold(path, *command)
            assert done.returncode == code, (path.name, command, done.stderr)
            assert str(path) in done.stderr
    assert sorted(p.name for p in other.iterdir()) == ["letter.txt"]
    assert sorted(p.name for p in junk.iterdir()) == ["data.mdb"]
    assert not (tmp_path / "absent").exists()


def test_an_lmdb_file_of_another_program_is_refused(tmp_path: Path) -> None:
    import lmdb

    with lmdb.open(str(tmp_path / "s"), max_dbs=2) as env, env.begin(write=True) as txn:
        txn.put(b"theirs", b"data")
    with pytest.raises(StoreNotFound, match="another program"):
        Store.open(tmp_path / "s")
    with lmdb.open(str(tmp_path / "t"), max_dbs=2) as env:
        env.open_db(b"meta")
    with pytest.raises(StoreNotFound, match="stamp"):
        Store.open(tmp_path / "t")


@pytest.mark.parametrize("with_lock_file", [True, False])
def test_i10_a_store_of_a_future_format_is_refused_by_name_and_nothing_written(
    with_lock_file: bool, copy: Path
) -> None:
    stamp = keys.Stamp(99, 0, "tailfold 9")
    change_row(copy, "meta", lambda key: key == keys.FORMAT_KEY, lambda key, value: (key, keys.encode(stamp)))
    if not with_lock_file:
        (copy / "lock.mdb").unlink()
    before = (copy / "data.mdb").read_bytes()
    names = sorted(p.name for p in copy.iterdir())
    with pytest.raises(FormatTooNew) as refused:
        Store.open(copy)
    assert (refused.value.found, refused.value.known) == (99, FORMAT_VERSION)
    for command in COMMANDS:
        done = tailfold(copy, *command)
        assert done.returncode == 8, command
        assert "format version 99" in done.stderr
    assert (copy / "data.mdb").read_bytes() == before
    assert sorted(p.name for p in copy.iterdir()) == names


def test_a_stamp_with_more_fields_is_read(copy: Path) -> None:
    more = msgspec.msgpack.encode({"format": 1, "created_ns": 1, "by": "x", "later": True})
    change_row(copy, "meta", lambda key: True, lambda key, value: (key, more))
    Store.open(copy).close()


def test_a_missing_table_is_damage(tmp_path: Path) -> None:
    import lmdb

    path = small_store(tmp_path / "s")
    with lmdb.open(str(path), max_dbs=32) as env:
        ids = env.open_db(b"ids", create=False)
        with env.begin(write=True) as txn:
            txn.drop(ids)
    with pytest.raises(StoreDamaged, match="'ids' is missing"):
        Store.open(path)


def test_a_store_that_can_only_be_read_is_read_and_never_written_to(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    import lmdb
    from tailfold.engine.errors import StoreReadOnly

    inner = lmdb.open

    def on_a_read_only_medium(*arguments: Any, **how: Any) -> Any:
        if not how.get("readonly"):
            error = lmdb.Error("a read-only file system")
            error.code = errno.EROFS  # type: ignore[misc]
            raise error
        return inner(*arguments, **how)

    monkeypatch.setattr("tailfold.engine.backend.lmdb.environment.lmdb.open", on_a_read_only_medium)
    before = (copy / "data.mdb").read_bytes()
    with Store.open(copy, create=False) as store:
        assert store.verify().sound
        assert len(list(store.read("r-1"))) == 12
        with pytest.raises(StoreReadOnly):
            store.append("r-1", Deposited(1), expected=12)
        with pytest.raises(StoreReadOnly), store.drive("r-1"):
            pass
    assert (copy / "data.mdb").read_bytes() == before


def test_a_probe_that_was_killed_from_outside_is_no_damage(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    from tailfold.cli.guard import probe
    from tailfold.engine.errors import Corruption, EngineError

    for number, kind in (
        (signal.SIGTERM, EngineError),
        (signal.SIGKILL, EngineError),
        (signal.SIGSEGV, Corruption),
    ):
        with pytest.raises(kind) as said:
            probe(copy, lambda store, number=number: os.kill(os.getpid(), number))  # type: ignore[misc]
        assert isinstance(said.value, Corruption) == (number == signal.SIGSEGV)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with Store.open(tmp_path / "s") as store:
            store.append("a", Deposited(1), expected=ANY)
    finally:
        os.umask(old)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    for file in (tmp_path / "s").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file.name
