"""Projections: read models, folded from the events of the whole store, each with its checkpoint.

State and position are saved together, in one transaction, so that no event is counted twice and none is missed.
It is derived data: whatever is wrong with what was saved (other code, damage, loss), it is folded anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import CheckpointWrite, Row
from tailfold.engine.checkpoints import check_name
from tailfold.engine.errors import BadArgument, ChunkLost, EngineError, FoldFailed, RecordDamaged, StoreReadOnly
from tailfold.engine.events import COMPOSITE_KIND, Event
from tailfold.engine.fold import Fold
from tailfold.engine.gathering import HealingReader
from tailfold.engine.loading import begin
from tailfold.engine.log import Log, Recorded
from tailfold.engine.rawrecords import RECORD_FIELDS, raw_record, tag_bytes, tag_of_record
from tailfold.engine.snapshotting import Snapshots, needs_of
from tailfold.engine.subscriptions import store_page
from tailfold.engine.verify import check_rows
from tailfold.snapshots import fingerprint
from tailfold.snapshots.chunks import ChunkDamagedError, pack, unpack
from tailfold.snapshots.codec import NotEncodableError, hash_body
from tailfold.snapshots.zstd import compress, decompress

S = TypeVar("S")
E = TypeVar("E", bound=Event)
ProjectionHandler = Callable[[S, Recorded], S | None]
Progress = Callable[[int], None]

PAGE_ROWS = 1024
SAVE_AFTER_EVENTS = 256
"""The state is saved when so many events were passed since the last save…"""
SAVE_AFTER_S = 0.02
"""…or folding them took this long: less than that is as well done again."""
SAVE_ON_THE_WAY_S = 3.0
"""In a long catching up the state is saved this often, or less often if saving takes more than…"""
SAVING_SHARE = 0.05
"""…this share of the time."""


class Stored(NamedTuple):
    """A stored event before it is decoded: what a projection may decide by whether it wants it."""

    stream: str
    version: int
    kind: str
    schema_version: int
    data: bytes

    def payload(self) -> Any:
        """Return the payload as stored, as plain Python values; raise `RecordDamaged`."""
        try:
            return raw_record(self.data)[RECORD_FIELDS.index("payload")]
        except ValueError as error:
            raise RecordDamaged(self.stream, self.version, f"the record cannot be read: {error}") from None


Wants = Callable[[S, Stored], bool]


class Projection(Generic[S]):
    """A named read model: an initial state, and a handler for each type of event that it cares about.

        @dataclass
        class Sales:
            by_stream: Table[str, int] = field(default_factory=Table[str, int])

        sales = Projection("sales", Sales)

        @sales.on(SeatsBought)
        def _(state: Sales, recorded: Recorded) -> None:
            state.by_stream[recorded.stream] = recorded.version

    A handler gets the state and the event with its envelope (stream, version, position, time), and must be as
    pure as that of a `Fold`. Kinds without a handler are not even decoded.
    """

    def __init__(
        self,
        name: str,
        initial: Callable[[], S],
        *,
        version: int = 1,
        wants: Wants[S] | None = None,
        state_type: Any = None,
        pinned: bool = False,
    ) -> None:
        """Name the projection, which is the name of its checkpoint, too; the rest is as for `Fold`.

        *wants* is asked before an event of a handled kind is decoded, with the state and the `Stored` event: in a
        store where streams of other programs use the same kinds for other things, those can be passed over.
        """
        check_name(name)
        self.fold: Fold[S] = Fold(name, initial, version=version, state_type=state_type, pinned=pinned)
        self.wants = wants
        if wants is not None:
            self.fold.also = {"wants": wants}

    @property
    def name(self) -> str:
        """Its name, and that of its checkpoint."""
        return self.fold.name

    def on(self, event_type: type[E]) -> Callable[[ProjectionHandler[S]], ProjectionHandler[S]]:
        """Register the decorated function as the handler of *event_type*."""
        return self.fold.on(event_type)  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"Projection({self.name!r}, version={self.fold.version}, {len(self.fold.handlers)} handlers)"


class Projected(Generic[S]):
    """A projection on a store: `state` is the fold of positions 1..`position`. See `Store.project`.

    To be used by one thread at a time. Several processes may hold the same projection: each folds for itself, and
    what is saved is what came furthest.
    """

    state: S
    position: int
    _spoilt: bool
    _replacing: bool
    """The next save is to go over what stands there: it is of other code, or damaged."""
    _since: int
    _fold_s: float
    _last_save_s: float
    _cannot_save: str
    """Why the state is not saved; empty if it can be."""
    _last_reader: HealingReader | None

    def __init__(self, log: Log, snapshots: Snapshots, projection: Projection[S]) -> None:
        """Take the saved state, if it is usable; nothing is folded yet."""
        self._log = log
        self._snapshots = snapshots
        self._projection = projection
        self._fold = projection.fold
        self._look()

    @property
    def behind(self) -> int:
        """How many positions the store is ahead of this."""
        return self._last() - self.position

    @property
    def due(self) -> bool:
        """True if what was folded since the last save is worth a save."""
        return self._since >= SAVE_AFTER_EVENTS or (self._since > 0 and self._fold_s >= SAVE_AFTER_S)

    def catch_up(self, *, save: bool = True, check: bool = False, progress: Progress | None = None) -> int:
        """Fold what is new up to the last position; return how many positions that were.

        Saves the state when it is `due`, on the way as well, so that a crash loses little; not with *save* off.
        With *check* the hash of each event is recomputed before it is folded.
        *progress* is told after each page how many positions it had. Raises a `SchemaError` or `RecordDamaged` that
        names the event that cannot be read, or `FoldFailed`; what is saved is as it was. A save that the disk
        refuses is logged, and costs nothing but time.
        """
        if self._snapshots.facts(self._fold) is not self._facts:  # it has other handlers or steps now
            self._look()
        elif self._spoilt:
            self._load()
        start, last, saved_at = self.position, self._last(), time.monotonic()
        while self.position < last:
            page = store_page(self._log, after=self.position, limit=min(PAGE_ROWS, last - self.position))
            if not page:
                self.position = last  # the last ones were given back
                break
            begun = time.perf_counter()
            if check:
                check_rows(self._log, page)
            self._spoilt = True  # until the page is through: handlers change the state in place
            self.state = self._folded(self.state, page)
            self.position, self._spoilt = page[-1].position, False
            self._fold_s += time.perf_counter() - begun
            self._since += len(page)
            if progress is not None:
                progress(len(page))
            pause_s = max(SAVE_ON_THE_WAY_S, self._last_save_s / SAVING_SHARE)
            if save and time.monotonic() >= saved_at + pause_s:
                self._try_to_save()
                saved_at = time.monotonic()
        if save and self.due:
            self._try_to_save()
        return self.position - start

    def rebuild(self, *, save: bool = True, progress: Progress | None = None) -> None:
        """Fold everything anew from position 1, and save that, whatever stands there."""
        self._begin(replacing=True)
        self.catch_up(save=save, progress=progress)
        if save:
            self._try_to_save()

    def save(self) -> bool:
        """Save state and position in one transaction, durable on return; False if it was not written.

        It is not if another process is further, if the state cannot be encoded (said once), or if the store can
        only be read. Raises `StoreFull`.
        """
        if self._cannot_save or self._spoilt:
            return False
        begun = time.perf_counter()
        try:
            encoded = self._facts.codec.encode(self.state)
        except NotEncodableError as error:
            self._cannot_save = str(error)
            self._snapshots.say(
                f"projection {self._projection.name!r} cannot be saved, and is folded anew: {error}"
            )
            return False
        row = keys.CheckpointRow(
            self.position,
            None,
            self._log.clock(),
            self._facts.fold_id,
            self._facts.parts,
            encoded.hash,
            b"".join(encoded.refs),
            compress(encoded.body),
        )
        chunks = {ref: pack(payload) for ref, payload in encoded.writer.chunks.items()}
        write = CheckpointWrite(
            self.position, keys.encode(row), chunks=chunks, needs=needs_of(encoded), reset=self._replacing
        )
        try:
            written = self._log.backend.put_checkpoint(self._projection.name, write)
        except StoreReadOnly as error:
            self._cannot_save = str(error)
            return False
        self._since, self._fold_s = 0, 0.0
        if written:
            self._replacing = False
            encoded.writer.stored(self._reader(self.position))
            self._snapshots.wrote_chunks(chunks)
        self._last_save_s = time.perf_counter() - begun
        return written

    def _try_to_save(self) -> None:
        try:
            self.save()
        except EngineError as error:
            self._snapshots.say(f"projection {self._projection.name!r} could not be saved: {error}")

    # -- load ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look through the projection's code, and take the state that was saved by the same."""
        self._log.codec.register(self._fold.events)
        self._facts = self._snapshots.facts(self._fold)
        self._wanted = _Wanted(self._log, self._fold)
        self._cannot_save = self._facts.unusable
        self._load()

    def _begin(self, *, replacing: bool) -> None:
        self.state, self.position = begin(self._snapshots, self._fold), 0
        self._replacing = replacing
        self._spoilt = False
        self._since, self._fold_s, self._last_save_s = 0, 0.0, 0.0
        self._last_reader = None

    def _load(self) -> None:
        """Take the saved state; begin anew if there is none, or none that this code can use."""
        self._begin(replacing=False)
        stored = self._log.backend.checkpoint(self._projection.name)
        if stored is None or self._facts.unusable:
            return
        why = self._take(stored)
        if why:
            self._begin(replacing=True)
            self._snapshots.say(f"projection {self._projection.name!r} is folded anew: {why}")

    def _take(self, stored: bytes) -> str:
        """Take a saved state, or return why it cannot be used."""
        name = self._projection.name
        try:
            row = keys.decode_checkpoint_row(stored)
        except msgspec.MsgspecError as error:
            return f"its checkpoint cannot be read ({error})"
        if not row.fold_id:
            raise BadArgument(f"checkpoint {name!r} is a subscription's: give the projection another name")
        if row.fold_id != self._facts.fold_id:
            changed = fingerprint.changed_parts(self._facts.parts, row.parts) or ["unknown"]
            return f"its code has changed ({', '.join(changed)})"
        if row.position > self._last():
            return f"its checkpoint {row.position} is past the last position"
        try:
            body = decompress(row.body)
            if hash_body(body) != row.state_hash:
                return "its bytes were changed"
            reader = self._reader(row.position)
            self.state = self._facts.codec.decode(body, reader)
        except ValueError as error:
            return f"its state cannot be decoded ({error})"
        self.position = row.position
        return ""

    def _last(self) -> int:
        return self._log.backend.count()[1]

    # -- fold ------------------------------------------------------------------------------------------

    def _folded(self, state: S, page: list[Row]) -> S:
        """Return the state after the rows of *page*; decode only what has a handler, and is wanted."""
        handlers, recorded_of, wanted = self._fold.handlers, self._log.recorded, self._wanted
        wants = self._projection.wants
        for row in page:
            tag = wanted(row)
            if tag is None:
                continue
            try:
                stored = Stored(row.stream, row.version, *tag, row.data)
                # What a record of several events is, only its handlers can tell.
                if wants is not None and stored.kind != COMPOSITE_KIND and not wants(state, stored):
                    continue
                for recorded in recorded_of(row):
                    handler = handlers.get(type(recorded.event))  # type: ignore[arg-type]
                    if handler is not None:
                        result = handler(state, recorded)
                        if result is not None:
                            state = result
            except EngineError:
                raise
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                kind = tag_bytes(row.data).decode(errors="replace")
                raise FoldFailed(self._projection.name, row.stream, row.version, kind, why) from error
        return state

    # -- chunks ----------------------------------------------------------------------------------------

    def _reader(self, position: int) -> HealingReader:
        """Return a reader of the chunks of the state that was saved at *position*."""

        def load(ref: bytes) -> bytes:
            stored = self._log.backend.chunk(ref)
            try:
                if stored is not None:
                    return unpack(ref, stored)
                why = f"chunk {ref.hex()} is missing"
            except ChunkDamagedError as error:
                why = str(error)
            return self._heal(reader.version, ref, why)

        reader = HealingReader(load, position)
        if self._last_reader is not None:
            reader.share_cache(self._last_reader)
        self._last_reader = reader
        return reader

    def _heal(self, position: int, ref: bytes, why: str) -> bytes:
        """Fold everything up to *position* anew: every chunk of the state that was saved there is made again."""
        name = self._projection.name
        self._snapshots.say(f"projection {name!r}: {why}. Folding anew to restore it")
        state, done = begin(self._snapshots, self._fold), 0
        while done < position:
            page = store_page(self._log, after=done, limit=min(PAGE_ROWS, position - done))
            page = [row for row in page if row.position <= position]
            if not page:
                break
            state = self._folded(state, page)
            done = page[-1].position
        payloads = self._facts.codec.encode(state, check=False).writer.chunks
        if ref not in payloads:
            raise ChunkLost("(the whole store)", name, ref.hex())
        try:
            self._log.backend.put_chunks({ref: pack(data) for ref, data in payloads.items()})
        except EngineError as error:
            self._snapshots.say(f"restored chunks of projection {name!r} could not be written: {error}")
        return payloads[ref]


class _Wanted:
    """Says what a record is that a fold may handle, by the tag at its front; None for one that it does not."""

    def __init__(self, log: Log, fold: Fold[Any]) -> None:
        kinds = {event.kind for event in fold.events}
        steps = log.codec.lifting.upcasters.reaching(kinds)
        self._kinds = kinds | {step.kind for step in steps}  # what a step turns into a handled kind counts, too
        self._known: dict[bytes, tuple[str, int] | None] = {}

    def __call__(self, row: Row) -> tuple[str, int] | None:
        stored = tag_bytes(row.data)
        try:
            return self._known[stored]
        except KeyError:
            return self._look(stored, row)

    def _look(self, stored: bytes, row: Row) -> tuple[str, int] | None:
        try:
            found = tag_of_record(row.data)
        except ValueError:
            raise RecordDamaged(row.stream, row.version, "the record has no kind@version") from None
        wanted = found if found[0] in self._kinds or found[0] == COMPOSITE_KIND else None
        if stored:
            self._known[stored] = wanted
        return wanted
