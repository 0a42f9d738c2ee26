"""Measuring says what is there, in a copy. No figure's size is asserted, only that each is true to the stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tailfold.engine import Blob, Durability, Event, Fold, MemoryBackend, Store
from tailfold.engine.agent.state import run_fold
from tailfold.engine.backend.port import Backend
from tailfold.engine.costs import STREAM, Costs, measure, measure_scratch, synthetic_session
from tailfold.engine.costs.scratch import copy_stream
from tailfold.engine.costs.synthetic import session
from tailfold.engine.errors import BadArgument, FoldFailed, StreamNotFound
from tailfold.upcasters import RenameField, Upcasters

from tests.domain import Noted
from tests.shop import (
    Foreign,
    Jotted,
    OldBasket,
    OldMoved,
    OldPaid,
    OldRated,
    Pinged,
    dump,
    new_shop,
    old_shop,
    till,
)


class Old(Event, frozen=True):
    kind = "said"
    words: str


class Said(Event, frozen=True):
    kind = "said"
    version = 2
    text: str


class Kept(Event, frozen=True):
    kind = "kept"
    content: Blob


@dataclass
class Talk:
    texts: list[str] = field(default_factory=list)
    kept_bytes: int = 0


talk: Fold[Talk] = Fold("talk", Talk)


@talk.on(Said)
def _(state: Talk, event: Said) -> None:
    state.texts.append(event.text)


@talk.on(Kept)
def _(state: Talk, event: Kept) -> None:
    state.kept_bytes += len(event.content.data)


steps = Upcasters(events=[Said, Kept])
steps.change("said", 1, RenameField("words", "text"))


@pytest.fixture
def talked(backend: Backend) -> Store:
    """A stream of old and new events, with a blob, that is a fork."""
    writer = Store.open(backend=backend)
    writer.append("main", [Old(f"old {i}") for i in range(1200)], expected=0)
    writer.append("main", Kept(Blob(b"x" * 100_000)), expected=1200)
    writer.fork("main", at=1201, name="side")
    reader = Store(backend)
    reader.log.codec.adopt(steps)
    reader.append("side", [Said(f"new {i}") for i in range(300)], expected=1201)
    return reader


def test_a_stream_is_measured_in_a_copy_and_the_store_keeps_every_row(talked: Store) -> None:
    before = dump(talked)
    costs = measure(talked, "side", talk, repeats=1)
    assert dump(talked) == before
    assert [head.stream for head in talked.streams()] == ["main", "side"]
    assert (costs.events, costs.fold, costs.stream) == (1501, "talk", "side")
    assert costs.bytes == sum(len(row.data) for row in talked.log.rows("side", after=0, upto=1501))
    counted = {kind.stored: (kind.events, kind.handler_us is not None) for kind in costs.kinds}
    assert counted == {"said@1": (1200, True), "said@2": (300, True), "kept@1": (1, True)}
    assert sum(kind.bytes for kind in costs.kinds) == costs.bytes
    assert sum(kind.share or 0.0 for kind in costs.kinds) == pytest.approx(1.0)
    assert costs.segments[-1].upto == 1501
    assert (costs.resume.curve[0].tail, costs.resume.curve[-1].tail, costs.resume.whole.tail) == (0, 1500, 1501)
    assert [fork.at for fork in costs.forks] == [150, 750, 1501]
    assert costs.context is None
    assert msgspec.json.decode(msgspec.json.encode(costs), type=Costs) == costs


def test_old_events_are_decoded_both_ways(talked: Store) -> None:
    found = measure(talked, "side", talk, repeats=1).upcasting
    assert (found.old_events, found.steps, found.timed) == (1200, 1, 1200)
    assert found.lifted_us is not None
    assert found.current_us is not None
    assert found.share_of_walk is not None
    assert 0 <= found.share_of_walk <= 1


def test_without_old_events_there_is_no_upcasting() -> None:
    store = Store.open(backend=MemoryBackend())
    store.append("s", [Said("a")], expected=0)
    assert measure(store, "s", talk, repeats=1).upcasting.old_events == 0


def test_steps_that_split_drop_and_look_back_are_measured(backend: Backend) -> None:
    events: list[Event] = [OldPaid(3), OldMoved(50, "x"), Pinged(1), Jotted("n"), OldBasket([1, 2]), OldRated(4)]
    old_shop(backend).append("s", [*events * 30, Foreign({})], expected=0)
    store = new_shop(backend)
    costs = measure(store, "s", till, repeats=1)
    assert costs.upcasting.old_events == 180
    assert {kind.decode_us for kind in costs.kinds} == {None}, "steps with a context need events in order"
    assert next(kind for kind in costs.kinds if kind.stored == "foreign@3").handler_us is None
    assert any("context" in note for note in costs.notes)


def test_a_small_stream_gets_no_rates_and_says_so() -> None:
    store = Store.open(backend=MemoryBackend())
    store.append("s", [Said("a")] * 12, expected=0)
    costs = measure(store, "s", talk, request=lambda state: list(state.texts), turns=lambda state: 3)
    assert (costs.walk.events_per_s, costs.walk.fold_events_per_s, costs.segments) == (None, None, [])
    assert (costs.resume.interval, costs.resume.event_us, costs.resume.snapshot) == (None, None, None)
    assert costs.context is not None
    assert (costs.context.growth, costs.context.total_s) == (None, None)
    assert any("12 events are too few" in note for note in costs.notes)


def test_one_event_is_measured() -> None:
    store = Store.open(backend=MemoryBackend())
    store.append("s", Said("a"), expected=0)
    costs = measure(store, "s", talk, request=lambda state: state.texts, repeats=1)
    assert [point.tail for point in costs.resume.curve] == [0]
    assert [fork.at for fork in costs.forks] == [1]


def test_a_fold_that_can_have_no_snapshots_is_measured_without() -> None:
    class Odd:
        def __init__(self) -> None:
            self.lines: Iterator[int] = iter(())

    odd: Fold[Any] = Fold("odd", Odd)

    @odd.on(Said)
    def _(state: Any, event: Said) -> None:
        state.last = event.text

    store = Store.open(backend=MemoryBackend())
    store.append("s", [Said("a")] * 1100, expected=0)
    costs = measure(store, "s", odd, repeats=1)
    assert (costs.resume.curve, costs.resume.interval, costs.resume.cold_ms) == ([], None, None)
    assert "no snapshots" in costs.resume.reason


def test_requests_are_made_at_growing_versions_up_to_the_head() -> None:
    with synthetic_session(2000) as scratch:
        costs = measure_scratch(
            scratch,
            STREAM,
            run_fold,
            request=lambda state: list(state.messages),
            turns=lambda state: int(state.turn),
            repeats=1,
        )
    assert costs.context is not None
    versions = [point.version for point in costs.context.points]
    sizes = [point.request_bytes for point in costs.context.points]
    assert (versions[-1], sizes) == (2000, sorted(sizes))
    assert costs.context.turns == costs.context.points[-1].turn
    assert costs.conditions.place.startswith("a made-up session")


def test_a_session_is_the_same_for_the_same_seed_and_is_folded_by_the_agent() -> None:
    first = list(islice(session(7), 3000))
    assert first == list(islice(session(7), 3000))
    assert first != list(islice(session(8), 3000))
    state = run_fold.fold(first)
    assert state.status == "running"
    assert state.turn > 100
    assert {event.kind for event in first} >= {"tool_result", "tool_error", "model_decision", "run_redirected"}


def test_the_temporary_directory_is_gone_also_after_an_error() -> None:
    with synthetic_session(10) as scratch:
        assert scratch.data.exists()
    assert not scratch.path.exists()
    failing: Fold[Talk] = Fold("failing", Talk)

    @failing.on(Said)
    def _(state: Talk, event: Said) -> None:
        raise RuntimeError("no")

    store = Store.open(backend=MemoryBackend())
    store.append("s", Said("a"), expected=0)
    with pytest.raises(FoldFailed):
        measure(store, "s", failing)


def test_arguments_out_of_range_are_refused() -> None:
    store = Store.open(backend=MemoryBackend())
    store.append("s", Said("a"), expected=0)
    with pytest.raises(StreamNotFound):
        measure(store, "t", talk)
    for wrong in ({"budget_ms": 0}, {"budget_ms": float("nan")}, {"repeats": 0}):
        with pytest.raises(BadArgument):
            measure(store, "s", talk, **wrong)
    with pytest.raises(BadArgument), synthetic_session(0):
        pass


def test_a_journal_of_large_events_is_copied_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of large events is cut short: the copy goes on where it ended."""
    monkeypatch.setattr("tailfold.engine.backend.lmdb.backend.PAGE_BYTES_MAX", 50_000)
    with (
        Store.open(tmp_path / "s", durability=Durability.RELAXED) as store,
        Store.open(tmp_path / "t", durability=Durability.RELAXED) as copy,
    ):
        store.append("a", [Noted("x" * 3000) for _ in range(1500)], expected=0)
        counted: list[int] = []
        copy_stream(store.backend, copy.backend, "a", 1500, counted.append)
        assert sum(counted) == 1500
        assert copy.head("a").hash == store.head("a").hash
