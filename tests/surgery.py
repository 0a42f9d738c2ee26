"""Changes bytes of a stored row behind the engine's back, as a failing disk or a forger would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
from tailfold.engine.backend import keys


def change_row(
    path: Path,
    table: str,
    pick: Callable[[bytes], bool],
    change: Callable[[bytes, bytes], tuple[bytes, bytes] | None],
) -> None:
    """Replace the first row of *table* whose key is picked by what *change* returns; None deletes it."""
    with lmdb.open(str(path), max_dbs=32, map_size=1 << 30) as env:
        db = env.open_db(table.encode(), create=False)
        with env.begin(write=True) as txn:
            for key, value in txn.cursor(db).iternext():
                if pick(bytes(key)):
                    replaced = change(bytes(key), bytes(value))
                    txn.delete(key, db=db)
                    if replaced is not None:
                        txn.put(*replaced, db=db)
                    return
    raise AssertionError("no row was picked")


def change_event(path: Path, version: int, change: Callable[[bytes], bytes], stream: int = 1) -> None:
    """Replace the record bytes of one event, under the same key."""
    change_row(
        path,
        "events",
        lambda key: keys.split_event_key(key)[:2] == (stream, version),
        lambda key, value: (key, change(value)),
    )


def flip(data: bytes, index: int) -> bytes:
    """Return *data* with one bit of one byte changed."""
    index %= len(data)
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
