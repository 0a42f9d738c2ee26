"""The verdicts of schema check: versions, kinds and steps against the lock, and the golden corpus behind them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine import Event, Fold
from tailfold.engine.schema_files import chain_of
from tailfold.upcasters import (
    AddField,
    ConvertField,
    DropField,
    LiftError,
    Part,
    RenameField,
    Upcasters,
    corpus,
)
from tailfold.upcasters.lock import EMPTY, Lock, lock_of, merged, parse, render
from tailfold.upcasters.verdicts import Judgement, Verdict, judge

COMPATIBLE, NEEDS, BREAKING = Judgement.COMPATIBLE, Judgement.NEEDS_STEP, Judgement.BREAKING


def event(kind: str, version: int = 1, /, **fields: Any) -> Any:
    """Make an event class: fields are types, or (type, default)."""
    declared = [(name, *f) if isinstance(f, tuple) else (name, f) for name, f in fields.items()]
    namespace = {"kind": kind, "version": version}
    return msgspec.defstruct(f"E_{kind}", declared, bases=(Event,), namespace=namespace, frozen=True, kw_only=True)


class Project:
    """A lock and a corpus under which code changes."""

    def __init__(self, *events: Any, payloads: tuple[tuple[str, int, Any], ...] = ()) -> None:
        self.lock: Lock = EMPTY
        self.corpus: list[corpus.Entry] = []
        self.commit(Upcasters(events=events), payloads)

    def commit(self, upcasters: Upcasters, payloads: tuple[tuple[str, int, Any], ...] = ()) -> None:
        chain = chain_of(upcasters)
        self.lock = parse(render(merged(self.lock, lock_of(upcasters))))
        self.corpus = corpus.check(self.corpus, chain).anew
        self.corpus += [corpus.record(chain, k, v, msgspec.msgpack.encode(p)) for k, v, p in payloads]
        self.corpus = corpus.parse(corpus.render(self.corpus))

    def judge(self, upcasters: Upcasters | Any) -> list[Verdict]:
        if not isinstance(upcasters, Upcasters):
            upcasters = Upcasters(events=[upcasters])
        chain = chain_of(upcasters)
        return judge(self.lock, chain, corpus.check(self.corpus, chain))


def one(verdicts: list[Verdict], judgement: Judgement) -> Verdict:
    [found] = [verdict for verdict in verdicts if verdict.judgement is judgement]
    return found


MORE_THAN_0: Any = Annotated[int, msgspec.Meta(gt=0)]
"""In a union with int it limits that, too: a decoder knows one of each."""
SEATS = event("seats", count=int, note=(str, ""))
SEATS_2 = event("seats", 2, seats=int, note=(str, ""))
GOLDEN = (("seats", 1, {"count": 3, "note": "x"}),)


def project() -> Project:
    return Project(SEATS, payloads=GOLDEN)


def lifted(*changes: Any, to: Any = SEATS_2) -> Upcasters:
    steps = Upcasters(events=[to])
    steps.change("seats", 1, *changes)
    return steps


# -- the same version ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "judgement", "field", "remedy"),
    [
        (event("seats", count=int, note=(str, ""), more=(int, 0)), COMPATIBLE, "more", ""),
        (event("seats", count=int | None, note=(str, "")), COMPATIBLE, "count", ""),
        (event("seats", count=float, note=(str, "")), COMPATIBLE, "count", ""),
        (event("seats", count=int, note=(str, "other")), COMPATIBLE, "note", ""),
        (event("seats", count=int, note=str), COMPATIBLE, "note", ""),
        (event("seats", count=int, note=(str, ""), more=int), NEEDS, "more", "AddField('more', …)"),
        (event("seats", count=int), NEEDS, "note", "DropField('note')"),
        (event("seats", seats=int, note=(str, "")), NEEDS, "count", "RenameField('count', 'seats')"),
        (event("seats", count=str, note=(str, "")), NEEDS, "count", "ConvertField('count', …)"),
        (event("seats", count=int | MORE_THAN_0, note=(str, "")), NEEDS, "count", "ConvertField('count', …)"),
    ],
)
def test_a_change_under_the_same_version(now: Any, judgement: Judgement, field: str, remedy: str) -> None:
    [verdict] = project().judge(now)
    assert (verdict.judgement, verdict.field) == (judgement, field)
    assert remedy in verdict.remedy
    assert ("Set version = 2" in verdict.remedy) == (judgement is NEEDS)


def test_nothing_changed_gives_no_verdict() -> None:
    assert project().judge(SEATS) == []
    assert project().judge(event("seats", note=(str, ""), count=int)) == [], "the order of fields is nothing"


@pytest.mark.parametrize(
    "now",
    [
        event("seats", count=int, note=(str, ""), more=(str, "b")),
        event("seats", count=int, note=(str, ""), more=str),
    ],
)
def test_the_default_of_a_field_that_was_added_later_stands_because_older_payloads_lack_it(now: Any) -> None:
    lives = project()
    lives.commit(Upcasters(events=[event("seats", count=int, note=(str, ""), more=(str, "a"))]))
    assert lives.lock.kinds["seats"].versions["1"].fields["more"].added
    for _ in range(2):
        verdict = one(lives.judge(now), NEEDS)
        assert verdict.field == "more"
        assert "AddField('more'" in verdict.remedy
        lives.commit(
            Upcasters(events=[event("seats", count=int, note=(str, ""), more=(str, "a"))])
        )  # it stays added


def test_a_nested_field_that_was_added_later_is_remembered_also_when_its_class_is_renamed() -> None:
    def order(name: str, *fields: Any) -> Any:
        item: Any = msgspec.defstruct(name, [("a", int), *fields])
        return event("order", item=item)

    lives = Project(order("Item"))
    lives.commit(Upcasters(events=[order("Item", ("b", str, "old"))]))
    lives.commit(Upcasters(events=[order("Thing", ("b", str, "old"))]))
    assert lives.lock.kinds["order"].versions["1"].shapes["Thing"].fields["b"].added
    verdict = one(lives.judge(order("Thing", ("b", str, "new"))), NEEDS)
    assert verdict.field == "item.b"


def test_a_rename_is_only_guessed_if_there_is_one_way_to_read_it() -> None:
    two = Project(event("pair", a=int, b=int))
    found = two.judge(event("pair", c=int))
    assert {(v.field, "DropField" in v.remedy) for v in found} == {("a", True), ("b", True), ("c", True)}
    assert not any("RenameField" in v.remedy for v in found)


def test_a_default_that_is_another_one_each_time_is_no_default_for_old_events() -> None:
    for clock in (time.time_ns, lambda: random.random()):
        now = event("seats", count=int, note=(str, ""), at=(Any, msgspec.field(default_factory=clock)))
        assert one(project().judge(now), NEEDS).field == "at"
    fresh = event("seats", count=int, note=(str, ""), more=(list[int], msgspec.field(default_factory=lambda: [1])))
    assert one(project().judge(fresh), COMPATIBLE).what.endswith("old events get [1]")


def test_nested_shapes_are_named_by_path() -> None:
    def nested(*fields: Any) -> Any:
        inner: Any = msgspec.defstruct("Inner", fields)
        line: Any = msgspec.defstruct("Line", [("item", inner | None)])
        return event("order", lines=list[line])

    lives = Project(nested(("name", str), ("price", int)))
    found = lives.judge(nested(("name", str | None), ("cost", str), ("tax", dict[str, int], {})))
    assert [(v.field, v.judgement) for v in found] == [
        ("lines.item.price", NEEDS),
        ("lines.item.cost", NEEDS),
        ("lines.item.tax", COMPATIBLE),
        ("lines.item.name", COMPATIBLE),
    ]
    assert all("ConvertField('lines', …)" in v.remedy for v in found if v.judgement is NEEDS)


# -- versions and kinds --------------------------------------------------------------------------------------


def test_a_raised_version_needs_a_step_unless_it_only_adds() -> None:
    verdict = one(project().judge(SEATS_2), NEEDS)
    assert "change('seats', 1, RenameField('count', 'seats'))" in verdict.remedy
    assert one(project().judge(event("seats", 2, count=float, note=(str, ""))), NEEDS).version == 1
    adds = project().judge(event("seats", 2, count=int, note=(str, ""), more=(int, 0)))
    assert {v.judgement for v in adds} == {COMPATIBLE}
    assert {v.judgement for v in project().judge(lifted(RenameField("count", "seats")))} == {COMPATIBLE}


def test_a_retired_version_needs_no_step_and_the_corpus_passes_it_over() -> None:
    steps = Upcasters(events=[SEATS_2])
    steps.retire("seats", 1)
    assert {v.judgement for v in project().judge(steps)} == {COMPATIBLE}
    assert corpus.check(project().corpus, chain_of(steps)).passed_over == 1


def test_a_lowered_version_is_breaking() -> None:
    lives = project()
    lives.commit(lifted(RenameField("count", "seats")))
    found = lives.judge(SEATS)
    assert any("back at version 1" in v.what and v.judgement is BREAKING for v in found)


def test_a_kind_that_is_gone_without_a_step_is_breaking_and_with_one_it_is_not() -> None:
    other = event("licences", count=int, note=(str, ""))
    assert "gone from the code" in one(project().judge(other), BREAKING).what
    ways: list[Callable[[Upcasters], None]] = [
        lambda steps: steps.rename_kind("seats", 1, "licences"),
        lambda steps: steps.drop("seats", 1),
        lambda steps: steps.split("seats", 1, Part("licences", 1, fields=("count", "note"))),
    ]
    for declare in ways:
        steps = Upcasters(events=[other])
        declare(steps)
        assert {v.judgement for v in project().judge(steps)} == {COMPATIBLE}


def test_a_new_kind_is_compatible() -> None:
    [verdict] = project().judge(Upcasters(events=[SEATS, event("other")]))
    assert (verdict.judgement, verdict.kind, verdict.what) == (COMPATIBLE, "other", "new kind")


def test_a_step_that_is_taken_away_is_breaking() -> None:
    lives = project()
    lives.commit(lifted(RenameField("count", "seats")))
    found = lives.judge(SEATS_2)
    assert any(v.judgement is BREAKING and "its step is gone" in v.what for v in found)


def test_old_versions_stay_in_the_lock_for_ever() -> None:
    lives = project()
    lives.commit(lifted(RenameField("count", "seats")))
    lives.commit(Upcasters(events=[event("other")]))
    assert set(lives.lock.kinds["seats"].versions) == {"1", "2"}
    assert lives.lock.kinds["seats"].current is None
    assert "count" in lives.lock.kinds["seats"].versions["1"].fields


def test_the_old_struct_of_a_typed_step_is_held_to_the_lock() -> None:
    def typed(old: Any) -> Upcasters:
        steps = Upcasters(events=[SEATS_2])

        @steps.typed(old, SEATS_2)
        def lift(before: Any) -> Any:
            return SEATS_2(seats=before.count, note=getattr(before, "note", ""))

        return steps

    assert {v.judgement for v in project().judge(typed(SEATS))} == {COMPATIBLE}
    assert one(project().judge(typed(event("seats", count=int))), BREAKING).field == "note"


# -- declared steps, by machine ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ([RenameField("cuont", "seats")], "cuont", "there is no field 'cuont' then"),
        ([RenameField("count", "seats"), DropField("count")], "count", "there is no field 'count' then"),
        ([RenameField("count", "seats"), ConvertField("size", int)], "size", "there is no field 'size' then"),
        ([RenameField("count", "note")], "note", "would be lost"),
        ([DropField("count")], "seats", "nothing gives 'seats'"),
        ([AddField("seats", 1)], "count", "'count' is lost"),
        ([RenameField("note", "seats"), DropField("count")], "seats", "arrives as str and has to be int"),
        ([DropField("count"), AddField("seats", "x")], "seats", "refuses the default"),
    ],
)
def test_a_declared_step_that_cannot_be_right_is_breaking(changes: list[Any], field: str, says: str) -> None:
    lives = Project(SEATS)
    found = [v for v in lives.judge(lifted(*changes)) if v.judgement is BREAKING and v.field == field]
    assert any(says in v.what for v in found), found


def test_a_part_of_a_split_is_checked_like_any_step() -> None:
    steps = Upcasters(events=[event("a", count=int), event("b", must=str)])
    steps.split("seats", 1, Part("a", 1, fields=("count",)), Part("b", 1, fields=("never",)))
    says = [v.what for v in Project(SEATS).judge(steps) if v.judgement is BREAKING]
    assert any("takes 'never'" in what for what in says)
    assert any("nothing gives 'must'" in what for what in says)


def test_a_field_that_some_payloads_lack_is_not_counted_on() -> None:
    lives = Project(SEATS)
    lives.commit(Upcasters(events=[event("seats", count=int, note=(str, ""), more=(int, 0))]))
    now = event("seats", 2, count=int, note=(str, ""), extra=int)
    assert "nothing gives 'extra'" in one(lives.judge(lifted(RenameField("more", "extra"), to=now)), BREAKING).what
    sound = lifted(AddField("more", 0), RenameField("more", "extra"), to=now)
    assert {v.judgement for v in lives.judge(sound)} == {COMPATIBLE}


# -- the corpus ----------------------------------------------------------------------------------------------


def stepped(function: Callable[[Any], Any]) -> Upcasters:
    steps = Upcasters(events=[SEATS_2])
    steps.step("seats", 1)(function)
    return steps


def double(payload: Any) -> Any:
    return {"seats": payload["count"] * 2, "note": payload["note"]}


def double_by_adding(payload: Any) -> Any:
    return {"seats": payload["count"] + payload["count"], "note": payload["note"]}


def triple(payload: Any) -> Any:
    return {"seats": payload["count"] * 3, "note": payload["note"]}


def test_a_step_that_was_rewritten_is_compatible_if_golden_payloads_prove_it() -> None:
    lives = project()
    lives.commit(stepped(double))
    assert lives.judge(stepped(double)) == []
    [same] = lives.judge(stepped(double_by_adding))
    assert (same.judgement, same.what) == (
        COMPATIBLE,
        "the step has changed, and gives the same for 1 golden payloads",
    )
    [other] = lives.judge(stepped(triple))
    assert other.judgement is BREAKING
    assert "seats is 9, was 6" in other.what


def test_one_of_two_golden_payloads_is_enough_to_find_a_change() -> None:
    lives = Project(SEATS, payloads=(*GOLDEN, ("seats", 1, {"count": 0, "note": ""})))
    lives.commit(stepped(double))
    [verdict] = lives.judge(stepped(triple))
    assert verdict.what.startswith("1 golden payloads of seats@1 no longer lift")


def test_a_number_of_another_type_is_another_value() -> None:
    for target, make in ((float, float), (Any, bool)):
        steps = [Upcasters(events=[event("seats", 2, seats=target)]) for _ in range(2)]
        steps[0].step("seats", 1)(lambda payload: {"seats": 1})
        steps[1].step("seats", 1)(lambda payload, make=make: {"seats": make(1)})
        lives = project()
        lives.commit(steps[0])
        assert one(lives.judge(steps[1]), BREAKING).what.count("was 1") == 1


def test_a_step_that_fills_a_field_which_came_later_is_found() -> None:
    later = event("seats", 2, seats=int, note=(str, ""), currency=(str, "USD"))

    def typed(to: Any, **more: Any) -> Upcasters:
        steps = Upcasters(events=[to])
        steps.typed(SEATS, to)(lambda old: to(seats=old.count, note=old.note, **more))
        return steps

    lives = project()
    lives.commit(typed(SEATS_2))
    assert {v.judgement for v in lives.judge(typed(later))} == {COMPATIBLE}
    assert 'currency is "EUR", and was not there' in one(lives.judge(typed(later, currency="EUR")), BREAKING).what


def test_a_way_that_was_changed_while_its_end_moved_cannot_be_compared_and_is_breaking() -> None:
    lives = project()
    lives.commit(stepped(double))
    steps = Upcasters(events=[event("seats", 3, total=int, note=(str, ""))])
    steps.change("seats", 1, RenameField("count", "total"), to=3)
    steps.change("seats", 2, RenameField("seats", "total"))
    assert any("its end has moved" in v.what for v in lives.judge(steps) if v.judgement is BREAKING)


def test_a_step_that_was_rewritten_without_a_golden_payload_is_breaking() -> None:
    lives = Project(SEATS)
    lives.commit(stepped(double))
    assert "no golden payload proves" in one(lives.judge(stepped(double_by_adding)), BREAKING).what


def test_a_new_step_without_a_golden_payload_is_compatible_and_says_so() -> None:
    [step, _] = Project(SEATS).judge(stepped(double))
    assert (step.judgement, "No golden payload" in step.remedy) == (COMPATIBLE, True)


def test_a_step_that_raises_for_a_golden_payload_is_breaking() -> None:
    lives = project()
    verdict = one(lives.judge(stepped(lambda payload: payload["missing"])), BREAKING)
    assert "lifts no more" in verdict.what
    assert "KeyError" in verdict.what


def test_golden_payloads_go_on_being_compared_when_versions_rise() -> None:
    lives = project()
    lives.commit(stepped(double))
    third = event("seats", 3, total=int, note=(str, ""))

    def twice(first: Callable[[Any], Any]) -> Upcasters:
        steps = Upcasters(events=[third])
        steps.step("seats", 1)(first)
        steps.change("seats", 2, RenameField("seats", "total"))
        return steps

    assert {v.judgement for v in lives.judge(twice(double))} == {COMPATIBLE}
    assert "seats is 9, was 6" in one(lives.judge(twice(triple)), BREAKING).what
    lives.commit(twice(double))
    [entry] = lives.corpus
    assert [stage.version for stage in entry.stages] == [1, 2]
    assert entry.events[0].payload == {"total": 6, "note": "x"}


def test_a_step_with_context_is_checked_with_the_state_of_an_empty_stream() -> None:
    fold: Fold[Any] = Fold("names", lambda: {"name": "nobody"})

    def with_context(give: str) -> Upcasters:
        steps = Upcasters(events=[SEATS_2])

        @steps.with_context("seats", 1, fold)
        def _(payload: Any, state: Any) -> Any:
            return {"seats": payload["count"], "note": state["name"] + give}

        return steps

    lives = project()
    lives.commit(with_context(""))
    assert lives.corpus[0].events[0].payload == {"seats": 3, "note": "nobody"}
    assert "note is" in one(lives.judge(with_context("!")), BREAKING).what


CHANGES = st.lists(
    st.sampled_from(
        [
            RenameField("a", "b"),
            RenameField("b", "a"),
            RenameField("a", "c"),
            AddField("c", 7),
            AddField("b", None),
            AddField("a", "x"),
            DropField("a"),
            DropField("b"),
            ConvertField("a", str),
            ConvertField("a", repr),
            ConvertField("b", lambda value: [value]),
        ]
    ),
    max_size=4,
)
OPEN = event("open", 2, a=(Any, None), b=(Any, None), c=(Any, None))
PAYLOADS: list[Any] = [{"a": 1, "b": "y"}, {"a": None}, {"b": 2}, {"a": [1], "b": {}, "c": False}, {}]


def changed(changes: list[Any]) -> Upcasters:
    steps = Upcasters(events=[OPEN])
    steps.change("open", 1, *changes)
    return steps


@given(CHANGES, CHANGES)
def test_every_declared_step_lifts_its_golden_payloads_and_a_mutation_is_caught(one: Any, other: Any) -> None:
    first, second = chain_of(changed(one)), chain_of(changed(other))
    entries = [corpus.record(first, "open", 1, msgspec.msgpack.encode(payload)) for payload in PAYLOADS]
    entries = corpus.parse(corpus.render(entries))
    again = corpus.check(entries, first)
    assert (again.failures, again.anew) == ([], entries)
    same = all(_stages(first, payload) == _stages(second, payload) for payload in PAYLOADS)
    assert (corpus.check(entries, second).failures == []) == same


def _stages(chain: Any, payload: Any) -> Any:
    try:
        return repr([sorted(stage.outputs[0].payload.items()) for stage in chain.trace("open", 1, payload)])
    except LiftError as error:
        return str(error)


def test_the_corpus_keeps_what_json_cannot_say() -> None:
    payload = {"a": b"\x00\xff", "b": float("nan"), "c": {1: 2**63, "1": "x"}}
    entry = corpus.record(chain_of(changed([])), "open", 1, msgspec.msgpack.encode(payload))
    [back] = corpus.parse(corpus.render([entry]))
    assert back == entry
    assert repr(back.plain()) == repr(payload)
    assert corpus.check([back], chain_of(changed([]))).failures == []


def test_the_chooser_takes_the_smallest_payloads_that_differ_and_never_more() -> None:
    chooser = corpus.Chooser(2)
    for payload in ({"a": "long text"}, {"a": "x"}, {"a": ""}, {"a": None, "b": 1}, {"a": "y" * 20_000}):
        chooser.offer("k", 1, msgspec.msgpack.encode(payload))
    chosen = [msgspec.msgpack.decode(payload) for _, _, payload in chooser.chosen()]
    assert chosen == [{"a": ""}, {"a": "x"}]
