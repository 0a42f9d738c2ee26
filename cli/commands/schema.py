"""Commands about schemas: lock, check, survey, explain."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from tailfold.cli.console import emit, note, one_line, plural, progress_bar, say, table
from tailfold.cli.exits import Exit, exit_of
from tailfold.cli.guard import probe
from tailfold.cli.options import JsonOption, RunArgument, StoreOption, open_store, run_named, store_path
from tailfold.cli.user_code import EventsOption, upcasters_of
from tailfold.engine import Store, schema_files, schema_report
from tailfold.engine.agent.listing import is_run
from tailfold.engine.errors import Corruption, SchemaChanged
from tailfold.engine.names import check_stream_name
from tailfold.engine.schema_files import LOCK_DEFAULT, corpus_path
from tailfold.engine.schema_report import Surveyed
from tailfold.engine.shape import readable_parts
from tailfold.upcasters import Upcasters
from tailfold.upcasters.schema import view
from tailfold.upcasters.verdicts import Judgement, Verdict

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look after event schemas: every journal ever written opens, for ever.",
)

LockOption = Annotated[
    Path,
    typer.Option("--lock", metavar="FILE", help=f"The lock file. Default: ./{LOCK_DEFAULT}.", show_default=False),
]
_LOCK = Path(LOCK_DEFAULT)


@app.command("lock")
def lock(
    lock_file: LockOption = _LOCK,
    events: EventsOption = None,
    capture: Annotated[
        int,
        typer.Option(
            "--capture", metavar="N", min=0, max=100, help="Golden payloads to keep of each (kind, version)."
        ),
    ] = 3,
    force: Annotated[bool, typer.Option("--force", help="Write it although stored journals would break.")] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Write the fields, types and defaults of every (kind, version), and the steps, to a file to be committed.

    Payloads from the store are added to the golden corpus beside it (FILE.corpus.jsonl), which every later version
    has to lift. They are real: look at them before you commit them, or take none with --capture 0. Nothing
    that is in either file is ever removed.

    Examples:

      tailfold schema lock

      tailfold schema lock --events shop.events:UPCASTERS --store shop.db
    """
    upcasters = upcasters_of(events)
    payloads = _taken(upcasters, corpus_path(lock_file), capture, store, every_stream=events is not None)
    try:
        done = schema_files.write(upcasters, lock_file, payloads=payloads, force=force)
    except SchemaChanged as error:
        if as_json:
            emit({"written": False, "lock": str(lock_file), "verdicts": _plain(error.verdicts)})
        else:
            _say(error.verdicts)
        note(f"{lock_file} was not written: {len(error.verdicts)} changes would break stored journals")
        raise typer.Exit(Exit.SCHEMA) from None
    if as_json:
        emit(
            {
                "written": True,
                "lock": str(lock_file),
                "corpus": str(corpus_path(lock_file)),
                "kinds": done.kinds,
                "versions": done.versions,
                "golden": done.golden,
                "taken": done.taken,
                "refused": done.refused,
                "verdicts": _plain(done.checked.verdicts),
            }
        )
        return
    if not done.first:
        _say(done.checked.verdicts)
    say(
        f"{lock_file}: {plural(done.kinds, 'kind')} in {plural(done.versions, 'version')},"
        f" {plural(len(upcasters), 'step')}"
    )
    say(f"{corpus_path(lock_file)}: {done.golden} golden payloads, {done.taken} of them new")
    if done.refused:
        note(
            f"{done.refused} payloads were not taken, as the code cannot read them: tailfold schema survey says why"
        )
    if done.taken:
        note("golden payloads are real content: look at the new ones, then commit both files")


@app.command("check")
def check(lock_file: LockOption = _LOCK, events: EventsOption = None, as_json: JsonOption = False) -> None:
    """Compare the code with the committed lock and lift every golden payload; exit 8 if a journal would break.

    Each change is compatible as it is, or needs a version and a step, or is breaking; and what to do is said.
    Needs no store: run it in CI.

    Examples:

      tailfold schema check

      tailfold schema check --events shop.events:UPCASTERS --json
    """
    found = schema_files.check(upcasters_of(events), lock_file)
    if as_json:
        emit(
            {
                "compatible": found.compatible,
                "changed": bool(found.verdicts),
                "lock": str(lock_file),
                "golden": found.golden,
                "failed": found.failed,
                "passed_over": found.passed_over,
                "verdicts": _plain(found.verdicts),
            }
        )
    else:
        _say(found.verdicts)
        golden = f"{found.golden} golden payloads lift as they did"
        if not found.verdicts:
            say(f"nothing has changed since {lock_file}; {golden}")
        elif found.compatible:
            say(f"all changes are compatible; {golden}. Commit them: tailfold schema lock")
    if not found.compatible:
        wrong = sum(v.judgement is not Judgement.COMPATIBLE for v in found.verdicts)
        note(f"{wrong} changes would break stored journals; {found.failed} golden payloads do not lift as they did")
        raise typer.Exit(Exit.SCHEMA)


