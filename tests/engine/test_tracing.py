"""Tracing: to the root by the causes that events name, and to everything that names them."""

from __future__ import annotations

import pytest
from tailfold.engine import ANY, Store
from tailfold.engine.errors import StreamNotFound

from tests.domain import Deposited


def put(store: Store, stream: str, cause: str | None) -> str:
    done = store.append(stream, Deposited(1), expected=ANY, causation=cause)
    return f"{stream}@{done.last}"


def test_it_goes_to_the_root_and_to_all_effects_across_streams(store: Store) -> None:
    root = put(store, "a", None)
    left, right = put(store, "b", root), put(store, "a", root)
    put(store, "elsewhere", None)
    leaf = put(store, "c", left)
    put(store, "c", right)
    found = store.trace("a", 1)
    assert (found.causes, found.outside) == ([], None)
    assert [(e.stream, e.version, e.depth, e.cause) for e in found.effects] == [
        ("b", 1, 1, root),
        ("c", 1, 2, left),
        ("a", 2, 1, root),
        ("c", 2, 2, right),
    ]
    found = store.trace("c", 1)
    assert (found.causes, found.effects) == ([("b", 1), ("a", 1)], [])
    assert leaf == "c@1"


@pytest.mark.parametrize("cause", ["request 17", "nobody@1", "a@99", "a@x", "@1", "a@" + "9" * 30, "a@1"])
def test_what_is_no_earlier_event_of_the_store_is_outside(cause: str, store: Store) -> None:
    put(store, "a", cause)  # a@1 names itself: not an earlier event
    put(store, "a", "a@1")
    found = store.trace("a", 2)
    assert (found.causes, found.outside) == ([("a", 1)], cause)


@pytest.mark.parametrize("delete", [False, True])
def test_a_fork_may_name_what_it_inherited_as_its_own(delete: bool, store: Store) -> None:
    put(store, "a", None)
    put(store, "a", "a@1")
    store.fork("a", at=2, name="child")
    store.fork("child", at=2, name="grandchild")
    store.append("child", Deposited(1), expected=2, causation="child@2")
    store.append("grandchild", Deposited(1), expected=2, causation="child@2")
    if delete:
        store.delete("a", reroot=True)
        store.delete("child", reroot=True)
    found = store.trace("grandchild", 3)
    assert (found.causes, found.outside) == ([("a", 2), ("a", 1)], None)
    effects = store.trace("grandchild", 1).effects
    assert {(e.stream, e.version, e.cause) for e in effects} >= {("a", 2, "a@1"), ("grandchild", 3, "a@2")}


def test_without_causes_there_is_nothing_to_say(store: Store) -> None:
    store.append("a", [Deposited(1), Deposited(2)], expected=0)
    found = store.trace("a", 1)
    assert (found.causes, found.outside, found.effects) == ([], None, [])
    for stream, version in (("a", 3), ("a", 0), ("b", 1)):
        with pytest.raises(StreamNotFound):
            store.trace(stream, version)


def test_long_chains_are_walked_without_recursion(store: Store) -> None:
    cause = None
    for _ in range(3000):
        cause = put(store, "a", cause)
    assert len(store.trace("a", 1).effects) == 2999
    assert len(store.trace("a", 3000).causes) == 2999
