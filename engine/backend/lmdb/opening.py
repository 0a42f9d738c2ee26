"""Opening LMDB's files: what is no store is refused, what is not there is made, what cannot be written is read."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import msgspec
from tailfold.engine.backend import directory, keys
from tailfold.engine.backend.lmdb import ahead_file, metas
from tailfold.engine.backend.lmdb.ahead_file import AheadFile
from tailfold.engine.backend.lmdb.faults import NO_ROOM, check_pages, code_of, full, translated
from tailfold.engine.backend.port import FORMAT_AHEAD, FORMAT_LEAST, FORMAT_VERSION, Durability
from tailfold.engine.errors import (
    EngineError,
    FormatTooNew,
    StoreDamaged,
    StoreNotFound,
    StoreReadOnly,
)

MAP_BYTES = 256 << 30
"""Address space reserved at open. The file is sparse: only what is written takes disk."""
MAP_BYTES_LEAST = 1 << 28
READERS_MAX = 1024
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_LMDB_MAJOR = 0  # new stores are made by the 0.9 engine: the format that ten years of tools read

# Without this the interpreter stands still while the disk works, and an event loop with it. Costs nothing that
# the benchmarks can see.
lmdb.enable_drop_gil()


def _holds_data(path: Path) -> bool:
    data = path / "data.mdb"
    return data.is_file() and data.stat().st_size > 0


def begin(path: Path, durability: Durability, map_bytes: int) -> AheadFile | None:
    """Refuse what is no store, make one if nothing is there, and open its write-ahead file. Inside `opening`."""
    existed = _holds_data(path)
    known = not existed or not ahead_file.SUPPORTED or metas.read(path / "data.mdb") is not None
    try:
        active = known and ahead_file.peek(path).active
    except StoreDamaged:
        _refuse_unreadable(path)  # a later format may have another file
        raise
    if existed and not active and not (path / "lock.mdb").exists():
        # A copy without its lock file: refuse a foreign or future file before anything is written (I10).
        _refuse_unreadable(path)
    if not known:
        return None  # another engine's file, or none: LMDB says which
    if not existed and durability is Durability.DURABLE:
        _make_flushed(path, map_bytes)  # from here on there is a store, or there is none
    file = None
    try:
        file = AheadFile.open(path)
        if file is not None and not file.alone and existed and not (path / "lock.mdb").exists():
            # LMDB would make a new one, and two writers would not know of each other.
            raise EngineError(
                f"the store at {path} is in use, and its lock.mdb was taken away: close it everywhere, then open"
                " it again. That file is no stale lock, and may not be removed while the store is open"
            )
    except EngineError:
        if file is not None:
            file.close()
        raise
    except OSError as error:
        if file is not None:
            file.close()  # the error may be kept for long, and the lock with it
        if error.errno in NO_ROOM:
            raise full(path, error.errno) from None
        if error.errno in _NO_DESCRIPTORS:
            raise
        raise StoreNotFound(str(path), f"{ahead_file.FILE} cannot be opened ({error.strerror})") from None
    return file


def give_up(file: AheadFile | None) -> None:
    """Close the file of a store that could not be opened, and leave none where none was."""
    if file is not None:
        unused = file.made and file.alone and file.header().generation == 0
        file.close()
        if unused:
            with suppress(OSError):
                (file.store / ahead_file.FILE).unlink()


def _make_flushed(path: Path, map_bytes: int) -> None:
    """Make a new store, all of it on the disk on return."""
    env = open_environment(path, map_bytes, flushing=True)
    try:
        make_tables(env, FORMAT_AHEAD if ahead_file.SUPPORTED else FORMAT_LEAST)
    except lmdb.Error as error:
        raise translated(error, path) from error
    finally:
        env.close()
    directory.sync(path)
    directory.sync(path.parent)


def make_tables(env: lmdb.Environment, format: int) -> dict[str, lmdb._Database]:
    """Make the tables and the stamp in one transaction."""
    with env.begin(write=True) as txn:
        tables = {name: env.open_db(name.encode(), txn=txn) for name in keys.TABLES}
        stamp = keys.Stamp(format, time.time_ns(), "tailfold")
        # Another process may have been first: the stamp that is there stands.
        txn.put(keys.FORMAT_KEY, keys.encode(stamp), overwrite=False, db=tables["meta"])
    return tables


def open_environment(path: Path, map_bytes: int, *, flushing: bool) -> lmdb.Environment:
    """Open LMDB's files; *flushing* if LMDB has to make every transaction durable by itself."""
    existed = _holds_data(path)
    engine: dict[str, Any] = {} if existed else {"lib_version": _LMDB_MAJOR}  # a file says its own
    while True:
        try:
            env = lmdb.open(
                str(path),
                map_size=map_bytes,
                mode=0o600,
                max_dbs=len(keys.TABLES) + 8,
                max_readers=READERS_MAX,
                sync=flushing,
                metasync=flushing,
                readahead=False,
                **engine,
            )
        except (lmdb.MemoryError, MemoryError):
            # The address space is limited (ulimit -v, a small container): start with less, grow later.
            map_bytes //= 4
            if map_bytes < MAP_BYTES_LEAST:
                raise
        except lmdb.MapResizedError:
            continue  # another process has grown the map between two steps of this
        except _NOT_LMDB:
            raise _not_lmdb(path) from None
        except lmdb.Error as error:
            if existed and code_of(error) in (errno.EROFS, errno.EACCES, errno.EPERM):
                return _open_to_read(path, map_bytes)
            if "already open in this process" in str(error):  # lmdb has no class for it
                raise EngineError(
                    f"the store at {path} is open in this process already: it was when the process was forked, or"
                    " it is under another name. Open it after the fork, under one name, or in a new process"
                ) from None
            if not existed:
                directory.discard(path)
            if code_of(error) in _NO_DESCRIPTORS:
                raise EngineError(f"the store at {path} cannot be opened ({error})") from None
            if code_of(error) in NO_ROOM:
                raise full(path, code_of(error)) from None
            raise StoreNotFound(str(path), f"it cannot be opened ({error})") from None
        else:
            env.reader_check()
            return env


