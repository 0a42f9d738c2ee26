"""A migrated store says the same as its source, without any steps, whatever the history and whatever kills it."""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tailfold.engine import ANY, Blob, Event, Fold, MemoryBackend, Store
from tailfold.engine.errors import Conflict, Corruption, RecordDamaged, SchemaError, SchemaTooNew
from tailfold.engine.migration import Schema, migrate_backend
from tailfold.engine.migration import plan as plan_module
from tailfold.engine.migration.plan import make_plan
from tailfold.engine.migration.rewriting import Rewriter
from tailfold.upcasters import AddField, Upcasters

from tests import shop
from tests.shop import CURRENT, dump, new_shop, old_shop, till

SCHEMA = Schema(shop.upcasters, (till,))
SMALL = st.integers(0, 9)
TEXT = st.text(max_size=4)
OLD_EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(shop.OldPaid, SMALL),
    st.builds(shop.OldMoved, SMALL, TEXT),
    st.builds(shop.OldBasket, st.lists(SMALL, max_size=3)),
    st.builds(shop.Pinged, SMALL),
    st.builds(shop.Jotted, TEXT),
    st.builds(shop.OldRated, SMALL),
    st.builds(shop.OldGrown, SMALL),
    st.builds(shop.Foreign, st.dictionaries(TEXT, SMALL, max_size=2)),
    st.builds(lambda name, data: shop.Filed(name, Blob(data)), TEXT, st.binary(max_size=40)),
)
NEW_EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(shop.Paid, SMALL, TEXT),
    st.builds(shop.Sent, SMALL, TEXT),
    st.builds(shop.Rated, SMALL, SMALL),
    st.builds(shop.Grown, SMALL, TEXT),
)


class Written(NamedTuple):
    stream: str
    events: list[Event]
    key: str | None


def writes(events: st.SearchStrategy[Event]) -> st.SearchStrategy[Written]:
    batches = st.lists(events, min_size=1, max_size=4)
    return st.builds(
        Written, st.sampled_from(["a", "b", "ünï ☃"]), batches, st.sampled_from([None, "k1", "k2", "k3"])
    )


HISTORIES = st.lists(st.one_of(writes(OLD_EVENTS), writes(NEW_EVENTS)), min_size=1, max_size=12)


def write(backend: MemoryBackend, history: list[Written]) -> list[tuple[Written, int, int]]:
    """Append a history as old and new releases in turn did; return what was written, with its versions."""
    clock = count(1_000, 10)
    stores = [each(backend, clock=lambda: next(clock)) for each in (old_shop, new_shop)]
    done = []
    for n, one in enumerate(history):
        store = stores[all(type(event) in CURRENT for event in one.events)]
        key = one.key and f"{one.key}-{n}"
        appended = store.append(
            one.stream, one.events, expected=ANY, key=key, causation=f"c@{n}", correlation=f"talk {n % 2}"
        )
        done.append((one._replace(key=key), appended.first, appended.last))
    if stores[0].backend.head("a"):
        with stores[0].drive("a"):
            pass
    return done


def said(store: Store) -> list[Any]:
    return [
        (r.stream, r.version, r.position, r.time_ns, r.kind, r.event, r.causation, r.correlation, r.sub)
        for r in store.read_all()
    ]


@pytest.fixture(autouse=True)
def _pages_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "ROWS_PER_PAGE", 2)


@given(history=HISTORIES, stop=st.integers(1, 12))
@settings(deadline=None)
def test_a_migrated_store_says_the_same_without_steps(history: list[Written], stop: int) -> None:
    source, destination, interrupted = MemoryBackend(), MemoryBackend(), MemoryBackend()
    done = write(source, history)
    was = new_shop(source)
    before = dump(was)

    report = migrate_backend(source, destination, SCHEMA, clock=lambda: 5)

    assert report.findings == []
    assert report.sound
    assert dump(was) == before, "the source is only read"
    now = Store.open(backend=destination, events=CURRENT)
    assert said(now) == said(was)
    assert now.verify().sound
    for old, new in zip(was.streams(), now.streams(), strict=True):
        assert old._replace(hash=b"") == new._replace(hash=b"")
        assert was.load(old.stream, till) == now.load(new.stream, till)
        lease, moved = was.lease(old.stream), now.lease(new.stream)
        assert (lease and lease.epoch, moved and moved.holder) == (moved and moved.epoch, None)
    for old_row, new_row in zip(before["rows"], dump(now)["rows"], strict=True):
        kept = old_row.data[2:].startswith((b"foreign@3", b"filed@1", b"paid@3", b"sent@1", b"rated@2", b"grown@2"))
        assert kept == (old_row.data == new_row.data), "what needs no lifting is kept byte for byte"

    # Whoever retries with the new code is recognised.
    for one, first, last in done:
        read = list(was.read(one.stream, after=first - 1, upto=last))
        one_each = [r.version for r in read] == list(range(first, last + 1))
        events = [r.event for r in read if isinstance(r.event, Event)]
        if one.key and one_each and len(events) == len(read):
            again = now.append(one.stream, events, expected=0, key=one.key)
            assert (again.repeated, again.first, again.last) == (True, first, last)

    # A second run changes nothing.
    after = dump(now)
    assert migrate_backend(source, destination, SCHEMA, clock=lambda: 6).copied == 0
    assert dump(now) == after

    # Stopped after any commit and begun again, it is the same store.
    steps = count(1)

    def stopping(position: int) -> None:
        if next(steps) == stop:
            raise KeyboardInterrupt

    try:
        migrate_backend(source, interrupted, SCHEMA, clock=lambda: 5, after_commit=stopping)
    except KeyboardInterrupt:
        assert migrate_backend(source, interrupted, SCHEMA, clock=lambda: 6).sound
    assert dump(Store.open(backend=interrupted)) == after


