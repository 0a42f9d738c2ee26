"""Records that say several things or none: decoded part by part, refused by name, and stamped as format 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tailfold.engine import Durability, Event, Fold, LmdbBackend, MemoryBackend, Opaque, Store
from tailfold.engine.backend import chain
from tailfold.engine.backend.lmdb import environment
from tailfold.engine.backend.port import Append, Appended, Backend
from tailfold.engine.errors import FormatTooNew, RecordDamaged, SchemaError, SchemaTooNew, Undecodable, UnknownKind
from tailfold.engine.rawrecords import format_needed, tags_in
from tailfold.engine.records import Newer

from tests.domain import Deposited, Withdrawn, account


def put(backend: Backend, tag: str, payload: Any, stream: str = "a") -> None:
    data = msgspec.msgpack.encode([tag, 1, None, None, payload])
    [done] = backend.commit([Append(stream, -1, [data], [chain.digest(data)], 1, format=format_needed(data))])
    assert isinstance(done, Appended)


PARTS = [["deposited@1", {"amount": 5}], ["strange@4", {"x": 1}], ["withdrawn@1", {"amount": 2}]]


def test_each_part_is_an_event_of_its_own_under_one_version(backend: Backend) -> None:
    put(backend, "*@1", PARTS)
    put(backend, "*@1", [])
    store = Store.open(backend=backend, events=[Deposited, Withdrawn])
    found = list(store.read("a"))
    assert [(r.version, r.sub, r.kind, r.stored) for r in found] == [
        (1, 0, "deposited", "*@1"),
        (1, 1, "strange", "*@1"),
        (1, 2, "withdrawn", "*@1"),
    ]
    assert [r.event for r in found if not isinstance(r.event, Opaque)] == [Deposited(5), Withdrawn(2)]
    assert store.load("a", account).state.balance == 3
    assert list(store.read("a", backwards=True)) == found[::-1]
    assert store.verify().sound
    assert tags_in(backend.rows("a", after=0, upto=1, limit=1)[0].data) == [
        "deposited@1",
        "strange@4",
        "withdrawn@1",
    ]


def test_an_append_goes_on_after_a_composite(backend: Backend) -> None:
    put(backend, "*@1", PARTS)
    live = Store.open(backend=backend).live("a", account)
    live.append(Deposited(1))
    assert (live.version, live.state.balance) == (2, 4)


@pytest.mark.parametrize(
    ("tag", "payload", "error"),
    [
        ("*@1", {"deposited@1": {}}, Undecodable),
        ("*@1", [["deposited@1"]], Undecodable),
        ("*@1", [["deposited@1", {"amount": "x"}]], Undecodable),
        ("*@1", [["deposited@7", {"amount": 1}]], SchemaTooNew),
        ("*@1", [["no tag", {}]], RecordDamaged),
        ("*@1", [["*@1", []]], RecordDamaged),
        ("*@2", [], SchemaTooNew),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tag: str, payload: Any, error: type[SchemaError]) -> None:
    backend = MemoryBackend()
    put(backend, "deposited@1", {"amount": 1})
    put(backend, tag, payload)
    store = Store.open(backend=backend, events=[Deposited])
    with pytest.raises(error, match="'a' version 2"):
        list(store.read("a"))
    with pytest.raises(error, match="'a' version 2"):
        store.load("a", account)


def test_a_newer_part_is_opaque_where_that_is_asked_for() -> None:
    backend = MemoryBackend()
    put(backend, "*@1", [["deposited@7", {"amount": 1}], ["deposited@1", {"amount": 2}]])
    store = Store.open(backend=backend, events=[Deposited], newer=Newer.OPAQUE)
    newer, known = store.read("a")
    assert (newer.kind, isinstance(newer.event, Opaque), known.event) == ("deposited", True, Deposited(2))
    assert store.newer_read == {"deposited@7": 1}


def test_a_strict_fold_refuses_a_part_that_it_does_not_know() -> None:
    strict: Fold[list[int]] = Fold("strict", list, strict=True)

    @strict.on(Deposited)
    def _(state: list[int], event: Deposited) -> None:
        state.append(event.amount)

    backend = MemoryBackend()
    put(backend, "*@1", PARTS)
    with pytest.raises(UnknownKind):
        Store.open(backend=backend).load("a", strict)


def test_the_kind_of_composites_is_no_kind_for_users() -> None:
    class Star(Event, frozen=True):
        kind = "*"

    with pytest.raises(ValueError, match="kind"):
        Store.open(backend=MemoryBackend(), events=[Star])


def test_the_stamp_is_raised_with_the_first_composite_and_older_releases_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "s", durability=Durability.RELAXED) as store:
        store.append("a", Deposited(1), expected=0)
        assert store.format == 1, "a new store is for everyone, until it holds what needs more"
        put(store.backend, "*@1", PARTS)
        assert store.format == 2
        script = "import sys; from tailfold.engine import Store; print(Store.open(sys.argv[1]).format)"
        other = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True)
        assert other.stdout == "2\n", other.stderr
    monkeypatch.setattr(environment, "FORMAT_VERSION", 1)
    with pytest.raises(FormatTooNew, match="format version 2"):
        LmdbBackend(tmp_path / "s")


def test_a_refused_append_does_not_raise_the_stamp(backend: Backend) -> None:
    data = msgspec.msgpack.encode(["*@1", 1, None, None, []])
    [refused] = backend.commit([Append("a", 5, [data], [chain.digest(data)], 1, format=2)])
    assert not isinstance(refused, Appended)
    assert Store.open(backend=backend).format == 1
