"""`Table`: a dictionary for state that grows, of which a snapshot writes only what changed.

A trie over the hash of the key, 16 ways at each node, with leaves of at most 32 entries. Its shape depends on
its content alone, never on the order of the operations, so equal tables have equal bytes and share chunks.
Changes wait in memory and are merged into the trie when a snapshot is written: O(changes · log n). The idea is
that of a hash array mapped trie, with content addresses.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import struct
import types
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin
from uuid import UUID

import msgspec
from tailfold.snapshots import chunks
from tailfold.snapshots.chunks import Chunk, ChunkReader, Unstored
from tailfold.snapshots.sameness import same
from tailfold.snapshots.writer import StateWriter, Typed

K = TypeVar("K")
V = TypeVar("V")

LEAF_ENTRIES = 32
WAYS = 16
REPR_ITEMS = 20
HASH_BYTES = 16

_COUNTS = struct.Struct(f">{WAYS}Q")
_FIXED = (str, int, bytes, float, bool, type(None), Decimal, UUID, datetime, date, time, timedelta, Enum)
_encode_key = msgspec.msgpack.Encoder(order="sorted").encode
_ABSENT: Any = object()


class _Branch(NamedTuple):
    """A subtree: the digest of its top chunk (empty for none), and how many entries it holds."""

    ref: bytes
    entries: int


_EMPTY = _Branch(b"", 0)
_Entry = tuple[bytes, Any, Any]  # key bytes, key, value (or _ABSENT in a change: deleted)


class Table(MutableMapping[K, V], Generic[K, V]):
    """A dictionary that may grow without bound. Annotate it with its types, and make it with ``Table[K, V]()``.

    Keys are strings, integers of 64 bits, bytes, or tuples of those. It iterates in an order that depends on its
    keys alone, not in the order of insertion. A value that can be changed in place may be: reading one counts
    as changing it, so large tables are best given immutable values. Equal to a table or dict with equal items.
    """

    only_grows: ClassVar[bool] = False

    __slots__ = ("__orig_class__", "_base", "_changed", "_size", "_types", "_unstored")

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._base = _EMPTY
        self._changed: dict[K, Any] = {}
        self._unstored = Unstored()
        self._size = 0
        self._types: tuple[Typed, Typed] | None = None
        self.update(items)

    # -- a mapping -------------------------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        found = self._changed.get(key, self) if _is_key(key) else _ABSENT
        if found is _ABSENT:
            raise KeyError(key)
        if found is not self:
            return found  # type: ignore[no-any-return]
        found = self._stored_value(key)
        if found is _ABSENT:
            raise KeyError(key)
        if not _is_fixed(found):
            # It may be changed in place, and the cached chunk must stay what its digest says.
            found = self._changed[key] = copy.deepcopy(found)
        return found  # type: ignore[no-any-return]

    def __setitem__(self, key: K, value: V) -> None:
        _check_key(key)
        if key not in self:
            self._size += 1
        self._changed[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._size -= 1
        if self._stored_value(key) is _ABSENT:
            del self._changed[key]
        else:
            self._changed[key] = _ABSENT

    def __contains__(self, key: object) -> bool:
        if not _is_key(key):
            return False
        found = self._changed.get(key, self)  # type: ignore[arg-type]
        if found is not self:
            return found is not _ABSENT
        return self._stored_value(key) is not _ABSENT

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for _, key, _ in self._entries():
            yield key

    def clear(self) -> None:
        """Remove all items."""
        self._base, self._size = _EMPTY, 0
        self._changed, self._unstored.payloads = {}, {}

    def items(self) -> ItemsView[K, V]:
        """Return a view of the (key, value) pairs."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return a view of the values."""
        return _Values(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table | dict):
            return NotImplemented
        if len(self) != len(other):
            return False
        if isinstance(other, Table) and not (self._changed or other._changed) and self._base == other._base:
            return True  # equal digests are equal items; unequal ones need not differ
        return all(other.get(key, _ABSENT) == value for key, value in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if len(self) <= REPR_ITEMS:
            return f"Table({dict(self.items())!r})"
        key, value = next(iter(self.items()))
        return f"Table({{{key!r}: {value!r}, … {len(self)} items …}})"

    def __copy__(self) -> Table[K, V]:
        copied: Table[K, V] = Table()
        copied._base, copied._size, copied._unstored = self._base, self._size, self._unstored.copy()
        copied._changed = dict(self._changed)
        copied._types = self._typed()
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Table[K, V]:
        copied = self.__copy__()
        copied._changed = {k: v if v is _ABSENT else copy.deepcopy(v, memo) for k, v in self._changed.items()}
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (dict(self.items()),)

    # -- the trie --------------------------------------------------------------------------------------

    def _typed(self) -> tuple[Typed, Typed] | None:
        if self._types is None:
            arguments = get_args(getattr(self, "__orig_class__", None))
            if len(arguments) == 2 and not any(isinstance(a, TypeVar) for a in arguments):
                self._types = Typed(arguments[0]), Typed(arguments[1])
        return self._types

    def _entries(self) -> Iterator[_Entry]:
        """Yield all entries in the table's order, by hash of the key: the trie's own, merged with the changes."""
        changed = sorted(
            ((_hash(data := _encode_key(key)), (data, key, value)) for key, value in self._changed.items()),
            key=lambda change: change[0],
        )
        at = 0
        for entry in self._base_entries(self._base):
            place = _hash(entry[0])
            while at < len(changed) and changed[at][0] < place:
                if changed[at][1][2] is not _ABSENT:
                    yield changed[at][1]
                at += 1
            if at < len(changed) and changed[at][0] == place:
                entry = changed[at][1]
                at += 1
            if entry[2] is not _ABSENT:
                yield entry
        yield from (entry for _, entry in changed[at:] if entry[2] is not _ABSENT)

    def _base_entries(self, branch: _Branch) -> Iterator[_Entry]:
        if branch.entries:
            kind, content = self._load(branch.ref)
            if kind == chunks.LEAF:
                yield from content.values()
            else:
                for child in content:
                    yield from self._base_entries(child)

    def _stored_value(self, key: Any) -> Any:
        branch = self._base
        if not branch.entries:
            return _ABSENT
        try:
            data = _encode_key(key)
        except TypeError:
            return _ABSENT
        place = _hash(data)
        depth = 0
        while branch.entries:
            kind, content = self._load(branch.ref)
            if kind == chunks.LEAF:
                entry = content.get(data)
                return entry[2] if entry else _ABSENT
            branch = content[_way(place, depth)]
            depth += 1
        return _ABSENT

    def _load(self, ref: bytes) -> tuple[int, Any]:
        """Return (LEAF, entries by key bytes) or (TABLE_NODE, branches)."""
        types = self._typed()
        assert types is not None, "a table leaves memory only if its types are known"

        def decode(chunk: Chunk, reader: ChunkReader) -> tuple[int, Any]:
            if chunk.kind == chunks.TABLE_NODE:
                return chunk.kind, _split_node(chunk)
            keys, values = msgspec.msgpack.decode(chunk.body, type=tuple[msgspec.Raw, msgspec.Raw])
            typed_keys = types[0].decode_list(bytes(keys), reader)
            typed_values = types[1].decode_list(bytes(values), reader)
            pairs = zip(typed_keys, typed_values, strict=True)
            return chunk.kind, {(data := _encode_key(key)): (data, key, value) for key, value in pairs}

        how = ("table", types[0].key, types[1].key)
        found: tuple[int, Any] = self._unstored.decoded(ref, how, decode)
        return found

    def _merge(
        self, branch: _Branch, depth: int, changes: list[tuple[bytes, _Entry]], writer: StateWriter
    ) -> _Branch:
        """Return the subtree *branch* with *changes* (sorted by hash) applied."""
        if not changes:
            return branch
        kind, content = self._load(branch.ref) if branch.entries else (chunks.LEAF, {})
        if kind == chunks.LEAF:
            entries = {_hash(data): entry for data, entry in content.items()}
            for place, entry in changes:
                if entry[2] is _ABSENT:
                    entries.pop(place, None)
                else:
                    entries[place] = entry
            return self._build(sorted(entries.items()), depth, writer)
        groups: list[list[tuple[bytes, _Entry]]] = [[] for _ in range(WAYS)]
        for place, entry in changes:
            groups[_way(place, depth)].append((place, entry))
        children = [self._merge(content[way], depth + 1, groups[way], writer) for way in range(WAYS)]
        count = sum(child.entries for child in children)
        if count <= LEAF_ENTRIES:  # canonical: what fits a leaf is one
            entries = {_hash(e[0]): e for child in children for e in self._base_entries(child)}
            return self._build(sorted(entries.items()), depth, writer)
        return self._node(children)

    def _build(self, entries: list[tuple[bytes, _Entry]], depth: int, writer: StateWriter) -> _Branch:
        """Return a subtree of *entries*, sorted by hash."""
        if not entries:
            return _EMPTY
        if len(entries) <= LEAF_ENTRIES:
            types = self._typed()
            assert types is not None
            keys = types[0].encoded([e[1] for _, e in entries], writer, self._unstored.reader)
            values = types[1].encoded([e[2] for _, e in entries], writer, self._unstored.reader)
            self._unstored.payloads.update(values.inner)
            body, refs = b"\x92" + keys.body + values.body, values.refs  # a msgpack array of two
            return _Branch(self._unstored.keep(chunks.join(chunks.LEAF, refs, body)), len(entries))
        groups: list[list[tuple[bytes, _Entry]]] = [[] for _ in range(WAYS)]
        for place, entry in entries:
            groups[_way(place, depth)].append((place, entry))
        return self._node([self._build(group, depth + 1, writer) for group in groups])

    def _node(self, children: list[_Branch]) -> _Branch:
        counts = _COUNTS.pack(*(child.entries for child in children))
        payload = chunks.join(chunks.TABLE_NODE, (child.ref for child in children if child.entries), counts)
        return _Branch(self._unstored.keep(payload), sum(child.entries for child in children))

    # -- the codec's side ------------------------------------------------------------------------------

    def _root(self, writer: StateWriter) -> Any:
        """Merge the changes, hand the unstored chunks to *writer*, and return what stands in the snapshot."""
        if self._typed() is None:
            # Without types nothing may leave memory: all of it stands in the snapshot itself.
            entries = list(self._entries())
            return [len(entries), b"", [[e[1] for e in entries], [e[2] for e in entries]]]
        changes = [(_hash(data := _encode_key(k)), (data, k, v)) for k, v in self._changed.items()]
        self._base = self._merge(self._base, 0, sorted(changes, key=lambda c: c[0]), writer)
        assert self._base.entries == self._size
        reachable = self._reachable()
        held = self._unstored.payloads
        self._unstored.payloads = {ref: payload for ref, payload in held.items() if ref in reachable}
        self._changed = {}
        writer.add(self, self._unstored.payloads, [self._base.ref] if self._size else [])
        return [self._size, self._base.ref, None]

    def _reachable(self) -> set[bytes]:
        found: set[bytes] = set()
        todo = [self._base.ref] if self._base.entries else []
        while todo:
            ref = todo.pop()
            if ref in self._unstored.payloads and ref not in found:
                found.add(ref)
                todo += chunks.split(self._unstored.payloads[ref]).refs
        return found

    def _same_root(self, other: Table[K, V]) -> bool:
        """Compare two tables of which *other* was decoded from the root of this one."""
        if self._typed() is None:
            mine, theirs = list(self._entries()), list(other._entries())
            return len(mine) == len(theirs) and all(map(same, mine, theirs))
        return (self._base, self._size) == (other._base, other._size)

    def _stored(self, stored: set[bytes], reader: ChunkReader) -> None:
        """Forget the chunks that are stored now; they are loaded again when they are asked for."""
        self._unstored.forget(stored)
        self._unstored.stored = reader

    @classmethod
    def _from_root(cls, arguments: Any, root: Any, reader: ChunkReader | None) -> Table[Any, Any]:
        size, ref, inline = root
        table: Table[Any, Any] = cls()
        types = Typed(arguments[0]), Typed(arguments[1])
        table._types, table._unstored.stored = types, reader
        if inline is not None:
            keys = types[0].convert_list(inline[0], reader)
            values = types[1].convert_list(inline[1], reader)
            table._changed = dict(zip(keys, values, strict=True))
        elif size:
            table._base = _Branch(ref, size)
        if size and not (inline or len(ref) == chunks.DIGEST_BYTES):
            raise ValueError("the root of a table does not add up")
        table._size = size
        return table


class _Items(ItemsView[K, V]):
    """The pairs of a table; a value that can be changed in place counts as changed when it is seen."""

    _mapping: Table[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        table = self._mapping
        for _, key, value in table._entries():
            if not _is_fixed(value):
                value = table[key]
            yield key, value


class _Values(ValuesView[V]):
    """The values of a table, in one walk over it."""

    _mapping: Table[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.items())


def _is_key(key: object) -> bool:
    """Say whether *key* may stand in a table: of an exact type that compares as its bytes do."""
    if type(key) is tuple:
        return all(map(_is_key, key))
    if type(key) is int:
        return -(1 << 63) <= key < 1 << 64
    if type(key) is str:
        return key.isascii() or not any("\ud800" <= char <= "\udfff" for char in key)
    return type(key) is bytes


def _check_key(key: object) -> None:
    if not _is_key(key):
        # 1, 1.0 and True are one key to a dict, and different bytes; an enum comes back as another object.
        raise TypeError(f"a table's key is a str, bytes, an int of 64 bits, or a tuple of those, not {key!r}")


def _is_fixed(value: Any) -> bool:
    if isinstance(value, _FIXED):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(_is_fixed, value))
    if isinstance(value, msgspec.Struct) and value.__struct_config__.frozen:
        return _is_fixed_class(type(value)) or all(
            _is_fixed(getattr(value, name)) for name in value.__struct_fields__
        )
    return False


@functools.cache
def _is_fixed_class(struct: type[msgspec.Struct]) -> bool:
    """Say whether every field of a frozen struct is annotated with plain fixed types: no need to look at values.

    Decoded values are what the annotations say.
    """
    return all(map(_is_fixed_type, (field.type for field in msgspec.structs.fields(struct))))


def _is_fixed_type(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Literal or annotation is None:
        return True
    if origin in (Union, types.UnionType):
        return all(map(_is_fixed_type, get_args(annotation)))
    return isinstance(annotation, type) and origin is None and issubclass(annotation, _FIXED)


def _hash(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=HASH_BYTES, person=b"tailfold.table").digest()


def _way(place: bytes, depth: int) -> int:
    """Return the four bits of a hash that choose the way at *depth*."""
    byte = place[depth // 2]
    return byte >> 4 if depth % 2 == 0 else byte & 15


def _split_node(chunk: Chunk) -> list[_Branch]:
    counts = _COUNTS.unpack(chunk.body)
    refs = iter(chunk.refs)
    return [_Branch(next(refs), count) if count else _EMPTY for count in counts]
