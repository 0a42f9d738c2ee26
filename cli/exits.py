"""Exit codes, and which error gives which. The numbers are a contract; docs/cli.md shows this table."""

from __future__ import annotations

from enum import IntEnum

from tailfold.engine import errors


class Exit(IntEnum):
    """What the process says when it ends."""

    OK = 0
    UNEXPECTED = 1
    """Something unexpected, or a run that ended without an answer."""
    USAGE = 2
    RUN_ENDED = 3
    DRIVEN_ELSEWHERE = 4
    REPLAY_DIVERGED = 5
    NOT_FOUND = 6
    CORRUPTION = 7
    SCHEMA = 8
    CONFLICT = 9
    INTERRUPTED = 130


_BY_ERROR: tuple[tuple[type[errors.EngineError], Exit], ...] = (
    (errors.BadArgument, Exit.USAGE),
    (errors.RunEnded, Exit.RUN_ENDED),
    (errors.LeaseHeld, Exit.DRIVEN_ELSEWHERE),
    (errors.ReplayDiverged, Exit.REPLAY_DIVERGED),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.Corruption, Exit.CORRUPTION),
    (errors.SchemaError, Exit.SCHEMA),
    (errors.Conflict, Exit.CONFLICT),
)


def exit_of(error: errors.EngineError) -> Exit:
    """Return the exit code of an error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.UNEXPECTED)
