"""A store to measure in: a copy of one stream in a temporary directory. The user's store is only read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tailfold.engine.backend import chain
from tailfold.engine.backend.lmdb import LmdbBackend
from tailfold.engine.backend.port import Append, Backend, Durability
from tailfold.engine.errors import EngineError
from tailfold.engine.log import RECORDS_PER_PAGE
from tailfold.engine.rawrecords import blobs_in, format_needed, time_of_record
from tailfold.engine.store import Store
from tailfold.snapshots import never

Count = Callable[[int], None]
"""Called with numbers of events that are done."""


class Scratch:
    """A directory with a store that may be written to, measured in and thrown away."""

    def __init__(self, path: Path, like: Store | None = None) -> None:
        self.path = path
        self._like = like

    @property
    def data(self) -> Path:
        """The file that holds everything."""
        return self.path / "data.mdb"

    def open(self, durability: Durability = Durability.DURABLE) -> Store:
        """Open it, with the events and steps of the store that it copies. It writes no snapshots by itself."""
        opened = Store.open(backend=LmdbBackend(self.path, durability=durability), snapshots=never)
        if self._like is not None:
            codec = self._like.log.codec
            opened.log.codec.adopt(codec.lifting.upcasters)
            opened.log.codec.register(codec.known_events)
            opened.log.codec.newer = codec.newer
        return opened


@contextmanager
def scratch_copy(store: Store, stream: str, *, count: Count = lambda done: None) -> Iterator[Scratch]:
    """Copy *stream*, with what it inherits and its blobs, to a temporary directory; remove it at the end.

    Records are copied byte for byte and not looked into. Raises `StreamNotFound`.
    """
    upto = store.head(stream).version
    with tempfile.TemporaryDirectory(prefix="tailfold-bench-") as folder:
        scratch = Scratch(Path(folder) / "store", store)
        with scratch.open(Durability.RELAXED) as copy:
            copy_stream(store.backend, copy.backend, stream, upto, count)
        yield scratch


def copy_stream(source: Backend, target: Backend, stream: str, upto: int, count: Count) -> None:
    """Append versions 1..*upto* of *stream* to *target*, with the blobs that they name and are there."""
    target.put(schemas=list(source.schemas()))
    seen: set[bytes] = set()
    after = 0
    while after < upto:
        page = source.data(stream, after=after, upto=min(upto, after + RECORDS_PER_PAGE))
        new = {digest for data in page for digest in blobs_in(data)} - seen
        seen |= new
        found = {digest: content for digest in new if (content := source.blob(digest)) is not None}
        append = Append(
            stream,
            after,
            page,
            [chain.digest(data) for data in page],
            time_of_record(page[-1]),
            blobs=found,
            format=max(map(format_needed, page)),
        )
        [done] = target.commit([append])
        if isinstance(done, EngineError):
            raise done
        after += len(page)
        count(len(page))
