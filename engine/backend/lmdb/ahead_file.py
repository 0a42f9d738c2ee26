"""The write-ahead file, `data.wal`: what the newest transactions wrote, on the disk with one flush each.

Two header slots of 4 KiB, written in turn, then records from byte 8,192 on. A header says which state of `data.mdb`
is *settled*: wholly on the disk, and kept there while the header is *active*. The records behind it are the
transactions since then, each with the number of its transaction, so that none can be missing between two. Every
header begins a new *generation*; records of an older one are passed over, and their bytes written over.

Only layout, locks and flushes here; what they are for is in `ahead`. The file is sound after a power cut if writing
a block again does not harm what it held before, which SQLite calls *powersafe overwrite*.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from tailfold.engine.errors import StoreDamaged, StoreReadOnly

if TYPE_CHECKING:
    import fcntl
else:
    try:
        import fcntl
    except ImportError:  # Windows: no write-ahead file there, LMDB flushes for itself
        fcntl = None

SUPPORTED = fcntl is not None and struct.calcsize("P") == 8 and sys.byteorder == "little"
"""Whether the locks are there, and LMDB's meta pages are laid out as `metas` knows them."""
FILE = "data.wal"
MAGIC = b"tailwal1"
SLOT_BYTES = 4096
RECORDS_AT = 2 * SLOT_BYTES
FIRST_BYTES = 64 << 10
"""Zeros written ahead for the records, doubled when they are used up: overwriting flushes faster than growing."""
GROWTH_MOST_BYTES = 1 << 20
WAIT_S = 0.01
"""Between two looks whether a lock is to be had."""
KEPT_BYTES = 4 << 20
"""A file that has become longer than this is cut back with the next header."""

_HEAD = struct.Struct("<8sIIQ")  # magic, CRC-32 of what follows it, length of the body, generation
_RECORD = struct.Struct("<IIQQ")  # CRC-32 of what follows it, length of the body, generation, transaction
_GENERATION = struct.Struct("<Q")
_GENERATION_AT = 16
_FAILED_AT = SLOT_BYTES - 1
"""In the first slot, past any header: not zero once `data.mdb` could not be flushed."""
_RECOVERING_AT = SLOT_BYTES - 2
"""There too: not zero while the store is being recovered from what the header that stands says."""
_SURE_AT = SLOT_BYTES - 16
"""There too: the newest generation whose header is known to be on the disk. Written after the flush of that, not
flushed itself; so what it says is true wherever it is seen, but for a copy of the file."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What the file says of `data.mdb`. Later formats append fields."""

    generation: int
    active: bool
    """A process may write without flushing `data.mdb`: only the settled state and the records can be relied on."""
    txn: int
    """Number of the transaction that made the settled state."""
    meta: bytes
    """LMDB's meta page as that transaction wrote it: what makes LMDB find that state."""
    store: bytes = b""
    """The mark of the data file (`metas.MARK_AT`) that all this is about; empty if it has none."""


class Record(NamedTuple):
    """One transaction."""

    txn: int
    body: bytes
    end: int


NOTHING = Header(0, False, 0, b"")
_decode = msgspec.msgpack.Decoder(Header).decode
_encode = msgspec.msgpack.Encoder().encode


