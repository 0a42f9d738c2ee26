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
