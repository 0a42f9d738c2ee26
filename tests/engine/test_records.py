"""Records: one decode call, self-describing bytes, and errors that name what and where."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine import ANY, Blob, Event, MemoryBackend, Opaque, Store
from tailfold.engine.errors import BadArgument, BlobNotFound, KeyReused, SchemaTooNew, SchemaTooOld, Undecodable
from tailfold.engine.rawrecords import blobs_in, raw_record, tag_of_record
from tailfold.engine.records import Codec

from tests.domain import Attached, Deposited, Noted, Withdrawn, account


class DepositedLater(Event, frozen=True):
    kind = "deposited"
    version = 3
    amount: int


class Deposited0(Event, frozen=True):
    kind = "deposited"
    amount: str


class Rich(Event, frozen=True):
    kind = "rich"
    when: datetime
    price: Decimal
    tags: frozenset[str]
    anything: Any
    pair: tuple[int, str]


def codec() -> Codec:
    return Codec(lambda digest: None)


JSONISH = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(text=st.text(), extra=st.dictionaries(st.text(), JSONISH, max_size=3), time_ns=st.integers(0, 2**63))
def test_what_is_stored_is_read_back(text: str, extra: dict[str, Any], time_ns: int) -> None:
    kinds = codec()
    event = Noted(text, extra)
    encoded = kinds.encode(event, time_ns, "a@1", "c")
    record = kinds.decode("s", 1, encoded.data)
    assert record == encoded.record
    assert (record.payload, record.time_ns, record.causation, record.correlation) == (
        event,
        time_ns,
        "a@1",
        "c",
    )
    assert raw_record(encoded.data) == ["noted@1", time_ns, "a@1", "c", {"text": text, "extra": extra}]
    assert tag_of_record(encoded.data) == ("noted", 1)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused_by_name(data: bytes) -> None:
    from tailfold.engine.errors import EngineError

    kinds = codec()
    kinds.register([Noted])
    try:
        kinds.decode("the stream", 7, data)
    except EngineError as error:
        assert "the stream" in str(error)
        assert "7" in str(error)


def test_rich_types_come_back_typed() -> None:
    kinds = codec()
    event = Rich(datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.10"), frozenset({"a"}), {"x": [1]}, (1, "b"))
    assert kinds.encode(event, 0, None, None).record.payload == event


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Deposited("5"), "Expected `int`"),  # type: ignore[arg-type]
        (Deposited(2**65), "ints"),
        (Noted("x", {"k": object()}), "object"),
        (Noted("\ud800"), "surrogates"),
        (Noted("x", {"k": {1: float("nan"), "z": {object}}}), "cannot be stored"),
    ],
)
def test_an_event_that_could_not_be_read_back_is_never_stored(event: Event, why: str) -> None:
    with pytest.raises(BadArgument, match=event.kind) as refused:
        codec().encode(event, 0, None, None)
    assert why in str(refused.value)


class Shape:
    """A class that neither msgspec nor we can read."""


class Drawn(Event, frozen=True):
    kind = "drawn"
    shape: Shape


class DrawnByNumber(Event, frozen=True):
    kind = "drawn"
    shape: int


def test_a_field_of_a_class_that_cannot_be_read_is_refused_by_name_both_ways() -> None:
    """An int would be written well, but nothing could read it as a `Shape`."""
    with pytest.raises(BadArgument, match=r"fields of type .*Shape cannot be stored"):
        codec().encode(Drawn(3), 0, None, None)  # type: ignore[arg-type]
    written = codec().encode(DrawnByNumber(3), 0, None, None)
    reading = codec()
    reading.register([Drawn])
    with pytest.raises(Undecodable, match="drawn@1"):
        reading.decode_page("a", 0, [written.data])


def test_the_live_state_is_folded_from_what_will_be_read_back(store: Store) -> None:
    live = store.live("a", account)
    live.append(Noted("x", {"pair": (1, 2)}))
    [recorded] = store.read("a")
    assert isinstance(recorded.event, Noted)
    assert recorded.event.extra == {"pair": [1, 2]}
    assert live.state == store.load("a", account).state


def test_unknown_kinds_are_opaque_kept_byte_for_byte_and_passed_over() -> None:
    backend = MemoryBackend()
    Store.open(backend=backend).append("a", [Deposited(1), Noted("hello", {"k": 1}), Deposited(2)], expected=0)
    other = Store.open(backend=backend, events=[Deposited])
    events = [r.event for r in other.read("a")]
    assert events[0] == Deposited(1)
    opaque = events[1]
    assert isinstance(opaque, Opaque)
    assert (opaque.opaque_kind, opaque.opaque_version) == ("noted", 1)
    assert opaque.builtins() == {"text": "hello", "extra": {"k": 1}}
    [row] = backend.rows("a", after=1, upto=2, limit=1)
    assert row.data.endswith(opaque.payload)
    from tailfold.engine import Fold

    total: Fold[list[int]] = Fold("total", lambda: [0])
    total.on(Deposited)(lambda state, event: [state[0] + event.amount])
    assert other.load("a", total).state == [3]


def test_an_opaque_kind_becomes_typed_when_the_code_learns_it() -> None:
    backend = MemoryBackend()
    Store.open(backend=backend).append("a", Noted("x"), expected=0)
    store = Store.open(backend=backend)
    [before] = store.read("a")
    assert isinstance(before.event, Opaque)
    store.log.codec.register([Noted])
    [after] = store.read("a")
    assert after.event == Noted("x")


def test_a_strict_fold_refuses_what_it_does_not_know(store: Store) -> None:
    from tailfold.engine import Fold
    from tailfold.engine.errors import UnknownKind

    strict: Fold[int] = Fold("strict", lambda: 0, strict=True)
    strict.on(Deposited)(lambda state, event: state + event.amount)
    store.append("a", [Deposited(1), Withdrawn(1)], expected=0)
    with pytest.raises(UnknownKind) as refused:
        store.load("a", strict)
    assert (refused.value.stream, refused.value.version, refused.value.kind) == ("a", 2, "withdrawn@1")


def test_a_newer_schema_version_is_refused_naming_everything() -> None:
    backend = MemoryBackend()
    Store.open(backend=backend).append("a", [Withdrawn(1), DepositedLater(5)], expected=0)
    old_code = Store.open(backend=backend, events=[Deposited])
    with pytest.raises(SchemaTooNew) as refused:
        old_code.load("a", account)
    error = refused.value
    assert (error.stream, error.version, error.kind, error.stored, error.known) == ("a", 2, "deposited", 3, 1)
    for part in ("'a'", "version 2", "'deposited'", "3", "1"):
        assert part in str(error)


def test_an_older_schema_version_without_a_step_is_refused() -> None:
    backend = MemoryBackend()
    Store.open(backend=backend).append("a", Deposited(1), expected=0)
    with pytest.raises(SchemaTooOld) as refused:
        list(Store.open(backend=backend, events=[DepositedLater]).read("a"))
    assert (refused.value.stored, refused.value.known) == (1, 3)


def test_a_field_changed_without_a_new_version_is_refused_naming_the_event() -> None:
    backend = MemoryBackend()
    Store.open(backend=backend).append("a", Deposited(1), expected=0)
    with pytest.raises(Undecodable, match="deposited@1"):
        list(Store.open(backend=backend, events=[Deposited0]).read("a"))


def test_two_classes_may_not_claim_one_kind(store: Store) -> None:
    store.log.codec.register([Deposited])
    with pytest.raises(BadArgument, match="one class a kind"):
        store.append("a", Deposited0("1"), expected=ANY)


def test_classes_that_cannot_be_stored_are_refused_by_name(store: Store) -> None:
    class NoKind(Event, frozen=True):
        x: int

    class BadKind(Event, frozen=True):
        kind = "Bad Kind"

    class BadVersion(Event, frozen=True):
        kind = "ok"
        version = 0

    class Omits(Event, frozen=True, omit_defaults=True):
        kind = "omits"
        x: int = 1

    for event in (NoKind(1), BadKind(), BadVersion(), Omits()):
        with pytest.raises(BadArgument):
            store.append("a", event, expected=ANY)
    assert store.backend.head("a") is None


def test_blobs_are_stored_once_and_loaded_when_asked(store: Store) -> None:
    content = b"picture" * 1000
    store.append("a", [Attached("one", Blob(content)), Attached("two", Blob(content))], expected=0)
    store.append("b", Attached("three", Blob(content)), expected=0)
    assert len(store.backend.blobs()) == 1
    for recorded in store.read_all():
        assert isinstance(recorded.event, Attached)
        assert recorded.event.content == Blob(content)
        assert recorded.event.content.data == content
    [row, *_] = store.backend.rows("a", after=0, upto=2, limit=2)
    assert blobs_in(row.data) == [Blob(content).digest]
    assert len(row.data) < 200


def test_a_read_blob_can_be_appended_again(store: Store) -> None:
    store.append("a", Attached("one", Blob(b"x")), expected=0)
    [recorded] = store.read("a")
    assert isinstance(recorded.event, Attached)
    store.append("b", recorded.event, expected=0)
    [copied] = store.read("b")
    assert isinstance(copied.event, Attached)
    assert copied.event.content.data == b"x"


def test_a_missing_blob_says_so() -> None:
    with pytest.raises(BlobNotFound):
        _ = Blob.stored(b"x" * 32, 1, lambda digest: None).data


def test_the_store_remembers_fields_of_every_kind_without_any_code() -> None:
    backend = MemoryBackend()
    Store.open(backend=backend).append("a", [Deposited(1), Noted("x")], expected=0)
    kinds = dict(Store.open(backend=backend).kinds())
    assert [f["name"] for f in kinds["deposited@1"]] == ["amount", "note"]
    assert [f["type"] for f in kinds["noted@1"]] == ["str", "dict[str, Any]"]


def test_large_events_are_refused_with_the_remedy(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailfold.engine.records.RECORD_BYTES_MAX", 1000)
    with pytest.raises(BadArgument, match="Blob"):
        store.append("a", Noted("x" * 2000), expected=0)


def test_a_record_is_one_array_in_the_promised_order() -> None:
    from tailfold.engine.rawrecords import RECORD_FIELDS

    data = codec().encode(Deposited(5), 1, None, None).data
    stored = msgspec.msgpack.decode(data)
    named = dict(zip(RECORD_FIELDS, stored, strict=True))
    assert named["tag"] == "deposited@1"
    assert named["payload"] == {"amount": 5, "note": ""}


class Scored(Event, frozen=True):
    kind = "scored"
    points: dict[int, set[int]]


def test_a_retry_is_known_also_by_keys_that_are_not_texts(store: Store) -> None:
    first = store.append("s", Scored({2: {3, 1}, 1: {5}}), expected=0, key="k")
    assert store.append("s", Scored({1: {5}, 2: {1, 3}}), expected=0, key="k") == first._replace(repeated=True)
    with pytest.raises(KeyReused):
        store.append("s", Scored({1: {5}, 2: {1, 4}}), expected=0, key="k")


def test_a_kind_that_several_threads_meet_at_once_is_stored_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds a class encodes with it and decodes what comes out: the decoder has to know it by then."""
    codec, failed = Codec(lambda digest: None), []
    compile_ = codec._compile

    def encode() -> None:
        try:
            codec.encode(Deposited(1), 1, None, None)
        except BadArgument as error:
            failed.append(error)

    other = threading.Thread(target=encode)

    def compile_slowly() -> None:
        other.start()
        time.sleep(0.05)
        compile_()

    with monkeypatch.context() as patched:
        patched.setattr(codec, "_compile", compile_slowly)
        codec.register([Deposited])
    other.join(20)
    assert not failed
