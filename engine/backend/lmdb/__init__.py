"""The backend on disk: one LMDB environment a store. Only this package imports lmdb.

What is assumed of the disk: a completed fdatasync is durable, and the 96 bytes of an LMDB meta page are
written whole or not at all. Two processes on one store are serialised by LMDB's own writer lock; a process
that dies inside a transaction leaves the store at the commit before it (I5, I12).
"""

from tailfold.engine.backend.lmdb.backend import LmdbBackend
from tailfold.engine.backend.lmdb.environment import MAP_BYTES, check_pages

__all__ = ["MAP_BYTES", "LmdbBackend", "check_pages"]
