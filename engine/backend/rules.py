"""The checks of an append, in their one fixed order. Pure; both backends call it inside their transaction.

1. the epoch: a fenced driver is refused whatever it appends (I13);
2. the idempotency key: the same content returns the first result, other content is an error;
3. the expected version.
"""

from __future__ import annotations

import msgspec
from tailfold.engine.backend.keys import decode_checkpoint_row
from tailfold.engine.backend.port import (
    ANY,
    EXISTS,
    Append,
    Appended,
    CheckpointWrite,
    IdRow,
    Lease,
    SnapshotKey,
)
from tailfold.engine.errors import BadArgument, EngineError, Fenced, KeyReused, WrongVersion
from tailfold.snapshots import retention


def check(
    append: Append, version: int, lease: Lease | None, earlier: IdRow | None
) -> Appended | EngineError | None:
    """Return what answers *append* without writing: a refusal or the first result; None to write it.

    *version* is the stream's (0 if it does not exist), *lease* its lease row, *earlier* the row of the
    append's idempotency key, if it has one that was used before.
    """
    if append.epoch is not None and (lease is None or lease.epoch != append.epoch):
        return Fenced(append.stream, append.epoch, lease.epoch if lease else 0)
    if earlier is not None:
        if earlier.content != append.content:
            return KeyReused(append.stream, str(append.key), earlier.first)
        return Appended(append.stream, earlier.first, earlier.last, earlier.position, earlier.hash, True)
    if not append.records:
        return BadArgument(f"nothing to append to stream {append.stream!r}")  # a head needs an event (I4)
    expected = append.expected
    if expected == version or expected == ANY or (expected == EXISTS and version > 0):
        return None
    return WrongVersion(append.stream, "EXISTS" if expected == EXISTS else expected, version)


def may_replace(name: str, stored: bytes | None, write: CheckpointWrite, last: int) -> bool:
    """Say whether a checkpoint may be written over what is *stored*; *last* is the last position there is.

    It goes forward, and never over another subscription's or other code's, unless it is a reset. What cannot be
    read any more is written over. Raises `BadArgument` past the last position (I8).
    """
    if not 0 <= write.position <= last:
        raise BadArgument(f"checkpoint {name!r}: position {write.position} is not in 0..{last}, what there is (I8)")
    if stored is None or write.reset:
        return True
    try:
        theirs = decode_checkpoint_row(stored)
    except msgspec.MsgspecError:
        return True
    ours = decode_checkpoint_row(write.row)
    same = (theirs.stream, theirs.fold_id) == (ours.stream, ours.fold_id)
    return same and theirs.position <= ours.position


def superseded(newest_first: list[SnapshotKey], fold_id: bytes, head: int) -> list[SnapshotKey]:
    """Return which snapshots of one fold the ladder no longer keeps, now that *fold_id* has a new one."""
    own = retention.kept([key.version for key in newest_first if key.fold_id == fold_id], head)
    others = retention.kept_of_others(
        [(key.version, key.fold_id) for key in newest_first if key.fold_id != fold_id]
    )
    return [
        key
        for key in newest_first
        if (key.version not in own if key.fold_id == fold_id else tuple(key) not in others)
    ]
