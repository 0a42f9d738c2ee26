"""A survey of a store, and one event explained: whatever stands there, and whatever today's code makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tailfold.engine import Event, Fold, Store
from tailfold.engine.backend import chain
from tailfold.engine.backend.memory import MemoryBackend
from tailfold.engine.backend.port import Append
from tailfold.engine.errors import BadArgument, RecordDamaged, SchemaTooNew, SchemaTooOld, StreamNotFound
from tailfold.engine.rawrecords import format_needed
from tailfold.engine.records import Newer
from tailfold.engine.schema_report import explain, survey, take_payloads
from tailfold.upcasters import AddField, Part, RenameField, Upcasters

from tests.surgery import change_row


def event(kind: str, version: int = 1, /, **fields: Any) -> Any:
    namespace = {"kind": kind, "version": version}
    return msgspec.defstruct(f"E_{kind}", fields.items(), bases=(Event,), namespace=namespace, frozen=True)


OLD, GONE, PLAIN = event("old", a=int), event("gone", a=int), event("plain", a=int)


@pytest.fixture
def backend() -> MemoryBackend:
    backend = MemoryBackend()
    with Store.open(backend=backend) as store:
        store.append("s", [OLD(1), OLD(0), GONE(3), PLAIN(4)], expected=0)
        store.append("t", [PLAIN(5)], expected=0)
    return backend


def opened(backend: MemoryBackend, upcasters: Upcasters, newer: Newer = Newer.REFUSE) -> Store:
    return Store.open(backend=backend, upcasters=upcasters, newer=newer)


def standings(store: Store) -> dict[str, tuple[int, int, str]]:
    return {f"{row.kind}@{row.version}": (row.events, row.readable, row.standing) for row in survey(store.log)}


def test_a_survey_says_what_the_code_does_with_each_version(backend: MemoryBackend) -> None:
    steps = Upcasters(events=[event("new", 3, b=int, c=str), PLAIN])
    steps.rename_kind("old", 1, "new")
    steps.change("new", 1, RenameField("a", "b"))
    steps.change("new", 2, AddField("c", "x"))
    steps.drop("gone", 1)
    assert standings(opened(backend, steps)) == {
        "gone@1": (1, 1, "lifted by 1 step to nothing: dropped"),
        "old@1": (2, 2, "lifted by 3 steps to new@3"),
        "plain@1": (2, 2, "current"),
    }


def test_a_survey_counts_those_that_fail_and_goes_on(backend: MemoryBackend) -> None:
    steps = Upcasters(events=[event("old", 2, a=int), PLAIN])
    steps.step("old", 1)(lambda payload: {"a": 1 // payload["a"]})
    found = {row.kind: row for row in survey(opened(backend, steps).log)}
    old = found["old"]
    assert (old.events, old.readable) == (2, 1)
    assert old.failure is not None
    assert (old.failure.stream, old.failure.version) == ("s", 2)
    assert "ZeroDivisionError" in str(old.failure.error)
    assert found["gone"].standing == "unknown kind: kept as it is"
    assert found["plain"].failure is None


def test_newer_and_older_versions_without_a_way_are_named(backend: MemoryBackend) -> None:
    with Store.open(backend=backend) as store:
        store.append("u", [event("plain", 2, a=int)(1)], expected=0)
    code = Upcasters(events=[PLAIN, event("old", 2, other=int), event("gone", 2, a=int)])
    code.retire("gone", 1)
    store = opened(backend, code)
    found = standings(store)
    assert found["plain@2"] == (1, 0, "newer than the code's 1")
    assert found["old@1"] == (2, 0, "older than the code's 2, without a step")
    assert found["gone@1"] == (1, 1, "older than the code's 2, fits as it is (retired, but it is here)")
    assert isinstance(explain(store.log, "u", 1).error, SchemaTooNew)
    assert isinstance(explain(store.log, "s", 1).error, SchemaTooOld)
    passed_over = opened(backend, code, Newer.OPAQUE)
    assert standings(passed_over)["plain@2"] == (1, 1, "newer than the code's 1: kept as it is")
    assert explain(passed_over.log, "u", 1).events[0].opaque


def test_a_version_that_only_adds_fields_is_read_as_it_is(backend: MemoryBackend) -> None:
    more = msgspec.defstruct(
        "M", [("a", int), ("b", int, 0)], bases=(Event,), namespace={"kind": "old", "version": 2}, frozen=True
    )
    assert standings(opened(backend, Upcasters(events=[more])))["old@1"] == (
        2,
        2,
        "older than the code's 2, fits as it is",
    )


def test_streams_of_other_programs_are_counted_and_not_decoded(backend: MemoryBackend) -> None:
    store = opened(backend, Upcasters(events=[event("plain", 1, a=str)]))
    rows = {row.kind: row for row in survey(store.log, only=lambda stream: stream == "t")}
    assert (rows["plain"].events, rows["plain"].readable, rows["plain"].foreign) == (2, 1, 1)
    assert rows["old"].standing == "of another program: kept as it is"


def test_a_split_is_explained_part_by_part_in_its_order(backend: MemoryBackend) -> None:
    steps = Upcasters(events=[event("x", 2, a=int), event("y", 1, z=int)])
    steps.split("old", 1, Part("x", 1, fields=("a",)), Part("y", 1, renamed={"z": "a"}))
    steps.change("x", 1)
    found = explain(opened(backend, steps).log, "s", 1)
    assert [stage.step.label for stage in found.stages] == ["old@1 → x@1 + y@1", "x@1 → x@2"]
    assert [(seen.kind, seen.version, seen.payload) for seen in found.events] == [
        ("x", 2, {"a": 1}),
        ("y", 1, {"z": 1}),
    ]


def test_a_step_with_context_is_explained_with_the_state_before_the_event(backend: MemoryBackend) -> None:
    count: Fold[dict[str, int]] = Fold("count", lambda: {"n": 0})
    now = event("old", 2, a=int, n=int)

    @count.on(now)
    def _(state: Any, event: Any) -> None:
        state["n"] += 1

    steps = Upcasters(events=[now])
    steps.with_context("old", 1, count)(lambda payload, state: payload | {"n": state["n"]})
    store = opened(backend, steps)
    assert explain(store.log, "s", 2).events[0].payload == {"a": 0, "n": 1}
    assert standings(store)["old@1"][:2] == (2, 2)


def test_explain_refuses_what_is_not_there(backend: MemoryBackend) -> None:
    log = Store.open(backend=backend).log
    for stream, version, error in (("s", 5, StreamNotFound), ("no", 1, StreamNotFound), ("s", 0, BadArgument)):
        with pytest.raises(error):
            explain(log, stream, version)


def test_payloads_are_taken_of_known_kinds_only(backend: MemoryBackend) -> None:
    store = opened(backend, Upcasters(events=[PLAIN]))
    assert [(kind, version) for kind, version, _ in take_payloads(store.log, [])] == [("plain", 1)]
    assert take_payloads(store.log, [], only=lambda stream: False) == []


def test_a_missing_event_is_counted_as_damage_and_the_survey_goes_on(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        store.append("s", [PLAIN(1), PLAIN(2), PLAIN(3)], expected=0)
        store.append("t", [PLAIN(5)], expected=0)
    seen: list[bytes] = []
    change_row(tmp_path / "s", "events", lambda key: len(seen) == 1 or bool(seen.append(key)), lambda *_: None)  # type: ignore[func-returns-value]
    with Store.open(tmp_path / "s", upcasters=Upcasters(events=[PLAIN])) as store:
        rows = {row.kind: row for row in survey(store.log)}
    assert (rows["?"].events, rows["?"].readable, rows["?"].standing) == (2, 0, "damaged")
    assert rows["?"].failure is not None
    assert isinstance(rows["?"].failure.error, RecordDamaged)
    assert (rows["plain"].events, rows["plain"].readable) == (2, 2)


def test_an_event_that_forks_share_counts_once(backend: MemoryBackend) -> None:
    store = opened(backend, Upcasters(events=[OLD, PLAIN, GONE]))
    store.fork("s", at=3, name="child")
    store.append("child", PLAIN(9), expected=3)
    rows = survey(store.log)
    assert sum(row.events for row in rows) == store.usage()["events"] == 6
    assert [(kind, version) for kind, version, _ in take_payloads(store.log, [])].count(("plain", 1)) == 1
    assert explain(store.log, "child", 1).payload == {"a": 1}


def test_what_forks_keep_of_a_deleted_stream_counts(backend: MemoryBackend) -> None:
    store = opened(backend, Upcasters(events=[OLD, PLAIN, GONE]))
    before = {(row.kind, row.version): row.events for row in survey(store.log)}
    at = store.head("s").version
    store.fork("s", at=at, name="child")
    store.delete("s", reroot=True)
    for _ in range(2):
        assert {(row.kind, row.version): row.events for row in survey(store.log)} == before
        assert ("plain", 1) in {(kind, version) for kind, version, _ in take_payloads(store.log, [])}
        store.gc()
    store.delete("child")
    left = sum(row.events for row in survey(store.log))  # nobody can read those of `s` any more
    assert left == sum(before.values()) - at


def test_the_parts_of_a_composite_count_and_are_explained_each_by_its_own_tag(backend: MemoryBackend) -> None:
    for parts in ([["old@1", {"a": 0}], ["plain@1", {"a": 7}]], []):
        data = msgspec.msgpack.encode(["*@1", 1, None, None, parts])
        backend.commit([Append("c", -1, [data], [chain.digest(data)], 1, format=format_needed(data))])
    steps = Upcasters(events=[event("old", 2, a=int), PLAIN])
    steps.step("old", 1)(lambda payload: {"a": 1 // payload["a"]})
    store = opened(backend, steps)
    found = standings(store)
    assert found["plain@1"] == (3, 3, "current")
    assert found["old@1"][:2] == (3, 1)
    assert found["*@1"] == (1, 1, "says nothing")
    assert explain(store.log, "c", 1).failed == "old@1 → old@2"
    assert explain(store.log, "c", 2).events == []
    sound = Upcasters(events=[event("old", 2, b=int), PLAIN])
    sound.change("old", 1, RenameField("a", "b"))
    seen = explain(opened(backend, sound).log, "c", 1)
    assert [one.payload for one in seen.events] == [{"b": 0}, {"a": 7}]
    assert seen.standing == "lifted by 1 step to old@2; current"
    taken = take_payloads(opened(backend, sound).log, [])
    assert {(kind, version) for kind, version, _ in taken} == {("old", 1), ("plain", 1)}
