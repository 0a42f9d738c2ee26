"""A forest of forks equals a plain model in which every fork is a deep copy, on both backends (I11, I14)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tailfold.engine import Blob, Durability, Event, LmdbBackend, MemoryBackend, Store
from tailfold.engine.backend.lmdb import check_pages, segment, segments
from tailfold.engine.errors import HeadMoved, StreamDeleted, StreamExists, StreamNeeded, StreamNotFound
from tailfold.engine.migration import Schema, migrate_backend
from tailfold.engine.snapshot_report import prune
from tailfold.snapshots import every
from tailfold.upcasters import Upcasters

from tests.domain import Attached, Deposited, Noted, Withdrawn, account

EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Deposited, st.integers(0, 9)),
    st.builds(Withdrawn, st.integers(0, 9)),
    st.builds(Noted, st.text(max_size=3)),
    st.builds(Attached, st.just("f"), st.binary(max_size=3).map(Blob)),
)


KINDS: list[type[Event]] = [Deposited, Withdrawn, Noted, Attached]


class Forest(RuleBasedStateMachine):
    """Drives LMDB, memory and deep copies through the same steps."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.memory = MemoryBackend()
        self.now = 0
        self.streams: dict[str, list[Event]] = {}
        self.keys: dict[str, dict[str, tuple[int, int]]] = {}
        self.parents: dict[str, tuple[str, int]] = {}
        self.deleted: set[str] = set()
        self.heads: dict[str, str] = {}
        self.made = 0
        self.frozen: dict[tuple[str, str, int], bytes] = {}
        self.stores: dict[str, Store] = {}
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(segments, "SEGMENT_RECORDS", 3)
        self.patched.setattr(segment, "FRAME_BYTES", 60)
        self.open()

    def clock(self) -> int:
        return self.now

    def open(self) -> None:
        backend = LmdbBackend(self.folder / "s", durability=Durability.RELAXED)
        self.stores = {
            "lmdb": Store.open(backend=backend, clock=self.clock, snapshots=every(2), events=KINDS),
            "memory": Store.open(backend=self.memory, clock=self.clock, snapshots=every(2), events=KINDS),
        }

    def teardown(self) -> None:
        self.patched.undo()
        self.stores["lmdb"].close()
        assert check_pages(self.folder / "s") == []
        shutil.rmtree(self.folder)

    def a_stream(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.streams)))

    def new_name(self) -> str:
        self.made += 1
        return f"s{self.made}"

    @rule(events=st.lists(EVENTS, min_size=1, max_size=4))
    def begin(self, events: list[Event]) -> None:
        self.now += 1
        name = self.new_name()
        self.streams[name], self.keys[name] = list(events), {}
        for store in self.stores.values():
            store.append(name, events, expected=0)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), events=st.lists(EVENTS, min_size=1, max_size=3), key=st.sampled_from([None, "k1", "k2"]))
    def append(self, data: st.DataObject, events: list[Event], key: str | None) -> None:
        self.now += 1
        name = self.a_stream(data)
        before = len(self.streams[name])
        known = self.keys[name].get(key) if key is not None else None
        if known is not None:  # the key was used, here or in what the fork began with
            events = self.streams[name][known[0] - 1 : known[1]]
        else:
            self.streams[name] += events
        for store in self.stores.values():
            done = store.append(name, events, expected=before, key=key)
            assert done.repeated == (known is not None)
            assert (done.first, done.last) == (known or (before + 1, before + len(events)))
        if key is not None and known is None:
            self.keys[name][key] = before + 1, before + len(events)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def drive(self, data: st.DataObject) -> None:
        self.now += 1
        name = self.a_stream(data)
        for store in self.stores.values():
            live = store.live(name, account)
            live.append(Deposited(1))
            live.append(Deposited(2))
            assert live.state == account.fold([*self.streams[name], Deposited(1), Deposited(2)])
        self.streams[name] += [Deposited(1), Deposited(2)]

    def inherit(self, parent: str, at: int, name: str) -> None:
        self.streams[name] = self.streams[parent][:at]
        self.keys[name] = {key: where for key, where in self.keys[parent].items() if where[1] <= at}
        owner = parent
        while owner in self.parents and at <= self.parents[owner][1]:
            owner = self.parents[owner][0]
        self.parents[name] = owner, at

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self.now += 1
        parent, name = self.a_stream(data), self.new_name()
        at = data.draw(st.integers(1, len(self.streams[parent])))
        for store in self.stores.values():
            head = store.fork(parent, at=at, name=name)
            assert (head.stream, head.version, head.base) == (name, at, at)
            with pytest.raises(StreamExists):
                store.fork(parent, at=at, name=name)
            with pytest.raises(StreamNotFound):
                store.fork(parent, at=len(self.streams[parent]) + 1)
        self.inherit(parent, at, name)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), head=st.sampled_from(["main", "s1"]))
    def rewind(self, data: st.DataObject, head: str) -> None:
        self.now += 1
        stream = self.heads.get(head, head)
        if stream not in self.streams:
            return
        at = data.draw(st.integers(1, len(self.streams[stream])))
        name = self.new_name()
        for store in self.stores.values():
            assert store.rewind(head, at=at, to=name).stream == name
            assert store.resolve(head) == name
            with pytest.raises(HeadMoved):
                store.move_head(head, name, expected="nothing")
        self.inherit(stream, at, name)
        self.heads[head] = name

    def alive(self, name: str) -> bool:
        below = [child for child, (parent, _) in self.parents.items() if parent == name]
        return name not in self.deleted or any(map(self.alive, below))

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), reroot=st.booleans(), drop_heads=st.booleans())
    def delete(self, data: st.DataObject, reroot: bool, drop_heads: bool) -> None:
        self.now += 1
        name = self.a_stream(data)
        children = [child for child, (parent, _) in self.parents.items() if parent == name and self.alive(child)]
        refused = (name in self.heads.values() and not drop_heads) or (children and not reroot)
        for store in self.stores.values():
            if refused:
                with pytest.raises(StreamNeeded):
                    store.delete(name, reroot=reroot, drop_heads=drop_heads)
                continue
            store.delete(name, reroot=reroot, drop_heads=drop_heads)
            with pytest.raises(StreamDeleted):
                store.append(name, Deposited(1), expected=0)
            with pytest.raises(StreamDeleted):
                store.load(name, account)
            for other in self.streams.keys() - {name}:
                with pytest.raises(StreamExists):
                    store.fork(other, name=name)
        if not refused:
            del self.streams[name], self.keys[name]
            self.heads = {head: stream for head, stream in self.heads.items() if stream != name}
            self.deleted.add(name)

    @rule()
    def gc(self) -> None:
        would = [store.gc(dry_run=True) for store in self.stores.values()]
        took = [store.gc() for store in self.stores.values()]
        assert would == took
        assert took[0].events == took[1].events
        assert took[0].blobs == took[1].blobs
        for store in self.stores.values():
            again = store.gc()
            assert (again.events, again.blobs, again.snapshots) == (0, 0, 0)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), whole=st.booleans())
    def seal(self, data: st.DataObject, whole: bool) -> None:
        """Nobody can tell: the invariants look at every byte and hash afterwards."""
        name = self.a_stream(data)
        upto = data.draw(st.integers(0, len(self.streams[name])))
        for store in self.stores.values():
            store.seal(name, upto=upto, whole=whole)

    @rule()
    def prune_snapshots(self) -> None:
        for store in self.stores.values():
            prune(store.snapshots, (head.stream for head in store.streams()))

    @rule(twice=st.booleans())
    def migrate(self, twice: bool) -> None:
        """A migrated store has the same forest, and shares what was shared."""
        for store in self.stores.values():
            target = MemoryBackend()
            for _ in range(2 if twice else 1):
                report = migrate_backend(store.backend, target, Schema(Upcasters(events=KINDS)))
                assert report.sound, report.findings
            copy = Store.open(backend=target, events=KINDS)
            assert list(copy.streams()) == list(store.streams()), "hashes, bases and times"
            assert copy.named_heads() == store.named_heads()
            assert copy.verify().findings == []
            for stream, events in self.streams.items():
                assert [r.event for r in copy.read(stream)] == events
                assert copy.ancestry(stream) == store.ancestry(stream)
                positions = [[r.position for r in one.read(stream)] for one in (copy, store)]
                assert positions[0] == positions[1]
            for name in self.deleted:
                with pytest.raises(StreamDeleted):
                    copy.append(name, Deposited(1), expected=0)
            for stream in list(self.streams)[:1]:
                for key, (first, last) in self.keys[stream].items():
                    events = self.streams[stream][first - 1 : last]
                    assert copy.append(stream, events, expected=0, key=key).repeated
                done = copy.append(stream, Deposited(1), expected=len(self.streams[stream]))
                assert done.position > store.position - 1

    @rule()
    def reopen(self) -> None:
        for store in self.stores.values():
            store.close()
        self.open()

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def load_anywhere(self, data: st.DataObject) -> None:
        name = self.a_stream(data)
        at = data.draw(st.integers(0, len(self.streams[name])))
        after = data.draw(st.integers(0, at))
        for store in self.stores.values():
            assert store.load(name, account, at).state == account.fold(self.streams[name][:at])
            found = [r.event for r in store.read(name, after=after, upto=at)]
            assert found == self.streams[name][after:at]
            back = [r.event for r in store.read(name, after=after, upto=at, backwards=True)]
            assert back == self.streams[name][after:at][::-1]

    @precondition(lambda self: len(self.streams) > 1)
    @rule(data=st.data())
    def diff(self, data: st.DataObject) -> None:
        left, right = self.a_stream(data), self.a_stream(data)
        for store in self.stores.values():
            found = store.diff(left, right)
            shared = found.common
            assert self.streams[left][:shared] == self.streams[right][:shared]
            assert [r.event for r in found.left] == self.streams[left][shared:]
            assert [r.event for r in found.right] == self.streams[right][shared:]
            if left == right:
                assert shared == len(self.streams[left])
            elif self.parents.get(right, ("", 0))[0] == left:
                assert shared == self.parents[right][1]

    @invariant()
    def every_stream_is_its_deep_copy(self) -> None:
        for name, store in self.stores.items():
            assert [head.stream for head in store.streams()] == sorted(self.streams)
            for stream, events in self.streams.items():
                rows = store.backend.rows(stream, after=0, upto=10**6, limit=10**6)
                assert [row.version for row in rows] == list(range(1, len(events) + 1)), "I1"
                assert store.head(stream).version == len(events)
                assert rows[-1].hash == store.head(stream).hash, "I4"
                for row in rows:
                    assert self.frozen.setdefault((name, stream, row.version), row.data) == row.data, "I6, I11"
                for recorded, event in zip(store.read(stream), events, strict=True):
                    assert recorded.event == event
                    if isinstance(recorded.event, Attached) and isinstance(event, Attached):
                        assert recorded.event.content.data == event.content.data, "its blob is there"
                assert store.load(stream, account).state == account.fold(events), "I7"
            assert store.named_heads() == self.heads
            assert store.verify().findings == []
            positions = [row.position for row in store.backend.rows_by_position(after=0, limit=10**6)]
            assert positions == sorted(set(positions)), "I2"
            in_tree = [branch.stream for branch in store.tree() if not branch.deleted]
            assert sorted(in_tree) == sorted(self.streams)
        dumps: list[Any] = []
        for store in self.stores.values():
            heads = list(store.streams())
            dumps.append([heads, store.tree(), [store.ancestry(head.stream) for head in heads]])
        assert dumps[0] == dumps[1], "the backends disagree"


TestForest = Forest.TestCase
TestForest.settings = settings(max_examples=settings().max_examples * 2, stateful_step_count=25, deadline=None)
