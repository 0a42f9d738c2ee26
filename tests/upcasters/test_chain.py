"""The chain is checked when it is built: what does not lead to a current event is an error then."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tailfold.engine import Event, MemoryBackend, Store
from tailfold.engine.errors import BadSteps
from tailfold.upcasters import AddField, Chain, LiftError, Part, RenameField, StepsError, Upcasters, current_events


class Bought(Event, frozen=True):
    kind = "bought"
    version = 3
    seats: int
    note: str = ""


class Sold(Event, frozen=True):
    kind = "sold"
    seats: int


def steps(**keep: bool) -> Upcasters:
    made = Upcasters(events=[Bought, Sold])
    if keep.get("first", True):
        made.change("bought", 1, RenameField("count", "seats"))
    if keep.get("second", True):
        made.change("bought", 2, AddField("note", "old"))
    return made


def build(value: Any, wanted: Any) -> Any:
    return msgspec.convert(value, wanted)


def chain(upcasters: Upcasters) -> Chain:
    return Chain(upcasters, current_events(upcasters.events), build, msgspec.to_builtins)


def test_a_payload_goes_through_every_step_in_order() -> None:
    [event] = chain(steps()).lift("bought", 1, {"count": 2})
    assert event == Bought(2, "old")
    stages = chain(steps()).trace("bought", 1, {"count": 2})
    assert [stage.step.label for stage in stages] == ["bought@1 → bought@2", "bought@2 → bought@3"]
    assert [stage.outputs[0].payload for stage in stages] == [{"seats": 2}, {"seats": 2, "note": "old"}]
    assert stages[0].given == {"count": 2}


def test_a_gap_below_the_current_version_is_an_error() -> None:
    with pytest.raises(StepsError, match="gap: no step lifts bought@1"):
        chain(steps(first=False))
    with pytest.raises(StepsError, match="leads to bought@2"):
        chain(steps(second=False))


def test_versions_that_no_store_holds_may_be_retired() -> None:
    made = steps(first=False)
    made.retire("bought", 1)
    assert not chain(made).lifts("bought", 1)
    jump = Upcasters(events=[Bought])
    jump.change("bought", 1, RenameField("count", "seats"), to=3)
    with pytest.raises(StepsError, match="gap: no step lifts bought@2"):
        chain(jump)
    jump.retire("bought", 2)
    assert chain(jump).lift("bought", 1, {"count": 1}) == [Bought(1)]


def test_two_steps_from_one_version_are_an_error_at_once() -> None:
    made = steps()
    with pytest.raises(StepsError, match="two steps from bought@1"):
        made.drop("bought", 1)


@pytest.mark.parametrize(
    ("register", "says"),
    [
        (lambda s: s.change("bougth", 1), "misspelt"),
        (lambda s: s.rename_kind("seats", 1, "nobody"), "no event of kind 'nobody'"),
        (lambda s: s.change("sold", 1), "nothing to lift"),
        (lambda s: s.rename_kind("seats", 1, "bought", 9), "past 'bought', which is at version 3"),
        (lambda s: s.rename_kind("seats", 2, "bought", 3), "gap: no step lifts seats@1"),
        (lambda s: s.split("pair", 1, Part("sold", 1), Part("gone", 1)), "no event of kind 'gone'"),
    ],
)
def test_dead_targets_and_unknown_kinds_are_errors(register: Any, says: str) -> None:
    made = steps()
    register(made)
    with pytest.raises(StepsError, match=says):
        chain(made)


def test_cycles_are_errors() -> None:
    made = Upcasters(events=[Sold])
    made.rename_kind("a", 1, "b")
    made.rename_kind("b", 1, "a")
    with pytest.raises(StepsError, match="lead back"):
        chain(made)
    backward = Upcasters(events=[Bought])
    backward.change("bought", 2, to=1)
    with pytest.raises(StepsError, match="forward"):
        chain(backward)


def test_a_field_cannot_be_renamed_to_itself() -> None:
    with pytest.raises(StepsError, match="itself"):
        Upcasters().change("bought", 1, RenameField("a", "a"))


@pytest.mark.parametrize(
    ("returns", "why"),
    [
        (lambda payload: None, "NoneType"),
        (lambda payload: [1], "list"),
        (lambda payload: dict[str, Any]()["missing"], "KeyError"),
        (lambda payload: {"seats": "many"}, "seats"),
        (lambda payload: {"note": "no seats"}, "seats"),
    ],
)
def test_a_step_that_gives_what_no_event_is_made_of_is_named(returns: Any, why: str) -> None:
    made = Upcasters(events=[Bought])
    made.change("bought", 1)
    made.step("bought", 2)(returns)
    with pytest.raises(LiftError, match=why) as caught:
        chain(made).lift("bought", 1, {"seats": 1})
    assert "bought@" in caught.value.step


def test_the_store_turns_them_into_its_own_errors() -> None:
    with pytest.raises(BadSteps, match="gap"):
        Store.open(backend=MemoryBackend(), upcasters=steps(second=False))


def test_steps_that_decide_about_a_kind_are_those_that_lead_to_it_or_away() -> None:
    made = steps()
    made.split("deal", 1, Part("bought", 3, ("seats",)), Part("sold", 1, ("seats",)))
    made.rename_kind("trade", 1, "deal")
    made.drop("noise", 1)
    labels = {step.source for step in made.reaching(["sold"])}
    assert labels == {("deal", 1), ("trade", 1)}
    assert {step.source for step in made.reaching(["bought"])} == labels | {("bought", 1), ("bought", 2)}
    assert made.reaching(["other"]) == []
    assert [step.source for step in made.reaching(["noise"])] == [("noise", 1)]
