"""`Series`: an append-only sequence for state that grows, of which a snapshot writes only what is new.

Full chunks of 256 items are sealed: encoded, content-addressed, written once, and dropped from memory when they
are stored. Their references form a tree of fan-out 256, so the root that stands in a snapshot stays small
(fewer than 256 references a level), whatever the length. The idea is that of a persistent vector with a tail.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar, get_args, overload

from tailfold.snapshots import chunks
from tailfold.snapshots.chunks import Chunk, ChunkReader, Unstored
from tailfold.snapshots.sameness import same
from tailfold.snapshots.writer import StateWriter, Typed

T = TypeVar("T")

CHUNK_ITEMS = 256
_UNTYPED = Typed(Any)
REPR_ITEMS = 20


class Series(Sequence[T], Generic[T]):
    """A sequence that grows at its end and never changes before it.

    `append`, `extend`, `len`, indexes, slices (as lists), iteration and `last` are those of a list; there is
    no assignment and no deletion, and an item must not be changed after it was appended. Annotate it with its
    item type (``messages: Series[Message]``, made with ``Series[Message]()``), or items cannot leave memory.
    Equal to a series or list with equal items.
    """

    only_grows: ClassVar[bool] = True

    __slots__ = (
        "__orig_class__",
        "_item",
        "_kept",
        "_levels",
        "_sealed",
        "_tail",
        "_unstored",
        "append",
    )

    append: Callable[[T], None]
    """Add one item at the end. It is the very `append` of a list, and costs the same."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._tail: list[T] = list(items)
        self.append = self._tail.append
        self._levels: list[list[bytes]] = []
        self._sealed = 0
        self._unstored = Unstored()
        self._kept: dict[bytes, list[T]] = {}
        self._item: Typed | None = None

    # -- a sequence ------------------------------------------------------------------------------------

    def extend(self, items: Iterable[T]) -> None:
        """Add items at the end."""
        self._tail.extend(list(items) if items is self else items)

    def last(self, count: int) -> list[T]:
        """Return the last *count* items, oldest first; all of them if there are fewer."""
        return self[max(0, len(self) - count) :] if count > 0 else []

    def __len__(self) -> int:
        return self._sealed + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        size = len(self)
        if isinstance(index, slice):
            places = range(*index.indices(size))
            if places.step == 1:
                return list(self._between(places.start, max(places.start, places.stop)))
            return [self._at(i) for i in places]
        place = index.__index__()
        if place < 0:
            place += size
        if not 0 <= place < size:
            raise IndexError("series index out of range")
        return self._at(place)

    def __iter__(self) -> Iterator[T]:
        place = 0
        while place < len(self):  # like a list, it goes on to items appended meanwhile
            if place >= self._sealed:
                yield self._tail[place - self._sealed]
                place += 1
            else:
                number, inside = divmod(place, CHUNK_ITEMS)
                items = self._chunk(number)[inside:]
                yield from items
                place += len(items)

    def __reversed__(self) -> Iterator[T]:
        for place in range(len(self) - 1, -1, -1):
            yield self._at(place)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if isinstance(other, Series):
            if self._levels == other._levels and self._sealed and self._sealed == other._sealed:
                return self._tail == other._tail  # equal digests are equal items
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        if isinstance(other, list):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if len(self) <= REPR_ITEMS:
            return f"Series({list(self)!r})"
        shown = ", ".join(repr(item) for item in self[:3])
        return f"Series([{shown}, … {len(self)} items …, {self[-1]!r}])"

    def __copy__(self) -> Series[T]:
        copied: Series[T] = Series(self._tail)
        copied._levels = [list(level) for level in self._levels]
        copied._sealed, copied._unstored, copied._kept = self._sealed, self._unstored.copy(), dict(self._kept)
        copied._item = self._typed()
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Series[T]:
        copied = self.__copy__()
        copied._tail[:] = copy.deepcopy(self._tail, memo)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return Series, (list(self),)

    # -- chunks ----------------------------------------------------------------------------------------

    def _typed(self) -> Typed | None:
        if self._item is None:
            arguments = get_args(getattr(self, "__orig_class__", None))
            if arguments and not isinstance(arguments[0], TypeVar):
                self._item = Typed(arguments[0])
        return self._item

    def _at(self, place: int) -> T:
        if place >= self._sealed:
            return self._tail[place - self._sealed]
        number, inside = divmod(place, CHUNK_ITEMS)
        return self._chunk(number)[inside]

    def _between(self, start: int, stop: int) -> Iterator[T]:
        while start < min(stop, self._sealed):
            number, inside = divmod(start, CHUNK_ITEMS)
            items = self._chunk(number)[inside : inside + stop - start]
            yield from items
            start += len(items)
        if start < stop:
            yield from self._tail[start - self._sealed : stop - self._sealed]

    def _chunk(self, number: int) -> list[T]:
        ref = self._leaf_ref(number)
        kept = self._kept.get(ref)
        if kept is not None:
            return kept
        typed = self._typed()
        assert typed is not None, "a chunk leaves memory only if its items' type is known"

        def decode(chunk: Chunk, reader: ChunkReader) -> list[T]:
            return typed.decode_list(chunk.body, reader)

        items: list[T] = self._unstored.decoded(ref, typed.key, decode)
        return items

    def _leaf_ref(self, number: int) -> bytes:
        for height in range(len(self._levels) - 1, -1, -1):
            span = CHUNK_ITEMS**height
            level = self._levels[height]
            if number < len(level) * span:
                ref: bytes = level[number // span]
                number %= span
                while height:
                    height -= 1
                    span //= CHUNK_ITEMS
                    ref = self._children(ref)[number // span]
                    number %= span
                return ref
            number -= len(level) * span
        raise AssertionError("sealed items are covered by the levels")

    def _beginning(self, count: int) -> Series[T]:
        """Return a series of the first *count* items, as it was when there were no more; raise ValueError.

        Items that are not sealed in it are decoded anew: a handler may change the newest one.
        """
        if not 0 <= count <= len(self):
            raise ValueError(f"a series of {len(self)} items has no first {count}")
        full = max(0, count - 1) // CHUNK_ITEMS  # the newest item is never sealed
        begun: Series[T] = Series()
        height, span = 0, 1
        while span <= full:
            first = full // (span * CHUNK_ITEMS) * CHUNK_ITEMS
            begun._levels.append(self._refs(height, first, full // span))
            height, span = height + 1, span * CHUNK_ITEMS
        begun._sealed = full * CHUNK_ITEMS
        begun._item = self._typed()
        begun._unstored = self._unstored.copy()
        if begun._sealed < self._sealed:
            assert begun._item is not None, "a chunk leaves memory only if its items' type is known"
            chunk = chunks.split(self._unstored.reader.payload(self._leaf_ref(full)))
            begun.extend(begun._item.decode_list(chunk.body, self._unstored.stored)[: count - begun._sealed])
        else:
            begun.extend(self._tail[: count - begun._sealed])
        return begun

    def _refs(self, height: int, first: int, last: int) -> list[bytes]:
        """Return the references of the nodes *first*..*last*-1 at a height; all of them have one parent."""
        if first == last:
            return []
        parent, place = divmod(first, CHUNK_ITEMS)
        if (parent + 1) * CHUNK_ITEMS ** (height + 2) <= self._sealed:  # the parent is full
            [ref] = self._refs(height + 1, parent, parent + 1)
            return self._children(ref)[place : place + last - first]
        return self._levels[height][place : place + last - first]

    def _children(self, ref: bytes) -> list[bytes]:
        refs: list[bytes] = self._unstored.decoded(ref, "refs", lambda chunk, _: chunk.refs)
        return refs

    def _seal(self, writer: StateWriter) -> None:
        """Turn full chunks of the tail into sealed ones. Their items stay in memory until `_stored`."""
        typed = self._typed() or _UNTYPED
        done = 0
        try:
            while len(self._tail) - done > CHUNK_ITEMS:  # never the newest item: a handler may still hold it
                items = self._tail[done : done + CHUNK_ITEMS]
                body, refs, inner = typed.encoded(items, writer, self._unstored.reader)
                self._unstored.payloads.update(inner)
                ref = self._unstored.keep(chunks.join(chunks.LEAF, refs, body))
                self._kept[ref] = items
                self._push(ref)
                done += CHUNK_ITEMS
        finally:
            del self._tail[:done]  # in place: `append` is bound to this list
            self._sealed += done

    def _push(self, ref: bytes, height: int = 0) -> None:
        if height == len(self._levels):
            self._levels.append([])
        level = self._levels[height]
        level.append(ref)
        if len(level) == CHUNK_ITEMS:
            node = self._unstored.keep(chunks.join(chunks.SERIES_NODE, level, b""))
            self._levels[height] = []
            self._push(node, height + 1)

    # -- the codec's side ------------------------------------------------------------------------------

    def _root(self, writer: StateWriter) -> Any:
        """Seal what is full, hand the unstored chunks to *writer*, and return what stands in the snapshot."""
        if len(self._tail) > CHUNK_ITEMS:
            self._seal(writer)
        writer.add(self, self._unstored.payloads, (ref for level in self._levels for ref in level))
        return [self._sealed, [b"".join(level) for level in self._levels], self._tail]

    def _same_root(self, other: Series[T]) -> bool:
        """Compare two series of which *other* was decoded from the root of this one."""
        return self._levels == other._levels and self._sealed == other._sealed and same(self._tail, other._tail)

    def _stored(self, stored: set[bytes], reader: ChunkReader) -> None:
        """Forget the chunks that are stored now; they are loaded again when they are asked for."""
        self._unstored.forget(stored)
        self._unstored.stored = reader
        if self._typed() is not None:
            self._kept = {ref: items for ref, items in self._kept.items() if ref in self._unstored.payloads}

    @classmethod
    def _from_root(cls, typed: Typed, root: Any, reader: ChunkReader | None) -> Series[Any]:
        sealed, levels, tail = root
        size = chunks.DIGEST_BYTES
        series: Series[Any] = cls(typed.convert_list(tail, reader))
        series._sealed = sealed
        series._levels = [[level[i : i + size] for i in range(0, len(level), size)] for level in levels]
        series._item, series._unstored.stored = typed, reader
        covered = sum(len(level) * CHUNK_ITEMS**h for h, level in enumerate(series._levels)) * CHUNK_ITEMS
        if covered != sealed or any(len(level) % size for level in levels):
            raise ValueError("the root of a series does not add up")
        return series
