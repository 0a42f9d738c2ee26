"""The backend on disk: one LMDB environment a store. The only module that imports lmdb.

What is assumed of the disk: a completed fdatasync is durable, and the 96 bytes of an LMDB meta page are
written whole or not at all. Two processes on one store are serialised by LMDB's own writer lock; a process
that dies inside a transaction leaves the store at the commit before it (I5, I12).
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb
import lmdb.verify
import msgspec
from tailfold.engine.backend import chain, keys, rules
from tailfold.engine.backend.gate import Gate
from tailfold.engine.backend.port import (
    FORMAT_VERSION,
    Append,
    Appended,
    Durability,
    Head,
    Lease,
    Row,
)
from tailfold.engine.errors import (
    BadArgument,
    EngineError,
    FormatTooNew,
    OutcomeUnknown,
    RecordDamaged,
    StoreClosed,
    StoreDamaged,
    StoreFull,
    StoreNotFound,
    StreamNotFound,
)

MAP_BYTES = 256 << 30
"""Address space reserved at open. The file is sparse: only what is written takes disk."""
MAP_BYTES_LEAST = 1 << 28
READERS_MAX = 1024
PAGE_BYTES_MAX = 4 << 20
"""`LmdbBackend.data` stops a page of records here, so that large events do not pile up in memory."""
PAGE_STEP = 64

_LMDB_MAJOR = 0  # new stores are made by the 0.9 engine: the format that ten years of tools read

_decode_lease = msgspec.msgpack.Decoder(Lease).decode
_T = TypeVar("_T")
if TYPE_CHECKING:  # lmdb's classes take no parameters at run time
    _Txn = lmdb.Transaction[bytes]
    _Work = Callable[[_Txn], _T]


class _Environment:
    """One opened LMDB environment, shared by every backend of this process on the same path.

    LMDB forbids opening one environment twice in a process: closing the second would drop the file locks
    of the first.
    """

    _open: dict[str, _Environment] = {}
    _opening = threading.Lock()

    def __init__(self, path: Path, durability: Durability, map_bytes: int) -> None:
        self.path = path
        self.durability = durability
        self.pid = os.getpid()
        self.users = 0
        self.gate = Gate()
        self.env = _open_environment(path, durability, map_bytes)
        try:
            self.tables = self._prepare()
        except lmdb.Error as error:
            self.env.close()
            raise StoreDamaged(str(path), check_pages(path) or [f"LMDB says: {error}"]) from error
        except BaseException:
            self.env.close()
            raise

    @classmethod
    def acquire(cls, path: Path, durability: Durability, map_bytes: int, create: bool) -> _Environment:
        with cls._opening:
            key = os.path.realpath(path)
            shared = cls._open.get(key)
            if shared is not None and shared.pid == os.getpid() and (path / "data.mdb").exists():
                if shared.durability is not durability:
                    raise BadArgument(
                        f"the store at {path} is open in this process as {shared.durability.value};"
                        " close it before opening it another way"
                    )
            else:
                _prepare_directory(path, create)
                shared = cls._open[key] = cls(path, durability, map_bytes)
            shared.users += 1
            return shared

    def release(self) -> None:
        with self._opening:
            self.users -= 1
            if self.users == 0:
                for key, shared in list(self._open.items()):
                    if shared is self:
                        del self._open[key]
                if self.pid == os.getpid():  # a forked child must not touch its parent's locks
                    if self.durability is Durability.RELAXED:
                        self.env.sync(True)
                    self.env.close()

    def _prepare(self) -> dict[str, lmdb._Database]:
        """Check the stamp and open the tables; make both in one transaction if the file is new (I10)."""
        size = (self.path / "data.mdb").stat().st_size
        needed = (self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"]
        if size < needed:
            raise StoreDamaged(str(self.path), [f"data.mdb has {size} bytes, its last page ends at {needed}"])
        with self.env.begin() as txn:
            present = {bytes(name) for name in self.env.dbs(txn)}
            new = txn.stat()["entries"] == 0
        if b"meta" in present:
            self._check_stamp(self.env.open_db(b"meta", create=False))
        elif not new:
            raise StoreNotFound(str(self.path), "data.mdb is an LMDB file of another program")
        missing = [name for name in keys.TABLES if name.encode() not in present]
        if missing and not new:
            raise StoreDamaged(str(self.path), [f"table {name!r} is missing" for name in missing])
        if not new:
            return {name: self.env.open_db(name.encode(), create=False) for name in keys.TABLES}
        with self.env.begin(write=True) as txn:
            tables = {name: self.env.open_db(name.encode(), txn=txn) for name in keys.TABLES}
            stamp = keys.Stamp(FORMAT_VERSION, time.time_ns(), "tailfold")
            # Another process may have been first: the stamp that is there stands.
            txn.put(keys.FORMAT_KEY, keys.encode(stamp), overwrite=False, db=tables["meta"])
        self._check_stamp(tables["meta"])
        _sync_directory(self.path)
        _sync_directory(self.path.parent)
        return tables

    def _check_stamp(self, meta: lmdb._Database) -> None:
        with self.env.begin() as txn:
            stored = txn.get(keys.FORMAT_KEY, db=meta)
        if stored is None:
            raise StoreNotFound(str(self.path), "data.mdb is an LMDB file without tailfold's stamp")
        try:
            stamp = keys.decode_stamp(stored)
        except msgspec.MsgspecError as error:
            raise StoreDamaged(str(self.path), [f"the format stamp cannot be read: {error}"]) from None
        if stamp.format > FORMAT_VERSION:
            raise FormatTooNew(str(self.path), stamp.format, FORMAT_VERSION)

    def grow(self, seen_bytes: int) -> None:
        """Double the map after MapFull, unless another thread has done so since *seen_bytes*."""
        with self.gate.alone():
            if self.env.info()["map_size"] == seen_bytes:
                self.env.set_mapsize(seen_bytes * 2)

    def adopt(self) -> None:
        """Take over the map size that another process has grown to."""
        with self.gate.alone():
            self.env.set_mapsize(0)


class LmdbBackend:
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
        self.durability = durability
        self._shared = _Environment.acquire(self.path, durability, map_bytes, create)
        self._env = self._shared.env
        self._gate = self._shared.gate
        self._closed = False
        table = self._shared.tables
        self._names, self._streams, self._events = table["names"], table["streams"], table["events"]
        self._positions, self._ids, self._leases = table["positions"], table["ids"], table["leases"]
        self._kinds, self._blobs = table["kinds"], table["blobs"]

    # -- write -----------------------------------------------------------------------------------------

    def commit(self, batch: Sequence[Append]) -> list[Appended | EngineError]:  # noqa: D102 - port
        return self._write(lambda txn: self._commit(txn, batch))

    def swap_lease(self, stream: str, *, seen: Lease | None, new: Lease) -> bool:  # noqa: D102
        key = stream.encode()

        def swap(txn: _Txn) -> bool:
            stored = txn.get(key, db=self._leases)
            if (_decode_lease(stored) if stored is not None else None) != seen:
                return False
            return txn.put(key, keys.encode(new), db=self._leases)

        return self._write(swap)

    def _write(self, work: _Work[_T]) -> _T:
        """Run *work* in a write transaction; grow the map and start over if it does not fit."""
        while True:
            self._check_open()
            seen_bytes = 0
            try:
                with self._gate:
                    seen_bytes = self._env.info()["map_size"]
                    with self._env.begin(write=True) as txn:
                        return work(txn)
            except lmdb.MapFullError:
                self._shared.grow(seen_bytes)
            except lmdb.MapResizedError:
                self._shared.adopt()
            except lmdb.Error as error:
                raise self._translated(error) from error

    def _commit(self, txn: _Txn, batch: Sequence[Append]) -> list[Appended | EngineError]:
        """Check every append in turn, then write all that passed, sorted, table by table."""
        outcomes: list[Appended | EngineError] = []
        touched: dict[str, tuple[int, keys.StreamRow]] = {}
        event_rows: list[tuple[bytes, bytes]] = []
        position_rows: list[tuple[bytes, bytes]] = []
        id_rows: dict[bytes, keys.IdRow] = {}
        pack_event, pack_position = keys.EVENT_KEY.pack, keys.POSITION_KEY.pack
        pack_where, link = keys.POSITION_ROW.pack, chain.link
        position = self._last_position(txn)
        next_number: int | None = None
        for append in batch:
            name = append.stream
            known = touched.get(name) or self._stream(txn, name)
            number, row = known if known is not None else (0, None)
            version = row.version if row is not None else 0
            lease = self._lease(txn, name) if append.epoch is not None else None
            earlier = None
            if append.key is not None and row is not None:
                id_key = keys.id_key(number, append.key)
                earlier = id_rows.get(id_key) or self._id(txn, id_key)
            answer = rules.check(append, version, lease, earlier)
            if answer is not None:
                outcomes.append(answer)
                continue
            if row is None:
                if next_number is None:
                    next_number = self._last_number(txn)
                next_number += 1
                number, last_hash, created_ns = next_number, chain.seed(name), append.time_ns
                txn.put(name.encode(), keys.STREAM_KEY.pack(number), db=self._names)
            else:
                last_hash, created_ns = row.hash, row.created_ns
            first = version + 1
            digests = append.digests
            for i, data in enumerate(append.records):
                version += 1
                position += 1
                last_hash = link(last_hash, digests[i])
                event_rows.append((pack_event(number, version, position, last_hash), data))
                position_rows.append((pack_position(position), pack_where(number, version)))
            touched[name] = (
                number,
                keys.StreamRow(name, version, last_hash, created_ns, append.time_ns),
            )
            if append.key is not None:
                id_rows[keys.id_key(number, append.key)] = keys.IdRow(
                    first, version, position, last_hash, append.content
                )
            for digest, content in append.blobs.items():
                txn.put(digest, content, overwrite=False, db=self._blobs)
            for tag, description in append.schemas.items():
                txn.put(keys.kind_key(tag, description), description, overwrite=False, db=self._kinds)
            outcomes.append(Appended(name, first, version, position, last_hash, False))
        if event_rows:
            event_rows.sort()
            events = txn.cursor(self._events)
            # At the end of the table LMDB may fill pages instead of splitting them in halves: less to
            # write, less to store (a lone stream of 1.4 KB events: 2.5 → 2.0 times a raw write).
            at_end = not events.last() or events.key() < event_rows[0][0]
            events.putmulti(event_rows, append=at_end)
            txn.cursor(self._positions).putmulti(position_rows, append=True)
            for number, row in touched.values():
                txn.put(keys.STREAM_KEY.pack(number), keys.encode(row), db=self._streams)
            for id_key, id_row in id_rows.items():
                txn.put(id_key, keys.encode(id_row), db=self._ids)
        return outcomes

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
                raise self._translated(error) from error

    def head(self, stream: str) -> Head | None:  # noqa: D102
        known = self._read(lambda txn: self._stream(txn, stream))
        return _head(known[1]) if known is not None else None

    def heads(self, *, after: str = "", limit: int = 1000) -> list[Head]:  # noqa: D102
        def work(txn: _Txn) -> list[Head]:
            cursor = txn.cursor(self._names)
            if not cursor.set_range(after.encode() + b"\0" if after else b"\0"):
                return []
            rows = []
            for stored, _ in islice(cursor.iternext(), limit):
                known = self._stream(txn, _name(self.path, stored))
                assert known is not None
                rows.append(_head(known[1]))
            return rows

        return self._read(work)

    def count(self) -> tuple[int, int]:  # noqa: D102
        return self._read(lambda txn: (txn.stat(self._streams)["entries"], self._last_position(txn)))

    def data(self, stream: str, *, after: int, upto: int) -> list[bytes]:  # noqa: D102
        def work(txn: _Txn) -> list[bytes]:
            known = self._stream(txn, stream)
            if known is None:
                raise StreamNotFound(stream)
            number = known[0]
            cursor = txn.cursor(self._events)
            found: list[bytes] = []
            size = 0
            version = after
            values = None
            while version < upto and size < PAGE_BYTES_MAX:
                if values is None:
                    if not cursor.set_range(keys.EVENT_PREFIX.pack(number, version + 1)):
                        raise RecordDamaged(stream, version + 1, "the event is missing")
                    values = cursor.iternext(keys=False, values=True)
                step = list(islice(values, min(PAGE_STEP, upto - version)))
                # Keys are sorted and distinct: if the last one is right, so are all before it (I1).
                if not step or not cursor.key().startswith(
                    keys.EVENT_PREFIX.pack(number, version + len(step))
                ):
                    raise self._gap(cursor, number, stream, version, upto)
                version += len(step)
                size += sum(map(len, step))
                found += step
            return found

        return self._read(work)

    def _gap(
        self, cursor: lmdb.Cursor[bytes], number: int, stream: str, after: int, upto: int
    ) -> EngineError:
        """Name the first version past *after* that is not where it has to be."""
        version = after
        if cursor.set_range(keys.EVENT_PREFIX.pack(number, after + 1)):
            for key, _ in cursor.iternext():
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
            if known is None or upto <= after or limit <= 0:
                return []
            number = known[0]
            cursor = txn.cursor(self._events)
            last = min(upto, known[1].version + 1)
            if backwards:
                found = cursor.set_range(keys.EVENT_PREFIX.pack(number, last + 1))
                found = cursor.prev() if found else cursor.last()
                items = cursor.iterprev() if found else iter(())
            else:
                found = cursor.set_range(keys.EVENT_PREFIX.pack(number, after + 1))
                items = cursor.iternext() if found else iter(())
            rows: list[Row] = []
            for key, data in islice(items, limit):
                try:
                    at = keys.split_event_key(key)
                except ValueError as error:
                    raise RecordDamaged(stream, after + len(rows) + 1, str(error)) from None
                if at.stream != number or not after < at.version <= upto:
                    break
                rows.append(Row(stream, at.version, at.position, at.hash, data))
            return rows

        return self._read(work)

    def rows_by_position(self, *, after: int, limit: int) -> list[Row]:  # noqa: D102
        def work(txn: _Txn) -> list[Row]:
            names: dict[int, str] = {}
            events = txn.cursor(self._events)
            cursor = txn.cursor(self._positions)
            rows: list[Row] = []
            if not cursor.set_range(keys.POSITION_KEY.pack(after + 1)):
                return rows
            for _, where in islice(cursor.iternext(), limit):
                number, version = keys.POSITION_ROW.unpack(where)
                name = names.get(number)
                if name is None:
                    key = keys.STREAM_KEY.pack(number)
                    name = names[number] = self._stream_row(txn, key, f"#{number}").name
                if not events.set_range(where) or not events.key().startswith(where):
                    raise RecordDamaged(name, version, "its position is there, the event is not")
                at = keys.split_event_key(events.key())
                rows.append(Row(name, version, at.position, at.hash, events.value()))
            return rows

        return self._read(work)

    def position(self, position: int) -> tuple[str, int] | None:  # noqa: D102
        def work(txn: _Txn) -> tuple[str, int] | None:
            where = txn.get(keys.POSITION_KEY.pack(position), db=self._positions)
            if where is None:
                return None
            number, version = keys.POSITION_ROW.unpack(where)
            row = self._stream_row(txn, keys.STREAM_KEY.pack(number), f"#{number}")
            return row.name, version

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
        usage["file_bytes"] = (self.path / "data.mdb").stat().st_size
        usage["map_bytes"] = self._env.info()["map_size"]
        return usage

    def check(self) -> list[str]:  # noqa: D102
        # The open read transaction keeps every page of the walked tree from being reused by a writer.
        with self._gate, self._env.begin():
            return check_pages(self.path)

    def close(self) -> None:  # noqa: D102
        if not self._closed:
            self._closed = True
            self._shared.release()

    # -- rows ------------------------------------------------------------------------------------------

    def _stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None:
        key = txn.get(name.encode(), db=self._names)
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
            raise StoreDamaged(
                str(self.path), [f"the lease of {stream!r} cannot be read ({error})"]
            ) from None

    def _id(self, txn: _Txn, key: bytes) -> keys.IdRow | None:
        stored = txn.get(key, db=self._ids)
        try:
            return keys.decode_id_row(stored) if stored is not None else None
        except msgspec.MsgspecError as error:
            raise StoreDamaged(str(self.path), [f"an idempotency row cannot be read ({error})"]) from None

    def _last_position(self, txn: _Txn) -> int:
        cursor = txn.cursor(self._positions)
        return int.from_bytes(cursor.key(), "big") if cursor.last() else 0

    def _last_number(self, txn: _Txn) -> int:
        cursor = txn.cursor(self._streams)
        return int.from_bytes(cursor.key(), "big") if cursor.last() else 0

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed: open it again")
        if self._shared.pid != os.getpid():
            raise StoreClosed("the store was opened before this process was forked: open it after")

    def _translated(self, error: lmdb.Error) -> EngineError:
        if isinstance(error, lmdb.DiskError) or error.code == errno.ENOSPC:
            return StoreFull(f"no room left on the disk of {self.path}: nothing was written")
        if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
            return StoreDamaged(str(self.path), check_pages(self.path) or [str(error)])
        if error.code == errno.EIO or isinstance(error, lmdb.PanicError):
            return OutcomeUnknown(f"the disk of {self.path} failed ({error}): reopen the store and look")
        return StoreDamaged(str(self.path), [f"LMDB says: {error}"])


def _name(path: Path, stored: bytes) -> str:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        raise StoreDamaged(str(path), [f"a stream's name is not UTF-8: {stored!r}"]) from None


def _head(row: keys.StreamRow) -> Head:
    return Head(row.name, row.version, row.hash, row.created_ns, row.updated_ns)


def check_pages(path: Path) -> list[str]:
    """Walk every page of the file without handing it to LMDB; return findings, empty if sound."""
    try:
        return list(lmdb.verify.verify(str(path)))  # type: ignore[no-untyped-call]
    except (lmdb.verify.VerifyError, OSError) as error:
        return [str(error)]


def _prepare_directory(path: Path, create: bool) -> None:
    """Make sure that *path* is a store or may become one; refuse anything else untouched."""
    data = path / "data.mdb"
    if path.is_dir():
        if data.is_file() and data.stat().st_size > 0:
            return
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in _OWN_FILES)
        if others:
            raise StoreNotFound(str(path), f"the directory holds other things ({others[0]!r})")
    elif path.exists():
        raise StoreNotFound(str(path), "that is a file; a store is a directory")
    if not create:
        raise StoreNotFound(str(path), "nothing is there")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise StoreNotFound(str(path), f"it cannot be made ({error.strerror})") from None


_OWN_FILES = ("data.mdb", "lock.mdb")


def _open_environment(path: Path, durability: Durability, map_bytes: int) -> lmdb.Environment:
    durable = durability is Durability.DURABLE
    data = path / "data.mdb"
    existed = data.is_file() and data.stat().st_size > 0
    if existed and not (path / "lock.mdb").exists():
        # A copy without its lock file: refuse a foreign or future file before LMDB makes one (I10).
        _refuse_unreadable(path)
    engine: dict[str, Any] = {} if existed else {"lib_version": _LMDB_MAJOR}  # a file says its own
    while True:
        try:
            env = lmdb.open(
                str(path),
                map_size=map_bytes,
                mode=0o600,
                max_dbs=len(keys.TABLES) + 8,
                max_readers=READERS_MAX,
                sync=durable,
                metasync=durable,
                readahead=False,
                **engine,
            )
        except (lmdb.MemoryError, MemoryError):
            # The address space is limited (ulimit -v, a small container): start with less, grow later.
            map_bytes //= 4
            if map_bytes < MAP_BYTES_LEAST:
                raise
        except _NOT_LMDB:
            raise _not_lmdb(path) from None
        except lmdb.Error as error:
            raise StoreNotFound(str(path), f"it cannot be opened ({error})") from None
        else:
            env.reader_check()
            return env


_NOT_LMDB = (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError)


def _not_lmdb(path: Path) -> StoreDamaged:
    return StoreDamaged(str(path), check_pages(path) or ["data.mdb is not an LMDB file of a known version"])


def _refuse_unreadable(path: Path) -> None:
    """Look at the stamp without locks or writes; nobody has the file open, for it has no lock file."""
    try:
        with (
            lmdb.open(str(path), readonly=True, lock=False, max_dbs=1, map_size=MAP_BYTES_LEAST) as env,
            env.begin() as txn,
        ):
            if txn.get(b"meta") is None:
                if txn.stat()["entries"]:
                    raise StoreNotFound(str(path), "data.mdb is an LMDB file of another program")
                return
            stored = txn.get(keys.FORMAT_KEY, db=env.open_db(b"meta", txn=txn, create=False))
    except _NOT_LMDB:
        raise _not_lmdb(path) from None
    except lmdb.Error:
        return  # the real open says what is wrong
    if stored is not None:
        try:
            stamp = keys.decode_stamp(stored)
        except msgspec.MsgspecError:
            return
        if stamp.format > FORMAT_VERSION:
            raise FormatTooNew(str(path), stamp.format, FORMAT_VERSION)


def _sync_directory(path: Path) -> None:
    """Make the entry of a new file durable: fsync of the file alone does not."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
