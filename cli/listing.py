"""The list of runs for the command line: the shipped agent's, from the projection, put together in a probe."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tailfold.cli.console import progress_bar
from tailfold.cli.guard import check_pages_before_writing, probe
from tailfold.cli.options import store_path
from tailfold.engine import Store
from tailfold.engine.agent.run_list import RunRow, complete, run_list
from tailfold.engine.agents.comparetiers import NAME
from tailfold.engine.projections import SAVE_AFTER_EVENTS

SAVE_AFTER_FORKS = 16
"""Rows of forks that are made, each from the fork's state, before the list is saved with them."""


def read_run_list(given: Path | None) -> tuple[list[RunRow], dict[str, str]]:
    """Return the rows of all runs in order of their ids, and the named heads; raise before anything is shown.

    The list is saved in the store when much was new; a store that can only be read is left as it is.
    """
    path = store_path(given)

    def look(store: Store) -> bytes:
        projected = store.project(run_list(NAME), catch_up=False)
        save = projected.behind >= SAVE_AFTER_EVENTS
        if save:
            check_pages_before_writing(store, path)
        with progress_bar("listing runs", projected.behind) as bar:
            advance = (lambda count: bar.advance(bar.task_ids[0], count)) if bar else None
            projected.catch_up(save=save, check=True, progress=advance)
        rows, made = complete(store, projected.state, NAME)
        if made >= SAVE_AFTER_FORKS:
            check_pages_before_writing(store, path)
            projected.save()
        return msgspec.msgpack.encode((rows, store.named_heads()))

    return msgspec.msgpack.decode(probe(path, look), type=tuple[list[RunRow], dict[str, str]])
