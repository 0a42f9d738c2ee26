"""The directory of a store: whether a path is one or may become one, and making its entries durable."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tailfold.engine.errors import StoreNotFound

_OWN_FILES = ("data.mdb", "lock.mdb", "data.wal")
_METAS_BYTES = 2 * 4096
_TRANSACTION_AT = 144
"""Where the number of the last transaction stands in LMDB 0.9's first meta page."""


def prepare(path: Path, create: bool) -> None:
    """Make sure that *path* is a store or may become one; refuse anything else untouched."""
    data = path / "data.mdb"
    if path.is_dir() and data.is_file() and data.stat().st_size > 0:
        return
    check_vacant(path)
    if not create:
        raise StoreNotFound(str(path), "nothing is there")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise StoreNotFound(str(path), f"it cannot be made ({error.strerror})") from None


def empty_unborn(path: Path) -> None:
    """Let LMDB begin anew where a creation was cut short. By who opens the store alone: it may be being made."""
    data = path / "data.mdb"
    if data.is_file() and data.stat().st_size > 0 and is_unborn(data):
        data.write_bytes(b"")


def check_vacant(path: Path) -> None:
    """Raise `StoreNotFound` if something else than a store is at *path*; nothing is written."""
    if path.is_dir():
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in _OWN_FILES)
        if others:
            raise StoreNotFound(str(path), f"the directory holds other things ({others[0]!r})")
    elif path.exists() and not path.is_dir():  # another process may have made it just now
        raise StoreNotFound(str(path), "that is a file; a store is a directory")


def is_unborn(data: Path) -> bool:
    """Say whether a data file was left by a creation that the disk or a crash cut short.

    LMDB writes two meta pages at once; with less than both, and no transaction in the first, nothing was ever
    stored. A store that was cut down to this has a transaction number there, and is damaged.
    """
    with data.open("rb") as file:
        start = file.read(_METAS_BYTES)
    if len(start) >= _METAS_BYTES:
        return False
    transaction = start[_TRANSACTION_AT : _TRANSACTION_AT + 8]
    return not any(transaction)


def discard(path: Path) -> None:
    """Take away the files of a store that could not be made."""
    for name in _OWN_FILES:
        with suppress(OSError):
            (path / name).unlink()


def sync(path: Path) -> None:
    """Make the entry of a new file durable: fsync of the file alone does not."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