def _open_to_read(path: Path, map_bytes: int) -> lmdb.Environment:
    """Open a store on a medium that cannot be written to. Without locks: nobody can write to it meanwhile."""
    if ahead_file.peek(path).active:
        raise StoreReadOnly(
            f"the store at {path} was not closed, and can only be read here: open it once where it can be"
            " written to"
        )
    try:
        return lmdb.open(
            str(path), readonly=True, lock=False, max_dbs=len(keys.TABLES) + 8, map_size=map_bytes, readahead=False
        )
    except _NOT_LMDB:
        raise _not_lmdb(path) from None
    except lmdb.Error as error:
        raise StoreNotFound(str(path), f"it cannot be opened ({error})") from None


_NOT_LMDB = (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError)


def _not_lmdb(path: Path) -> StoreDamaged:
    return StoreDamaged(str(path), check_pages(path) or ["data.mdb is not an LMDB file of a known version"])


def _refuse_unreadable(path: Path) -> None:
    """Look at the stamp without locks or writes; nobody has the file open, for it has no lock file."""
    try:
        with (
            lmdb.open(str(path), readonly=True, lock=False, max_dbs=1, map_size=MAP_BYTES_LEAST) as env,
            env.begin() as txn,
        ):
            if txn.get(b"meta") is None:
                if txn.stat()["entries"]:
                    raise StoreNotFound(str(path), "data.mdb is an LMDB file of another program")
                return
            stored = txn.get(keys.FORMAT_KEY, db=env.open_db(b"meta", txn=txn, create=False))
    except _NOT_LMDB:
        raise _not_lmdb(path) from None
    except lmdb.Error:
        return  # the real open says what is wrong
    if stored is not None:
        try:
            stamp = keys.decode_stamp(stored)
        except msgspec.MsgspecError:
            return
        if stamp.format > FORMAT_VERSION:
            raise FormatTooNew(str(path), stamp.format, FORMAT_VERSION)
