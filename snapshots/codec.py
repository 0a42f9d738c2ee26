"""The state codec: any state that msgspec can encode, as deterministic bytes, and the hash of those bytes.

Two folds are the same exactly if their bytes are (I7), whatever the hash seed or the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

STATE_HASH_BYTES = 16


def encode_state(state: Any, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Return *state* as msgpack with sorted keys and sets; raise TypeError naming what cannot be encoded."""
    return msgspec.msgpack.encode(state, enc_hook=enc_hook, order="sorted")


def state_hash(state: Any, enc_hook: Callable[[Any], Any] | None = None) -> str:
    """Return the BLAKE2b-128 of the state's bytes, in hex."""
    encoded = encode_state(state, enc_hook)
    digest = hashlib.blake2b(encoded, digest_size=STATE_HASH_BYTES, person=b"tailfold.state")
    return digest.hexdigest()
