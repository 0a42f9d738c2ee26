"""One LMDB environment: opening it, refusing what is no store, its tables, its map, its sharing."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import lmdb.verify
import msgspec
from tailfold.engine.backend import directory, keys
from tailfold.engine.backend.gate import Gate
from tailfold.engine.backend.lmdb import ahead_file, metas
from tailfold.engine.backend.lmdb.ahead import Ahead, go_back, go_on
from tailfold.engine.backend.lmdb.ahead_file import AheadFile
from tailfold.engine.backend.lmdb.watching import Watcher
from tailfold.engine.backend.lmdb.writes import Noted, UnnotedWrites, Writes
from tailfold.engine.backend.port import FORMAT_AHEAD, FORMAT_LEAST, FORMAT_VERSION, Durability
from tailfold.engine.errors import (
    BadArgument,
    EngineError,
    FormatTooNew,
    OutcomeUnknown,
    StoreDamaged,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
)

_T = TypeVar("_T")

MAP_BYTES = 256 << 30
"""Address space reserved at open. The file is sparse: only what is written takes disk."""
MAP_BYTES_LEAST = 1 << 28
READERS_MAX = 1024

# Without this the interpreter stands still while the disk works, and an event loop with it. Costs nothing that
# the benchmarks can see.
lmdb.enable_drop_gil()

_LMDB_MAJOR = 0  # new stores are made by the 0.9 engine: the format that ten years of tools read


class Environment:
    """One opened LMDB environment, shared by every backend of this process on the same path.

    LMDB forbids opening one environment twice in a process: closing the second would drop the file locks
    of the first.
    """

    _open: dict[str, Environment] = {}
    _opening = threading.Lock()

    def __init__(self, path: Path, durability: Durability, map_bytes: int) -> None:
        self.path = path
        self.durability = durability
        self.pid = os.getpid()
        self.users = 0
        self.gate = Gate()
        self.ahead: Ahead | None = None
        existed = _holds_data(path)
        if existed and not (path / "lock.mdb").exists() and not ahead_file.peek(path).active:
            # A copy without its lock file: refuse a foreign or future file before anything is written (I10).
            _refuse_unreadable(path)
        if not existed and durability is Durability.DURABLE:
            _make_flushed(path, map_bytes)  # from here on there is a store, or there is none
        file = _open_ahead(path) if not existed or metas.read(path / "data.mdb") is not None else None
        try:
            if file is not None and file.alone and not existed:
                file.disown()  # it may be left of a store whose data.mdb was taken away
            noted = go_back(path, file) if file is not None and file.alone else []
            flushing = file is None and durability is Durability.DURABLE
            self.env = _open_environment(path, map_bytes, flushing=flushing)
        except BaseException:
            if file is not None:
                file.close()
            raise
        self.file = _file(path)
        """Which file it is: a directory may be deleted and made anew while this is open."""
        self.watcher = Watcher(path / "data.mdb", self._last_transaction)
        try:
            self.tables = self._prepared(file, noted)
            if file is not None:
                self.ahead = Ahead(path, file, self.env, self.gate, noted=durability is Durability.DURABLE)
        except BaseException as error:
            self.env.close()
            if file is not None:
                file.close()
            if isinstance(error, lmdb.Error):
                raise translated(error, path) from error
            raise
        self._names = {table: name for name, table in self.tables.items()}

    @classmethod
    def acquire(cls, path: Path, durability: Durability, map_bytes: int, create: bool) -> Environment:
        """Return the environment of *path*, opened now or by an earlier user in this process."""
        with cls._opening:
            key = os.path.realpath(path)
            shared = cls._open.get(key)
            if shared is not None and shared.pid == os.getpid() and shared.file == _file(path):
                if shared.durability is not durability:
                    raise BadArgument(
                        f"the store at {path} is open in this process as {shared.durability.value};"
                        " close it before opening it another way"
                    )
            else:
                directory.prepare(path, create)
                shared = cls._open[key] = cls(path, durability, map_bytes)
            shared.users += 1
            return shared

    def release(self) -> None:
        """Let go of the environment; the last user closes it."""
        with self._opening:
            self.users -= 1
            if self.users == 0:
                for key, shared in list(self._open.items()):
                    if shared is self:
                        del self._open[key]
                if self.pid == os.getpid():  # a forked child must not touch its parent's locks
                    self.watcher.end()
                    self._close()

    def _close(self) -> None:
        try:
            if self.durability is Durability.RELAXED and not self.env.flags()["readonly"]:
                self.env.sync(True)
            if self.ahead is not None:
                self.ahead.end()
        except lmdb.Error as error:
            raise translated(error, self.path) from error
        finally:
            self.env.close()

    def write(self, work: Callable[[Writes], _T]) -> _T:
        """Run *work* in a write transaction, durable on return in the durable mode; whole or absent.

        Raises what LMDB raises, `lmdb.MapFullError` and `lmdb.MapResizedError` among it: then nothing was written.
        """
        ahead = self.ahead
        if ahead is None:
            with self.gate, self.env.begin(write=True) as txn:
                return work(UnnotedWrites(txn, self._names))
        if not ahead.noted:
            with self.gate, ahead.lock, self.env.begin(write=True) as txn:
                ahead.before_relaxed(txn.id())
                return work(UnnotedWrites(txn, self._names))
        if self._format < FORMAT_AHEAD:
            self._raise_format(ahead)
        result, settle = self._write_ahead(ahead, work)
        if settle:
            self._settle(ahead)
        return result

    def _write_ahead(self, ahead: Ahead, work: Callable[[Writes], _T]) -> tuple[_T, bool]:
        with self.gate, ahead.lock:
            number = 0
            try:
                with self.env.begin(write=True) as txn:
                    writes = Writes(txn, self._names)
                    result = work(writes)
                    settle = False
                    if writes.any:
                        number = txn.id()
                        settle = ahead.before_commit(number, writes)
            except BaseException:
                if number:
                    ahead.take_back(number)
                raise
            return result, settle

    def _settle(self, ahead: Ahead) -> None:
        while True:
            try:
                with self.gate, ahead.lock:
                    return ahead.settle()
            except lmdb.MapResizedError:
                self.adopt()

    def _raise_format(self, ahead: Ahead) -> None:
        """Raise the stamp of an older store before its first record: older releases know no write-ahead file."""

        def work(writes: Writes) -> None:
            stamp = keys.raised(writes.get(keys.FORMAT_KEY, db=self.tables["meta"]) or b"", FORMAT_AHEAD)
            if stamp is not None:
                writes.put(keys.FORMAT_KEY, stamp, db=self.tables["meta"])

        self._write_ahead(ahead, work)
        self._settle(ahead)
        self._format = FORMAT_AHEAD

    def _prepared(self, file: AheadFile | None, noted: list[Noted]) -> dict[str, lmdb._Database]:
        """Prepare; start over with the new size if another process grows the map meanwhile."""
        while True:
            try:
                if file is not None and file.alone:
                    if file.header().active:
                        tables = {name: self.env.open_db(name.encode(), create=False) for name in keys.TABLES}
                        go_on(self.path, file, noted, self.env, tables)
                    file.share()
                return self._prepare()
            except lmdb.MapResizedError:
                self.env.set_mapsize(0)

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
        if not new or self.env.flags()["readonly"]:
            return {name: self.env.open_db(name.encode(), create=False) for name in keys.TABLES}
        tables = _make(self.env, FORMAT_LEAST)
        self._check_stamp(tables["meta"])
        directory.sync(self.path)
        directory.sync(self.path.parent)
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
        self._format = stamp.format

    def _last_transaction(self) -> int:
        """Return the number of the last transaction that readers see; not the meta page's, which is ahead."""
        try:
            with self.gate, self.env.begin() as txn:
                return int(txn.id())
        except lmdb.Error:  # another process has grown the map: whoever looks takes that over
            return -1

    def grow(self, seen_bytes: int) -> None:
        """Double the map after MapFull, unless another thread has done so since *seen_bytes*."""
        with self.gate.alone():
            if self.env.info()["map_size"] == seen_bytes:
                self.env.set_mapsize(seen_bytes * 2)

    def adopt(self) -> None:
        """Take over the map size that another process has grown to."""
        with self.gate.alone():
            self.env.set_mapsize(0)


