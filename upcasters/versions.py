"""Where a stored schema version stands against the code's: the one question that every decode asks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Standing(Enum):
    """What the code can do with a stored (kind, version)."""

    CURRENT = "current"
    """The code's own version: decode it as it is."""
    OLDER = "older"
    """Older than the code's: it has to be lifted first."""
    NEWER = "newer"
    """Newer than the code's: only newer code may read it."""
    UNKNOWN = "unknown"
    """The code has no such kind: keep it opaque."""


def stand(kind: str, version: int, known: Mapping[str, int]) -> Standing:
    """Place (kind, version) against *known*, the current version of every kind that the code has."""
    current = known.get(kind)
    if current is None:
        return Standing.UNKNOWN
    if version == current:
        return Standing.CURRENT
    return Standing.OLDER if version < current else Standing.NEWER
