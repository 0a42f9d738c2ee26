"""The state codec: any state that msgspec can encode, as deterministic bytes, and the hash of those bytes.

Two folds are the same exactly if their bytes are (I7), whatever the hash seed or the process. Dictionaries keep
their order, because a fold may rely on it; sets are sorted, because none can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from tailfold.snapshots.chunks import ChunkReader
from tailfold.snapshots.sameness import same
from tailfold.snapshots.schema import Survey, survey
from tailfold.snapshots.writer import THOROUGH_EVERY, THOROUGH_FIRST, StateWriter, decode_hook, is_growing

S = TypeVar("S")

STATE_HASH_BYTES = 16
CODEC_VERSION = 1
SMALL_BYTES = 4096
"""States up to this size are compared thoroughly every time: it costs next to nothing."""


class NotEncodableError(Exception):
    """The state cannot be encoded, or would not come back as it was: the fold has no snapshots."""


class EncodedState(NamedTuple):
    """A state as bytes."""

    body: bytes
    refs: list[bytes]
    """Digests of the chunks that the body refers to directly."""
    writer: StateWriter
    """What was gathered on the way; `chunks` may have to be stored, then `stored` must be called."""

    @property
    def hash(self) -> bytes:
        """The state hash."""
        return hash_body(self.body)


class StateCodec(Generic[S]):
    """Encodes and decodes the states of one type."""

    def __init__(self, state_type: Any) -> None:
        self.state_type = state_type
        self.survey: Survey = survey(state_type)
        self._encoded = 0

    def encode(self, state: S, *, check: bool = True) -> EncodedState:
        """Return *state* as bytes; raise `NotEncodableError` for what would not come back as it was.

        Equality is compared every time; types at every level for small states always, for large ones at first
        and then now and again. With
        *check* off (for hashing) nothing is compared. Full chunks of growing containers are sealed by this.
        """
        writer = StateWriter(sort_sets=self.survey.sets)
        try:
            body, refs, _ = writer.encode_part(state)
            if check or self.survey.floats:
                decoded = self.decode(body, None)
                thorough = (
                    len(body) <= SMALL_BYTES
                    or self._encoded < THOROUGH_FIRST
                    or self._encoded % THOROUGH_EVERY == 0
                )
                self._encoded += 1
                if check and not (same(state, decoded) if thorough else _equal(state, decoded)):
                    raise NotEncodableError(
                        "a value does not come back as it was: annotate the fields of the state with the very"
                        " types that they hold (no defaultdict as dict, no subclass, no zone but UTC)"
                    )
                if self.survey.floats:  # an int where a float is declared is written as the float
                    body = StateWriter(sort_sets=self.survey.sets).encode_part(decoded)[0]
        except NotEncodableError:
            raise
        except Exception as error:
            # msgspec's errors, a value that refuses to be compared, a depth that is too great.
            raise NotEncodableError(str(error) or repr(error)) from error
        return EncodedState(body, refs, writer)

    def decode(self, body: bytes, reader: ChunkReader | None) -> S:
        """Return the state of *body*; raise ValueError (or a subclass) if it is none."""
        try:
            decoded: S = msgspec.msgpack.decode(body, type=self.state_type, dec_hook=decode_hook(reader))
        except Exception as error:
            # msgspec's own errors, a class that cannot be resolved, a __post_init__ that refuses: all mean
            # that these bytes are no state of this type.
            raise ValueError(str(error)) from error
        return decoded

    def adopt(self, state: S) -> S:
        """Return *state* with the types of its annotations bound to its growing containers.

        A `Series` that was made without its item type cannot let its items leave memory.
        """
        if not self.survey.growing:
            return state
        try:
            adopted = self.decode(self.encode(state).body, None)
        except (NotEncodableError, ValueError):
            return state
        return adopted if same(state, adopted) else state

    def hash(self, state: S) -> str:
        """Return the state hash, in hex."""
        return self.encode(state, check=False).hash.hex()


def _equal(state: Any, decoded: Any) -> bool:
    return type(state) is type(decoded) and bool(state == decoded)


def hash_body(body: bytes) -> bytes:
    """Return the hash of a state's bytes."""
    return hashlib.blake2b(body, digest_size=STATE_HASH_BYTES, person=b"tailfold.state").digest()


def state_hash(state: Any, state_type: Any = None) -> str:
    """Return the hash of *state* in hex: equal exactly for states with equal bytes. See `StateCodec`."""
    return StateCodec[Any](state_type if state_type is not None else type(state)).hash(state)


def to_plain(value: Any, enc_hook: Callable[[Any], Any] | None = None) -> Any:
    """Return a state as builtins for people to look at: a series as a list, a table as a dict."""
    from tailfold.snapshots.series import Series

    def hook(inner: Any) -> Any:
        if is_growing(inner):
            return list(inner) if isinstance(inner, Series) else dict(inner.items())
        if enc_hook is not None:
            return enc_hook(inner)
        raise TypeError(f"{type(inner).__qualname__} cannot be shown")

    return msgspec.to_builtins(value, enc_hook=hook, str_keys=True)
