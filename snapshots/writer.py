"""What one encoding of a state gathers: bytes, the chunks that are new, and the references that it rests on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec
from tailfold.snapshots.chunks import ChunkReader, Unstored
from tailfold.snapshots.sameness import same


class Growing(Protocol):
    """A container that keeps most of itself in chunks: `Series` and `Table`."""

    _unstored: Unstored

    only_grows: ClassVar[bool]
    """True if a full chunk is never written again with other content."""

    def _root(self, writer: StateWriter) -> Any: ...
    def _stored(self, stored: set[bytes], reader: ChunkReader) -> None: ...


THOROUGH_FIRST = 4
"""So many encodings are compared at every level, types included; later ones for equality…"""
EQUAL_EVERY = 4
"""…of parts whose items are all of the declared class, one in so many…"""
THOROUGH_EVERY = 16
"""…and one in so many thoroughly."""


class Encoded(NamedTuple):
    """Encoded items: their bytes, the references inside them, and the unstored chunks of those."""

    body: bytes
    refs: list[bytes]
    inner: dict[bytes, bytes]


class Typed:
    """The type of the items of a container, with the decoders that give them."""

    def __init__(self, item: Any) -> None:
        self.item = item
        self.key = repr(item)
        self._floats: bool | None = None
        self._encoded = 0
        self._decoders: dict[int, tuple[ChunkReader | None, Any]] = {}

    @property
    def floats(self) -> bool:
        """True if an item may hold a float, so that ints in its place have to be written as floats."""
        if self._floats is None:
            from tailfold.snapshots.schema import survey

            self._floats = survey(self.item).floats
        return self._floats

    def encoded(self, items: list[Any], writer: StateWriter, reader: ChunkReader) -> Encoded:
        """Encode *items* as one part, and compare what comes back; raise TypeError if it is not the same.

        Comparing costs as much as encoding. So the items' own types are looked at every time, and what comes
        back is compared for the first parts and then for one in four: for equality, or at every level.
        """
        body, refs, inner = writer.encode_part(items)
        number, self._encoded = self._encoded, self._encoded + 1
        plain = isinstance(self.item, type) and set(map(type, items)) <= {self.item}
        if plain and not self.floats and number >= THOROUGH_FIRST and number % EQUAL_EVERY:
            return Encoded(body, refs, inner)
        back = self.decode_list(body, reader)
        thorough = number < THOROUGH_FIRST or number % THOROUGH_EVERY == 0
        if not (same(items, back) if thorough else items == back):
            raise TypeError(f"an item does not come back as it was from {self.item!r}: annotate its own type")
        if self.floats:
            body = writer.again(back)
        return Encoded(body, refs, inner)

    def decode_list(self, body: bytes, reader: ChunkReader | None) -> list[Any]:
        """Decode a msgpack array of items; growing containers inside them load through *reader*."""
        known = self._decoders.get(id(reader))
        if known is None or known[0] is not reader:
            decoder = msgspec.msgpack.Decoder(list[self.item], dec_hook=decode_hook(reader))  # type: ignore[name-defined]
            self._decoders = {id(reader): (reader, decoder)}
            known = reader, decoder
        items: list[Any] = known[1].decode(body)
        return items

    def convert_list(self, items: Any, reader: ChunkReader | None) -> list[Any]:
        """Give decoded builtins their types."""
        return msgspec.convert(items, list[self.item], dec_hook=decode_hook(reader))  # type: ignore[name-defined]


class StateWriter:
    """One encoding of one state. `chunks` are the payloads that may not be stored yet, by digest."""

    def __init__(self, *, sort_sets: bool) -> None:
        self.chunks: dict[bytes, bytes] = {}
        self.grown: set[bytes] = set()
        """Chunks of containers that only grow: written once, however often states are encoded."""
        self.containers: list[Growing] = []
        self._sort_sets = sort_sets
        self._parts: list[tuple[list[bytes], dict[bytes, bytes]]] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._hook)

    def encode_part(self, value: Any) -> tuple[bytes, list[bytes], dict[bytes, bytes]]:
        """Return the bytes of *value*, and of the growing containers inside it references and unstored chunks."""
        self._parts.append(([], {}))
        try:
            body = self._encoder.encode(self.plain(value) if self._sort_sets else value)
        finally:
            refs, inner = self._parts.pop()
        return body, refs, inner

    def again(self, value: Any) -> bytes:
        """Return the bytes of a decoded value, whose chunks were taken already."""
        return StateWriter(sort_sets=self._sort_sets).encode_part(value)[0]

    def add(self, container: Growing, pending: dict[bytes, bytes], refs: Iterable[bytes]) -> None:
        """Take a container's unstored chunks, and the references that its root rests on."""
        self.containers.append(container)
        self.chunks.update(pending)
        if container.only_grows:
            self.grown.update(pending)
        self._parts[-1][0].extend(refs)
        self._parts[-1][1].update(pending)

    def stored(self, reader: ChunkReader) -> None:
        """Tell the containers that everything of this encoding is durable."""
        stored = set(self.chunks)
        for container in self.containers:
            container._stored(stored, reader)

    def root_of(self, container: Growing) -> Any:
        """Return what stands in the bytes in the place of a growing container."""
        return container._root(self)

    def _hook(self, value: Any) -> Any:
        if is_growing(value):
            return self.root_of(value)
        raise TypeError(f"a state cannot hold {type(value).__qualname__}: use dataclasses, Structs, builtins")

    def plain(self, value: Any) -> Any:
        """Return *value* with sets as sorted lists: their own order changes with the hash seed."""
        if isinstance(value, set | frozenset):
            return sorted(map(self.plain, value), key=lambda item: self._encoder.encode(item))
        if isinstance(value, dict):
            return {self.plain(key): self.plain(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.plain, value))
        if isinstance(value, list | tuple):
            return type(value)(map(self.plain, value))
        if isinstance(value, msgspec.Struct):
            names = value.__struct_fields__
            return self._replaced(value, names, msgspec.structs.force_setattr)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = tuple(field.name for field in dataclasses.fields(value))
            return self._replaced(value, names, object.__setattr__)
        if is_growing(value):
            return self.plain(self.root_of(value))
        return value

    def _replaced(self, value: Any, names: tuple[str, ...], put: Callable[[Any, str, Any], None]) -> Any:
        changed = {}
        for name in names:
            before = getattr(value, name)
            after = self.plain(before)
            if after is not before:
                changed[name] = after
        if not changed:
            return value
        replaced = copy.copy(value)
        for name, after in changed.items():
            put(replaced, name, after)
        return replaced


def is_growing(value: Any) -> bool:
    """Say whether *value* is a `Series` or a `Table`."""
    from tailfold.snapshots.series import Series
    from tailfold.snapshots.table import Table

    return isinstance(value, Series | Table)


def decode_hook(reader: ChunkReader | None) -> Callable[[type, Any], Any]:
    """Return the msgspec hook that makes growing containers out of their roots."""
    from typing import get_args, get_origin

    from tailfold.snapshots.series import Series
    from tailfold.snapshots.table import Table

    def hook(expected: Any, value: Any) -> Any:
        origin = get_origin(expected) or expected
        arguments = get_args(expected)
        if origin is Series:
            return Series._from_root(Typed(arguments[0] if arguments else Any), value, reader)
        if origin is Table:
            return Table._from_root(arguments or (Any, Any), value, reader)
        raise TypeError(f"a state cannot hold {expected!r}")

    return hook
