"""The command that rewrites a store at current schema versions: migrate."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from tailfold.cli.console import emit, note, progress_bar, say, table
from tailfold.cli.exits import Exit
from tailfold.cli.guard import probe
from tailfold.cli.options import JsonOption, open_store
from tailfold.cli.user_code import imported, upcasters_of
from tailfold.engine import Fold, Store
from tailfold.engine.agent.events import AGENT_UPCASTERS
from tailfold.engine.agent.listing import is_run
from tailfold.engine.agent.state import run_fold
from tailfold.engine.errors import BadArgument, StoreDamaged
from tailfold.engine.migration import Report, Schema
from tailfold.engine.migration import migrate as migrate_store
from tailfold.engine.migration.report import REPORT_NAME


def migrate(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="The store to migrate. It is only read.")],
    destination: Annotated[
        Path,
        typer.Argument(metavar="DST", help="A new directory, or the unfinished destination of the same SRC."),
    ],
    events: Annotated[
        str | None,
        typer.Option(
            "--events",
            metavar="MODULE:ATTR",
            help="Your Upcasters, or your event classes, for the streams that are no runs of the shipped agent."
            " Default: those are copied as they are.",
            show_default=False,
        ),
    ] = None,
    folds: Annotated[
        list[str] | None,
        typer.Option(
            "--fold",
            metavar="MODULE:ATTR",
            help="A fold of yours whose states are compared in both stores. May be given several times.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would change, and what would fail; write nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rewrite a store at current schema versions into a new directory, and compare both.

    Streams, versions, positions, times, ids and blobs stay as they are, events of unknown kinds byte for byte. The
    report stands in DST. Killed on the way, it goes on with the same command; a finished DST takes over what SRC
    got since. Exit 7 if the comparison finds a difference; exit 8, with nothing written, if an event cannot be
    lifted.

    Examples:

      tailfold migrate old new --dry-run

      tailfold migrate old new --events shop.events:upcasters --fold shop.state:orders
    """
    others = _schema(events, folds or [])
    own = Schema(AGENT_UPCASTERS, (run_fold,))
    probe(source, lambda store: _check_pages(store, source))
    with (
        open_store(source) as opened,
        _telling_how_to_go_on(destination, dry_run),
        _progress(opened.usage()["events"]) as progress,
    ):
        report = migrate_store(
            source,
            destination,
            lambda stream: own if is_run(opened, stream) else others,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        emit(msgspec.to_builtins(report))
    else:
        _show(report)
    if report.failures:
        note(f"{len(report.failures)} events cannot be lifted; nothing was written")
        raise typer.Exit(Exit.SCHEMA)
    if not report.sound:
        note(f"{len(report.findings)} differences: do not use {destination}; {source} is as it was")
        raise typer.Exit(Exit.CORRUPTION)


def _schema(events: str | None, folds: list[str]) -> Schema | None:
    if events is None and not folds:
        return None
    found = [imported("--fold", text) for text in folds]
    for text, fold in zip(folds, found, strict=True):
        if not isinstance(fold, Fold):
            raise BadArgument(f"{text!r} is no Fold")
    if events is None:
        raise BadArgument("--fold compares what your events give: name them with --events")
    return Schema(upcasters_of(events), tuple(found))


def _check_pages(store: Store, path: Path) -> None:
    findings = store.backend.check()
    if findings:
        raise StoreDamaged(str(path), findings)


@contextmanager
def _telling_how_to_go_on(destination: Path, dry_run: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if not dry_run and (destination / "data.mdb").exists():
            where = shlex.quote(str(destination))
            note(f"interrupted; what is in {where} is unfinished. Go on with the same command")
        else:
            note("interrupted; nothing was written")
        raise


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show one bar after another for the passes of a migration."""
    with progress_bar("migrating", total) as bar:
        if bar is None:
            yield None
            return
        task, doing = bar.task_ids[0], ""

        def show(what: str, done: int, of: int) -> None:
            nonlocal doing
            if what != doing:
                doing = what
                bar.reset(task, total=of)
            bar.update(task, completed=done, total=of, description=what)

        yield show


def _show(report: Report) -> None:
    would = "would be " if report.dry_run else ""
    say(
        f"{report.events} events of {report.streams} streams: {report.unchanged} {would}unchanged,"
        f" {report.lifted} lifted, {report.split} split, {report.dropped} dropped,"
        f" {report.opaque} of unknown kinds kept as they are"
    )
    rows = [
        (tag, str(report.before.get(tag, 0)), _became(change), "; ".join(change["steps"]) or "-")
        for tag, change in report.changes.items()
    ]
    if rows:
        say("")
        table(("STORED", "EVENTS", "BECOME", "STEPS"), rows)
        say("")
    for failure in report.failures:
        say(failure.message)
    for finding in report.findings:
        say(finding)
    if report.dry_run or report.compared is None:
        return
    compared = report.compared
    say(f"copied {report.copied} events now, {report.events - report.copied} were there; format {report.format}")
    say(
        f"compared {compared.events} events, {compared.chain_hashes} hashes of the source, {compared.states}"
        f" states, {compared.ids} ids, {compared.blobs} blobs: {'the same' if report.sound else 'NOT the same'}"
    )
    say(f"report: {Path(report.destination) / REPORT_NAME}")


def _became(change: dict[str, Any]) -> str:
    return ", ".join(f"{count} {how}" for how, count in change.items() if how != "steps")
