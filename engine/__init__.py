"""tailfold's engine: an event log, folds over it, and an agent runtime that survives being killed."""

from tailfold.engine.backend.lmdb import LmdbBackend
from tailfold.engine.backend.memory import MemoryBackend
from tailfold.engine.backend.port import ANY, EXISTS, Appended, Backend, Durability, Head, Lease
from tailfold.engine.checkpoints import Checkpoint
from tailfold.engine.errors import EngineError
from tailfold.engine.events import Blob, Event, Opaque
from tailfold.engine.fold import Fold
from tailfold.engine.leases import Grant
from tailfold.engine.live import Live
from tailfold.engine.loading import Loaded
from tailfold.engine.log import Recorded
from tailfold.engine.projections import Projected, Projection
from tailfold.engine.records import Newer
from tailfold.engine.store import Store
from tailfold.engine.subscriptions import Subscription
from tailfold.engine.tracing import Trace

__all__ = [
    "ANY",
    "EXISTS",
    "Appended",
    "Backend",
    "Blob",
    "Checkpoint",
    "Durability",
    "EngineError",
    "Event",
    "Fold",
    "Grant",
    "Head",
    "Lease",
    "Live",
    "LmdbBackend",
    "Loaded",
    "MemoryBackend",
    "Newer",
    "Opaque",
    "Projected",
    "Projection",
    "Recorded",
    "Store",
    "Subscription",
    "Trace",
]
