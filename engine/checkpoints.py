"""Checkpoints: how far each subscription and projection has handled the store, for people and for `Store`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import Backend, CheckpointWrite
from tailfold.engine.errors import BadArgument, Corruption
from tailfold.engine.names import check_stream_name


class Checkpoint(NamedTuple):
    """The last position that a follower has handled."""

    name: str
    position: int
    """A position of the store; a version if `stream` is named."""
    stream: str | None
    projection: bool
    """True if it is a projection's, and its state stands beside it."""
    updated_ns: int
    """UTC, nanoseconds since 1970."""


def find(backend: Backend, name: str) -> Checkpoint | None:
    """Return the checkpoint *name*, or None; raise `Corruption` if it cannot be read."""
    stored = backend.checkpoint(check_name(name))
    return read(name, stored) if stored is not None else None


def every(backend: Backend) -> Iterator[Checkpoint]:
    """Yield every checkpoint in byte order of the names; raise `Corruption` at one that cannot be read."""
    return (read(name, row) for name, row in backend.checkpoints())


def of_subscription(backend: Backend, name: str, stream: str | None) -> int | None:
    """Return where the subscription *name* goes on, or None; raise `BadArgument` if the name is another's."""
    found = find(backend, name)
    if found is None:
        return None
    if found.projection:
        raise BadArgument(f"checkpoint {name!r} is a projection's: subscribe under another name")
    if found.stream != stream:
        theirs = "the whole store" if found.stream is None else f"stream {found.stream!r}"
        raise BadArgument(f"checkpoint {name!r} is of {theirs}: subscribe under another name, or drop it")
    return found.position


def save(
    backend: Backend, name: str, position: int, stream: str | None, now_ns: int, *, reset: bool = False
) -> bool:
    """Write a subscription's checkpoint; False if another process is further. Durable on return (I8)."""
    check_name(name)
    row = keys.CheckpointRow(position, stream, now_ns)
    return backend.put_checkpoint(name, CheckpointWrite(position, keys.encode(row), stream=stream, reset=reset))


def reset(backend: Backend, name: str, position: int, stream: str | None, now_ns: int) -> None:
    """Set a subscription's checkpoint, back or forth; raise `BadArgument` if it is a projection's."""
    found = find(backend, name)
    if found is not None and found.projection:
        raise BadArgument(f"checkpoint {name!r} is a projection's: rebuild that, or drop it")
    if not 0 <= position < 1 << 63:  # more than a row holds, and past any last position
        raise BadArgument(f"checkpoint {name!r}: there is no position {position}")
    save(backend, name, position, stream, now_ns, reset=True)


def check_name(name: str) -> str:
    """Return *name* if it may name a checkpoint: what may name a stream."""
    return check_stream_name(name)


def read(name: str, stored: bytes) -> Checkpoint:
    """Return the checkpoint that the row *stored* holds; raise `Corruption` if it cannot be read."""
    try:
        row = keys.decode_checkpoint_row(stored)
    except msgspec.MsgspecError as error:
        raise Corruption(f"checkpoint {name!r} cannot be read ({error}): drop it") from None
    return Checkpoint(name, row.position, row.stream, bool(row.fold_id), row.updated_ns)
