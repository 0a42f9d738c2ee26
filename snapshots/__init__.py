"""What a fold's state is as bytes. Pure: no store, no I/O."""

from tailfold.snapshots.codec import encode_state, state_hash

__all__ = ["encode_state", "state_hash"]