class AheadFile:
    """An open write-ahead file, locked against recovery by others while it is open.

    Its headers and records are only written under LMDB's writer lock, or by who is alone.
    """

    def __init__(self, store: Path, raw: FileIO, *, alone: bool, made: bool) -> None:
        self.store = store
        self.alone = alone
        """Nobody else has the store open: after a crash, this process is the one to recover it."""
        self.made = made
        """The file was not there before."""
        self._raw = raw  # closes itself if nobody else does
        self._handle = raw.fileno()
        if os.fstat(self._handle).st_size < RECORDS_AT:
            os.ftruncate(self._handle, RECORDS_AT)
        self._slots = mmap.mmap(self._handle, RECORDS_AT, access=mmap.ACCESS_READ)
        self._bytes = os.fstat(self._handle).st_size
        self._seen: tuple[int, int] = (-1, -1)
        self._header = NOTHING
        # Where the records end, where the last of them begins, its transaction, and whether it can be done again.
        self._end = self._before = RECORDS_AT
        self._last = 0
        self._whole = True

    @classmethod
    def open(cls, store: Path) -> AheadFile | None:
        """Open or make the file of *store* and share it with other processes. Inside `opening`.

        Return None where LMDB has to flush by itself: on a medium that cannot be written to, or a system without
        such locks. Raises `StoreReadOnly` if the file cannot be written although `data.mdb` can: the next recovery
        would undo what is written past it.
        """
        if not SUPPORTED:
            _refuse_active(store, "this system has no locks for it")
            return None
        made = not (store / FILE).exists()
        try:
            raw = FileIO(store / FILE, "r+", opener=_opener)
        except OSError as error:
            if error.errno == errno.EROFS or not os.access(store / "data.mdb", os.W_OK):
                return None
            if error.errno in (errno.EACCES, errno.EPERM):
                raise StoreReadOnly(
                    f"{FILE} of the store at {store} cannot be written ({error.strerror})"
                ) from None
            raise
        try:
            try:
                alone = _lock(raw.fileno())
            except OSError as error:
                raw.close()
                if error.errno in _NO_LOCKS:
                    _refuse_active(store, "its medium has no locks for it")
                    return None
                raise
            file = cls(store, raw, alone=alone, made=made)
            while not file.alone and file.recovering:
                # Whoever recovered it is dying: the system lets go of its locks one after another.
                fcntl.flock(raw.fileno(), fcntl.LOCK_UN)
                time.sleep(WAIT_S)
                file.alone = _lock(raw.fileno())
            return file
        except BaseException:
            raw.close()  # the error may be kept for long, and the lock with it
            raise

    def share(self) -> None:
        """Let others in, after having been alone."""
        if self.alone:
            fcntl.flock(self._handle, fcntl.LOCK_SH)
            self.alone = False

    def close(self) -> None:
        """Let go of the file; cut it back if it is clean and nobody else has it open."""
        with suppress(OSError, StoreDamaged), opening(self.store, wait=False):
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self.header().active and self._bytes > RECORDS_AT + FIRST_BYTES:
                os.ftruncate(self._handle, RECORDS_AT + FIRST_BYTES)
            fcntl.flock(self._handle, fcntl.LOCK_UN)  # before the next one opens, who would not be alone
        self._slots.close()
        with suppress(OSError):  # a forked child has the same lock, and would keep it
            fcntl.flock(self._handle, fcntl.LOCK_UN)
        self._raw.close()

    # -- header ----------------------------------------------------------------------------------------

    def header(self) -> Header:
        """Return the header that stands; looked at anew if any process has written one since.

        Raises `StoreDamaged` if there is one and it cannot be read.
        """
        seen = self.generations()
        if seen != self._seen:
            self._header = newest(self._slots[:], self.store)
            self._bytes = os.fstat(self._handle).st_size
            self.forget()
            if self._header.generation == max(seen):  # else it was seen while it was being written
                self._seen = seen
        return self._header

    def generations(self) -> tuple[int, int]:
        """Return what changes whenever a process writes a header. Needs no lock, unlike `header`."""
        read = _GENERATION.unpack_from
        return read(self._slots, _GENERATION_AT)[0], read(self._slots, SLOT_BYTES + _GENERATION_AT)[0]

    def write_header(self, *, active: bool, txn: int, meta: bytes, store: bytes) -> None:
        """Begin a new generation: what the records before it say is settled. On the disk on return."""
        standing = self.header()
        self._make_sure()  # or, cut short, this one would leave neither
        header = Header(standing.generation + 1, active, txn, meta, store)
        self._write_slot(header)
        if self._bytes > RECORDS_AT + KEPT_BYTES:  # not before: the header that stood may still need them
            os.ftruncate(self._handle, RECORDS_AT + FIRST_BYTES)

    def _write_slot(self, header: Header) -> None:
        body = _encode(header)
        rest = _HEAD.pack(b"", 0, len(body), header.generation)[12:] + body
        slot = (MAGIC + zlib.crc32(rest).to_bytes(4, "little") + rest).ljust(_SURE_AT, b"\0")
        write_all(self._handle, slot, header.generation % 2 * SLOT_BYTES)
        flush(self._handle)
        os.pwrite(self._handle, _GENERATION.pack(header.generation), _SURE_AT)

    @property
    def sure(self) -> bool:
        """The header that stands is known to be on the disk."""
        return bool(_GENERATION.unpack_from(self._slots, _SURE_AT)[0] == self.header().generation)

    def _make_sure(self) -> None:
        """Flush the header that stands, unless it is known to be on the disk.

        Whoever wrote it may have died, or its flush failed, before that; records of its generation would then be
        written over those that the header on the disk still needs. Where there are records of it, that was done.
        """
        header = self.header()
        if header.generation > 0 and not self.sure and next(self.records(), None) is None:
            self._write_slot(header)

    @property
    def failed(self) -> bool:
        """Some process could not flush `data.mdb`: no later flush can be believed until the store is recovered."""
        return self._slots[_FAILED_AT] != 0

    def mark_failed(self, failed: bool = True) -> None:
        """Tell all processes; not flushed, for after a power cut the store is recovered in any case."""
        os.pwrite(self._handle, b"\1" if failed else b"\0", _FAILED_AT)

    @property
    def recovering(self) -> bool:
        """A recovery from the header that stands has begun and has not ended; it may have been cut short."""
        return self._slots[_RECOVERING_AT] != 0 and self.header().active

    def mark_recovering(self, recovering: bool) -> None:
        """Say so to whoever opens the store next, also after a power cut. By who is alone."""
        os.pwrite(self._handle, b"\1" if recovering else b"\0", _RECOVERING_AT)
        if recovering:
            flush(self._handle)

    # -- records ---------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes of the records of this generation."""
        return self._end - RECORDS_AT

    def covers(self, txn: int) -> bool:
        """Say whether the settled state and the records reach up to *txn*, the newest transaction of `data.mdb`.

        A record past it stands for a transaction that was not committed: the next one is written over it.
        """
        if self._last < txn:
            for record in self.records(self._last, self._end):
                whole = bool(record.body)
                self._before, self._end, self._last, self._whole = self._end, record.end, record.txn, whole
                if record.txn > txn:
                    break
        if self._last == txn + 1:
            self._end, self._last = self._before, txn
            # What stands before it was covered once, so it is whole.
            self._whole = True
        return self._last == txn and self._whole

    def append(self, txn: int, body: bytes) -> None:
        """Write what *txn* wrote, or an empty *body* for a transaction that recovery has to undo.

        On the disk on return. Only after `covers` has said so of the transaction before it.
        """
        header = self.header()
        if self._end == RECORDS_AT:
            self._make_sure()
        rest = _RECORD.pack(0, len(body), header.generation, txn)[4:] + body
        data = zlib.crc32(rest).to_bytes(4, "little") + rest
        end = self._end + len(data)
        if end > self._bytes:
            grown = max(end, min(self._bytes * 2, self._bytes + GROWTH_MOST_BYTES), RECORDS_AT + FIRST_BYTES)
            data += bytes(grown - end)
            self._bytes = grown
        try:
            write_all(self._handle, data, self._end)
            flush(self._handle)
        except BaseException:
            self._seen = (-1, -1)  # nobody knows what is there now: look at everything anew
            raise
        self._before, self._end, self._last, self._whole = self._end, end, txn, bool(body)

    def take_back(self, txn: int) -> None:
        """Void the record of *txn*, if there is one: the transaction was not committed. Under the writer's lock."""
        at = RECORDS_AT
        for record in self.records():
            if record.txn == txn:
                os.pwrite(self._handle, bytes(_RECORD.size), at)
                flush(self._handle)
                return
            at = record.end

    def forget(self) -> None:
        """Look anew for the end of the records: a transaction of ours may not have been committed."""
        self._end = self._before = RECORDS_AT
        self._last = self._header.txn
        self._whole = True

    def records(self, last: int | None = None, at: int = RECORDS_AT) -> Iterator[Record]:
        """Yield the records of this generation that stand behind transaction *last*, without a gap."""
        header = self.header()
        expected = (header.txn if last is None else last) + 1
        while True:
            head = os.pread(self._handle, _RECORD.size, at)
            if len(head) < _RECORD.size:
                return
            check, length, generation, txn = _RECORD.unpack(head)
            if generation != header.generation or txn != expected:
                return
            body = os.pread(self._handle, length, at + _RECORD.size)
            if len(body) < length or zlib.crc32(body, zlib.crc32(head[4:])) != check:
                return
            at += _RECORD.size + length
            expected += 1
            yield Record(txn, body, at)


