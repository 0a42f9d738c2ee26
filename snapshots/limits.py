"""The figures that policy and retention aim at, in one place, with where they come from."""

from __future__ import annotations

RESUME_BUDGET_MS = 10.0
"""What folding the tail of a resume may take: well below what a person or a scheduler notices."""
ASSUMED_EVENT_US = 1.0
"""Reading, decoding and folding one small event takes 0.3 to 1 µs (benchmarks/fold)."""
ASSUMED_READ_BYTES_PER_S = 500e6
"""Reading and decoding large events (benchmarks/fold: 1.7 GB/s; a cold disk is slower)."""
SHARE_OF_EVENT_BYTES = 0.20
"""A snapshot is at most this share of the event bytes since the last one, or it waits."""
SHARE_OF_TIME = 0.15
"""A snapshot takes at most this share of the time that folding took since the last one, or it waits."""

DENSE = 4
"""The newest snapshots are all kept."""
GAP_SHARE = 0.5
"""Further back, the gap between two kept snapshots grows with the distance from the head, by this share…"""
GAP_MOST_EVENTS = 20_000
"""…up to this many events, so that time travel and forks anywhere fold no more (about 20 ms)."""
MARK_EVENTS = 256
"""A mark is taken about every so many events: folding half of them takes less than loading a snapshot."""
MARKS_MOST = 128
"""Marks that a snapshot carries; if more gather, every other one is dropped."""
MARK_BYTES_MOST = 4096
"""The largest state, without the items of its series, of which marks are taken."""
OTHER_FOLDS_KEPT = 2
"""Snapshots of other code (fold ids) of the same fold: the newest of this many are kept."""

STREAMS_MOST = 32
"""Streams over which the tail of a fork may be spread before a snapshot is due."""
STREAMS_SNAPSHOT_BYTES_MOST = 64 << 10
"""The largest snapshot that is written for that reason alone."""
