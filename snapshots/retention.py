"""The ladder: which snapshots of a stream are kept. Dense near the head, sparse behind. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tailfold.snapshots.limits import DENSE, GAP_MOST_EVENTS, GAP_SHARE, OTHER_FOLDS_KEPT


def kept(versions: Sequence[int], head: int) -> set[int]:
    """Return which of *versions* (of one fold id) to keep when the stream is at *head*.

    Thinning a thinned ladder again takes no more away than thinning the whole would, so it may be done at
    every snapshot.
    """
    ordered = sorted(versions, reverse=True)
    keep = set(ordered[:DENSE])
    last = min(keep, default=0)
    candidate: int | None = None
    for version in ordered[DENSE:]:
        gap = min((head - last) * GAP_SHARE, GAP_MOST_EVENTS)
        if last - version < gap:
            candidate = version  # still inside the gap: the furthest one so far
            continue
        if candidate is not None and last - version > gap:
            # Take the one before, if leaving it out would make the gap too wide.
            keep.add(candidate)
            last = candidate
            gap = min((head - last) * GAP_SHARE, GAP_MOST_EVENTS)
            if last - version < gap:
                candidate = version
                continue
        keep.add(version)
        last, candidate = version, None
    if candidate is not None:
        keep.add(candidate)  # the oldest: the foot of the ladder
    return keep


def kept_of_others(newest_first: Sequence[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
    """Return which (version, fold id) of other fold ids to keep: the newest of a few, for code that runs beside."""
    keep: dict[bytes, tuple[int, bytes]] = {}
    for version, fold_id in newest_first:
        if fold_id not in keep and len(keep) < OTHER_FOLDS_KEPT:
            keep[fold_id] = (version, fold_id)
    return set(keep.values())
