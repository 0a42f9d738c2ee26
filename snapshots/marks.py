"""Marks: states at earlier versions, so small that a snapshot carries dozens of them, for loads of old versions.

A mark is a state without the items of its `Series`: of each only how many there were, and a digest of the newest.
A `Series` only grows, so the items are the beginning of those of a later state, as long as it is the same one. So
a snapshot carries the marks that were taken on the way to it, and a load between two snapshots folds from the
nearest mark: a few hundred events, where whole snapshots as dense would fill the store.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import is_
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
from tailfold.snapshots.limits import GAP_MOST_EVENTS, MARK_BYTES_MOST, MARK_EVENTS, MARKS_MOST
from tailfold.snapshots.policy import ANY_NUMBER
from tailfold.snapshots.sameness import same
from tailfold.snapshots.schema import Survey, hints_of, survey
from tailfold.snapshots.series import Series
from tailfold.snapshots.table import Table
from tailfold.snapshots.writer import Growing, StateWriter, Typed
from tailfold.snapshots.zstd import compress, decompress

S = TypeVar("S")

DIGEST_BYTES = 16
ITEM_DIGEST_BYTES = 8


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A state at a version, without the items of its series."""

    version: int
    body: bytes


_decode_marks = msgspec.msgpack.Decoder(list[Mark]).decode
_encode = msgspec.msgpack.Encoder().encode


class MarkCodec(Generic[S]):
    """Makes marks of the states of one type, and states of them."""

    def __init__(self, state_type: Any) -> None:
        self._type = state_type
        self._places = _places(state_type)

    @property
    def possible(self) -> bool:
        """True if all that grows in such a state is a `Series` that stands in a field, always there."""
        return self._places is not None

    def series(self, state: S) -> list[Series[Any]] | None:
        """Return the series of *state*, in the order of the fields; None if something else stands there."""
        if self._places is None:
            return None
        found = []
        for path in self._places:
            value: Any = state
            for name in path:
                value = getattr(value, name, None)
            if not isinstance(value, Series):
                return None
            found.append(value)
        return found

    def encode(self, state: S) -> bytes | None:
        """Return *state* as the body of a mark; None if it would not come back as it is, or is too large."""
        series = self.series(state)
        if series is None:
            return None
        body = self._bytes(state, series)
        if body is None or len(body) > MARK_BYTES_MOST:
            return None
        back = self._decode(body, iter(series), lambda live, count, digest: live)
        if not same(state, back):
            return None
        return self._bytes(back, series) if self._survey.floats else body

    def decode(self, body: bytes, later: S) -> S:
        """Return the state of a mark, its series begun as those of *later*; raise ValueError if they do not fit."""
        series = self.series(later)
        if series is None:
            raise ValueError("the later state has no such series")
        return self._decode(body, iter(series), _beginning)

    def _bytes(self, state: S, series: list[Series[Any]]) -> bytes | None:
        writer = _MarkWriter(sort_sets=self._survey.sets)
        body = writer.encode_part(state)[0]
        return body if _identical(writer.containers, series) else None

    @cached_property
    def _survey(self) -> Survey:
        return survey(self._type)

    def _decode(self, body: bytes, series: Iterator[Series[Any]], begun: Any) -> S:
        def hook(expected: Any, value: Any) -> Any:
            if (get_origin(expected) or expected) is not Series:
                raise TypeError(f"a mark cannot hold {expected!r}")
            count, digest = value
            return begun(next(series), count, digest)

        try:
            state: S = msgspec.msgpack.decode(body, type=self._type, dec_hook=hook)
        except Exception as error:  # as in `StateCodec.decode`
            raise ValueError(str(error)) from error
        if next(series, None) is not None:
            raise ValueError("the mark has fewer series than the state")
        return state


class Marks:
    """The marks of one state that is being folded: taken on the way, handed over with each snapshot.

    They hold only as long as the series of the state are the very objects that they were.
    """

    def __init__(self, version: int = 0, packed: bytes = b"", series: list[Series[Any]] | None = None) -> None:
        """Go on from *version*, with the marks that came with the state, if any; *series* are the state's."""
        self._last = version
        self._begun = version
        self._packed = packed
        self._marks: list[Mark] = []
        self._series = series
        self._spacing = MARK_EVENTS
        self._handed_over = 0
        self.due_at = version + MARK_EVENTS
        """The version at which the next one should be taken."""

    def stop(self) -> None:
        """Take no more of them."""
        self.due_at = ANY_NUMBER

    def take(self, codec: MarkCodec[S], state: S, version: int) -> None:
        """Take a mark of *state* at *version*. Whatever a state holds, this never raises."""
        self._unpack()
        self._check(codec, state)
        try:
            body = codec.encode(state)
        except Exception:  # a snapshot of such a state fails, too, and says why
            body = None
        if body is None:
            self._spacing = min(2 * self._spacing, ANY_NUMBER)  # what is not possible may become so
        else:
            self._marks.append(Mark(version, body))
            if len(self._marks) > MARKS_MOST:
                del self._marks[::2]
                self._spacing *= 2
        self._last, self.due_at = version, version + self._spacing

    def hand_over(self, codec: MarkCodec[S], state: S, version: int) -> bytes:
        """Return the marks for a snapshot of *state* at *version*: as far back as the one before may stand.

        One of this very version is among them, unless another is near: it serves when the snapshot is thinned out.
        """
        if version - self._last >= self._spacing // 2:
            self.take(codec, state, version)
        self._unpack()
        self._check(codec, state)
        oldest = min(version - GAP_MOST_EVENTS, self._handed_over)
        self._marks = [mark for mark in self._marks if mark.version >= oldest]
        self._handed_over = version
        if self._marks:
            self._spacing, self.due_at = MARK_EVENTS, self._last + MARK_EVENTS
        return pack(self._marks)

    def _check(self, codec: MarkCodec[S], state: S) -> None:
        series = codec.series(state)
        if series is None or self._series is None or not _identical(series, self._series):
            self._marks.clear()
        self._series = series

    def _unpack(self) -> None:
        if self._packed:
            # Later ones came with a later snapshot, of a stream that went on otherwise.
            self._marks = [mark for mark in unpack(self._packed) if mark.version <= self._begun]
            self._packed = b""


