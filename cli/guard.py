"""The probe: look before reading. A damaged page can crash the process inside LMDB, which trusts its file;
so a child process looks first, and if it dies, this one lives to say what is damaged.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tailfold.cli.interrupts import held_back, let_through
from tailfold.engine import Store
from tailfold.engine.backend.lmdb import check_pages
from tailfold.engine.errors import EngineError, StoreDamaged, StoreFull
from tailfold.snapshots import never

_BY_READING = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
"""What a process dies of when it reads a damaged page; anything else came from outside."""
PAGE_CHECK_BYTES_MAX = 64 << 20
"""A command that writes checks every page of stores up to this size first; verify does so at any size."""


def probe(path: Path, look: Callable[[Store], object], *, create: bool = False) -> bytes:
    """Run *look* on the opened store in a child process; raise here what it raised there.

    Returns what *look* returned if that is bytes, else nothing: an answer that was put together there need not be
    put together again here.

    Raises `StoreDamaged` naming the damaged pages if the child was killed by what it read. Raises
    `StoreNotFound` if there is no store; nothing is made.
    """
    if not hasattr(os, "fork"):
        return _look(path, look, create)
    reading, writing = os.pipe()
    with held_back():  # hooks run after a fork, and what is raised in them is passed over
        child = os.fork()
        if child == 0:
            os.close(reading)
            _in_child(path, look, create, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        message = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        killer = signal.Signals(os.WTERMSIG(status))
        if killer in _BY_READING and create:
            # LMDB maps its lock file: on a full disk touching it is a SIGBUS.
            raise StoreFull(f"the store at {path} could not be made ({killer.name}): is the disk full?")
        if killer in _BY_READING:
            found = check_pages(path)
            raise StoreDamaged(str(path), found or [f"reading it kills the process ({killer.name})"])
        raise EngineError(f"the look at {path} was interrupted ({killer.name}); try again")
    if not message:
        raise EngineError(f"the look at {path} ended without an answer; try again")
    answer = pickle.loads(message)  # written by our own child, a moment ago
    if isinstance(answer, BaseException):
        raise answer
    assert isinstance(answer, bytes)
    return answer


def check_before_writing(store: Store, path: Path) -> None:
    """Look at heads, and at every page if the store is not large: LMDB must not write into a damaged tree."""
    for _ in store.streams():
        pass
    check_pages_before_writing(store, path)


def check_pages_before_writing(store: Store, path: Path) -> None:
    """Look at every page if the store is not large; raise `StoreDamaged`."""
    if (path / "data.mdb").stat().st_size <= PAGE_CHECK_BYTES_MAX:
        findings = store.backend.check()
        if findings:
            raise StoreDamaged(str(path), findings)


def _look(path: Path, look: Callable[[Store], object], create: bool) -> bytes:
    with Store.open(path, create=create, snapshots=never) as store:
        found = look(store)
    return found if isinstance(found, bytes) else b""


def _in_child(path: Path, look: Callable[[Store], object], create: bool, writing: int) -> None:
    """Look, send what was raised through the pipe, and leave without the parent's clean-up."""
    try:
        with suppress(OSError):  # closed by the caller
            sys.stderr = os.fdopen(os.dup(2), "w")  # for a progress bar
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)  # LMDB prints its failed assertions
        faulthandler.disable()  # the parent says what is wrong
        try:
            let_through()
            _send(writing, pickle.dumps(_look(path, look, create)))
        except (EngineError, OSError, MemoryError, KeyboardInterrupt) as error:
            _send(writing, pickle.dumps(error))
        except BaseException as error:
            _send(writing, pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}")))
    finally:
        os._exit(0)


def _send(pipe: int, message: bytes) -> None:
    while message:
        message = message[os.write(pipe, message) :]