@contextmanager
def opening(store: Path, *, wait: bool = True) -> Iterator[None]:
    """Be the only process that opens *store*, or gives it up: who waits for a recovery that is cut short is the
    next to see that the store has to be recovered.

    Without *wait* an `OSError` if another process is. No lock where the system or the medium has none.
    """
    if not SUPPORTED:
        yield
        return
    try:
        handle = os.open(store, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:  # its files may be used, its list may not be seen
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        with suppress(OSError):  # not only closed: a forked child may have it as well
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def newest(slots: bytes, store: Path) -> Header:
    """Return the newer of the two headers that can be read; `NOTHING` if none was ever written as a whole.

    One that was cut short leaves the other, and then nothing has relied on it yet.
    """
    starts = (0, SLOT_BYTES)
    found = [header for start in starts if (header := _slot(slots[start : start + SLOT_BYTES])) is not None]
    if found:
        return max(found, key=lambda header: header.generation)
    if all(any(slots[start : start + _SURE_AT]) for start in starts):
        raise StoreDamaged(
            str(store),
            [f"{FILE} cannot be read: if the machine has run without a break since the store was last used, move"
             " that file away and run tailfold verify; else take a backup"],
        )  # fmt: skip
    return NOTHING


def peek(store: Path) -> Header:
    """Return the header without opening the file for writing or locking it; `NOTHING` if there is no file.

    Raises `StoreReadOnly` if it may not be read: nobody can tell then whether `data.mdb` is whole.
    """
    try:
        with (store / FILE).open("rb") as file:
            return newest(file.read(RECORDS_AT), store)
    except FileNotFoundError:
        return NOTHING
    except OSError as error:
        raise StoreReadOnly(f"{FILE} of the store at {store} cannot be read ({error.strerror})") from None


def refuse_without_data(store: Path) -> None:
    """Raise `StoreDamaged` if `data.mdb` is gone from a store that was written to: a new one would hide that."""
    data = store / "data.mdb"

    def there() -> bool:
        return data.is_file() and data.stat().st_size > 0

    # Looked at again: another process may be making the store, its data first.
    if SUPPORTED and store.is_dir() and not there() and peek(store).generation and not there():
        raise StoreDamaged(
            str(store),
            [f"data.mdb is missing or empty, and {FILE} says that a store was here: bring data.mdb back to it; to"
             " begin anew, take the directory away"],
        )  # fmt: skip


def _lock(handle: int) -> bool:
    """Be alone with the file if nobody else has it open, or share it; return whether alone.

    Neither is to be had while somebody is alone with it, who recovers it or dies.
    """
    while True:
        for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            with suppress(BlockingIOError):
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
                return kind == fcntl.LOCK_EX
        time.sleep(WAIT_S)


def _refuse_active(store: Path, why: str) -> None:
    if peek(store).active:
        raise StoreReadOnly(
            f"the store at {store} was not closed, and {why} ({FILE}): open it once where it was written to"
        )


def _opener(path: str, _: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _slot(data: bytes) -> Header | None:
    if len(data) < _HEAD.size:
        return None
    magic, check, length, generation = _HEAD.unpack_from(data)
    rest = data[12 : _HEAD.size + length]
    if magic != MAGIC or _HEAD.size + length > len(data) or zlib.crc32(rest) != check:
        return None
    try:
        header = _decode(data[_HEAD.size : _HEAD.size + length])
    except msgspec.MsgspecError:
        return None
    return header if header.generation == generation else None


def write_all(handle: int, data: bytes, at: int) -> None:
    """Write *data*, also if the system takes it in pieces."""
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written


def _flush_of_system() -> Callable[[int], None]:
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:  # macOS: fsync leaves it in the drive's cache
        return lambda handle: (fcntl.fcntl(handle, full), None)[1]
    return getattr(os, "fdatasync", os.fsync)


flush = _flush_of_system()
