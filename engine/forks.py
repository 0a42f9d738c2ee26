"""Forks: branching a stream, going back, and looking at what came of it. Nothing is copied (design: I11).

A fork is (parent, version) and its own events. It sees exactly versions 1..version of its parent, whatever the
parent does later, and its parent never sees anything of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from tailfold.engine.backend.port import Backend, Head, Piece, Swept
from tailfold.engine.errors import BadArgument, StreamDeleted, StreamExists, StreamNotFound
from tailfold.engine.log import Log, Recorded
from tailfold.engine.names import STREAM_NAME_MAX_BYTES, check_stream_name
from tailfold.engine.rawrecords import blobs_in, time_of_record


class Branch(NamedTuple):
    """A stream in the tree of forks."""

    stream: str
    parent: str | None
    at: int
    """The last version that it shares with its parent; 0 for a root."""
    version: int
    deleted: bool
    heads: list[str]
    """The named heads that stand for it."""
    depth: int
    """Steps below its root."""


class Difference(NamedTuple):
    """Two streams side by side."""

    common: int
    """Both have exactly the same events up to this version."""
    left: list[Recorded]
    """What the first one has after that."""
    right: list[Recorded]


class Changed(NamedTuple):
    """A place where two states differ."""

    path: str
    """Like ``messages[3].text``."""
    side: str
    """``left`` or ``right`` if only that one has the place, else ``both``."""
    left: Any
    right: Any


def fork(
    log: Log, stream: str, *, at: int | None, name: str | None, head: tuple[str, str | None] | None = None
) -> Head:
    """Fork *stream*; see `Store.fork`."""
    check_stream_name(stream)
    at = log.head(stream).version if at is None else at
    if type(at) is not int or at < 1:
        raise BadArgument(f"a fork begins at a version from 1 on, not {at!r}")
    if name is not None:
        return log.backend.fork(stream, at=at, name=check_stream_name(name), time_ns=log.clock(), head=head)
    for candidate in _names(log, stream):
        try:
            return log.backend.fork(stream, at=at, name=candidate, time_ns=log.clock(), head=head)
        except StreamExists:
            continue  # somebody was faster
    raise AssertionError("names do not end")


def _names(log: Log, stream: str) -> Iterator[str]:
    """Yield names for a fork of *stream* that are free: ``r-1.2``, ``r-1.3``, …

    A name that is taken stays taken, so nobody looks at one twice.
    """
    backend = log.backend
    for number in count(log.fork_numbers.get(stream, 2)):
        name = f"{stream}.{number}"
        if len(name.encode()) > STREAM_NAME_MAX_BYTES:
            raise BadArgument(f"no name can be made from {stream!r}, it is too long: give one")
        try:
            taken = backend.head(name) is not None
        except StreamDeleted:
            taken = True
        if not taken:
            log.fork_numbers[stream] = number
            yield name


def resolve(backend: Backend, name: str) -> str:
    """Return the stream that *name* stands for: that of the named head, if there is one, else *name* itself."""
    return backend.named_heads().get(name, name)


def rewind(log: Log, name: str, *, at: int, to: str | None = None) -> Head:
    """Make *name* stand for a new fork of what it stands for, at an earlier version; see `Store.rewind`."""
    named = log.backend.named_heads().get(name)
    stream = named if named is not None else name
    return fork(log, stream, at=at, name=to, head=(name, named))


def ancestry(backend: Backend, stream: str) -> list[Piece]:
    """Return where the events of *stream* stand: its ancestors, oldest first, and itself last."""
    return backend.lineage(stream)


def tree(backend: Backend, stream: str | None = None) -> list[Branch]:
    """Return the forest of forks, each stream after its parent; or only the tree that *stream* is in.

    Streams that were never forked are roots without branches. Deleted ones stand as long as forks need them.
    """
    heads: dict[str, list[str]] = {}
    for name, target in backend.named_heads().items():
        heads.setdefault(target, []).append(name)
    versions: dict[str, int] = {}
    roots: list[str] = []
    if stream is not None:
        roots = [backend.lineage(stream)[0].stream]
    else:
        after = ""
        while page := backend.heads(after=after):
            for head in page:
                versions[head.stream] = head.version
                if not head.base:
                    roots.append(head.stream)
            after = page[-1].stream
    tombstones = {one.stream: one for one in backend.tombstones()}
    if stream is None:
        roots += [one.stream for one in tombstones.values() if not one.base and backend.children(one.stream)]
    found: list[Branch] = []
    todo: list[tuple[str, str | None, int, int]] = [(root, None, 0, 0) for root in reversed(roots)]
    while todo:
        name, parent, at, depth = todo.pop()
        gone = tombstones.get(name)
        version = gone.kept if gone is not None else versions.get(name) or _version(backend, name)
        found.append(Branch(name, parent, at, version, gone is not None, sorted(heads.get(name, [])), depth))
        below = backend.children(name)
        todo += [(child.stream, name, child.at, depth + 1) for child in reversed(below)]
    return found


def _version(backend: Backend, stream: str) -> int:
    head = backend.head(stream)
    if head is None:
        raise StreamNotFound(stream)
    return head.version


def common_version(backend: Backend, left: str, right: str) -> int:
    """Return up to which version two streams have the same events, without reading them.

    Streams that share no lineage have none, whatever they say: each event is of one stream.
    """
    pieces = [backend.lineage(left), backend.lineage(right)]
    common = 0
    for one, other in zip(*pieces, strict=False):
        if (one.stream, one.after) != (other.stream, other.after):
            break
        common = min(one.upto, other.upto)
        if one.upto != other.upto:
            break
    return common


def difference(log: Log, left: str, right: str, *, limit: int | None = None) -> Difference:
    """Return what two streams have in common and what each has by itself, at most *limit* events a side."""
    common = common_version(log.backend, left, right)
    sides = [list(log.read(stream, after=common, limit=limit)) for stream in (left, right)]
    return Difference(common, *sides)


def changed(left: Any, right: Any, path: str = "") -> list[Changed]:
    """Return where two plain values (states as builtins) differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        names = [*left, *(key for key in right if key not in left)]
        return _below(left, right, [(key, f"{path}.{key}" if path else str(key)) for key in names])
    if isinstance(left, list) and isinstance(right, list):
        places = [(i, f"{path}[{i}]") for i in range(max(len(left), len(right)))]
        return _below(dict(enumerate(left)), dict(enumerate(right)), places)
    return [] if left == right and type(left) is type(right) else [Changed(path, "both", left, right)]


