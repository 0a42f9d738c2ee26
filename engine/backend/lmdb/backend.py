"""`LmdbBackend`: the rows of a store, read and written in LMDB transactions."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb
import msgspec
from tailfold.engine.backend import keys
from tailfold.engine.backend.lmdb.ahead_file import FILE as AHEAD_FILE
from tailfold.engine.backend.lmdb.appends import NO_HEADS, AppendRows
from tailfold.engine.backend.lmdb.checkpoints import CheckpointRows
from tailfold.engine.backend.lmdb.copying import CopyRows
from tailfold.engine.backend.lmdb.environment import Environment
from tailfold.engine.backend.lmdb.faults import check_pages, name_of, translated
from tailfold.engine.backend.lmdb.fork_checks import ForkChecks
from tailfold.engine.backend.lmdb.forks import ForkRows, Part
from tailfold.engine.backend.lmdb.opening import MAP_BYTES
from tailfold.engine.backend.lmdb.segment import Segment
from tailfold.engine.backend.lmdb.segments import SegmentCache, SegmentRows
from tailfold.engine.backend.lmdb.snapshots import SnapshotRows
from tailfold.engine.backend.port import (
    Durability,
    Head,
    Lease,
    Packed,
    Plain,
    Row,
)
from tailfold.engine.errors import (
    BadArgument,
    EngineError,
    RecordDamaged,
    StoreClosed,
    StoreDamaged,
    StreamDeleted,
    StreamNotFound,
)
from tailfold.engine.names import STREAM_NAME_MAX_BYTES

PAGE_BYTES_MAX = 1 << 18
"""A page of records stops here: large events do not pile up in memory, and what was copied is decoded and folded
while it is in the processor's cache."""
PAGE_STEP = 16
"""Records are fetched so many at a time, and more where they turn out to be small: every step has a price…"""
PAGE_STEP_GROWTH = 4
"""…but not much more than the last time, for the next ones may be large."""
RUN_RECORDS_MAX = 256
"""Small records are decoded and folded so many at a time, while they are in the processor's nearest cache."""
CHECKS_MAX = 20
"""Page checks of a store that others write to meanwhile, before what they find is believed."""

_decode_lease = msgspec.msgpack.Decoder(Lease).decode
_T = TypeVar("_T")
_Run = TypeVar("_Run", Plain, Plain | Packed)
if TYPE_CHECKING:
    from tailfold.engine.backend.lmdb.writes import Reads, Writes

    _Txn = Reads
    _Work = Callable[[_Txn], _T]


