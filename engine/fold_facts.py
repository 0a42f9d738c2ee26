"""What snapshots need to know of a fold: the codec of its state, and its id over the code (design §5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from tailfold.engine.backend import keys
from tailfold.engine.events import Event, tag_of
from tailfold.engine.fold import Fold
from tailfold.snapshots import fingerprint
from tailfold.snapshots.codec import CODEC_VERSION, StateCodec
from tailfold.snapshots.marks import MarkCodec
from tailfold.snapshots.schema import survey

S = TypeVar("S")


def sorted_handlers(fold: Fold[Any]) -> list[tuple[type[Event], Any]]:
    """Return the handlers of a fold in the order of their tags: registration order decides nothing."""
    return sorted(fold.handlers.items(), key=lambda item: tag_of(item[0]))


class FoldFacts(Generic[S]):
    """What snapshots need to know of a fold: its codec, its id, and the parts of the id."""

    def __init__(self, fold: Fold[S], steps: Callable[[Iterable[str]], str] = lambda kinds: "") -> None:
        """Look through *fold*; *steps* says which upcasters are in force for kinds of events."""
        self.name_hash = keys.fold_hash(fold.name)
        self.handlers = len(fold.handlers)
        self.unusable = ""
        """Why the fold can have no snapshots; empty if it can."""
        in_force = ""
        try:
            in_force = steps(sorted(event.kind for event in fold.handlers))
            self.codec: StateCodec[S] = StateCodec(fold.state_type)
            code = {
                "initial": fold.initial,
                "strict": fold.strict,
                **fold.also,
                **{f"on {tag_of(event)}": handler for event, handler in sorted_handlers(fold)},
                "events": [event for event, _ in sorted_handlers(fold)],
                "state": list(self.codec.survey.classes),
                "inside events": [survey(event).classes for event, _ in sorted_handlers(fold)],
            }
            source = "pinned" if fold.pinned else fingerprint.part(fingerprint.source_text(code))
        except Exception as error:
            # Code can be stranger than the walk over it: no snapshots then, rather than no load.
            self.unusable = f"its code cannot be looked through ({type(error).__name__}: {error})"
            self.codec, source = StateCodec(Any), "unusable"
        self.marks: MarkCodec[S] = MarkCodec(self.codec.state_type)
        events = [_version_mark(event) + survey(event).text for event, _ in sorted_handlers(fold)]
        self.parts = {
            "name": fold.name,
            "version": str(fold.version),
            "source": source,
            "state": fingerprint.part(self.codec.survey.text),
            "events": fingerprint.part("\n".join(events)),
            "upcasters": fingerprint.part(in_force),
            "codec": str(CODEC_VERSION),
        }
        self.fold_id = fingerprint.fold_id(self.parts)


def _version_mark(event: type[Event]) -> str:
    """Tell versions of a kind with the same fields apart; version 1 never had a mark."""
    return f"@{event.version} " if event.version > 1 else ""
