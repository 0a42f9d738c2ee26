"""The invariants of docs/design.md, each as one claim under its number. The state machines test them harder."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tailfold.engine import ANY, MemoryBackend, Store
from tailfold.engine.agent.models import RuleModel
from tailfold.engine.agent.replaying import replay
from tailfold.engine.agent.runtime import start
from tailfold.engine.agents.comparetiers import comparetiers, rule, shipped
from tailfold.engine.backend import chain, keys
from tailfold.engine.backend.port import Backend, CheckpointWrite
from tailfold.engine.errors import BadArgument, Fenced, WrongVersion
from tailfold.engine.loading import refold
from tailfold.engine.snapshot_report import prune
from tailfold.snapshots import every

from tests.books import BOOKS
from tests.domain import Deposited, account
from tests.growing import Said, talk

STREAMS = ("a", "b", "c")


@pytest.fixture
def filled(backend: Backend) -> Store:
    """Three streams whose appends interleave."""
    store = Store.open(backend=backend)
    for i in range(30):
        store.append(STREAMS[i % 3], [Deposited(i), Deposited(i + 1)], expected=ANY)
    return store


def rows(store: Store, stream: str) -> list[Any]:
    return store.backend.rows(stream, after=0, upto=10**6, limit=10**6)


def test_i1_versions_of_a_stream_are_1_to_n(filled: Store) -> None:
    for stream in STREAMS:
        assert [row.version for row in rows(filled, stream)] == list(range(1, 21))


def test_i2_positions_are_1_to_n_in_commit_order(filled: Store) -> None:
    everything = filled.backend.rows_by_position(after=0, limit=10**6)
    assert [row.position for row in everything] == list(range(1, 61))
    assert [row.stream for row in everything][::2] == [STREAMS[i % 3] for i in range(30)]


def test_i3_version_and_position_map_one_to_one(filled: Store) -> None:
    everything = [row for stream in STREAMS for row in rows(filled, stream)]
    places = filled.backend.where([row.position for row in everything])
    assert places == [(row.stream, row.version) for row in everything]
    assert len({row.position for row in everything}) == len(everything)


def test_i4_the_head_is_the_last_version_and_its_hash(filled: Store) -> None:
    for stream in STREAMS:
        head, previous = filled.head(stream), chain.seed(stream)
        for row in rows(filled, stream):
            previous = chain.link(previous, chain.digest(row.data))
        assert (head.version, head.hash) == (20, previous)


def test_i5_an_append_is_all_or_nothing(filled: Store) -> None:
    before = (filled.backend.heads(), filled.backend.count())
    wrong: Any = Deposited("x")  # type: ignore[arg-type]
    refusals: list[Callable[[], object]] = [
        lambda: filled.append("a", [Deposited(1), wrong], expected=20),
        lambda: filled.append("a", [Deposited(1), Deposited(2)], expected=3, key="k"),
        lambda: filled.append("a", [Deposited(1)], expected=20, epoch=7),
    ]
    for refused in refusals:
        with pytest.raises((BadArgument, WrongVersion, Fenced)):
            refused()
    assert (filled.backend.heads(), filled.backend.count()) == before
    assert not filled.append("a", Deposited(1), expected=20, key="k").repeated, "not even its key was taken"


def test_i6_committed_bytes_never_change(filled: Store) -> None:
    before = rows(filled, "a")
    for _ in range(50):
        filled.append("a", Deposited(1), expected=ANY)
    filled.load("a", account)
    assert rows(filled, "a")[:20] == before


def test_i7_a_snapshot_at_v_equals_the_fold_of_1_to_v(backend: Backend) -> None:
    store = Store.open(backend=backend, snapshots=every(7))
    live = store.live("a", talk)
    for i in range(400):
        live.append(Said(f"p{i % 9}", str(i)))
    facts = store.snapshots.facts(talk)
    there = list(backend.snapshot_keys("a", facts.name_hash, upto=10**6))
    assert len(there) > 5
    for key in there:
        found, why = store.snapshots.decode("a", talk, facts, key)
        assert found is not None, why
        truth = refold(store.log, store.snapshots, "a", talk, key.version)
        assert facts.codec.encode(found.state).body == truth.body


def test_i11_a_fork_at_k_sees_exactly_1_to_k_whatever_happens_to_its_parent(backend: Backend) -> None:
    store = Store.open(backend=backend, events=[Said], snapshots=every(3))
    said = [Said(f"p{i % 3}", str(i)) for i in range(20)]
    store.append("parent", said[:12], expected=0)
    for k in (1, 5, 12):
        store.fork("parent", at=k, name=f"at-{k}")
    store.append("parent", said[12:], expected=12)
    store.load("parent", talk)

    def all_is_seen() -> None:
        for k in (1, 5, 12):
            assert [r.event for r in store.read(f"at-{k}")] == said[:k]
            assert store.load(f"at-{k}", talk).state == talk.fold(said[:k])
            assert store.verify(f"at-{k}").sound

    all_is_seen()
    store.delete("parent", reroot=True)
    all_is_seen()
    assert store.gc().events == 8, "what no fork sees"
    all_is_seen()
    store.delete("at-12")
    assert store.gc().events == 7
    for k in (1, 5):
        assert [r.event for r in store.read(f"at-{k}")] == said[:k]
    assert store.verify().sound


def test_i8_a_checkpoint_never_passes_the_last_position(filled: Store) -> None:
    backend = filled.backend
    assert len(list(filled.subscribe(name="all", follow=False))) == 60
    assert len(list(filled.subscribe("a", name="one", follow=False))) == 20
    filled.project(BOOKS).save()
    assert [(c.name, c.position) for c in filled.checkpoints()] == [("all", 60), ("books", 60), ("one", 20)]
    for name, place, stream in (("all", 61, None), ("one", 21, "a"), ("new", 1, "no such stream")):
        with pytest.raises(BadArgument, match="I8"):
            filled.reset_checkpoint(name, place, stream=stream)
        row = keys.encode(keys.CheckpointRow(place, stream, 0))
        with pytest.raises(BadArgument, match="I8"):
            backend.put_checkpoint(name, CheckpointWrite(place, row, stream=stream, reset=True))
    row = keys.encode(keys.CheckpointRow(30, None, 0))
    assert not backend.put_checkpoint("all", CheckpointWrite(30, row)), "nor does it go back by itself"
    assert [(c.name, c.position) for c in filled.checkpoints()] == [("all", 60), ("books", 60), ("one", 20)]


def test_i12_what_is_acknowledged_is_durable(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom tailfold.engine import ANY, Store\nfrom tests.domain import Deposited\n"
        "store = Store.open(sys.argv[1])\n"
        "while True: print(store.append('a', Deposited(1), expected=ANY).last, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(50)][-1]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with Store.open(tmp_path / "s", create=False) as store:
        assert store.head("a").version >= acknowledged
        assert store.verify().sound


def test_i14_collection_and_retention_change_no_answer(backend: Backend) -> None:
    store = Store.open(backend=backend, snapshots=every(5))
    live = store.live("a", talk)
    for i in range(600):
        live.append(Said(f"p{i % 40}", str(i)))
    points = (0, 1, 255, 300, 599, 600)
    before = [refold(store.log, store.snapshots, "a", talk, at).body for at in points]
    prune(store.snapshots, iter(["a"]))
    codec = store.snapshots.facts(talk).codec
    assert [codec.encode(store.load("a", talk, at).state).body for at in points] == before


def test_i15_replay_asks_for_the_same_effects_in_the_same_order() -> None:
    store = Store.open(backend=MemoryBackend())
    agent = comparetiers(shipped(), "shipped")
    question = "How much do Slack Pro and Notion Plus cost for 3 seats?"
    asyncio.run(start(store, "r", agent, RuleModel(rule), question))
    done = asyncio.run(replay(store, "r", agent, live_tools=True))
    assert (done.ended, done.events) == (True, store.head("r").version)