class LmdbBackend(AppendRows, SnapshotRows, CopyRows, ForkRows, ForkChecks, CheckpointRows, SegmentRows):
    """`Backend` on one LMDB environment. See the port for what each method promises."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        durability: Durability = Durability.DURABLE,
        map_bytes: int = MAP_BYTES,
    ) -> None:
        """Open the store at *path*, or make it if *create*.

        Raises `StoreNotFound`, `StoreDamaged` or `FormatTooNew`; then nothing was written (I10).
        """
        self.path = Path(path)
        try:
            durability = self.durability = Durability(durability)  # "durable" means that, and nothing else
        except ValueError:
            names = " or ".join(known.value for known in Durability)
            raise BadArgument(f"durability is {names}, not {durability!r:.60}") from None
        self._shared = Environment.acquire(self.path, durability, map_bytes, create)
        self._env = self._shared.env
        self._gate = self._shared.gate
        self._closed = False
        table = self._shared.tables
        self._names, self._streams, self._events = table["names"], table["streams"], table["events"]
        self._positions, self._ids, self._leases = table["positions"], table["ids"], table["leases"]
        self._kinds, self._blobs, self._meta = table["kinds"], table["blobs"], table["meta"]
        self._snapshots, self._chunks = table["snapshots"], table["chunks"]
        self._children = table["children"]
        self._kept = NO_HEADS
        self._unpacked = SegmentCache()
        self._checkpoints = table["checkpoints"]

    # -- write -----------------------------------------------------------------------------------------

    def swap_lease(self, stream: str, *, seen: Lease | None, new: Lease) -> bool:  # noqa: D102
        key = stream.encode()

        def swap(txn: Writes) -> bool:
            stored = txn.get(key, db=self._leases)
            if (_decode_lease(stored) if stored is not None else None) != seen:
                return False
            return txn.put(key, keys.encode(new), db=self._leases)

        return self._write(swap)

    def _write(self, work: Callable[[Writes], _T]) -> _T:
        """Run *work* in a write transaction; grow the map and start over if it does not fit."""
        while True:
            self._check_open()
            seen_bytes = 0
            try:
                seen_bytes = self._env.info()["map_size"]
                return self._shared.write(work)
            except lmdb.MapFullError:
                self._shared.grow(seen_bytes)
            except lmdb.MapResizedError:
                self._shared.adopt()
            except lmdb.Error as error:
                raise translated(error, self.path) from error

    def _raise_format(self, txn: _Txn, needed: int) -> None:
        """Raise the stamp with the rows that need it: older releases refuse the store from this commit on (I10)."""
        stamp = keys.raised(txn.get(keys.FORMAT_KEY, db=self._meta) or b"", needed)
        if stamp is not None:
            txn.put(keys.FORMAT_KEY, stamp, db=self._meta)

    # -- read ------------------------------------------------------------------------------------------

    def _read(self, work: _Work[_T]) -> _T:
        while True:
            self._check_open()
            try:
                with self._gate, self._env.begin() as txn:
                    return work(txn)
            except lmdb.MapResizedError:
                self._shared.adopt()
            except lmdb.Error as error:
                raise translated(error, self.path) from error

    def head(self, stream: str) -> Head | None:  # noqa: D102
        known = self._read(lambda txn: self._stream(txn, stream))
        return _head(known[1]) if known is not None else None

    def heads(self, *, after: str = "", limit: int = 1000) -> list[Head]:  # noqa: D102
        def work(txn: _Txn) -> list[Head]:
            cursor = txn.cursor(self._names)
            if not cursor.set_range(after.encode() + b"\0" if after else b"\0"):
                return []
            rows: list[Head] = []
            for stored, _ in cursor.iternext():
                known = self._any_stream(txn, name_of(self.path, stored))
                assert known is not None
                if not known[1].deleted_ns:
                    rows.append(_head(known[1]))
                if len(rows) == limit:
                    break
            return rows

        return self._read(work)

    def count(self) -> tuple[int, int]:  # noqa: D102
        def work(txn: _Txn) -> tuple[int, int]:
            deleted = int.from_bytes(txn.get(keys.DELETED_KEY, b"", db=self._meta), "big")
            return txn.stat(self._streams)["entries"] - deleted, self._last_position(txn)

        return self._read(work)

    def data(self, stream: str, *, after: int, upto: int) -> list[bytes]:  # noqa: D102
        page = self._fetch(stream, after, upto, Segment.plain)
        return list(chain.from_iterable(run.records for run in page))

    def runs(self, stream: str, *, after: int, upto: int) -> list[Plain | Packed]:  # noqa: D102
        return self._fetch(stream, after, upto, Segment.runs)

    def _fetch(
        self, stream: str, after: int, upto: int, unseal: Callable[[Segment, int, int], list[_Run]]
    ) -> list[_Run]:
        """Return a page of the records of *after*+1..*upto*; *unseal* takes those of a segment out."""

        def work(txn: _Txn) -> tuple[list[_Run], int]:
            known = self._stream(txn, stream)
            if known is None:
                raise StreamNotFound(stream)
            number, row = known
            cursor = txn.cursor(self._events)
            found: list[_Run] = []
            size, last = 0, after
            for part in [Part(number, after, upto)] if after >= row.base else self._parts(txn, *known, after, upto):
                size, last = self._fetch_part(cursor, part, stream, unseal, found, size)
                if size >= PAGE_BYTES_MAX:
                    break
            return found, last

        found, last = self._read(work)
        self._shared.read_ahead.page(stream, after, last)
        return found

    def _fetch_part(
        self,
        cursor: lmdb.Cursor[bytes],
        part: Part,
        stream: str,
        unseal: Callable[[Segment, int, int], list[_Run]],
        found: list[Any],
        size: int,
    ) -> tuple[int, int]:
        """Add the records of *part* to *found* until they are a page; return the bytes and the last version."""
        number, version, upto = part
        while version < upto and size < PAGE_BYTES_MAX:
            if not cursor.set_range(keys.EVENT_PREFIX.pack(number, version + 1)):
                raise RecordDamaged(stream, version + 1, "the event is missing")
            if len(cursor.key()) == keys.SEGMENT_KEY.size:
                segment = self._segment_here(cursor, number, version + 1, stream)
                if segment is None:
                    raise RecordDamaged(stream, version + 1, "the event is missing")
                runs = unseal(segment, version, upto)
                found += runs
                size += sum(run.bytes for run in runs)
                version = min(upto, segment.last)
                continue
            plain = self._fetch_plain(cursor, Part(number, version, upto), stream, PAGE_BYTES_MAX - size)
            found.append(plain)
            size += plain.bytes
            version += len(plain.records)
        return size, version

    def _fetch_plain(self, cursor: lmdb.Cursor[bytes], part: Part, stream: str, most_bytes: int) -> Plain:
        """Return the records from the one under the cursor on, all plain, until they are *most_bytes* or more."""
        number, after, upto = part
        values = cursor.iternext(keys=False, values=True)
        records: list[bytes] = []
        size, wanted = 0, PAGE_STEP
        while True:
            step = list(islice(values, min(wanted, upto - after)))
            after += len(step)
            # Keys are sorted and distinct: if the last one is right, so are all before it (I1).
            if not step or not cursor.key().startswith(keys.EVENT_PREFIX.pack(number, after)):
                raise self._gap(cursor, number, stream, after - len(step), upto)
            records += step
            size += sum(map(len, step))
            if after == upto or size >= most_bytes or len(records) >= RUN_RECORDS_MAX:
                return Plain(records, size)
            fitting = (most_bytes - size) * len(records) // (size or 1)
            wanted = min(max(PAGE_STEP, fitting), RUN_RECORDS_MAX - len(records), PAGE_STEP_GROWTH * len(step))

    def _gap(self, cursor: lmdb.Cursor[bytes], number: int, stream: str, after: int, upto: int) -> EngineError:
        """Name the first version past *after* that is not where it has to be."""
        version = after
        if cursor.set_range(keys.EVENT_PREFIX.pack(number, after + 1)):
            for key, _ in cursor.iternext():
                if len(key) == keys.SEGMENT_KEY.size:
                    break
                try:
                    at = keys.split_event_key(key)
                except ValueError as error:
                    return RecordDamaged(stream, version + 1, str(error))
                if at.stream != number or at.version != version + 1 or version >= upto:
                    break
                version += 1
        return RecordDamaged(stream, version + 1, "the event is missing")

    def rows(  # noqa: D102
        self, stream: str, *, after: int, upto: int, limit: int, backwards: bool = False
    ) -> list[Row]:
        def work(txn: _Txn) -> list[Row]:
            known = self._stream(txn, stream)
            if known is None or upto <= after or limit <= 0 or after > known[1].version:
                return []
            number, row = known
            last = min(upto, row.version + 1)
            # Versions are contiguous, so a page needs to know of no more of a long lineage than its own part.
            if backwards:
                low, high = max(after, last - limit), last
            else:
                low, high = after, min(last, after + limit)
            parts = [Part(number, after, last)] if after >= row.base else self._parts(txn, *known, low, high)
            cursor = txn.cursor(self._events)
            rows: list[Row] = []
            for part in reversed(parts) if backwards else parts:
                origin = stream if part.number == number else self._row(txn, part.number).name
                rows += self._rows_of(cursor, part, stream, origin, limit - len(rows), backwards)
                if len(rows) >= limit:
                    break
            return rows

        found = self._read(work)
        if found and backwards:
            self._shared.read_ahead.page((stream, "back"), found[0].version, found[-1].version - 1)
        elif found:
            self._shared.read_ahead.page(stream, after, found[-1].version)
        return found

    def rows_by_position(self, *, after: int, limit: int) -> list[Row]:  # noqa: D102
        def work(txn: _Txn) -> list[Row]:
            heads: dict[int, keys.StreamRow] = {}
            unpacked: dict[int, dict[int, Row]] = {}
            events = txn.cursor(self._events)
            cursor = txn.cursor(self._positions)
            rows: list[Row] = []
            if limit <= 0 or not cursor.set_range(keys.POSITION_KEY.pack(after + 1)):
                return rows
            for place, where in cursor.iternext():
                try:
                    [position] = keys.POSITION_KEY.unpack(place)
                    number, version = keys.POSITION_ROW.unpack(where)
                except struct.error as error:
                    raise StoreDamaged(str(self.path), [f"a row of positions cannot be read: {error}"]) from None
                head = heads.get(number)
                if head is None:
                    head = heads[number] = self._row(txn, number)
                known = unpacked.get(number, {}).get(version)
                if known is not None:
                    rows.append(_at(position, known))
                    if len(rows) == limit:
                        break
                    continue
                found = events.set_range(where)
                if found and len(events.key()) == keys.SEGMENT_KEY.size:
                    segment = self._segment_here(events, number, version, head.name)
                    if segment is not None:
                        # The page goes on in many streams: each keeps its segment until the next one.
                        upto = min(segment.last, version + limit)
                        sealed = segment.rows(head.name, version - 1, upto, head.name)
                        unpacked[number] = {row.version: row for row in sealed}
                        rows.append(_at(position, sealed[0]))
                        if len(rows) == limit:
                            break
                        continue
                if not found or not events.key().startswith(where):
                    if version > head.version - head.reclaimed:
                        continue  # a sweep gave the event back
                    raise RecordDamaged(head.name, version, "its position is there, the event is not")
                at = keys.split_event_key(events.key())
                row = Row(head.name, version, at.position, at.hash, events.value(), head.name)
                rows.append(_at(position, row))
                if len(rows) == limit:
                    break
            return rows

        found = self._read(work)
        if found:
            self._shared.read_ahead.page(None, after, found[-1].position)
        return found

    def where(self, positions: Sequence[int]) -> list[tuple[str, int] | None]:  # noqa: D102
        def work(txn: _Txn) -> list[tuple[str, int] | None]:
            names: dict[int, str] = {}
            found: list[tuple[str, int] | None] = []
            for position in positions:
                where = txn.get(keys.POSITION_KEY.pack(position), db=self._positions)
                if where is None or len(where) != keys.POSITION_ROW.size:  # a damaged one stands for nothing
                    found.append(None)
                    continue
                number, version = keys.POSITION_ROW.unpack(where)
                if number not in names:
                    row = self._stream_row(txn, keys.STREAM_KEY.pack(number), f"#{number}")
                    names[number] = row.name
                found.append((names[number], version))
            return found

        return self._read(work)

    def blob(self, digest: bytes) -> bytes | None:  # noqa: D102
        return self._read(lambda txn: txn.get(digest, db=self._blobs))

    def blobs(self, *, after: bytes = b"", limit: int = 64) -> list[tuple[bytes, bytes]]:  # noqa: D102
        def work(txn: _Txn) -> list[tuple[bytes, bytes]]:
            cursor = txn.cursor(self._blobs)
            found = cursor.set_range(after + b"\0" if after else b"\0")
            return list(islice(cursor.iternext(), limit)) if found else []

        return self._read(work)

    def schemas(self) -> Iterator[tuple[str, bytes]]:  # noqa: D102
        rows = self._read(lambda txn: list(txn.cursor(self._kinds).iternext()))
        for key, description in rows:
            yield keys.tag_of_kind_key(key), description

    def lease(self, stream: str) -> Lease | None:  # noqa: D102
        return self._read(lambda txn: self._lease(txn, stream))

    def usage(self) -> dict[str, Any]:  # noqa: D102
        def work(txn: _Txn) -> dict[str, Any]:
            tables = {}
            for name, table in self._shared.tables.items():
                stat = txn.stat(table)
                pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
                tables[name] = {"rows": stat["entries"], "bytes": pages * stat["psize"]}
            return {"tables": tables}

        usage = self._read(work)
        usage["events"] = usage["tables"]["positions"]["rows"]
        usage["file_bytes"] = (self.path / "data.mdb").stat().st_size
        ahead = self.path / AHEAD_FILE
        usage["ahead_bytes"] = ahead.stat().st_size if ahead.exists() else 0
        usage["map_bytes"] = self._env.info()["map_size"]
        return usage

    def check(self) -> list[str]:  # noqa: D102
        # The file may still grow between the look at its size and the look at its newest tree: then look again.
        findings: list[str] = []
        for _ in range(CHECKS_MAX):
            seen = self._env.info()["last_txnid"]
            # The open read transaction keeps every page of the walked tree from being reused by a writer.
            findings = self._read(lambda txn: check_pages(self.path))
            if not findings or self._env.info()["last_txnid"] == seen:
                break
        return findings

    def close(self) -> None:  # noqa: D102
        if not self._closed:
            self._closed = True
            if self._shared.pid == os.getpid():
                self._shared.watcher.wake_all()
            self._shared.release()
            self._unpacked, self._kept = SegmentCache(), NO_HEADS  # whoever still holds this holds no more than it

    # -- rows ------------------------------------------------------------------------------------------

    def _stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None:
        known = self._any_stream(txn, name)
        if known is not None and known[1].deleted_ns:
            raise StreamDeleted(name)
        return known

    def _any_stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None:
        """Return number and head of a stream, also of a deleted one."""
        stored = name.encode()
        key = txn.get(stored, db=self._names) if 1 <= len(stored) <= STREAM_NAME_MAX_BYTES else None
        if key is None:
            return None
        row = self._stream_row(txn, key, name)
        if row.name != name:
            raise StoreDamaged(str(self.path), [f"the head of stream {name!r} is that of {row.name!r}"])
        return int.from_bytes(key, "big"), row

    def _stream_row(self, txn: _Txn, key: bytes, name: str) -> keys.StreamRow:
        stored = txn.get(key, db=self._streams)
        try:
            return keys.decode_stream_row(stored or b"")
        except msgspec.MsgspecError as error:
            why = "is missing" if stored is None else f"cannot be read ({error})"
            raise StoreDamaged(str(self.path), [f"the head of stream {name!r} {why}"]) from None

    def _lease(self, txn: _Txn, stream: str) -> Lease | None:
        stored = txn.get(stream.encode(), db=self._leases)
        try:
            return _decode_lease(stored) if stored is not None else None
        except msgspec.MsgspecError as error:
            raise StoreDamaged(str(self.path), [f"the lease of {stream!r} cannot be read ({error})"]) from None

    def _last_position(self, txn: _Txn) -> int:
        cursor = txn.cursor(self._positions)
        return int.from_bytes(cursor.key(), "big") if cursor.last() else 0

    def _last_number(self, txn: _Txn) -> int:
        cursor = txn.cursor(self._streams)
        return int.from_bytes(cursor.key(), "big") if cursor.last() else 0

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:  # noqa: D102
        self._check_open()
        return self._shared.watcher.watch(wake)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed: open it again")
        if self._shared.pid != os.getpid():
            raise StoreClosed("the store was opened before this process was forked: open it after")


def _head(row: keys.StreamRow) -> Head:
    return Head(row.name, row.version, row.hash, row.created_ns, row.updated_ns, row.base)


def _at(position: int, row: Row) -> Row:
    """Return *row* if it says that it stands there: a follower goes on from what it says (I3)."""
    if row.position != position:
        why = f"it stands at position {position}, and says that it is {row.position}"
        raise RecordDamaged(row.stream, row.version, why)
    return row
