"""What errors of LMDB mean here, and what a look at every page of its file finds."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import lmdb
import lmdb.verify
from tailfold.engine.errors import (
    EngineError,
    OutcomeUnknown,
    StoreClosed,
    StoreDamaged,
    StoreFull,
    StoreReadOnly,
)

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk is full, or the user's share of it, or the file is as large as this process may make one (ulimit -f)."""
_ROOM_BYTES = 1 << 20
"""Less than this is too little for a transaction: a write that was cut short met the end of it."""


def check_pages(path: Path) -> list[str]:
    """Walk every page of the file without handing it to LMDB; return findings, empty if sound."""
    try:
        return list(lmdb.verify.verify(str(path)))  # type: ignore[no-untyped-call]
    except (lmdb.verify.VerifyError, OSError) as error:
        return [str(error)]


def name_of(path: Path, stored: bytes) -> str:
    """Return a name as it stands in the store; raise `StoreDamaged` if it is none."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        raise StoreDamaged(str(path), [f"a name is not UTF-8: {stored!r}"]) from None


def translated(error: lmdb.Error, path: Path) -> EngineError:
    """Return what an error of LMDB means here."""
    if isinstance(error, lmdb.DiskError) or code_of(error) in NO_ROOM or _is_full(error, path):
        return full(path, code_of(error))
    if isinstance(error, lmdb.ReadonlyError) or code_of(error) in (errno.EROFS, errno.EACCES):
        return StoreReadOnly(f"the store at {path} can only be read: nothing was written")
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
        return StoreDamaged(str(path), check_pages(path) or [str(error)])
    if code_of(error) == errno.EIO or isinstance(error, lmdb.PanicError):
        return OutcomeUnknown(f"the disk of {path} failed ({error}): reopen the store and look")
    if "closed/deleted/dropped" in str(error):  # lmdb has no class for it
        return StoreClosed(f"the store at {path} was closed by another thread meanwhile: open it again")
    return StoreDamaged(str(path), check_pages(path) or [f"LMDB says: {error}"])


def full(path: Path, code: int) -> StoreFull:
    """Return the error for one of `NO_ROOM`."""
    what = f" ({os.strerror(code)})" if code in NO_ROOM - {errno.ENOSPC} else ""
    return StoreFull(f"no room left on the disk of {path}{what}: nothing was written")


def no_room(error: BaseException, path: Path) -> bool:
    """Say whether memory or disk were too small: what is stored is none the worse for it."""
    if isinstance(error, lmdb.Error):
        out = isinstance(error, lmdb.MemoryError | lmdb.MapFullError) or code_of(error) == errno.ENOMEM
        return out or isinstance(translated(error, path), StoreFull)
    return isinstance(error, MemoryError)


def code_of(error: lmdb.Error) -> int:
    """Return the system's error number; lmdb's own complaints have none."""
    return int(getattr(error, "code", 0))


def _is_full(error: lmdb.Error, path: Path) -> bool:
    """Say whether an I/O error was a short write for want of room, which LMDB reports as such."""
    if code_of(error) != errno.EIO or resource is None:
        return False
    disk = os.statvfs(path)
    if disk.f_bavail * disk.f_frsize < _ROOM_BYTES:
        return True
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return most != resource.RLIM_INFINITY and most < (path / "data.mdb").stat().st_size + _ROOM_BYTES
