"""Commands about branches: fork, rewind, tree, diff, delete, gc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from tailfold.cli.console import emit, note, one_line, say, say_line
from tailfold.cli.guard import check_before_writing, probe
from tailfold.cli.options import (
    JsonOption,
    RunArgument,
    StoreOption,
    check_run,
    open_store,
    open_to_drive,
    run_named,
    store_path,
)
from tailfold.engine import Head, Store
from tailfold.engine.agent.events import AGENT_UPCASTERS
from tailfold.engine.agent.listing import is_run
from tailfold.engine.agent.state import run_fold
from tailfold.engine.agents.comparetiers import NAME
from tailfold.engine.errors import BadArgument, EngineError, HeadMoved
from tailfold.engine.exporting import line_of
from tailfold.engine.forks import Branch, changed
from tailfold.engine.names import check_run_id
from tailfold.engine.snapshot_report import prune
from tailfold.snapshots import to_plain

VersionOption = Annotated[
    int, typer.Option("--at", metavar="N", min=1, help="The last version that the fork shares with RUN.")
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="NAME", help="The fork's id. Default: the first free RUN.2, RUN.3, …", show_default=False
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]
SHOWN_OF_STATE = 20


def fork(
    run: RunArgument,
    at: VersionOption,
    name: NameOption = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Branch a run off at an earlier event: instant at any length, nothing is copied, and RUN never notices.

    The fork has events 1..N of RUN and goes on by itself: resume it, with another question or model if you like.

    Examples:

      tailfold fork r-1 --at 4 --as r-1-b

      tailfold fork r-1 --at 4 --as r-1-b && tailfold resume r-1-b --question "And Notion Plus for 50 seats?"
    """
    with _open_to_change(store, run, at) as opened:
        stream = run_named(opened, run)
        made = opened.fork(stream, at=at, name=check_run_id(name) if name is not None else None)
        _show_fork(opened, made, run, as_json)


