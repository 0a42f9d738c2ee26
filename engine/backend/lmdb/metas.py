"""LMDB's two meta pages, read and put back as bytes: the newer one says which tree of pages is the store."""

from __future__ import annotations

import os
import struct
from pathlib import Path

META_BYTES = 512
"""What is read of each page: LMDB 0.9 uses the first 152 bytes, and a disk writes such a block as a whole."""
MARK_AT, MARK_BYTES = 2048, 16
"""In the first meta page, where LMDB writes only when it makes the file: what tells this file from others."""
_META_AT = 16
"""Before it stands the header of the page, which has the page's own number."""
_MAGIC = struct.pack("<II", 0xBEEFC0DE, 1)
_PAGE_BYTES_AT = 40
_LAST_PAGE_AT = 136
_TXN_AT = 144
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Metas:
    """The meta pages of a file that stays open: wherever its directory is moved to, they are those of this file."""

    def __init__(self, data: Path) -> None:
        flags = getattr(os, "O_CLOEXEC", 0)
        try:
            self._handle = os.open(data, os.O_RDWR | flags)
        except OSError:  # to be read only
            self._handle = os.open(data, os.O_RDONLY | flags)

    def read(self) -> tuple[bytes, bytes] | None:
        """Return both pages; None if they are not those of LMDB 0.9."""
        first = os.pread(self._handle, META_BYTES, 0)
        if not _is_meta(first):
            return None
        second = os.pread(self._handle, META_BYTES, _page_bytes(first))
        return (first, second) if _is_meta(second) else None

    def mark(self) -> bytes:
        """Return the mark of the file; empty if it has none."""
        mark = os.pread(self._handle, MARK_BYTES, MARK_AT)
        return mark if any(mark) else b""

    def put_mark(self) -> bytes:
        """Give the file a mark, by chance, and return it; written, not flushed."""
        mark = os.urandom(MARK_BYTES)
        os.pwrite(self._handle, mark, MARK_AT)
        return mark

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def read(data: Path) -> tuple[bytes, bytes] | None:
    """Return the two meta pages of *data*; None if they are not those of LMDB 0.9."""
    metas = Metas(data)
    try:
        return metas.read()
    finally:
        metas.close()


def txn_of(meta: bytes) -> int:
    """Return the number of the transaction that wrote *meta*."""
    return int(_U64.unpack_from(meta, _TXN_AT)[0])


def end_of(meta: bytes) -> int:
    """Return where the last page of the state that *meta* stands for ends, in bytes."""
    return (int(_U64.unpack_from(meta, _LAST_PAGE_AT)[0]) + 1) * _page_bytes(meta)


def newest(metas: tuple[bytes, bytes]) -> bytes:
    """Return the page that counts."""
    return max(metas, key=txn_of)


def put_back(data: Path, meta: bytes) -> None:
    """Make *meta* what counts, in both pages; written, not flushed.

    In both, because LMDB chooses by the number of the last transaction that its lock file has, if any process
    should still have that open.
    """
    handle = os.open(data, os.O_RDWR)
    try:
        for page in (0, _page_bytes(meta)):
            os.pwrite(handle, meta[_META_AT:], page + _META_AT)
    finally:
        os.close(handle)


def _page_bytes(meta: bytes) -> int:
    return int(_U32.unpack_from(meta, _PAGE_BYTES_AT)[0])


def _is_meta(meta: bytes) -> bool:
    return len(meta) == META_BYTES and meta.startswith(_MAGIC, _META_AT)