def _file(path: Path) -> tuple[int, int] | None:
    try:
        found = (path / "data.mdb").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_pages(path: Path) -> list[str]:
    """Walk every page of the file without handing it to LMDB; return findings, empty if sound."""
    try:
        return list(lmdb.verify.verify(str(path)))  # type: ignore[no-untyped-call]
    except (lmdb.verify.VerifyError, OSError) as error:
        return [str(error)]


def translated(error: lmdb.Error, path: Path) -> EngineError:
    """Return what an error of LMDB means here."""
    if isinstance(error, lmdb.DiskError) or _code(error) == errno.ENOSPC or _is_full(error, path):
        return StoreFull(f"no room left on the disk of {path}: nothing was written")
    if isinstance(error, lmdb.ReadonlyError) or _code(error) in (errno.EROFS, errno.EACCES):
        return StoreReadOnly(f"the store at {path} can only be read: nothing was written")
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
        return StoreDamaged(str(path), check_pages(path) or [str(error)])
    if _code(error) in (errno.EIO, errno.EFBIG) or isinstance(error, lmdb.PanicError):
        return OutcomeUnknown(f"the disk of {path} failed ({error}): reopen the store and look")
    return StoreDamaged(str(path), check_pages(path) or [f"LMDB says: {error}"])


def _code(error: lmdb.Error) -> int:
    """Return the system's error number; lmdb's own complaints have none."""
    return int(getattr(error, "code", 0))


