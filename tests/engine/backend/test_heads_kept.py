"""Heads that a commit keeps for the next one are those of the store, whoever else writes, and whatever fails."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tailfold.engine import ANY, LmdbBackend, Store
from tailfold.engine.backend.lmdb import appends as lmdb_appends
from tailfold.engine.backend.port import Append
from tailfold.engine.errors import StreamDeleted, WrongVersion

from tests.domain import Deposited

NAMES = ["a", "b", "c"]
steps = st.lists(
    st.tuples(
        st.sampled_from(["right", "any", "wrong", "fails", "right", "wrong", "fails", "batch", "delete", "fork"]),
        st.sampled_from([0, 1]),
        st.sampled_from(NAMES),
    ),
    max_size=30,
)


class Failure(Exception):
    pass


def failing(backend: Any, work: Callable[[], Any]) -> None:
    """Run *work*, whose transaction is given up at its very end: its number is given to the next one."""
    commit = backend._commit

    def commit_and_fail(*arguments: Any) -> Any:
        commit(*arguments)
        raise Failure

    backend._commit = commit_and_fail
    try:
        with pytest.raises(Failure):
            work()
    finally:
        backend._commit = commit


def prepared(store: Store, names: list[str], expected: list[int]) -> list[Append]:
    return [
        store.log.prepare(name, [Deposited(i)], version).append
        for i, (name, version) in enumerate(zip(names, expected, strict=True))
    ]


@given(steps)
@example([("right", 0, "a"), ("fails", 0, "a"), ("right", 0, "a")])
@example([("right", 0, "a"), ("wrong", 0, "a"), ("right", 1, "a"), ("right", 0, "a")])
@example([("wrong", 0, "a"), ("fails", 0, "a"), ("right", 1, "a"), ("right", 0, "a")])
def test_two_handles_of_one_store_never_build_on_a_head_that_is_gone(todo: list[tuple[str, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        with (
            Store.open(backend=LmdbBackend(path), sealing=False) as one,
            Store.open(backend=LmdbBackend(path), sealing=False) as two,
        ):
            versions: dict[str, int] = {}
            deleted: set[str] = set()
            for number, (what, which, name) in enumerate(todo):
                store = (one, two)[which]
                at = versions.get(name, 0)
                if name in deleted:
                    with pytest.raises(StreamDeleted):
                        store.append(name, Deposited(1), expected=ANY)
                elif what in ("right", "any"):
                    store.append(name, Deposited(1), expected=at if what == "right" else ANY)
                    versions[name] = at + 1
                elif what == "wrong":
                    with pytest.raises(WrongVersion) as refused:
                        store.append(name, Deposited(1), expected=at + 1)
                    assert refused.value.actual == at
                elif what == "fails":
                    failing(store.backend, partial(store.append, name, Deposited(1), expected=at))
                elif what == "batch":
                    living = [n for n in NAMES if n not in deleted]
                    batch = prepared(store, living + living, [versions.get(n, 0) for n in living + living])
                    outcomes = store.backend.commit(batch)
                    assert [isinstance(o, WrongVersion) for o in outcomes] == [False] * len(living) + [True] * len(
                        living
                    )
                    for n in living:
                        versions[n] = versions.get(n, 0) + 1
                elif what == "delete" and at:
                    store.delete(name, reroot=True)
                    deleted.add(name)
                    versions.pop(name)
                elif what == "fork" and at:
                    fork = f"{name}-{number}"
                    store.fork(name, name=fork)
                    store.append(fork, Deposited(1), expected=at)
                    versions[fork] = at + 1
            assert {head.stream: head.version for head in one.streams()} == versions
            assert not one.verify().findings


def test_heads_are_kept_and_not_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_appends, "HEADS_KEPT", 2)
    looked_up: list[set[str]] = []
    with Store.open(tmp_path / "s", sealing=False) as store:
        backend = store.backend
        assert isinstance(backend, LmdbBackend)
        look_up = backend._streams_of

        def noted(txn: Any, names: set[str]) -> Any:
            looked_up.append(names)
            return look_up(txn, names)

        monkeypatch.setattr(backend, "_streams_of", noted)
        for i, name in enumerate(["a", "a", "b", "c", "a"]):
            store.append(name, Deposited(i), expected=ANY)
    assert looked_up == [{"a"}, {"b"}, {"c"}, {"a"}], (
        "the second of a is at hand; with a, b and c there are too many"
    )
