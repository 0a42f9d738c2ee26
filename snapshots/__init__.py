"""What a fold's state is as bytes, and when and for how long those are kept. Pure: no store, no lmdb."""

from tailfold.snapshots.codec import StateCodec, state_hash, to_plain
from tailfold.snapshots.policy import CostBased, Policy, Progress, every, never
from tailfold.snapshots.series import Series
from tailfold.snapshots.table import Table

__all__ = [
    "CostBased",
    "Policy",
    "Progress",
    "Series",
    "StateCodec",
    "Table",
    "every",
    "never",
    "state_hash",
    "to_plain",
]
