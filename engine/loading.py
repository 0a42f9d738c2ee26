"""Loading: the folded state of a stream at a version.

One path for everyone who wants a state: `Store.load`, live handles, the CLI and replay. This is the place
where snapshots enter: a load starts from the nearest usable one instead of from the initial state.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from tailfold.engine.errors import BadArgument, StreamNotFound
from tailfold.engine.fold import Fold
from tailfold.engine.log import Log

S = TypeVar("S")


class Loaded(NamedTuple, Generic[S]):
    """A folded state and the version it stands at."""

    state: S
    version: int


def load(log: Log, stream: str, fold: Fold[S], at: int | None = None) -> Loaded[S]:
    """Fold *stream* up to version *at*, or to its head. A stream without events is at version 0.

    Raises `StreamNotFound` if the stream does not reach *at*, a `SchemaError`, `RecordDamaged` or
    `FoldFailed` naming the event.
    """
    log.codec.register(fold.events)
    head = log.backend.head(stream)
    version = head.version if head else 0
    if at is not None:
        if at < 0:
            raise BadArgument(f"at is a version from 0 on, not {at}")
        if at > version:
            raise (StreamNotFound(stream, version=at, head=version) if head else StreamNotFound(stream))
        version = at
    return Loaded(catch_up(log, stream, fold, fold.initial(), 0, version), version)


def catch_up(log: Log, stream: str, fold: Fold[S], state: S, after: int, upto: int) -> S:
    """Fold versions *after*+1..*upto* onto *state*."""
    for records in log.record_pages(stream, after=after, upto=upto):
        state = fold.fold_records(state, records, stream, after)
        after += len(records)
    return state