def pack(marks: list[Mark]) -> bytes:
    """Return the bytes of *marks*: a digest, and the rest compressed."""
    if not marks:
        return b""
    plain = _encode(marks)
    return _digest(plain) + compress(plain)


def unpack(packed: bytes) -> list[Mark]:
    """Give back what was packed, oldest first; nothing if it was damaged."""
    if not packed:
        return []
    try:
        plain = decompress(packed[DIGEST_BYTES:])
        return _decode_marks(plain) if _digest(plain) == packed[:DIGEST_BYTES] else []
    except (ValueError, msgspec.MsgspecError):
        return []


def nearest(packed: bytes, after: int, upto: int) -> Mark | None:
    """Return the newest mark with *after* < version <= *upto*, if there is one."""
    return next((mark for mark in reversed(unpack(packed)) if after < mark.version <= upto), None)


class _MarkWriter(StateWriter):
    """Writes a series as how many items it has, and a digest of the newest, which a handler may still change."""

    def root_of(self, container: Growing) -> Any:
        if not isinstance(container, Series):
            raise TypeError("only a series may grow in a mark")
        self.containers.append(container)
        return [len(container), _digest_of_newest(container, len(container))]


def _beginning(later: Series[Any], count: int, digest: bytes) -> Series[Any]:
    begun = later._beginning(count)
    if _digest_of_newest(begun, count) != digest:
        raise ValueError("the newest item was changed after the mark")
    return begun


def _digest_of_newest(series: Series[Any], count: int) -> bytes:
    if not count:
        return b""
    typed = series._typed() or Typed(Any)
    body = StateWriter(sort_sets=True).encode_part([series[-1]])[0]
    if typed.floats:  # an int in the place of one comes back as a float
        body = StateWriter(sort_sets=True).encode_part(typed.decode_list(body, None))[0]
    return _digest(body)[:ITEM_DIGEST_BYTES]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=b"tailfold.mark").digest()


def _identical(some: Iterable[Any], others: list[Series[Any]]) -> bool:
    listed = list(some)
    return len(listed) == len(others) and all(map(is_, listed, others))


def _places(state_type: Any) -> list[tuple[str, ...]] | None:
    """Return where the series of such a state stand, as paths of fields; None if something else grows in it."""
    found: list[tuple[str, ...]] = []

    def walk(annotation: Any, path: tuple[str, ...], inside: tuple[Any, ...]) -> bool:
        if get_origin(annotation) is Series:
            found.append(path)
            return not _grows(get_args(annotation)[0], set())
        if not _grows(annotation, set()):
            return True
        if not _has_fields(annotation) or annotation in inside:
            return False
        hints = hints_of(annotation)
        return all(walk(hints[name], (*path, name), (*inside, annotation)) for name in _names(annotation))

    try:
        return found if walk(state_type, (), ()) else None
    except Exception:  # a type that cannot be looked through
        return None


def _grows(annotation: Any, seen: set[Any]) -> bool:
    """Say whether a `Series` or a `Table` stands somewhere in values of this type."""
    if annotation in (Series, Table) or get_origin(annotation) in (Series, Table):
        return True
    if any(_grows(one, seen) for one in get_args(annotation)):
        return True
    if isinstance(annotation, TypeVar) or annotation is Any:
        return False  # what stands there is compared when a mark is taken
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type) or origin in seen or not hasattr(origin, "__annotations__"):
        return False
    seen.add(origin)
    return any(_grows(one, seen) for one in hints_of(origin).values())


def _has_fields(annotation: Any) -> bool:
    return isinstance(annotation, type) and (
        dataclasses.is_dataclass(annotation) or issubclass(annotation, msgspec.Struct)
    )


def _names(cls: Any) -> list[str]:
    """Return the names of the fields in the order in which they are written."""
    if dataclasses.is_dataclass(cls):
        return [one.name for one in dataclasses.fields(cls)]
    return [one.name for one in msgspec.structs.fields(cls)]
