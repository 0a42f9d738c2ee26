"""The directory of a store: whether a path is one or may become one, and making its entries durable."""

from __future__ import annotations

import os
from pathlib import Path

from tailfold.engine.errors import StoreNotFound

_OWN_FILES = ("data.mdb", "lock.mdb")


def prepare(path: Path, create: bool) -> None:
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


def sync(path: Path) -> None:
    """Make the entry of a new file durable: fsync of the file alone does not."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
