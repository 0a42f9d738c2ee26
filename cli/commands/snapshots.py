"""Commands about snapshots: list, explain, verify, prune."""

from __future__ import annotations

from typing import Annotated

import typer
from tailfold.cli.console import emit, note, progress_bar, say, table, time_text
from tailfold.cli.exits import Exit
from tailfold.cli.options import JsonOption, RunArgument, StoreOption, open_all, open_run, run_named
from tailfold.engine.agent.listing import is_run
from tailfold.engine.agent.runtime import begin_of
from tailfold.engine.agent.state import run_fold
from tailfold.engine.snapshot_report import SnapshotFinding, explain, prune, standing, verify_snapshots

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at snapshots: what a resume starts from. Derived data: without them all answers are the same.",
)


@app.command("list")
def list_snapshots(run: RunArgument, as_json: JsonOption = False, store: StoreOption = None) -> None:
    """List the snapshots of a run, newest first, of every fold.

    Example:

      tailfold snapshots list r-1
    """
    with open_run(store, run) as opened:
        run = run_named(opened, run)
        rows = list(standing(opened.snapshots, run))
        if as_json:
            for one in rows:
                emit(one._asdict() | {"created": time_text(one.created_ns)})
        elif rows:
            shown = [
                (
                    *(str(s.version), s.fold, s.fold_id[:12], str(s.bytes), str(s.chunks), str(s.marks)),
                    time_text(s.created_ns)[:19],
                )
                for s in rows
            ]
            table(("VERSION", "FOLD", "FOLD ID", "BYTES", "CHUNKS", "MARKS", "WRITTEN (UTC)"), shown)
        else:
            note(f"{run} has no snapshots: it is short, and folds in no time")


@app.command("explain")
def explain_snapshots(run: RunArgument, as_json: JsonOption = False, store: StoreOption = None) -> None:
    """Explain how a resume of a run would start: from which snapshot, with what tail, and why not from others.

    Example:

      tailfold snapshots explain r-1
    """
    with open_run(store, run) as opened:
        run = run_named(opened, run)
        begin_of(opened, run)
        found = explain(opened.snapshots, run, run_fold)
        if as_json:
            emit(
                {
                    "run": run,
                    "head": found.head,
                    "used": found.used._asdict() if found.used else None,
                    "mark": found.mark,
                    "tail": found.tail,
                    "snapshots": [
                        v.snapshot._asdict() | {"usable": v.usable, "why": v.why or None} for v in found.verdicts
                    ],
                }
            )
            return
        if found.mark is not None:
            say(f"a resume starts from version {found.mark}, a mark that a later snapshot of its parent carries")
            say(f"and folds a tail of {found.tail} of {found.head} events")
        elif found.used is not None:
            say(f"a resume starts from version {found.used.version} ({found.used.bytes} bytes)")
            say(f"and folds a tail of {found.tail} of {found.head} events")
        else:
            say(f"a resume folds all {found.head} events: no snapshot is usable")
        for verdict in found.verdicts:
            state = "usable" if verdict.usable else f"not used: {verdict.why}"
            say(f"  version {verdict.snapshot.version}  {verdict.snapshot.bytes} bytes  {state}")


@app.command("verify")
def verify(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="One run; default: all runs.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Fold runs anew and compare every snapshot with what comes out; exit 7 on a difference.

    Snapshots of other code are checked against their own hashes.

    Example:

      tailfold snapshots verify
    """
    with open_run(store, run) if run is not None else open_all(store) as opened:
        runs = [run_named(opened, run)] if run is not None else [head.stream for head in opened.streams()]
        total = sum(opened.head(name).version for name in runs)
        findings: list[SnapshotFinding] = []
        compared = checked = 0
        with progress_bar("folding", total) as bar:
            advance = (lambda done: bar.advance(bar.task_ids[0], done)) if bar else None
            for name in runs:
                if not is_run(opened, name):
                    continue  # of another program: its fold is not here
                result = verify_snapshots(opened.log, opened.snapshots, name, run_fold, advance)
                compared += result.compared
                checked += result.checked
                findings += result.findings
        if as_json:
            emit(
                {
                    "sound": not findings,
                    "runs": len(runs),
                    "compared": compared,
                    "checked": checked,
                    "findings": [f._asdict() for f in findings],
                }
            )
        else:
            for finding in findings:
                say(f"stream {finding.stream!r}, snapshot at version {finding.version}: {finding.what}")
            if not findings:
                other = f"; {checked} of other code have sound hashes" if checked else ""
                say(f"{compared} snapshots are what folding gives{other}")
        if findings:
            note(
                f"{len(findings)} snapshots are damaged. No answer depends on them: loads pass them over;"
                " tailfold snapshots prune drops those whose own hashes do not fit"
            )
            raise typer.Exit(Exit.CORRUPTION)


@app.command("prune")
def prune_snapshots(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Thin old snapshots and take away the chunks that nothing refers to any more. Changes no answer.

    Example:

      tailfold snapshots prune --dry-run
    """
    with open_all(store) as opened:
        done = prune(opened.snapshots, (head.stream for head in opened.streams()), dry_run=dry_run)
        if as_json:
            emit(
                {
                    "dry_run": dry_run,
                    "snapshots": done.snapshots,
                    "chunks": done.collected.chunks,
                    "chunk_bytes": done.collected.bytes,
                }
            )
            return
        would = "would take" if dry_run else "took"
        say(f"{would} {done.snapshots} snapshots and {done.collected.chunks} chunks ({done.collected.bytes} bytes)")
