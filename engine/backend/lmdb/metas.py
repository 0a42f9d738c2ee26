"""LMDB's two meta pages, read and put back as bytes: the newer one says which tree of pages is the store."""

from __future__ import annotations

import os
import struct
from pathlib import Path

META_BYTES = 512
"""What is kept of each page: LMDB 0.9 uses the first 152 bytes, and a disk writes such a block as a whole."""
_MAGIC = struct.pack("<II", 0xBEEFC0DE, 1)
_MAGIC_AT = 16
_PAGE_BYTES_AT = 40
_TXN_AT = 144
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def read(data: Path) -> tuple[bytes, bytes] | None:
    """Return the two meta pages of *data*; None if they are not those of LMDB 0.9, on this kind of processor."""
    handle = os.open(data, os.O_RDONLY)
    try:
        first = os.pread(handle, META_BYTES, 0)
        if not _is_meta(first):
            return None
        second = os.pread(handle, META_BYTES, _page_bytes(first))
        return (first, second) if _is_meta(second) else None
    finally:
        os.close(handle)


def newest_txn(metas: tuple[bytes, bytes]) -> int:
    """Return the number of the last transaction that was committed."""
    return max(int(_U64.unpack_from(meta, _TXN_AT)[0]) for meta in metas)


def put_back(data: Path, metas: tuple[bytes, bytes]) -> None:
    """Make *metas* the meta pages of *data*; written, not flushed."""
    handle = os.open(data, os.O_RDWR)
    try:
        os.pwrite(handle, metas[0], 0)
        os.pwrite(handle, metas[1], _page_bytes(metas[0]))
    finally:
        os.close(handle)


def _page_bytes(meta: bytes) -> int:
    return int(_U32.unpack_from(meta, _PAGE_BYTES_AT)[0])


def _is_meta(meta: bytes) -> bool:
    return len(meta) == META_BYTES and meta.startswith(_MAGIC, _MAGIC_AT)
