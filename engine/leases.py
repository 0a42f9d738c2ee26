"""Leases: the right to drive a run, with a fencing epoch (I13).

A lease row says who drives: pid *and* start time of the process, so that a reused pid is not taken for a
live driver. Every taking raises the epoch; an append that carries an older epoch is refused by the backend,
so a driver that was taken over cannot write, even if it was only asleep.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tailfold.engine.backend.port import Backend, Holder, Lease
from tailfold.engine.errors import LeaseHeld

_PROC = Path("/proc")


class Liveness(Enum):
    """What can be said of a holder from here."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """On another machine or in another container: only a person can tell."""


class Grant(NamedTuple):
    """A lease that was taken: the epoch to append under, and whom it was taken from."""

    stream: str
    epoch: int
    previous: Holder | None
    """The holder that died, or was pushed aside, without releasing the lease; None after a release."""


def start_token(pid: int) -> str | None:
    """Return a token of when process *pid* started, equal only for the same process; None if it is gone."""
    if sys.platform == "linux":
        try:
            stat = (_PROC / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        # Fields after the command name, which may itself hold spaces and brackets: state, …, start time.
        fields = stat[stat.rindex(b")") + 2 :].split()
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    return _start_token_portable(pid)


def _start_token_portable(pid: int) -> str | None:
    import psutil  # installed where there is no /proc

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return ""


@functools.cache
def _boot_token() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@functools.cache
def _space_token() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def this_process() -> Holder:
    """Describe the calling process as a holder."""
    pid = os.getpid()
    return Holder(pid, start_token(pid) or "", _boot_token(), _space_token(), socket.gethostname())


def liveness(holder: Holder) -> Liveness:
    """Say whether *holder* still runs, as far as can be seen from this process."""
    me = this_process()
    if holder.boot != me.boot:
        return Liveness.DEAD if holder.host == me.host else Liveness.UNKNOWN
    if holder.space != me.space:
        return Liveness.UNKNOWN
    return Liveness.ALIVE if start_token(holder.pid) == holder.started else Liveness.DEAD


def acquire(backend: Backend, stream: str, *, clock: Callable[[], int], take_over: bool = False) -> Grant:
    """Take the lease of *stream* for this process; durable on return.

    A dead holder's lease is taken over, and `Grant.previous` says whose it was. Raises `LeaseHeld` if the
    holder lives, or cannot be judged from here, unless *take_over* says to push it aside.
    """
    while True:
        seen = backend.lease(stream)
        previous = seen.holder if seen else None
        if seen and previous and not take_over:
            state = liveness(previous)
            if state is not Liveness.DEAD:
                note = ""
                if state is Liveness.UNKNOWN:
                    note = (
                        f". It ran on {previous.host!r}, in a container or on a machine that cannot be"
                        " seen from here: if it is surely gone, take over (--take-over)"
                    )
                raise LeaseHeld(stream, previous.pid, seen.epoch, note)
        new = Lease((seen.epoch if seen else 0) + 1, this_process(), clock())
        if backend.swap_lease(stream, seen=seen, new=new):
            return Grant(stream, new.epoch, previous)


def check_free(backend: Backend, stream: str) -> None:
    """Raise `LeaseHeld` if a live process, or one that cannot be judged from here, drives *stream*."""
    lease = backend.lease(stream)
    if lease is not None and lease.holder is not None and liveness(lease.holder) is not Liveness.DEAD:
        raise LeaseHeld(stream, lease.holder.pid, lease.epoch)


def release(backend: Backend, stream: str, epoch: int, *, clock: Callable[[], int]) -> bool:
    """Give the lease back, if it is still held under *epoch*; return whether it was."""
    seen = backend.lease(stream)
    if seen is None or seen.epoch != epoch or seen.holder is None:
        return False
    return backend.swap_lease(stream, seen=seen, new=Lease(epoch, None, clock()))
