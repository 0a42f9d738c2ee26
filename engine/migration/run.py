"""Migrating from end to end: look, plan, copy, compare, and write down what was done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import msgspec
from tailfold.engine import checkpoints
from tailfold.engine.backend import directory, keys
from tailfold.engine.backend.lmdb import LmdbBackend
from tailfold.engine.backend.port import Backend
from tailfold.engine.errors import BadArgument, StoreNotFound
from tailfold.engine.migration import report as reports
from tailfold.engine.migration.comparing import Comparison
from tailfold.engine.migration.copying import AfterCommit, check_destination, copy
from tailfold.engine.migration.plan import Plan, Progress, make_plan
from tailfold.engine.migration.report import Report
from tailfold.engine.migration.rewriting import Choose, Rewriter, Schema
from tailfold.engine.origin import COPYING, DONE, Origin, digest_of_heads, origin_row, read_origin, read_taken


def migrate(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    schema: Schema | Choose,
    *,
    dry_run: bool = False,
    clock: Callable[[], int] = time.time_ns,
    progress: Progress | None = None,
    after_commit: AfterCommit | None = None,
) -> Report:
    """Rewrite the store at *source* into *destination*, everything at the current versions of *schema*.

    *schema* is one for all streams, or a function that gives each stream its own (None: copy it as it is). The
    source is only read. The destination is a new or empty directory, or what an earlier call has left: one that was
    killed is gone on with, a finished one takes over what the source got since. Names, versions, positions, times,
    idempotency keys, epochs, blobs and the places of subscriptions stay; snapshots are made anew by later loads.
    All is compared at the end: `Report.sound` says the result, and the report stands in the destination. With
    *dry_run* nothing is written.

    Before anything is written it raises `BadArgument` for a destination that is the source or something else than
    a store, `Conflict` for one that is not of this source, the `SchemaError` of the first event that cannot be
    brought to the current version (a dry run gathers them), `Corruption` where the source is not as it was written.
    *after_commit* is called whenever something more is durable.
    """
    source, destination = Path(source), Path(destination)
    begun = time.perf_counter()
    old = LmdbBackend(source, create=False)
    new: LmdbBackend | None = None
    try:
        new = _destination(source, destination)
        plan, rewriter = look(old, new, schema, where=str(destination), dry_run=dry_run, progress=progress)
        made = reports.begin(str(source), str(destination), plan, dry_run=dry_run)
        if not dry_run:
            new = new or LmdbBackend(destination)
            carry_out(rewriter, new, schema, plan, made, clock=clock, progress=progress, after_commit=after_commit)
        made.seconds = round(time.perf_counter() - begun, 3)
        if not dry_run:
            reports.write(made, destination)
        return made
    finally:
        if new is not None:
            new.close()
        old.close()


def migrate_backend(
    source: Backend,
    destination: Backend,
    schema: Schema | Choose,
    *,
    clock: Callable[[], int] = time.time_ns,
    after_commit: AfterCommit | None = None,
) -> Report:
    """Like `migrate`, between two opened backends, and without a report on the disk."""
    plan, rewriter = look(source, destination, schema, where="the destination")
    made = reports.begin("", "", plan, dry_run=False)
    carry_out(rewriter, destination, schema, plan, made, clock=clock, after_commit=after_commit)
    return made


def look(
    source: Backend,
    destination: Backend | None,
    schema: Schema | Choose,
    *,
    where: str,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> tuple[Plan, Rewriter]:
    """Check the destination and go through all of the source; nothing is written. Raises as `migrate` does."""
    if destination is not None:
        check_destination(source, destination, where)
    for _ in checkpoints.every(source):
        pass  # one that cannot be read is said before anything is written
    rewriter = Rewriter(source, _choose(schema))
    return make_plan(rewriter, source.count()[1], go_on=dry_run, progress=progress), rewriter


def carry_out(
    rewriter: Rewriter,
    destination: Backend,
    schema: Schema | Choose,
    plan: Plan,
    made: Report,
    *,
    clock: Callable[[], int],
    progress: Progress | None = None,
    after_commit: AfterCommit | None = None,
) -> None:
    """Copy what *plan* has looked at, compare both stores, and fill in the report *made*."""
    source, upto = rewriter.backend, plan.upto
    before = read_origin(destination)
    origin = before or _origin(source, clock())
    if before is None or (origin.events, destination.count()[1]) != (plan.events, upto):
        origin = msgspec.structs.replace(origin, state=COPYING)
        destination.put(meta=origin_row(origin))
        if after_commit:
            after_commit(destination.count()[1])
    made.copied = copy(rewriter, destination, plan, upto, progress=progress, after_commit=after_commit)
    comparison = Comparison(Rewriter(source, _choose(schema)), destination, plan, progress)
    comparison.run()
    made.compared, made.findings = comparison.compared, comparison.findings
    made.sound = not comparison.findings
    made.source_heads = digest_of_heads(read_taken(destination))
    made.format = keys.decode_stamp(destination.meta(keys.FORMAT_KEY)[keys.FORMAT_KEY]).format
    done = msgspec.structs.replace(origin, state=DONE, events=plan.events, heads=made.source_heads)
    if made.sound and done != read_origin(destination):
        destination.put(meta=origin_row(done))
        if after_commit:
            after_commit(destination.count()[1])


def _origin(source: Backend, now_ns: int) -> Origin:
    stamp = keys.decode_stamp(source.meta(keys.FORMAT_KEY)[keys.FORMAT_KEY])
    return Origin(
        by=f"tailfold {metadata.version('tailfold')}",
        migrated_ns=now_ns,
        state=COPYING,
        source_created_ns=stamp.created_ns,
        source_format=stamp.format,
        earlier=read_origin(source),
    )


def _choose(schema: Schema | Choose) -> Choose:
    if isinstance(schema, Schema):
        return lambda stream: schema
    return schema


def _destination(source: Path, destination: Path) -> LmdbBackend | None:
    """Return the store at *destination*, None if there is room for one; raise `BadArgument` for anything else."""
    data = destination / "data.mdb"
    if os.path.realpath(source) == os.path.realpath(destination) or (
        data.exists() and data.samefile(source / "data.mdb")
    ):
        raise BadArgument(f"{destination} is the source itself: a store is never migrated in place")
    try:
        if data.is_file() and data.stat().st_size > 0:
            return LmdbBackend(destination, create=False)
        directory.check_vacant(destination)
    except StoreNotFound as error:
        raise BadArgument(f"the destination is refused: {error}. Give a new directory") from None
    return None
