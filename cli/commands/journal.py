"""Commands that look at one journal: show, state, export."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from tailfold.cli.console import emit, one_line, say, say_line, time_text, write_line
from tailfold.cli.options import AtOption, JsonOption, RunArgument, StoreOption, is_own_run, open_run
from tailfold.engine import Blob, Opaque, Recorded, Store
from tailfold.engine.agent.state import run_fold
from tailfold.engine.errors import BadArgument
from tailfold.snapshots import state_hash, to_plain


def show(run: RunArgument, at: AtOption = None, as_json: JsonOption = False, store: StoreOption = None) -> None:
    """Show a journal, one line an event.

    Examples:

      tailfold show r-1

      tailfold show r-1 --at 5 --json
    """
    with open_run(store, run, at=at) as opened:
        for recorded in opened.read(run, upto=at):
            if as_json:
                emit(_line(recorded))
            else:
                content = one_line(_payload(recorded), 10_000)
                opaque = " (unknown kind)" if isinstance(recorded.event, Opaque) else ""
                clock = time_text(recorded.time_ns)[11:23]
                say_line(f"{recorded.version:>4}  {clock}  {recorded.kind:<15}{opaque} {content}")


def state(run: RunArgument, at: AtOption = None, as_json: JsonOption = False, store: StoreOption = None) -> None:
    """Show the folded state of a run, now or at an earlier version.

    Example:

      tailfold state r-1 --at 5
    """
    with open_run(store, run, at=at) as opened:
        _require_run(opened, run)
        loaded = opened.load(run, run_fold, at)
        shown = {
            "run": run,
            "version": loaded.version,
            "state_hash": state_hash(loaded.state),
            "state": to_plain(loaded.state),
        }
        if as_json:
            emit(shown)
        else:
            say(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())


def export(
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Default: stdout.", show_default=False),
    ] = None,
    records: Annotated[
        bool,
        typer.Option("--records", help="Add the stored bytes (base64), to recompute the hash chain."),
    ] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Export a journal as JSON lines, one event a line, oldest first (--json changes nothing here).

    Example:

      tailfold export r-1 --output r-1.jsonl
    """
    with open_run(store, run) as opened:
        if output is None:
            for line in _lines(opened, run, records):
                write_line(line)
            return
        try:
            with output.open("xb") as file:
                try:
                    file.writelines(line + b"\n" for line in _lines(opened, run, records))
                    file.flush()
                except BaseException:
                    output.unlink()  # half an export is none
                    raise
        except FileExistsError:
            raise BadArgument(f"{output} exists: export never writes over a file") from None
        except OSError as error:
            raise BadArgument(f"cannot write {output}: {error.strerror}") from None


def _lines(opened: Store, run: str, records: bool) -> Iterator[bytes]:
    head = opened.head(run)
    for row in opened.log.rows(run, after=0, upto=head.version):
        for recorded in opened.log.recorded(row):
            line = _line(recorded)
            if records:
                line["record"] = base64.b64encode(row.data).decode()
            yield msgspec.json.encode(line)


def _require_run(opened: Store, run: str) -> None:
    if not is_own_run(opened, run):
        [first] = opened.read(run, limit=1)
        raise BadArgument(
            f"stream {run!r} is no run (it begins with {first.kind!r}) of the shipped agent, so this command has"
            " no fold for it"
        )


def _line(recorded: Recorded) -> dict[str, Any]:
    return {
        "stream": recorded.stream,
        "version": recorded.version,
        "position": recorded.position,
        "id": recorded.event_id,
        "time": time_text(recorded.time_ns),
        "time_ns": recorded.time_ns,
        "kind": recorded.kind,
        "schema_version": recorded.schema_version,
        "payload": _payload(recorded),
        "opaque": isinstance(recorded.event, Opaque),
        "causation": recorded.causation,
        "correlation": recorded.correlation,
        "hash": recorded.hash,
    }


def _payload(recorded: Recorded) -> Any:
    event = recorded.event
    if isinstance(event, Opaque):
        return msgspec.to_builtins(event.builtins(), str_keys=True)
    return msgspec.to_builtins(event, enc_hook=_blob, str_keys=True)


def _blob(value: Any) -> Any:
    if isinstance(value, Blob):
        return {"blob": value.digest.hex(), "size": value.size}
    raise TypeError(f"{type(value).__name__} cannot be shown")
