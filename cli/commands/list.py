"""The command list: the runs, from a projection that is kept in the store, put together in a probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tailfold.cli.console import emit, note, one_line, progress_bar, table, time_text
from tailfold.cli.guard import check_pages_before_writing, probe
from tailfold.cli.options import JsonOption, StoreOption, store_path
from tailfold.engine import Store
from tailfold.engine.agent.listing import RunRow, complete, run_list
from tailfold.engine.agents.comparetiers import NAME
from tailfold.engine.projections import SAVE_AFTER_EVENTS

SAVE_AFTER_FORKS = 16
"""Rows of forks that are made, each from the fork's state, before the list is saved with them."""


def list_runs(as_json: JsonOption = False, store: StoreOption = None) -> None:
    """List the runs of all agents: id, status, turns, events, last event, question.

    It folds no run: it reads a projection that is kept in the store, and what was appended since. With --json also
    the tokens, what the model was waited for (model_s, in seconds) and the last event; questions and answers are
    cut to 500 characters.

    Example:

      tailfold list --json
    """
    rows, heads = _rows(store)
    if as_json:
        for row in rows:
            emit(_listed(row) | {"heads": sorted(name for name, stream in heads.items() if stream == row.run)})
    elif rows:
        several = any(row.agent != NAME for row in rows)
        table(
            ("RUN", *(["AGENT"] if several else []), "STATUS", "TURNS", "EVENTS", "UPDATED (UTC)", "QUESTION"),
            [
                (
                    _named(row.run, heads),
                    *([one_line(row.agent, 40)] if several else []),
                    row.reason or row.status,
                    f"{row.turns}/{row.max_turns}",
                    str(row.events),
                    time_text(row.updated_ns)[:19].replace("T", " "),
                    one_line(row.question, 200),
                )
                for row in rows
            ],
        )
    else:
        note("no runs in this store")


def _named(run: str, heads: dict[str, str]) -> str:
    """Return how a run is called: after a rewind, a name means its new line, and the old one has a colon."""
    means = [name for name, stream in heads.items() if stream == run]
    if run in heads and heads[run] != run:
        return f":{run}"
    return f"{run} ({', '.join(means)})" if means else run


def _listed(row: RunRow) -> dict[str, Any]:
    return {
        "run": row.run,
        "status": row.status,
        "reason": row.reason,
        "answer": row.answer,
        "question": row.question,
        "agent": row.agent,
        "model": row.model,
        "turns": row.turns,
        "max_turns": row.max_turns,
        "events": row.events,
        "tool_calls": row.tool_calls,
        "model_failures": row.model_failures,
        "resumes": row.resumes,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
        "model_ms": row.model_ms,
        "model_s": round(row.model_ns / 1e9, 6),
        "last_event": row.last_kind,
        "started": time_text(row.started_ns),
        "updated": time_text(row.updated_ns),
    }


def _rows(given: Path | None) -> tuple[list[RunRow], dict[str, str]]:
    """Return the rows of all runs in order of their ids, and the named heads; raise before anything is shown.

    The list is saved in the store when much was new; a store that can only be read is left as it is.
    """
    path = store_path(given)

    def look(store: Store) -> bytes:
        projected = store.project(run_list(), catch_up=False)
        save = projected.behind >= SAVE_AFTER_EVENTS
        if save:
            check_pages_before_writing(store, path)
        with progress_bar("listing runs", projected.behind) as bar:
            advance = (lambda count: bar.advance(bar.task_ids[0], count)) if bar else None
            projected.catch_up(save=save, check=True, progress=advance)
        rows, made = complete(store, projected.state)
        if made >= SAVE_AFTER_FORKS:
            check_pages_before_writing(store, path)
            projected.save()
        return msgspec.msgpack.encode((rows, store.named_heads()))

    return msgspec.msgpack.decode(probe(path, look), type=tuple[list[RunRow], dict[str, str]])
