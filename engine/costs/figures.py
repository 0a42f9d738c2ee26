"""What measuring gives: every figure with its unit in its name. Plain data, ready for JSON.

A figure is None where it would say nothing: too few events, a part that does not apply, or a size past the bounds.
`Costs.notes` says which of these it was.
"""

from __future__ import annotations

import msgspec


class Conditions(msgspec.Struct, frozen=True):
    """How the figures came about: they are worth no more than this."""

    place: str
    """Where was measured: the store itself is only read."""
    python: str
    processors: int
    repeats: int
    """Repeats of each measurement, of which the median is shown: more of quick ones, fewer of slow ones."""
    walks: int
    """How often the whole stream was read, decoded and folded."""
    collector: bool
    """Whether Python's garbage collector was on while measuring, as in a program."""
    clock_ns: float
    """What one look at the clock costs; taken off the figures of single handlers."""
    took_s: float


class Walk(msgspec.Struct, frozen=True):
    """The whole stream, folded from its first event without any snapshot: what replay costs. Warm."""

    read_s: float
    decode_s: float
    """From record bytes to events, steps of old schema versions included."""
    fold_s: float
    """In the handlers and the loop around them."""
    collector_s: float
    """In Python's garbage collector meanwhile; not in the parts above."""
    total_s: float
    events_per_s: float | None
    bytes_per_s: float | None
    decode_events_per_s: float | None
    fold_events_per_s: float | None


class Segment(msgspec.Struct, frozen=True):
    """A stretch of the stream: shows whether events cost more as the state grows."""

    upto: int
    """Its last version."""
    events: int
    decode_us: float
    """An event, on average; so are the next ones."""
    fold_us: float
    collector_us: float


class KindCost(msgspec.Struct, frozen=True):
    """What the events of one stored ``kind@version`` cost. Times are for one event."""

    stored: str
    events: int
    bytes: int
    timed: int
    """How many of them were timed, one by one; the others were not."""
    decode_us: float | None
    handler_us: float | None
    """The mean, without the slowest hundredth. None if the fold has no handler for what they become."""
    share: float | None
    """Share of the time of decoding and handling all events."""


class Upcasting(msgspec.Struct, frozen=True):
    """What lifting old schema versions costs: decoding with steps, against decoding the same events as current."""

    old_events: int
    """Events that the steps lift."""
    steps: int
    """Steps on the longest way among them."""
    timed: int
    """Old events of the pages that were decoded both ways."""
    lifted_us: float | None
    """Decoding one old event with its steps."""
    current_us: float | None
    """Decoding what became of it, stored at the current version."""
    share_of_decode: float | None
    share_of_walk: float | None
    """Share of reading, decoding and folding the stream that migrating it would save."""


class ResumePoint(msgspec.Struct, frozen=True):
    """A resume with a tail of so many events after its snapshot, up to the head. Warm, in an open store."""

    tail: int
    resume_ms: float
    repeats: int


class SnapshotCost(msgspec.Struct, frozen=True):
    """One snapshot, *events* after the one before."""

    events: int
    encode_ms: float
    write_ms: float
    """Of the transaction, durable."""
    bytes: int
    share_of_event_bytes: float
    """Against the record bytes of those events."""
    share_of_fold_time: float
    """Of encoding it, against folding those events (at least 1 µs each, as the default policy counts)."""


class PolicyCost(msgspec.Struct, frozen=True):
    """What the default policy does along the stream: folded once from its first event, with that policy."""

    policy: str
    events: int
    """Of the stream that were folded for this; the first ones, if it is very long."""
    snapshots: int
    bytes: int
    """Of snapshots and their chunks, thinned out later."""
    share_of_event_bytes: float
    seconds: float
    """Of encoding and writing them."""
    longest_tail: int
    """Most events after a snapshot before the next, or the end: the worst that a resume has to fold."""
    longest_resume_ms: float | None
    """What that resume takes, along the measured curve."""


class Resume(msgspec.Struct, frozen=True):
    """How long it takes until a driver has its state, against the events since the last snapshot."""

    budget_ms: float
    curve: list[ResumePoint]
    whole: ResumePoint
    """Without any snapshot."""
    cold_ms: float | None
    """In a store just opened, its file dropped from the page cache where the system does that, tail 0."""
    fixed_ms: float
    """With nothing to fold: finding and decoding the snapshot."""
    event_us: float | None
    """What each event of a tail adds, on the measured curve."""
    interval: int | None
    """The recommended events between snapshots; None: none are needed, or none meets the budget."""
    reason: str
    """Why, in a sentence."""
    snapshot: SnapshotCost | None
    """What one at that interval costs (or at the nearest that fits into the stream)."""
    policy: PolicyCost | None
    """None if the fold can have no snapshots."""


class ForkCost(msgspec.Struct, frozen=True):
    """One fork, and what its first load takes. Medians."""

    at: int
    fork_ms: float
    """The durable transaction."""
    first_load_ms: float
    """From the snapshots of its parent, which a fork shares."""
    tail: int
    """Events that this load folds."""
    added_bytes: int
    """Growth of the store by a fork, on average; it grows by whole pages, so 0 where there was room."""
    repeats: int


class ContextPoint(msgspec.Struct, frozen=True):
    """Making the model's request from the state at a version."""

    version: int
    turn: int | None
    build_ms: float
    """From a state in memory, as in a driver that keeps its state."""
    encode_ms: float
    """Its JSON, which is hashed and sent at each call."""
    first_ms: float
    """The first one after a resume, which has to load what the snapshot left aside."""
    request_bytes: int


class Context(msgspec.Struct, frozen=True):
    """The context projection: the part of a turn that grows with the conversation."""

    points: list[ContextPoint]
    turns: int | None
    growth: float | None
    """How many times dearer a request is when the conversation doubles: 2 is linear; over a run that adds up to
    a cost that is quadratic in its turns."""
    total_s: float | None
    """Of all turns of the run together, along the measured points."""
    stopped_at: int | None
    """The version where measuring stopped because requests got too large; None: it did not."""


class Memory(msgspec.Struct, frozen=True):
    """What states take, as Python's allocator counts it."""

    resume_bytes: int
    """Kept by a state that was loaded from a snapshot at the head: growing parts stay in the store until used."""
    resume_peak_bytes: int
    folded_events: int
    """Events folded for the next figure, from the first one."""
    folded_bytes: int
    """Kept by a state folded without snapshots."""
    process_peak_bytes: int | None
    """Resident memory of this process at its highest: measuring included, and pages of the store that were read."""


class Costs(msgspec.Struct, frozen=True):
    """What one stream and one fold cost."""

    stream: str
    title: str
    """What the stream is about, for people; as it stands in the journal."""
    fold: str
    events: int
    bytes: int
    """Record bytes."""
    conditions: Conditions
    walk: Walk
    segments: list[Segment]
    kinds: list[KindCost]
    """Those that cost most in all first."""
    upcasting: Upcasting
    resume: Resume
    forks: list[ForkCost]
    context: Context | None
    """None without a function that makes a request from the state."""
    memory: Memory
    notes: list[str]
    """What is too small to mean anything, and what was left out."""