@app.command("survey")
def survey(events: EventsOption = None, as_json: JsonOption = False, store: StoreOption = None) -> None:
    """Count what the store holds by (kind, version), and say whether today's code reads it; exit 8 if not all.

    Every event is decoded and lifted. Nothing is written.

    Examples:

      tailfold schema survey

      tailfold schema survey --events shop.events:UPCASTERS --json
    """
    upcasters = upcasters_of(events)
    probe(store_path(store), _touch)
    with open_store(store) as opened:
        opened.log.codec.adopt(upcasters)
        with progress_bar("reading", opened.usage()["events"]) as bar:
            advance = (lambda done: bar.advance(bar.task_ids[0], done)) if bar else None
            rows = schema_report.survey(opened.log, only=_only(opened, events is not None), progress=advance)
    for row in rows if as_json else ():
        emit(_surveyed(row))
    if not as_json and rows:
        shown = [(f"{r.kind}@{r.version}", str(r.events), str(r.readable), r.standing) for r in rows]
        table(("KIND", "EVENTS", "READABLE", "TODAY"), shown)
    elif not rows:
        note("the store holds no events")
    failures = [row.failure for row in rows if row.failure is not None]
    for failure in failures:
        note(f"first of them: {failure.error}")
    if failures:
        note(f"{sum(r.events - r.readable for r in rows)} events cannot be read")
        damaged = any(isinstance(failure.error, Corruption) for failure in failures)
        raise typer.Exit(Exit.CORRUPTION if damaged else Exit.SCHEMA)


@app.command("explain")
def explain(
    run: RunArgument,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The event's version in the run.")],
    events: EventsOption = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Show how a stored event becomes what the fold sees: its payload, each step's output, the event.

    Exits with 8 if it cannot be read, naming the step that fails.

    Example:

      tailfold schema explain r-1 3
    """
    check_stream_name(run)
    upcasters = upcasters_of(events)

    def look(opened: Store) -> schema_report.Explained:
        stream = run_named(opened, run)
        if _only(opened, events is not None)(stream):
            opened.log.codec.adopt(upcasters)
        return schema_report.explain(opened.log, stream, version)

    probe(store_path(store), look)
    with open_store(store) as opened:
        found = look(opened)
    if as_json:
        emit(_explained(found))
    else:
        _say_explained(found)
    if found.error is not None:
        note(str(found.error))
        raise typer.Exit(exit_of(found.error))


# -- what is shown -----------------------------------------------------------------------------------------


def _plain(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    return [verdict._asdict() | {"judgement": verdict.judgement.value} for verdict in verdicts]


def _say(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        field = f".{verdict.field}" if verdict.field else ""
        say(f"{verdict.kind}@{verdict.version}{field}: {verdict.judgement.value}")
        say(f"    {verdict.what}")
        if verdict.remedy:
            say(f"    → {verdict.remedy}")


def _surveyed(row: Surveyed) -> dict[str, Any]:
    failure = row.failure
    return row._asdict() | {
        "failure": failure and {"stream": failure.stream, "version": failure.version, "error": str(failure.error)}
    }


def _explained(found: schema_report.Explained) -> dict[str, Any]:
    return {
        "run": found.stream,
        "version": found.version,
        "stored": found.stored,
        "standing": found.standing,
        "payload": view(found.payload),
        "stages": [
            {
                "step": stage.step.label,
                "does": stage.step.does,
                "outputs": [
                    {"kind": o.kind, "version": o.version, "payload": view(o.payload)} for o in stage.outputs
                ],
            }
            for stage in found.stages
        ],
        "events": [one._asdict() | {"payload": view(one.payload)} for one in found.events],
        "error": str(found.error) if found.error else None,
        "failed_step": found.failed,
        "failed_given": view(found.given),
    }


def _say_explained(found: schema_report.Explained) -> None:
    say(f"{found.stream} version {found.version}, stored as {found.stored} ({found.standing})")
    say(f"    {one_line(view(found.payload), 10_000)}")
    for stage in found.stages:
        say(f"step {stage.step.label}: {'; '.join(stage.step.does)}")
        for output in stage.outputs:
            say(f"    {output.kind}@{output.version} {one_line(view(output.payload), 10_000)}")
    if found.failed is not None:
        say(f"step {found.failed} fails. It was given")
        say(f"    {one_line(view(found.given), 10_000)}")
    elif not found.events and found.error is None:
        say("the fold sees nothing of it")
    for one in found.events:
        say(f"the fold passes over {one.kind}" if one.opaque else f"the fold sees {one.name}")
        say(f"    {one_line(view(one.payload), 10_000)}")


# -- the store ---------------------------------------------------------------------------------------------


def _taken(
    upcasters: Upcasters, corpus: Path, most: int, store: Path | None, *, every_stream: bool
) -> list[tuple[str, int, bytes]]:
    """Choose payloads from the store; none if there is no store and none was asked for."""
    path = store_path(store)
    if most == 0:
        return []
    if store is None and not (path / "data.mdb").exists():
        note(f"there is no store at {path}, so no golden payloads were taken")
        return []
    have = schema_files.read_corpus(corpus)
    probe(path, _touch)
    with open_store(store) as opened:
        opened.log.codec.adopt(upcasters)
        return schema_report.take_payloads(opened.log, have, most=most, only=_only(opened, every_stream))


def _only(opened: Store, every_stream: bool) -> Callable[[str], bool]:
    """Streams that the code is meant for: those of the shipped agent's runs, or all for a program's own events."""
    return (lambda stream: True) if every_stream else (lambda stream: is_run(opened, stream))


def _touch(opened: Store) -> None:
    """Read every record once: what cannot be decoded is for the command itself to say."""
    for part in readable_parts(opened.log.backend):
        with suppress(Corruption):
            for _ in opened.log.rows(part.reader, after=part.after, upto=part.upto):
                pass
