"""Both backends agree with a plain-Python model, and keep I1–I6, I8 and I12, after every step."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tailfold.engine import ANY, EXISTS, Blob, Durability, Event, LmdbBackend, MemoryBackend, Store
from tailfold.engine.backend import chain, keys
from tailfold.engine.backend.lmdb import check_pages, segment, segments
from tailfold.engine.backend.port import FORMAT_SEGMENTS, Append, Appended, CheckpointWrite, IdRow
from tailfold.engine.errors import BadArgument, Fenced, KeyReused, StreamNotFound, WrongVersion

from tests.domain import Account, Deposited, Noted, Withdrawn, account
from tests.model import ModelStore

NAMES = st.sampled_from(["a", "b", "a longer name", "ünïcødé ☃", "a\U0001f600"])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Deposited, st.integers(0, 2**40), st.text(max_size=5)),
    st.builds(Withdrawn, st.integers(0, 9)),
    st.builds(Noted, st.text(max_size=3000), st.dictionaries(st.text(max_size=3), st.integers(0, 9))),
)
BATCHES = st.lists(EVENTS, min_size=1, max_size=5)
KEYS = st.one_of(st.none(), st.sampled_from(["k1", "k2"]))
EXPECTED = st.one_of(st.sampled_from([ANY, EXISTS, "right"]), st.integers(0, 4))


class Agreement(RuleBasedStateMachine):
    """Drives LMDB, memory and the model through the same steps."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now = 0
        self.model = ModelStore()
        self.memory_backend = MemoryBackend()
        self.frozen: dict[tuple[str, str, int], tuple[Any, ...]] = {}
        self.stores: dict[str, Store] = {}
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(segments, "SEGMENT_RECORDS", 3)
        self.patched.setattr(segment, "FRAME_BYTES", 100)
        self.open()

    def clock(self) -> int:
        return self.now

    def open(self) -> None:
        # A map of one page more than the least makes MapFull an ordinary event of the test.
        lmdb_backend = LmdbBackend(self.folder / "s", durability=Durability.RELAXED, map_bytes=1 << 19)
        self.stores = {
            "lmdb": Store.open(backend=lmdb_backend, clock=self.clock),
            "memory": Store.open(backend=self.memory_backend, clock=self.clock),
        }

    def teardown(self) -> None:
        self.patched.undo()
        self.stores["lmdb"].close()
        assert check_pages(self.folder / "s") == []
        shutil.rmtree(self.folder)

    @rule(stream=NAMES, events=BATCHES, expected=EXPECTED, key=KEYS, fenced=st.booleans())
    def append(self, stream: str, events: list[Event], expected: int | str, key: str | None, fenced: bool) -> None:
        self.now += 1
        wanted = len(self.model.streams.get(stream, [])) if isinstance(expected, str) else expected
        epoch = 99 if fenced and key is None else None
        before = {name: self.dump(store) for name, store in self.stores.items()}
        outcome, first, last = self.model.append(stream, events, wanted, key, epoch)
        for name, store in self.stores.items():
            try:
                done = store.append(stream, events, expected=wanted, key=key, epoch=epoch)
            except (Fenced, KeyReused, WrongVersion) as error:
                kinds = {Fenced: "fenced", KeyReused: "reused", WrongVersion: "conflict"}
                assert kinds[type(error)] == outcome, name
                assert self.dump(store) == before[name], "a refused append changed something"
            else:
                assert outcome == ("repeated" if done.repeated else "written"), name
                assert (done.first, done.last) == (first, last)

    @rule(stream=NAMES, events=BATCHES)
    def retry(self, stream: str, events: list[Event]) -> None:
        """The same key and content at any later time gives the first result, whatever is expected."""
        self.now += 1
        for name, store in self.stores.items():
            key = "retry"
            known = (stream, key) in self.model.keys
            content = list(self.model.keys[stream, key][0]) if known else events
            first = store.append(stream, content, expected=ANY, key=key)
            again = store.append(stream, content, expected=12345, key=key)
            assert again == first._replace(repeated=True), name
        self.model.append(stream, content, ANY, key, None)

    @rule(data=st.data())
    def group(self, data: st.DataObject) -> None:
        """A batch of appends in one commit: each whole or absent, in order."""
        self.now += 1
        wanted = []
        for _ in range(data.draw(st.integers(1, 4))):
            stream, events = data.draw(NAMES), data.draw(BATCHES)
            expected = data.draw(st.sampled_from([ANY, EXISTS, 0]))
            wanted.append((stream, events, expected))
        outcomes = [self.model.append(s, e, x, None, None) for s, e, x in wanted]
        for store in self.stores.values():
            store.log.codec.register([Deposited, Withdrawn, Noted])
            appends = []
            for stream, events, expected in wanted:
                data_ = [store.log.codec.encode(e, self.now, None, None).data for e in events]
                appends.append(Append(stream, expected, data_, [chain.digest(d) for d in data_], self.now))
            for done, (outcome, first, last) in zip(store.backend.commit(appends), outcomes, strict=True):
                if isinstance(done, Appended):
                    assert (outcome, done.first, done.last) == ("written", first, last)
                else:
                    assert outcome == "conflict"

    @rule(stream=NAMES, events=BATCHES, format=st.sampled_from([1, 2]), created_ns=st.one_of(st.none(), st.just(7)))
    def copied(self, stream: str, events: list[Event], format: int, created_ns: int | None) -> None:
        """An append of migration: with rows of `meta`, a time of creation, a format that may raise the stamp."""
        self.now += 1
        wanted = len(self.model.streams.get(stream, [])) + (created_ns is not None and format == 2)
        outcome, _, last = self.model.append(stream, events, wanted, None, None)
        for store in self.stores.values():
            store.log.codec.register([Deposited, Withdrawn, Noted])
            before = store.format
            data_ = [store.log.codec.encode(e, self.now, None, None).data for e in events]
            meta = {b"origin/" + stream.encode(): str(last).encode()}
            append = Append(
                stream,
                wanted,
                data_,
                [chain.digest(d) for d in data_],
                self.now,
                format=format,
                created_ns=created_ns,
                meta=meta,
            )
            [done] = store.backend.commit([append])
            assert isinstance(done, Appended) == (outcome == "written")
            assert store.format == (max(before, format) if outcome == "written" else before)

    @rule(stream=NAMES, number=st.integers(1, 3), content=st.binary(max_size=9))
    def put(self, stream: str, number: int, content: bytes) -> None:
        """Rows that come with no append: whole, or refused as a whole."""
        rows = {stream: {keys.id_hash(f"put {number}"): IdRow(number, number, number, content.ljust(16), content)}}
        for store in self.stores.values():
            before = self.dump(store)
            try:
                store.backend.put(
                    meta={b"put": content},
                    blobs={Blob.digest_of(content): content},
                    schemas=[("x@1", b"%d" % number)],
                    ids=rows,
                )
            except StreamNotFound:
                assert stream not in self.model.streams
                assert self.dump(store) == before
            else:
                assert dict(store.backend.ids(stream)).items() >= rows[stream].items()
                assert store.backend.meta(b"put")[b"put"] == content

    @rule(stream=NAMES, upto=st.integers(0, 12), whole=st.booleans())
    def seal(self, stream: str, upto: int, whole: bool) -> None:
        """Nobody can tell: the invariants look at every byte and hash afterwards."""
        for store in self.stores.values():
            if stream in self.model.streams:
                store.seal(stream, upto=upto, whole=whole)
            else:
                with pytest.raises(StreamNotFound):
                    store.seal(stream, upto=upto, whole=whole)

    @rule()
    def reopen(self) -> None:
        for store in self.stores.values():
            store.close()
        self.open()

    @rule(
        name=st.sampled_from(["f", "g"]),
        place=st.integers(0, 12),
        of=st.one_of(st.none(), NAMES),
        reset=st.booleans(),
        needed=st.booleans(),
    )
    def checkpoint(self, name: str, place: int, of: str | None, reset: bool, needed: bool) -> None:
        """Forwards only, unless it is reset; never past the last position (I8); whole with its chunks or absent."""
        row = keys.encode(keys.CheckpointRow(place, of, self.now))
        write = CheckpointWrite(place, row, stream=of, reset=reset, needs=[b"x" * 16] if needed else [])
        last = len(self.model.positions) if of is None else len(self.model.streams.get(of, []))
        before = self.model.checkpoints.get(name)
        moves = reset or before is None or (before[1] == of and before[0] <= place)
        for store in self.stores.values():
            if place > last:
                with pytest.raises(BadArgument, match="I8"):
                    store.backend.put_checkpoint(name, write)
            else:
                assert store.backend.put_checkpoint(name, write) == (moves and not needed)
        if place <= last and moves and not needed:
            self.model.checkpoints[name] = place, of

    @rule(name=st.sampled_from(["f", "g"]))
    def drop_checkpoint(self, name: str) -> None:
        there = self.model.checkpoints.pop(name, None) is not None
        for store in self.stores.values():
            assert store.drop_checkpoint(name) == there

    @rule(stream=st.one_of(st.none(), NAMES), after=st.integers(0, 6))
    def subscribe(self, stream: str | None, after: int) -> None:
        events = self.model.streams.get(stream, []) if stream else self.model.positions
        for store in self.stores.values():
            if after > len(events):
                with pytest.raises(BadArgument):
                    store.subscribe(stream, after=after)
                continue
            found = [(r.stream, r.version) for r in store.subscribe(stream, after=after, follow=False)]
            wanted = [(stream, v) for v in range(1, len(events) + 1)] if stream else events
            assert found == wanted[after:]

    @rule(stream=NAMES, after=st.integers(0, 6), upto=st.integers(0, 9), limit=st.integers(0, 4))
    def read(self, stream: str, after: int, upto: int, limit: int) -> None:
        events = self.model.streams.get(stream)
        for store in self.stores.values():
            store.log.codec.register([Deposited, Withdrawn, Noted])
            if events is None:
                with pytest.raises(StreamNotFound):
                    store.read(stream)
                continue
            numbered = [(v, e) for v, e in enumerate(events, 1) if after < v <= upto]
            found = store.read(stream, after=after, upto=upto, limit=limit)
            assert [(r.version, r.event) for r in found] == numbered[:limit]
            found = store.read(stream, after=after, upto=upto, limit=limit, backwards=True)
            assert [(r.version, r.event) for r in found] == numbered[::-1][:limit]

    @rule(stream=NAMES, at=st.integers(0, 5))
    def load(self, stream: str, at: int) -> None:
        events = self.model.streams.get(stream, [])
        for store in self.stores.values():
            if at > len(events):
                with pytest.raises(StreamNotFound):
                    store.load(stream, account, at)
            else:
                assert store.load(stream, account, at) == (account.fold(events[:at]), at)

    @invariant()
    def both_are_what_the_model_is(self) -> None:
        dumps = [self.dump(store) for store in self.stores.values()]
        assert dumps[0] == dumps[1], "the backends disagree, down to bytes and hashes"
        formats = {store.format for store in self.stores.values()}
        assert len(formats - {FORMAT_SEGMENTS}) <= 1, "only one of them has segments"
        for name, store in self.stores.items():
            heads = list(store.streams())
            assert [h.stream for h in heads] == sorted(self.model.streams, key=str.encode)
            positions = [(r.stream, r.version) for r in store.backend.rows_by_position(after=0, limit=10**6)]
            assert positions == self.model.positions, "I2, I3"
            assert store.backend.count() == (len(self.model.streams), len(self.model.positions))
            found = {c.name: (c.position, c.stream) for c in store.checkpoints()}
            assert found == self.model.checkpoints, "I8"
            for head in heads:
                rows = store.backend.rows(head.stream, after=0, upto=10**6, limit=10**6)
                assert [r.version for r in rows] == list(range(1, head.version + 1)), "I1"
                assert rows[-1].hash == head.hash, "I4"
                for row in rows:
                    assert store.backend.where([row.position]) == [(row.stream, row.version)], "I3"
                    key = (name, row.stream, row.version)
                    assert self.frozen.setdefault(key, row) == row, "I6: committed bytes changed"
                expected: Account = account.fold(self.model.streams[head.stream])
                assert store.load(head.stream, account).state == expected
            assert store.verify().findings == []

    @staticmethod
    def dump(store: Store) -> list[Any]:
        backend = store.backend
        return [
            backend.heads(),
            backend.rows_by_position(after=0, limit=10**6),
            backend.count(),
            {head.stream: backend.ids(head.stream) for head in backend.heads()},
            backend.meta(b"origin"),
            backend.meta(b"put"),
            backend.blobs(),
            list(backend.schemas()),
        ]


TestAgreement = Agreement.TestCase
TestAgreement.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=15, deadline=None)
