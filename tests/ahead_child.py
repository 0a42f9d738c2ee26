"""One of several processes on a store: does what it is told, one line each way. ``python -m tests.ahead_child``."""

from __future__ import annotations

import os
import signal
import sys

from tailfold.engine import ANY, Durability, LmdbBackend, Store
from tailfold.engine.backend.lmdb import ahead, ahead_file
from tailfold.snapshots import every

from tests.domain import Deposited

write = ahead_file.AheadFile.append


def write_and_die(self: ahead_file.AheadFile, txn: int, body: bytes) -> None:
    """Die between the record and the commit."""
    write(self, txn, body)
    os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, durability: str, pages: str) -> None:
    ahead.PAGES_LEAST = ahead.PAGES_MOST = int(pages)  # few: settle often, so that pages are reused
    with Store.open(backend=LmdbBackend(path, durability=Durability(durability)), snapshots=every(20)) as store:
        print("ready", flush=True)
        for line in sys.stdin:
            stream, count, *die = line.split()
            if die:
                ahead_file.AheadFile.append = write_and_die  # type: ignore[method-assign]
            done = store.append(stream, [Deposited(i, "x" * 50) for i in range(int(count))], expected=ANY)
            print(done.last, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
