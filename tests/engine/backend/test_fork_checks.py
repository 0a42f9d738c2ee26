"""verify finds it when a fork and the streams that it left do not say the same of each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest
from tailfold.engine import LmdbBackend, Store
from tailfold.engine.backend import keys

from tests.domain import Deposited


def family(path: Path) -> None:
    """Two runs, a fork of the first, and a fork of that."""
    with Store.open(path) as store:
        for name in ("p", "q"):
            store.append(name, [Deposited(i) for i in range(20)], expected=0)
        store.fork("p", at=10, name="f")
        store.append("f", [Deposited(1)] * 2, expected=10)
        store.fork("f", at=11, name="g")
        store.append("g", Deposited(1), expected=11)


Change = Callable[[Any, Callable[[str], Any]], None]


def changed(path: Path, change: Change) -> None:
    with lmdb.open(str(path), max_dbs=len(keys.TABLES) + 8, map_size=1 << 28) as env:
        tables = {name: env.open_db(name.encode(), create=False) for name in keys.TABLES}
        with env.begin(write=True) as txn:
            change(txn, tables.__getitem__)


def of_another_root(txn: lmdb.Transaction[bytes], table: Callable[[str], lmdb._Database]) -> None:
    key = keys.STREAM_KEY.pack(4)
    row = keys.decode_stream_row(txn.get(key, b"", db=table("streams")))
    pairs = [(2, at) if number == 1 else (number, at) for number, at in row.pairs]
    lineage = b"".join(keys.LINEAGE_PAIR.pack(*pair) for pair in pairs)
    txn.put(key, keys.encode_stream_row(msgspec.structs.replace(row, lineage=lineage)), db=table("streams"))


def not_among_the_forks(txn: lmdb.Transaction[bytes], table: Callable[[str], lmdb._Database]) -> None:
    assert txn.delete(keys.CHILD_KEY.pack(1, 10, 3), db=table("children"))


def among_the_forks_of_another(txn: lmdb.Transaction[bytes], table: Callable[[str], lmdb._Database]) -> None:
    txn.put(keys.CHILD_KEY.pack(2, 10, 3), b"", db=table("children"))


def a_torn_row(txn: lmdb.Transaction[bytes], table: Callable[[str], lmdb._Database]) -> None:
    txn.put(b"short", b"", db=table("children"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_another_root, "stream 'g': its lineage is not that of 'f'"),
        (not_among_the_forks, "stream 'f': it is not among the forks of 'p'"),
        (among_the_forks_of_another, "stream 'f': it stands among the forks of another stream"),
        (a_torn_row, "a row of children cannot be read"),
    ],
)
def test_a_fork_that_does_not_fit_is_found(tmp_path: Path, change: Change, said: str) -> None:
    path = tmp_path / "s"
    family(path)
    with Store.open(path, create=False) as store:
        assert store.verify().sound
    changed(path, change)
    with Store.open(path, create=False) as store:
        assert said in "; ".join(map(str, store.verify().findings))


def test_a_named_head_a_checkpoint_and_a_position_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    family(path)

    def position(txn: lmdb.Transaction[bytes], table: Callable[[str], lmdb._Database]) -> None:
        key = keys.POSITION_KEY.pack(3)
        txn.put(key, txn.get(key, b"", db=table("positions"))[:-1], db=table("positions"))

    changed(path, position)
    with Store.open(path, create=False) as store:
        assert "position 3 stands for another event" in "; ".join(map(str, store.verify().findings))
        with pytest.raises(Exception, match="a row of positions cannot be read"):
            list(store.read_all())

    def names(txn: lmdb.Transaction[bytes], table: Callable[[str], lmdb._Database]) -> None:
        txn.put(keys.HEAD_PREFIX + b"x", b"\xff", db=table("meta"))
        txn.put(b"\xff", b"", db=table("checkpoints"))

    changed(path, names)
    backend = LmdbBackend(path, create=False)
    for read in (backend.named_heads, backend.checkpoints):
        with pytest.raises(Exception, match="a name is not UTF-8"):
            read()
    backend.close()
