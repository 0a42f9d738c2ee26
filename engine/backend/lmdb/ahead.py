"""Durable with one flush: transactions go to the write-ahead file, and reach `data.mdb` in the system's own time.

LMDB flushes twice for every transaction: its pages, then the page that makes them count. Here it does not flush at
all. What a transaction writes is flushed to the write-ahead file first; then LMDB commits to the page cache, where
every process sees it at once. So an acknowledged append is on the disk, and so is whatever a reader sees (I12).

After a power cut `data.mdb` may be anything: some pages new, some old. Recovery does not look at them. It goes back
to the last *settled* state, all of which was flushed, and writes the records of the file over it in one
transaction. The settled state is still there because LMDB never reuses a page that a reader may see, and every
process that writes keeps a reader open at a settled state, its *pin*. LMDB's own newest meta page may lead to pages
that were lost, so the header of the file keeps the one of the settled state.

Rules, each of which the next rests on:

1. The file is written under LMDB's writer lock only, or by who has the store alone.
2. Who writes without flushing has a pin at a settled state no newer than the one that the header names.
3. A record is on the disk before its transaction is committed, and between two records no transaction is missing.
   If anything else has written to `data.mdb` meanwhile, the next transaction settles first.
4. Recovery is for who has the store alone (`AheadFile.alone`), and is one transaction: cut short, it is done again.

SQLite's write-ahead log and its checkpoints are the model; that pages which LMDB may not reuse can stand in for a
rollback journal follows from its copy on write.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
import msgspec
from tailfold.engine.backend import directory, keys
from tailfold.engine.backend.gate import Gate
from tailfold.engine.backend.lmdb import metas
from tailfold.engine.backend.lmdb.ahead_file import FILE, AheadFile, Record
from tailfold.engine.backend.lmdb.faults import NO_ROOM, full
from tailfold.engine.backend.lmdb.writes import Noted, Writes, apply, read_noted
from tailfold.engine.errors import EngineError, OutcomeUnknown, StoreDamaged, StoreReadOnly

if TYPE_CHECKING:  # lmdb's classes take no parameters at run time
    _Txn = lmdb.Transaction[bytes]

PAGES_LEAST, PAGES_MOST = 1024, 4096
"""Pages written between two settlings: a quarter of the store, within these bounds. They cannot be reused until
then, so this is what a store is larger for; and settling flushes them at once, about 2 ms for 1,024 of 4 KiB."""
USED_MOST_BYTES = 4 << 20
"""Records of the file between two settlings; more only if one transaction has more."""
IDLE_S = 10.0
"""After so long without a write the store is settled and the pin let go."""
LAST_WAIT_S = 2.0
"""Closing waits so long for the thread that lets go of the pin."""
LOOK_S = 0.25
"""How often a process that has a pin looks whether another has settled, which makes its own pin useless, and costly
for the other: pages are not reused past it."""


def flush_data(env: lmdb.Environment) -> None:
    """Flush `data.mdb`: every page that was written before is on the disk on return."""
    env.sync(True)


class Ahead:
    """The write-ahead file of one environment, and the pin of this process."""

    def __init__(self, path: Path, file: AheadFile, env: lmdb.Environment, gate: Gate, *, noted: bool) -> None:
        self.path = path
        self.lock = threading.Lock()
        """Held from before a write transaction begins until it has ended."""
        self.noted = noted
        """Whether transactions are written to the file: not in the relaxed mode, nor where LMDB flushes."""
        self._file = file
        self._env = env
        self._gate = gate
        self._pin: _Txn | None = None
        self._pinned = (0, 0)
        """The headers when the pin was made."""
        self._wrote = False
        self._pages = 0
        self._pages_most = PAGES_LEAST
        self._last_write = 0.0
        self._keeper: threading.Event | None = None
        """Of the thread that lets go of the pin, while there is one: set once it has ended."""
        self._ended = threading.Event()
        self._metas = metas.Metas(path / "data.mdb")

    # -- writing ---------------------------------------------------------------------------------------

    def before_work(self, txn: int) -> None:
        """Make sure, at the beginning of transaction number *txn*, that it can be recovered once it is noted."""
        self._check_sound()
        header = self._file.header()
        self._last_write = time.monotonic()
        full = self._pages >= self._pages_most or self._file.used >= USED_MOST_BYTES
        if full or not header.active or not self._is_pinned() or not self._file.covers(txn - 1):
            self._settle(txn - 1, active=True)
            self._keep()

    def before_commit(self, txn: int, writes: Writes) -> bool:
        """Make durable what the open transaction number *txn* has written, before it is committed.

        Return whether that was too much for the file: then call `settle` once it is committed.
        """
        body = writes.body()
        self._pages += writes.pages
        self._file_work(lambda: self._file.append(txn, body))
        return not body

    def before_unnoted(self, txn: int) -> None:
        """End the records of other processes before open transaction number *txn*: it will not be among them."""
        self._check_sound()
        if self._file.header().active:
            self._settle(txn - 1, active=False)

    def settle(self) -> None:
        """Settle what was committed, and hold on. Outside any transaction."""
        with self._env.begin(write=True) as txn:
            self._settle(txn.id() - 1, active=True)

    def take_back(self, txn: int) -> None:
        """Void the record of transaction *txn* if it was not committed. Outside any transaction.

        Raises `OutcomeUnknown` if that cannot be told, or not be made durable.
        """
        try:
            with self._env.begin(write=True) as now:
                if now.id() <= txn:
                    self._file_work(lambda: self._file.take_back(txn))
        except lmdb.MapResizedError:
            pass  # another process has committed since: its record stands in the place of this one
        except (lmdb.Error, EngineError) as error:
            raise OutcomeUnknown(
                f"the disk of {self.path} failed ({error}): reopen the store and look what is there"
            ) from error
        finally:
            self._file.forget()

    def _settle(self, txn: int, *, active: bool) -> None:
        """Flush `data.mdb`, all of whose last transaction is *txn*, and begin a new generation of records.

        Under the writer's lock. Cut short anywhere, the header that stood still holds: its state is still
        there, for nothing has been written since.
        """
        self._check_sound()
        standing = self._file.header()
        try:
            # A new one whenever the store begins to be written to: a copy of it that goes on by itself is another
            # store from then on. On the disk before the header.
            mark = (self._metas.mark() if standing.active else b"") or self._metas.put_mark()
        except OSError as error:
            raise OutcomeUnknown(f"data.mdb of {self.path} cannot be marked ({error.strerror})") from error
        try:
            flush_data(self._env)
        except lmdb.Error:
            self._file.mark_failed()
            raise
        self._env.reader_check()  # a dead process's pin would keep pages from being used again
        pin = self._env.begin() if active else None
        try:
            try:
                now = self._metas.read()
            except OSError as error:
                raise OutcomeUnknown(f"data.mdb of {self.path} cannot be read ({error.strerror})") from error
            meta = metas.newest(now) if now is not None else b""
            if now is None or metas.txn_of(meta) != txn or (pin is not None and pin.id() != txn):
                why = f"the meta pages of data.mdb are not those of transaction {txn}"
                raise StoreDamaged(str(self.path), [why])
            if standing.generation == 0:
                directory.sync(self.path)  # the file is new
            self._file_work(lambda: self._file.write_header(active=active, txn=txn, meta=meta, store=mark))
            self._pin, pin = pin, self._pin
        finally:
            if pin is not None:
                pin.abort()
        self._pinned = self._file.generations()
        self._wrote = True
        self._pages = 0
        self._pages_most = min(PAGES_MOST, max(PAGES_LEAST, self._env.info()["last_pgno"] // 4))

    def _check_sound(self) -> None:
        """Refuse once `data.mdb` could not be flushed, here or elsewhere.

        A later flush may succeed without the pages that were lost, so nothing is settled from then on: recovery
        begins with a state that is on the disk, and writes the pages anew.
        """
        if self._file.failed:
            raise OutcomeUnknown(
                f"the disk of {self.path} has failed: close the store everywhere, open it again and look what is"
                " there"
            )

    def _is_pinned(self) -> bool:
        """Say whether the pin is alive: lmdb ends all transactions of an environment whose map is resized."""
        if self._pin is None:
            return False
        try:
            self._pin.id()
        except lmdb.Error:
            self.let_go()
        return self._pin is not None

    def let_go(self) -> None:
        """Give up the pin: before LMDB's map is resized, and when it is not needed."""
        pin, self._pin = self._pin, None
        if pin is not None:
            pin.abort()

    def _file_work(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            if error.errno in NO_ROOM:
                raise full(self.path, error.errno) from error
            raise OutcomeUnknown(
                f"the disk of {self.path} failed ({error}): reopen the store and look what is there"
            ) from error

    # -- letting go ------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the thread: on return it does not touch the environment any more, and no other is started."""
        self._ended.set()
        with self.lock:  # who has it may be starting one
            keeper = self._keeper
        if keeper is not None:
            keeper.wait(LAST_WAIT_S)  # if it takes longer, it is inside the gate

    def settle_last(self) -> None:
        """Settle, so that `data.mdb` alone is the store again. After `end`, with no transaction open."""
        try:
            # Without its file there is no store any more, and nothing to settle.
            while self._wrote and not self._file.failed and (self.path / "data.mdb").exists():
                try:
                    with self._env.begin(write=True) as txn:
                        if self._file.header().active:  # looked at under the lock: others write it
                            self._settle(txn.id() - 1, active=False)
                        return
                except lmdb.MapResizedError:
                    self.let_go()
                    self._env.set_mapsize(0)
        finally:
            self.let_go()

    def close(self) -> None:
        """Let go of the file: the last thing, for others may recover the store from then on."""
        self._metas.close()
        self._file.close()

    def _keep(self) -> None:
        """Start the thread that lets go of the pin in time."""
        if self._keeper is None and not self._ended.is_set():
            ended = threading.Event()
            # Not by `threading.Thread`, which waits until it runs: 0.25 ms of the first append.
            with suppress(RuntimeError):  # no threads left, or none at the end of the interpreter
                _thread.start_new_thread(self._keep_until_idle, (ended,))
                self._keeper = ended

    def _keep_until_idle(self, ended: threading.Event) -> None:
        try:
            self._keeping()
        finally:
            if self._keeper is ended:  # else the next one has begun already
                self._keeper = None
            ended.set()

    def _keeping(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                with self._gate, self.lock:
                    if self._file.generations() != self._pinned:
                        self.let_go()  # another process has settled since, and pins for itself what it needs
                    elif self._pin is not None and time.monotonic() - self._last_write > IDLE_S:
                        with self._env.begin(write=True) as txn:
                            self._settle(txn.id() - 1, active=False)
                    if self._pin is None or self._file.failed:
                        self._keeper = None
                        return
            except (lmdb.Error, EngineError, OSError):
                continue  # the header that stands still holds; the next write meets the error, or it has passed


# -- recovery ------------------------------------------------------------------------------------------


def go_back(path: Path, file: AheadFile) -> list[Noted]:
    """Make `data.mdb` the settled state, if it may be torn; return what to write over it.

    Before LMDB opens it, by who has the store alone. Raises `StoreDamaged`, with nothing changed, if file and
    `data.mdb` do not belong together, or records are missing or cannot be read.
    """
    header = file.header()
    if not header.active:
        return []
    records = list(file.records())
    noted = [_noted(path, record) for record in records if record.body]  # one without was never acknowledged
    last = records[-1].txn if records else header.txn
    data = path / "data.mdb"
    opened = metas.Metas(data)
    try:
        there, mark = opened.read(), opened.mark()
    finally:
        opened.close()
    if there is None:
        raise StoreDamaged(str(path), ["data.mdb has no meta pages of LMDB 0.9, and data.wal says that it should"])
    newest = metas.txn_of(metas.newest(there))
    if newest < header.txn:
        raise StoreDamaged(
            str(path),
            [f"{FILE} is of a later state (transaction {header.txn}) than data.mdb ({newest}): if data.mdb was put"
             f" back from a copy, move {FILE} away"],
        )  # fmt: skip
    if newest > last and not file.recovering:
        raise StoreDamaged(
            str(path),
            [f"{FILE} ends with transaction {last}, data.mdb with {newest}: records are missing. If the machine has"
             f" run without a break since the store was last used, move {FILE} away and run tailfold verify"],
        )  # fmt: skip
    if header.store != mark and header.store:
        raise StoreDamaged(
            str(path),
            [f"{FILE} does not belong to data.mdb: if data.mdb was put back from a copy, move {FILE} away"],
        )
    if newest == last and not records and not file.recovering:
        return []  # nothing was committed since it was settled
    size, needed = data.stat().st_size, metas.end_of(header.meta)
    if size < needed:
        raise StoreDamaged(
            str(path), [f"data.mdb has {size} bytes, the last page of its settled state ends at {needed}"]
        )
    try:
        file.mark_recovering(True)
        metas.put_back(data, header.meta)
    except OSError as error:
        raise StoreReadOnly(
            f"the store at {path} was not closed, and cannot be recovered here ({error.strerror}): open it once"
            " where it can be written to"
        ) from None
    return noted


def go_on(
    path: Path, file: AheadFile, noted: list[Noted], env: lmdb.Environment, tables: Mapping[str, lmdb._Database]
) -> None:
    """Write what `go_back` has returned over the settled state, flush it, and mark the file clean."""
    header = file.header()
    settled = header.txn
    if not file.recovering:  # there is nothing to recover
        file.write_header(active=False, txn=settled, meta=header.meta, store=header.store)
        return
    with env.begin(write=True) as txn:
        followed = txn.id() == settled + 1
        for one in noted:
            apply(txn, one, tables)
        _touch(txn, tables)  # a transaction in any case: it takes the place of one of the two pages put back
        txn.commit()
    flush_data(env)
    if not followed:  # another program has LMDB's lock file open, which counts on from the state that is gone
        with env.begin(write=True) as txn:
            _touch(txn, tables)
            txn.commit()
        flush_data(env)
    now = metas.read(path / "data.mdb")
    assert now is not None
    meta = metas.newest(now)
    file.write_header(active=False, txn=metas.txn_of(meta), meta=meta, store=header.store)
    # Its pages are not those of another copy any more that is recovered by itself.
    opened = metas.Metas(path / "data.mdb")
    try:
        opened.put_mark()
    finally:
        opened.close()
    file.mark_recovering(False)


def _touch(txn: _Txn, tables: Mapping[str, lmdb._Database]) -> None:
    txn.put(keys.FORMAT_KEY, txn.get(keys.FORMAT_KEY, db=tables["meta"]) or b"", db=tables["meta"])


def _noted(path: Path, record: Record) -> Noted:
    try:
        return read_noted(record.body, keys.TABLES)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(str(path), [f"{FILE}: transaction {record.txn} cannot be read ({error})"]) from None
