"""The backend on disk: one LMDB environment a store. Only this package imports lmdb.

What is assumed of the disk: a completed fdatasync is durable, the 152 bytes of an LMDB meta page are written whole
or not at all, and writing a block of `data.wal` again does not harm what it held. Two processes on one store are
serialised by LMDB's own writer lock; a process that dies inside a transaction leaves the store at the commit before
it, or has it recovered whole from `data.wal` (I5, I12; see `ahead`).
"""

from tailfold.engine.backend.lmdb.backend import LmdbBackend
from tailfold.engine.backend.lmdb.faults import check_pages
from tailfold.engine.backend.lmdb.opening import MAP_BYTES

__all__ = ["MAP_BYTES", "LmdbBackend", "check_pages"]
