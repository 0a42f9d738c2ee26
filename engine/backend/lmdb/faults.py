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


def check_pages(path: Path) -> list[str]:
    """Walk every page of the file without handing it to LMDB; return findings, empty if sound."""
    try:
        return list(lmdb.verify.verify(str(path)))  # type: ignore[no-untyped-call]
    except (lmdb.verify.VerifyError, OSError) as error:
        return [str(error)]


def translated(error: lmdb.Error, path: Path) -> EngineError:
    """Return what an error of LMDB means here."""
    if isinstance(error, lmdb.DiskError) or code_of(error) == errno.ENOSPC or _is_full(error, path):
        return StoreFull(f"no room left on the disk of {path}: nothing was written")
    if isinstance(error, lmdb.ReadonlyError) or code_of(error) in (errno.EROFS, errno.EACCES):
        return StoreReadOnly(f"the store at {path} can only be read: nothing was written")
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
        return StoreDamaged(str(path), check_pages(path) or [str(error)])
    if code_of(error) in (errno.EIO, errno.EFBIG) or isinstance(error, lmdb.PanicError):
        return OutcomeUnknown(f"the disk of {path} failed ({error}): reopen the store and look")
    if "closed/deleted/dropped" in str(error):  # lmdb has no class for it
        return StoreClosed(f"the store at {path} was closed by another thread meanwhile: open it again")
    return StoreDamaged(str(path), check_pages(path) or [f"LMDB says: {error}"])


def no_room(error: BaseException, path: Path) -> bool:
    """Say whether memory or disk were too small: what is stored is none the worse for it."""
    if isinstance(error, lmdb.Error):
        out = isinstance(error, lmdb.MemoryError | lmdb.MapFullError) or code_of(error) in (
            errno.ENOSPC,
            errno.ENOMEM,
        )
        return out or isinstance(translated(error, path), StoreFull)
    return isinstance(error, MemoryError)


def code_of(error: lmdb.Error) -> int:
    """Return the system's error number; lmdb's own complaints have none."""
    return int(getattr(error, "code", 0))


def _is_full(error: lmdb.Error, path: Path) -> bool:
    """Say whether an I/O error was a short write on a full disk, which LMDB reports as such."""
    if code_of(error) != errno.EIO or not hasattr(os, "statvfs"):
        return False
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize < 1 << 20
