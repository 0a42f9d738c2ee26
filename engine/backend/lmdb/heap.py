"""The C library's heap, and blocks of some 100 KB that reading allocates and frees all the time: pages, frames.

glibc gives the end of its heap back to the system as soon as 128 KiB are free there, and takes it again page by
page, each with a fault: a fifth of the time of a fold of sealed history, in a process that does nothing else. It
raises that limit by itself when a larger block is freed, up to 32 MiB (mallopt(3), *dynamic mmap threshold*).
"""

from __future__ import annotations

BLOCK_BYTES = 4 << 20
"""Larger than anything that reading allocates at once. Twice as much may stay with the process, unused."""


def keep_heap() -> None:
    """Let the heap keep what is freed and soon needed again: allocate one block and free it, never using its pages.

    Takes 30 µs, once or again. Elsewhere than on glibc it changes nothing.
    """
    bytes(BLOCK_BYTES)