@given(history=HISTORIES, more=HISTORIES)
@settings(max_examples=20, deadline=None)
def test_a_finished_destination_takes_over_what_the_source_got_since(
    history: list[Written], more: list[Written]
) -> None:
    source, in_two, at_once = MemoryBackend(), MemoryBackend(), MemoryBackend()
    write(source, history)
    assert migrate_backend(source, in_two, SCHEMA, clock=lambda: 5).sound
    write(source, [one._replace(key=None) for one in more])
    assert migrate_backend(source, in_two, SCHEMA, clock=lambda: 5).sound
    assert migrate_backend(source, at_once, SCHEMA, clock=lambda: 5).sound
    assert dump(Store.open(backend=in_two)) == dump(Store.open(backend=at_once))


def history_of_everything() -> MemoryBackend:
    source = MemoryBackend()
    blob = shop.Filed("f", Blob(b"content"))
    events = [shop.OldPaid(3), shop.OldMoved(100, "bob"), shop.OldBasket([1, 2]), shop.Pinged(1), shop.OldRated(4)]
    write(source, [Written("a", events, "k1"), Written("b", [shop.Foreign({"x": 1}), blob], None)])
    return source


def test_parts_of_a_composite_are_lifted_by_later_steps_each_by_its_own_tag() -> None:
    class LaterPaid(Event, frozen=True):
        kind = "paid"
        version = 4
        cents: int
        currency: str
        tip: int

    class LaterSent(Event, frozen=True):
        kind = "sent"
        version = 2
        cents: int
        to: str
        balance: int

    later = Upcasters(events=[LaterPaid, LaterSent, shop.Noted, shop.Rated, shop.Grown, shop.Filed])
    later.change("paid", 3, AddField("tip", 0))
    later.retire("paid", 1, 2)

    tills: Fold[shop.Till] = Fold("later till", shop.Till)

    @tills.on(LaterPaid)
    def _(state: shop.Till, event: LaterPaid) -> None:
        state.cents += event.cents

    @later.with_context("sent", 1, tills)
    def _(payload: Any, state: shop.Till) -> Any:
        return {**payload, "balance": state.cents}

    second, third = MemoryBackend(), MemoryBackend()
    assert migrate_backend(history_of_everything(), second, SCHEMA).sound
    lifted = Store.open(backend=second, upcasters=later)
    parts = [r.event for r in lifted.read("a", after=1, upto=2)]
    assert parts == [LaterSent(100, "bob", 300), LaterPaid(100, "EUR", 0)], "the state is the one before the event"
    assert migrate_backend(second, third, Schema(later)).sound
    plain = Store.open(backend=third, events=later.events)
    assert said(plain) == said(lifted)
    origin = plain.origin()
    assert origin is not None and origin.earlier is not None, "the trail goes on"
    assert origin.source_format == 2


def test_code_that_knows_nothing_shows_the_parts_as_opaque() -> None:
    destination = MemoryBackend()
    migrate_backend(history_of_everything(), destination, SCHEMA)
    found = [(r.version, r.sub, r.kind, r.stored) for r in Store.open(backend=destination).read("a")]
    assert found[:3] == [(1, 0, "paid", "paid@3"), (2, 0, "sent", "*@1"), (2, 1, "paid", "*@1")]


