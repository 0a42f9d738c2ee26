"""What can be wrong with steps. The engine turns these into errors of its own tree."""

from __future__ import annotations

from typing import Any


class StepsError(ValueError):
    """The steps do not form a chain; the message names kind, version and what to do."""


class LiftError(Exception):
    """A step raised, or gave something that no event can be made of; the cause is attached."""

    def __init__(self, step: str, payload: Any, why: str) -> None:
        super().__init__(f"step {step}: {why}")
        self.step = step
        """Which step, as `Step.label` says it; for the last check, the class that refused."""
        self.payload = payload
        """What the step was given."""
        self.why = why
        self.stages: list[Any] = []
        """The stages before the one that failed, if they were traced."""


class LockError(ValueError):
    """A lock or corpus file cannot be read; the message says where it is wrong."""


class LockTooNewError(LockError):
    """A lock file has a format of a later release."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"it has lock format {found}; this tailfold knows formats up to {known}. Upgrade tailfold")
        self.found = found
        self.known = known