def rewind(
    run: RunArgument,
    at: VersionOption,
    name: NameOption = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Go back: from now on RUN means a new fork of itself at event N. What came after stays, as :RUN.

    A run that is being driven is not taken from under its driver (exit 4).

    Examples:

      tailfold rewind r-1 --at 4

      tailfold resume r-1
    """
    with _open_to_change(store, run, at) as opened:
        if run.startswith(":"):
            raise BadArgument("rewind moves the head of a run: name the run, without the colon")
        stream = run_named(opened, run)
        with opened.drive(stream):
            if run_named(opened, run) != stream:
                raise HeadMoved(run, stream, run_named(opened, run))
            made = opened.rewind(run, at=at, to=check_run_id(name) if name is not None else None)
        _show_fork(opened, made, run, as_json)


def _show_fork(opened: Store, made: Head, run: str, as_json: bool) -> None:
    heads = sorted(head for head, stream in opened.named_heads().items() if stream == made.stream)
    if as_json:
        parent = opened.ancestry(made.stream)[-2].stream
        emit({"run": made.stream, "parent": parent, "at": made.version, "hash": made.hash.hex(), "heads": heads})
        return
    say(made.stream)
    means = f"; {', '.join(heads)} now means it" if heads else ""
    note(f"{made.stream} has events 1..{made.version} of {run}{means}.{_how_to_go_on(opened, made)}")


def _how_to_go_on(opened: Store, made: Head) -> str:
    """Say what goes on with a fork, and what that needs if the run had ended; nothing of what is no run."""
    agent, reason = "", None
    with suppress(EngineError):  # the fork is made, whatever cannot be read of it
        if is_run(opened, made.stream):
            state = opened.load(made.stream, run_fold).state
            agent, reason = state.agent, state.reason
    if not agent:
        return ""
    if agent != NAME:
        return f" Go on with it in the program of agent {agent!r}"
    command = f" Go on with: tailfold resume {made.stream}"
    match reason:
        case None:
            return command
        case "budget_exhausted":
            return f"{command} --max-turns N (its turns had run out)"
        case _:
            return f'{command} --question "…" (it had ended)'


def tree(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="The tree of RUN; default: all.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Show which run was forked off which, and where; ◀ marks what a rewound run means now.

    Examples:

      tailfold tree

      tailfold tree r-1 --json
    """

    def look(opened: Store) -> list[Branch]:
        return opened.tree(run_named(opened, run) if run is not None else None)

    probe(store_path(store), look)
    with open_store(store) as opened:
        branches = look(opened)
    if as_json:
        for branch in branches:
            emit(branch._asdict())
        return
    for branch in branches:
        say_line(_branch_line(branch))
    if not branches:
        note("no runs in this store")


def _branch_line(branch: Branch) -> str:
    where = f" at {branch.at}" if branch.parent is not None else ""
    gone = "  (deleted)" if branch.deleted else ""
    heads = f"  ◀ {', '.join(branch.heads)}" if branch.heads else ""
    return f"{'  ' * branch.depth}{branch.stream}{where}  {branch.version} events{heads}{gone}"


def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="A run.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another run, for example a fork of it.")],
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Show what two runs have in common, what each did after that, and where their states differ.

    Examples:

      tailfold diff r-1 r-1.2

      tailfold diff r-1 r-1.2 --json
    """

    def look(opened: Store) -> None:
        for name in (left, right):
            check_run(opened, run_named(opened, name))

    probe(store_path(store), look)
    with open_store(store) as opened:
        names = [run_named(opened, name) for name in (left, right)]
        own = all(is_run(opened, name) for name in names)
        if own:
            opened.log.codec.adopt(AGENT_UPCASTERS)
        found = opened.diff(*names)
        states = [to_plain(opened.load(name, run_fold).state) for name in names] if own else None
    differences = changed(*states) if states is not None else None
    if as_json:
        emit(
            {
                "left": names[0],
                "right": names[1],
                "common": found.common,
                "only_left": [line_of(recorded) for recorded in found.left],
                "only_right": [line_of(recorded) for recorded in found.right],
                "state": [one._asdict() for one in differences] if differences is not None else None,
            }
        )
        return
    say(f"{found.common} events in common")
    for sign, recorded in [("-", r) for r in found.left] + [("+", r) for r in found.right]:
        content = one_line(line_of(recorded)["payload"], 10_000)
        say_line(f"{sign} {recorded.version:>4}  {recorded.kind:<15} {content}")
    if differences is None:
        note("the runs are of another program, so there is no fold for their states here")
        return
    say(f"{len(differences)} differences of their states" if differences else "their states are equal")
    for one in differences[:SHOWN_OF_STATE]:
        sides = {"both": f"{one_line(one.left, 60)} → {one_line(one.right, 60)}"}
        sides |= {"left": f"- {one_line(one.left, 100)}", "right": f"+ {one_line(one.right, 100)}"}
        say_line(f"  {one.path}: {sides[one.side]}")
    if len(differences) > SHOWN_OF_STATE:
        say(f"  and {len(differences) - SHOWN_OF_STATE} more (--json shows all)")


def delete(
    run: RunArgument,
    reroot: Annotated[
        bool, typer.Option("--reroot", help="Also if forks rest on it: they keep exactly what they saw.")
    ] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Delete a run: nobody can read it any more, and a tombstone keeps its name. gc gives the space back.

    Refused while forks rest on it (exit 9), unless --reroot; and while it is driven (exit 4). A run with damaged
    events can be deleted, too; a fork before them keeps what is sound.

    Examples:

      tailfold delete r-1.2

      tailfold delete r-1 --reroot && tailfold gc
    """
    with _open_to_change(store, run, 0) as opened:
        stream = run_named(opened, run)
        opened.delete(stream, reroot=reroot, drop_heads=stream != run)
        if as_json:
            emit({"run": stream, "deleted": True, "rerooted": [c.stream for c in opened.children(stream)]})
            return
        say(f"deleted {stream}")
        if stream != run.removeprefix(":"):
            note(f"{run} meant it after a rewind, and means its old line again")


def gc(dry_run: DryRunOption = False, as_json: JsonOption = False, store: StoreOption = None) -> None:
    """Give back the space of deleted runs that no fork needs, with snapshots, chunks and blobs that nothing names.

    Changes no answer. The file keeps its size; what is free in it is used again. Writers wait while it runs.

    Examples:

      tailfold gc --dry-run

      tailfold gc --json
    """
    path = store_path(store)
    probe(path, lambda opened: check_before_writing(opened, path))
    with open_to_drive(store) as opened:
        swept = opened.gc(dry_run=dry_run)
        pruned = prune(opened.snapshots, (head.stream for head in opened.streams()), dry_run=dry_run)
    shown: dict[str, Any] = {
        "dry_run": dry_run,
        **swept._asdict(),
        "chunks": pruned.collected.chunks,
        "chunk_bytes": pruned.collected.bytes,
    }
    shown["snapshots"] += pruned.snapshots
    if as_json:
        emit(shown)
        return
    would = "would take" if dry_run else "took"
    say(f"{would} {shown['events']} events ({shown['event_bytes']} bytes), {shown['snapshots']} snapshots,")
    say(f"{shown['chunks']} chunks ({shown['chunk_bytes']} bytes),")
    say(f"{shown['blobs']} blobs ({shown['blob_bytes']} bytes)")


def _open_to_change(store: Path | None, run: str, upto: int) -> Store:
    """Open the store for writing, after a probe that it is sound and that *run* can be read up to *upto*.

    No further: a fork before a damaged event, and deleting the run, are the ways to go on without it.
    """
    path = store_path(store)

    def look(opened: Store) -> None:
        check_before_writing(opened, path)
        stream = run_named(opened, run)
        check_run(opened, stream, at=min(upto, opened.head(stream).version))

    probe(path, look)
    return open_to_drive(store)
