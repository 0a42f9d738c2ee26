"""One LMDB environment a process: its tables, its transactions, its map, its sharing, its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import lmdb
import msgspec
from tailfold.engine.backend import directory, keys
from tailfold.engine.backend.gate import Gate
from tailfold.engine.backend.lmdb import ahead_file
from tailfold.engine.backend.lmdb.ahead import Ahead, go_back, go_on
from tailfold.engine.backend.lmdb.ahead_file import AheadFile
from tailfold.engine.backend.lmdb.faults import no_room, translated
from tailfold.engine.backend.lmdb.heap import keep_heap
from tailfold.engine.backend.lmdb.opening import begin, give_up, make_tables, open_environment
from tailfold.engine.backend.lmdb.reading_ahead import ReadAhead
from tailfold.engine.backend.lmdb.watching import Watcher
from tailfold.engine.backend.lmdb.writes import Noted, UnnotedWrites, Writes
from tailfold.engine.backend.port import FORMAT_AHEAD, FORMAT_LEAST, FORMAT_VERSION, Durability
from tailfold.engine.errors import (
    BadArgument,
    EngineError,
    FormatTooNew,
    OutcomeUnknown,
    StoreDamaged,
    StoreNotFound,
)

_T = TypeVar("_T")


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
        self._format = FORMAT_LEAST
        file = begin(path, durability, map_bytes)
        try:
            noted = go_back(path, file) if file is not None and file.alone else []
            durable = durability is Durability.DURABLE
            self.env = open_environment(path, map_bytes, flushing=file is None and durable)
        except BaseException:
            give_up(file)
            raise
        try:
            self.file = _file(path)
            """Which file it is: a directory may be deleted and made anew while this is open."""
            self.watcher = Watcher(path / "data.mdb", self._last_transaction)
            self.tables = self._prepared(file, noted)
            by_file = durable and self._format >= FORMAT_AHEAD
            if file is not None and durable and not by_file:
                # Older releases know no write-ahead file, and may open this store as long as its stamp is theirs.
                # So LMDB flushes once more; the first write raises the stamp.
                self.env.close()
                self.env = open_environment(path, map_bytes, flushing=True)
                self.tables = self._prepared(None, [])
            if file is not None:
                self.ahead = Ahead(path, file, self.env, self.gate, noted=by_file)
        except BaseException as error:
            cut_short = file is not None and file.alone and file.recovering
            self.env.close()
            give_up(file)
            if cut_short and no_room(error, path):
                # Not `translated`: until it is through, the pages look damaged, and are not.
                raise EngineError(
                    f"the store at {path} was not closed, and cannot be recovered now ({error}). Nothing is lost:"
                    " open it again where there is room for it, in memory (ulimit -v) and on the disk"
                ) from error
            if isinstance(error, lmdb.Error):
                raise translated(error, path) from error
            raise
        self._names = {table: name for name, table in self.tables.items()}
        self.read_ahead = ReadAhead(path / "data.mdb", lambda: self.env.info()["map_size"])

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
                keep_heap()
                ahead_file.refuse_without_data(path)
                directory.prepare(path, create)
                try:
                    with ahead_file.opening(path):
                        if create:
                            directory.empty_unborn(path)
                        shared = cls._open[key] = cls(path, durability, map_bytes)
                except OSError as error:  # no descriptors left, most likely
                    raise EngineError(f"the store at {path} cannot be opened ({error.strerror})") from error
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
                    self._close()

    def _close(self) -> None:
        """Close, once no other thread is in a transaction: LMDB waits for ever for one that it is closed under.

        Ctrl-C is put off until then. A second one leaves all as it is, as a killed process does.
        """
        put_off = self._end()
        try:
            if self.durability is Durability.RELAXED and not self.env.flags()["readonly"]:
                self.env.sync(True)
            if self.ahead is not None:
                self.ahead.settle_last()
        except lmdb.Error as error:
            raise translated(error, self.path) from error
        finally:
            # In this order: whoever recovers the store must find LMDB's own lock file left by all.
            self.env.close()
            if self.ahead is not None:
                self.ahead.close()
        if put_off is not None:
            raise put_off

    def _end(self) -> KeyboardInterrupt | None:
        """Let nobody in any more, and wait until all have left; return the Ctrl-C that came meanwhile."""
        steps = [self.watcher.end, self.gate.end, self.gate.wait_until_empty]
        if self.ahead is not None:
            steps.insert(2, self.ahead.end)
        put_off: KeyboardInterrupt | None = None
        while True:
            try:
                while steps:  # each may be done again
                    steps[0]()
                    del steps[0]
                return put_off
            except KeyboardInterrupt as error:
                if put_off is not None:
                    raise
                put_off = error

    def write(self, work: Callable[[Writes], _T]) -> _T:
        """Run *work* in a write transaction, durable on return in the durable mode; whole or absent.

        Raises what LMDB raises, `lmdb.MapFullError` and `lmdb.MapResizedError` among it: then nothing was written.
        """
        ahead = self.ahead
        if ahead is None:
            with self.gate, self.env.begin(write=True) as txn:
                return self._done(txn, work(UnnotedWrites(txn, self._names)))
        if not ahead.noted:
            return self._write_unnoted(ahead, work)
        result, settle = self._write_ahead(ahead, work)
        if settle:
            self._settle(ahead)
        return result

    def _write_unnoted(self, ahead: Ahead, work: Callable[[Writes], _T]) -> _T:
        with self.gate, ahead.lock, self.env.begin(write=True) as txn:
            ahead.before_unnoted(txn.id())
            writes = UnnotedWrites(txn, self._names)
            result = work(writes)
            if self._format < FORMAT_AHEAD and self.durability is Durability.DURABLE:
                stamp = keys.raised(writes.get(keys.FORMAT_KEY, db=self.tables["meta"]) or b"", FORMAT_AHEAD)
                if stamp is not None:
                    writes.put(keys.FORMAT_KEY, stamp, db=self.tables["meta"])
                self._done(txn, None)
                self._format = FORMAT_AHEAD
                return result
            return self._done(txn, result)

    def _write_ahead(self, ahead: Ahead, work: Callable[[Writes], _T]) -> tuple[_T, bool]:
        with self.gate, ahead.lock:
            number = 0
            try:
                with self.env.begin(write=True) as txn:
                    ahead.before_work(txn.id())
                    writes = Writes(txn, self._names)
                    result = work(writes)
                    settle = False
                    if writes.any:
                        number = txn.id()
                        settle = ahead.before_commit(number, writes)
                    self._done(txn, None)
            except BaseException:
                if number:
                    ahead.take_back(number)
                raise
            return result, settle

    @staticmethod
    def _done(txn: lmdb.Transaction[bytes], result: _T) -> _T:
        """Commit, and raise if lmdb has ended the transaction: the end of its block would pass over that."""
        txn.commit()
        return result

    def _settle(self, ahead: Ahead) -> None:
        """Settle what was too much for the write-ahead file, and is committed."""
        while True:
            try:
                with self.gate, ahead.lock:
                    return ahead.settle()
            except lmdb.MapResizedError:
                self.adopt()
            except (lmdb.Error, EngineError) as error:
                raise OutcomeUnknown(
                    f"it was written, but may not last: {self.path} could not be flushed ({error}). Close the store"
                    " and open it again, and look what is there"
                ) from error

    def _prepared(self, file: AheadFile | None, noted: list[Noted]) -> dict[str, lmdb._Database]:
        """Prepare; start over with the new size if another process grows the map meanwhile."""
        while True:
            try:
                if file is not None and file.alone:
                    if file.header().active:
                        self._check_stamp(self.env.open_db(b"meta", create=False))
                        tables = {name: self.env.open_db(name.encode(), create=False) for name in keys.TABLES}
                        go_on(self.path, file, noted, self.env, tables)
                    file.mark_recovering(False)
                    if file.failed:
                        file.mark_failed(False)
                    file.share()
                return self._prepare()
            except lmdb.MapResizedError:
                self.env.set_mapsize(0)
            except lmdb.MapFullError:  # the process that was killed had a larger one
                self.env.set_mapsize(self.env.info()["map_size"] * 2)

    def _prepare(self) -> dict[str, lmdb._Database]:
        """Check the stamp and open the tables; make both in one transaction if the file is new (I10)."""
        needed = (self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"]
        size = (self.path / "data.mdb").stat().st_size  # after that: others may be writing
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
        tables = make_tables(self.env, FORMAT_LEAST)
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
                self._resize(seen_bytes * 2)

    def adopt(self) -> None:
        """Take over the map size that another process has grown to."""
        with self.gate.alone():
            self._resize(0)

    def _resize(self, size: int) -> None:
        if self.ahead is not None:
            self.ahead.let_go()  # lmdb ends every open transaction, and a pin with it
        self.env.set_mapsize(size)


def _file(path: Path) -> tuple[int, int] | None:
    try:
        found = (path / "data.mdb").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