def _below(left: dict[Any, Any], right: dict[Any, Any], places: list[tuple[Any, str]]) -> list[Changed]:
    found: list[Changed] = []
    for key, path in places:
        if key not in right:
            found.append(Changed(path, "left", left[key], None))
        elif key not in left:
            found.append(Changed(path, "right", None, right[key]))
        else:
            found += changed(left[key], right[key], path)
    return found


def delete(log: Log, stream: str, *, reroot: bool, drop_heads: bool) -> None:
    """Delete *stream*; see `Store.delete`."""
    log.backend.delete(check_stream_name(stream), time_ns=log.clock(), reroot=reroot, drop_heads=drop_heads)


def sweep(backend: Backend, *, dry_run: bool = False) -> Swept:
    """Give back what deleted streams held and no living one needs; see `Store.gc`."""
    return backend.sweep(blobs_in, dry_run=dry_run)


def version_at_time(log: Log, stream: str, time_ns: int) -> int:
    """Return the last version of *stream* that was recorded at *time_ns* (UTC) or before; 0 if none was.

    Times are those of the writers' clocks, taken to go forward; where a clock was set back, the answer is one of
    the places at which the time was passed.
    """
    head = log.head(stream)
    low, high = 0, head.version
    while low < high:  # versions up to *low* are at or before the time, those past *high* are after it
        middle = (low + high + 1) // 2
        [row] = log.backend.rows(stream, after=middle - 1, upto=middle, limit=1)
        if time_of_record(row.data) <= time_ns:
            low = middle
        else:
            high = middle - 1
    return low