def _is_full(error: lmdb.Error, path: Path) -> bool:
    """Say whether an I/O error was a short write on a full disk, which LMDB reports as such."""
    if _code(error) != errno.EIO or not hasattr(os, "statvfs"):
        return False
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize < 1 << 20


def _holds_data(path: Path) -> bool:
    data = path / "data.mdb"
    return data.is_file() and data.stat().st_size > 0


def _open_ahead(path: Path) -> AheadFile | None:
    try:
        return AheadFile.open(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StoreFull(f"no room left on the disk of {path}: nothing was written") from None
        raise StoreNotFound(str(path), f"{ahead_file.FILE} cannot be opened ({error.strerror})") from None


def _make_flushed(path: Path, map_bytes: int) -> None:
    """Make a new store, all of it on the disk on return."""
    env = _open_environment(path, map_bytes, flushing=True)
    try:
        _make(env, FORMAT_AHEAD if ahead_file.SUPPORTED else FORMAT_LEAST)
    except lmdb.Error as error:
        raise translated(error, path) from error
    finally:
        env.close()
    directory.sync(path)
    directory.sync(path.parent)


def _make(env: lmdb.Environment, format: int) -> dict[str, lmdb._Database]:
    """Make the tables and the stamp in one transaction."""
    with env.begin(write=True) as txn:
        tables = {name: env.open_db(name.encode(), txn=txn) for name in keys.TABLES}
        stamp = keys.Stamp(format, time.time_ns(), "tailfold")
        # Another process may have been first: the stamp that is there stands.
        txn.put(keys.FORMAT_KEY, keys.encode(stamp), overwrite=False, db=tables["meta"])
    return tables


def _open_environment(path: Path, map_bytes: int, *, flushing: bool) -> lmdb.Environment:
    """Open LMDB's files; *flushing* if LMDB has to make every transaction durable by itself."""
    existed = _holds_data(path)
    engine: dict[str, Any] = {} if existed else {"lib_version": _LMDB_MAJOR}  # a file says its own
    while True:
        try:
            env = lmdb.open(
                str(path),
                map_size=map_bytes,
                mode=0o600,
                max_dbs=len(keys.TABLES) + 8,
                max_readers=READERS_MAX,
                sync=flushing,
                metasync=flushing,
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
            if existed and _code(error) in (errno.EROFS, errno.EACCES, errno.EPERM):
                return _open_to_read(path, map_bytes)
            if not existed:
                directory.discard(path)
            if _code(error) == errno.ENOSPC:
                raise StoreFull(f"no room left on the disk of {path}: the store was not made") from None
            raise StoreNotFound(str(path), f"it cannot be opened ({error})") from None
        else:
            env.reader_check()
            return env


def _open_to_read(path: Path, map_bytes: int) -> lmdb.Environment:
    """Open a store on a medium that cannot be written to. Without locks: nobody can write to it meanwhile."""
    header = ahead_file.peek(path)
    if header.active and header.boot != ahead_file.boot():
        raise StoreReadOnly(
            f"the store at {path} was not closed before the machine stopped, and can only be read here: open it"
            " once where it can be written to"
        )
    try:
        return lmdb.open(
            str(path), readonly=True, lock=False, max_dbs=len(keys.TABLES) + 8, map_size=map_bytes, readahead=False
        )
    except _NOT_LMDB:
        raise _not_lmdb(path) from None
    except lmdb.Error as error:
        raise StoreNotFound(str(path), f"it cannot be opened ({error})") from None


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
