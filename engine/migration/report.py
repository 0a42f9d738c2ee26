"""What a migration did, as plain data: printed, and kept in the new store's directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from tailfold.engine.migration.comparing import Compared
from tailfold.engine.migration.plan import Plan
from tailfold.engine.migration.rewriting import How

REPORT_NAME = "migration-report.json"


class Failed(msgspec.Struct):
    """An event that cannot be brought to the code's version."""

    stream: str
    version: int
    stored: str
    error: str
    message: str


class Report(msgspec.Struct, kw_only=True):
    """The account of one migration, or of its dry run."""

    source: str
    destination: str
    dry_run: bool
    sound: bool = False
    """True if everything was compared and nothing was found; of a dry run, if nothing would fail."""
    streams: int
    events: int
    """Stored events of the source."""
    copied: int = 0
    """How many of them were copied now; the others were there from an earlier call."""
    format: int = 0
    """Format of the destination."""
    source_heads: str = ""
    """Digest over all heads of the source, as the destination keeps it."""
    unchanged: int
    opaque: int
    lifted: int
    split: int
    dropped: int
    before: dict[str, int]
    """Records by stored tag in the source."""
    after: dict[str, int]
    """The same in the destination; ``*@1`` are composites."""
    changes: dict[str, dict[str, Any]]
    """What became of each stored tag, and by which steps."""
    failures: list[Failed]
    compared: Compared | None = None
    findings: list[str] = []
    seconds: float = 0.0


def begin(source: str, destination: str, plan: Plan, *, dry_run: bool) -> Report:
    """Make the report of *plan*; what the copying and comparing give is filled in later."""
    how = plan.how
    return Report(
        source=source,
        destination=destination,
        dry_run=dry_run,
        sound=dry_run and not plan.failures,
        streams=plan.streams,
        events=plan.events,
        unchanged=how[How.UNCHANGED],
        opaque=how[How.OPAQUE],
        lifted=how[How.LIFTED],
        split=how[How.SPLIT],
        dropped=how[How.DROPPED],
        before=dict(sorted(plan.before.items())),
        after=dict(sorted(plan.after.items())),
        changes={
            tag: {
                **{one.value: count for one, count in sorted(counts.items(), key=lambda item: item[0].value)},
                "steps": plan.steps.get(tag, []),
            }
            for tag, counts in sorted(plan.by_tag.items())
        },
        failures=[
            Failed(f.stream, f.version, f.stored, type(f.error).__name__, str(f.error)) for f in plan.failures
        ],
    )


def write(report: Report, folder: Path) -> Path:
    """Write *report* into *folder*, in place of an older one, readable by the owner only; return the path."""
    target, making = folder / REPORT_NAME, folder / f".{REPORT_NAME}"
    handle = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    making.replace(target)
    return target
