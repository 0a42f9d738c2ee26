"""Zstandard as the store uses it: whole frames, with the size of the content in front. Pure, thread-safe.

python-zstandard keeps its contexts, and unpacks into a buffer of the right size at once: a frame of 128 KiB takes a
sixth less time than with the standard library's module, one of 16 KiB two fifths less.
"""

from __future__ import annotations

import threading

import zstandard

LEVEL = 3

_contexts = threading.local()  # they may not be used by two threads at once


def compress(data: bytes, *, checksum: bool = False) -> bytes:
    """Return *data* as one frame; with *checksum*, of its content."""
    name = "checking" if checksum else "plain"
    context = getattr(_contexts, name, None)
    if context is None:
        context = zstandard.ZstdCompressor(level=LEVEL, write_checksum=checksum)
        setattr(_contexts, name, context)
    packed: bytes = context.compress(data)
    return packed


def decompress(data: bytes) -> bytes:
    """Give back what was compressed; raise ValueError if this is no frame, or one that was changed.

    Without room for it, MemoryError.
    """
    context = getattr(_contexts, "unpacking", None)
    if context is None:
        context = _contexts.unpacking = zstandard.ZstdDecompressor()
    try:
        plain: bytes = context.decompress(data, allow_extra_data=False)
    except (zstandard.ZstdError, OverflowError) as error:
        if "llocat" in str(error):  # zstd's own "Allocation error : not enough memory"
            raise MemoryError(str(error)) from None
        raise ValueError(str(error)) from None
    return plain
