"""One of several processes on a store: does what it is told, one line each way. ``python -m tests.ahead_child``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import Any

from tailfold.engine import ANY, Durability, LmdbBackend, Store
from tailfold.engine.backend.lmdb import ahead, ahead_file
from tailfold.snapshots import every

from tests.domain import Deposited

write = ahead_file.AheadFile.append


def write_and_die(self: ahead_file.AheadFile, txn: int, body: bytes) -> None:
    """Die between the record and the commit."""
    write(self, txn, body)
    os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, durability: str, pages: str, map_bytes: str) -> None:
    ahead.PAGES_LEAST = ahead.PAGES_MOST = int(pages)  # few: settle often, so that pages are reused
    flush = ahead.flush_data

    def flush_and_keep(env: Any) -> None:
        """Keep what is on the disk for certain beside the store: a power cut may leave any page of that."""
        flush(env)
        mine = f"{path}.{os.getpid()}"
        shutil.copy(f"{path}/data.mdb", mine)
        os.rename(mine, f"{path}.flushed")  # noqa: PTH104

    ahead.flush_data = flush_and_keep
    backend = LmdbBackend(path, durability=Durability(durability), map_bytes=int(map_bytes))
    with Store.open(backend=backend, snapshots=every(20)) as store:
        print("ready", flush=True)
        for line in sys.stdin:
            stream, count, *die = line.split()
            if die:
                ahead_file.AheadFile.append = write_and_die  # type: ignore[method-assign]
            done = store.append(stream, [Deposited(i, "x" * 50) for i in range(int(count))], expected=ANY)
            print(done.last, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