def test_an_event_that_cannot_be_lifted_stops_it_before_anything_is_written() -> None:
    source, destination = history_of_everything(), MemoryBackend()

    class Future(Event, frozen=True):
        kind = "paid"
        version = 9
        cents: int

    Store.open(backend=source).append("c", Future(1), expected=0)
    empty = dump(Store.open(backend=destination))
    with pytest.raises(SchemaTooNew, match="stream 'c' version 1"):
        migrate_backend(source, destination, SCHEMA)
    assert dump(Store.open(backend=destination)) == empty
    plan = make_plan(Rewriter(source, lambda stream: SCHEMA), source.count()[1], go_on=True)
    [failure] = plan.failures
    assert (failure.stream, failure.version, failure.stored) == ("c", 1, "paid@9")
    assert isinstance(failure.error, SchemaError)
    assert plan.steps["moved@1"] == ["moved@1 → sent@1 + paid@2", "paid@2 → paid@3"]


def test_a_destination_of_another_source_or_with_a_life_of_its_own_is_refused() -> None:
    source, destination = history_of_everything(), MemoryBackend()
    other = MemoryBackend()
    write(other, [Written("a", [shop.OldPaid(1)], None)])
    with pytest.raises(Conflict, match="not migrated into it"):
        migrate_backend(source, other, SCHEMA)
    migrate_backend(source, destination, SCHEMA)
    before = dump(Store.open(backend=destination))
    with pytest.raises(Conflict, match="another store"):
        migrate_backend(other, destination, SCHEMA)
    assert dump(Store.open(backend=destination)) == before
    new_shop(destination).append("a", shop.Noted("on its own"), expected=ANY)
    with pytest.raises(Conflict, match="has gone on by itself"):
        migrate_backend(source, destination, SCHEMA)


def test_a_source_that_grows_meanwhile_is_taken_over_up_to_where_it_was() -> None:
    source, destination = history_of_everything(), MemoryBackend()
    writer = old_shop(source)

    def growing(position: int) -> None:
        writer.append(
            "a", [shop.OldPaid(1), shop.Filed("new", Blob(b"%d" % position))], expected=ANY, key=f"g{position}"
        )

    events = source.count()[1]
    report = migrate_backend(source, destination, SCHEMA, after_commit=growing)
    assert (report.sound, report.copied, destination.count()[1]) == (True, events, events)
    report = migrate_backend(source, destination, SCHEMA)
    assert report.sound
    assert said(Store.open(backend=destination, events=CURRENT)) == said(new_shop(source))


def test_streams_without_a_schema_are_copied_as_they_are() -> None:
    source, destination = history_of_everything(), MemoryBackend()
    report = migrate_backend(source, destination, lambda stream: SCHEMA if stream == "b" else None)
    assert report.sound
    assert Store.open(backend=destination).head("a") == Store.open(backend=source).head("a"), "the very hashes"
    assert report.format == 1, "nothing that needs the second format was written"


def test_a_source_that_is_not_as_it_was_written_is_refused() -> None:
    source, destination = history_of_everything(), MemoryBackend()
    row = source._streams["a"].rows[1]
    source._streams["a"].rows[1] = row._replace(data=row.data[:-1] + b"x")
    with pytest.raises(RecordDamaged, match="stream 'a' version 2"):
        migrate_backend(source, destination, SCHEMA)
    assert destination.count() == (0, 0)


@pytest.mark.parametrize("content", [None, b"another"])
def test_a_source_with_a_blob_that_is_lost_or_damaged_is_refused(content: bytes | None) -> None:
    source, destination = history_of_everything(), MemoryBackend()
    [digest] = source._blobs
    del source._blobs[digest]
    if content is not None:
        source._blobs[digest] = content
    with pytest.raises(Corruption, match=digest.hex()):
        migrate_backend(source, destination, SCHEMA)
    assert destination.count() == (0, 0)


@pytest.mark.parametrize("damage", ["payload", "time", "ids", "blob"])
def test_the_comparison_finds_what_is_not_the_same(damage: str) -> None:
    """The judge judged: a destination that was written wrongly is found, whatever is wrong with it."""
    source, destination = history_of_everything(), MemoryBackend()
    migrate_backend(source, destination, SCHEMA)
    stream = destination._streams["a"]
    if damage == "payload":
        row = stream.rows[0]
        stream.rows[0] = row._replace(data=row.data.replace(b"EUR", b"USD"))
    elif damage == "time":
        row = stream.rows[4]
        assert b"\xcd\x03\xe8" in row.data
        stream.rows[4] = row._replace(data=row.data.replace(b"\xcd\x03\xe8", b"\xcd\x03\xe9"))
    elif damage == "ids":
        stream.ids.clear()
    else:
        destination._blobs.clear()
    report = migrate_backend(source, destination, SCHEMA)
    if damage in ("ids", "blob"):
        assert report.sound, "what is missing is copied again"
    else:
        assert not report.sound
        assert any("stream 'a' version" in finding for finding in report.findings)
