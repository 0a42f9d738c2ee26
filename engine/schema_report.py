"""What a store holds against what the code reads: a survey, one event explained, payloads for the golden corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from tailfold.engine.backend.port import Row
from tailfold.engine.errors import BadArgument, EngineError, RecordDamaged, StepFailed, StreamNotFound
from tailfold.engine.events import COMPOSITE_KIND, Event, Opaque, tag
from tailfold.engine.log import RECORDS_PER_PAGE, Log
from tailfold.engine.rawrecords import as_record, raw_record, stored_payloads, tag_of_record
from tailfold.engine.records import Newer
from tailfold.engine.shape import Part, readable_parts
from tailfold.upcasters import LiftError, Stage, Standing, corpus

Only = Callable[[str], bool]
"""Says whether the code's events are meant for a stream: other programs may use the same kinds for other things."""
Progress = Callable[[int], None]
DAMAGED = "?"
"""The kind of records that do not even say what they are."""


class Unreadable(NamedTuple):
    """The first event of a (kind, version) that the code cannot read."""

    stream: str
    version: int
    error: EngineError


class Surveyed(NamedTuple):
    """One (kind, version) of a store."""

    kind: str
    version: int
    events: int
    readable: int
    """How many of them the code reads: each one was decoded."""
    foreign: int
    """How many stand in streams of other programs: kept as they are, not decoded."""
    standing: str
    """``current``, ``lifted by 2 steps``, …: what the code does with them."""
    steps: int
    """How many steps there are on the way."""
    failure: Unreadable | None


class Seen(NamedTuple):
    """An event as folds see it."""

    kind: str
    version: int
    """The code's own; for an opaque one, as stored."""
    name: str | None
    """The class; None if the code has none, and folds pass over it."""
    opaque: bool
    payload: Any
    """Plain values."""


class Explained(NamedTuple):
    """The way of one stored event to what the fold sees."""

    stream: str
    version: int
    stored: str
    """``kind@version``."""
    standing: str
    payload: Any
    """Plain values, as stored."""
    stages: list[Stage]
    """Every step that ran, with what it was given and what it made."""
    events: list[Seen]
    """What comes out: one event; several or none, if a step splits or drops it."""
    error: EngineError | None
    """Why nothing comes out."""
    failed: str | None
    """The step that failed."""
    given: Any
    """What that step was given."""


def survey(log: Log, *, only: Only = lambda stream: True, progress: Progress | None = None) -> list[Surveyed]:
    """Count what the store of *log* holds by (kind, version), and try to read each event, with the code's steps.

    Each stored event counts once, also if forks see it, or keep it from a deleted stream; of a composite each part
    counts as what it is. Goes on past whatever cannot be read. *progress* is called with numbers of stored events
    done.
    """
    counts: dict[tuple[str, int], _Count] = {}
    for part in readable_parts(log.backend):
        ours = only(part.reader)
        for page in _pages(log, part, counts):
            readable = _decodable(log, part.reader, page) if ours else [None] * len(page)
            for row, error in zip(page, readable, strict=True):
                for at, why in _parts(log, row, error):
                    counts.setdefault(at, _Count()).add(row.stream, row.version, why, ours=ours)
            if progress is not None:
                progress(len(page))
    return [_surveyed(log, *at, counts[at]) for at in sorted(counts)]


class _Count:
    def __init__(self) -> None:
        self.events = self.readable = self.foreign = 0
        self.failure: Unreadable | None = None

    def add(
        self, stream: str, version: int, error: EngineError | None, *, ours: bool = True, events: int = 1
    ) -> None:
        self.events += events
        if error is None:
            self.readable += events
        elif self.failure is None:
            self.failure = Unreadable(stream, version, error)
        if not ours:
            self.foreign += events


def _surveyed(log: Log, kind: str, version: int, count: _Count) -> Surveyed:
    standing, steps = _standing(log, kind, version, read=count.failure is None)
    if count.foreign == count.events:
        standing, steps = "of another program: kept as it is", 0
    return Surveyed(kind, version, count.events, count.readable, count.foreign, standing, steps, count.failure)


def explain(log: Log, stream: str, version: int) -> Explained:
    """Show how event *version* of *stream* becomes what folds see. Raises `StreamNotFound`, `RecordDamaged`."""
    row = _row(log, stream, version)
    try:
        kind, schema_version = tag_of_record(row.data)
        payload = raw_record(row.data)[4]
        parts = stored_payloads(row.data)
    except ValueError as error:
        raise RecordDamaged(stream, version, f"the record cannot be read: {error}") from None
    stages: list[Stage] = []
    events: list[Seen] = []
    found: EngineError | None = None
    failed, given = None, None
    try:
        for part in parts:
            stages += log.codec.lifting.trace(stream, version, *part[:2], msgspec.msgpack.decode(part[2]))
        events = [_seen(log, one.event) for one in log.recorded(row)]
    except StepFailed as error:
        found, failed, given = error, error.step, error.payload
        if isinstance(error.__cause__, LiftError):
            stages += [stage for stage in error.__cause__.stages if stage not in stages]
    except EngineError as error:
        found = error
    standing = "; ".join(_standing(log, *part[:2], read=found is None)[0] for part in parts) or "says nothing"
    stored = tag(kind, schema_version)
    return Explained(stream, version, stored, standing, payload, stages, events, found, failed, given)


def take_payloads(
    log: Log, have: Iterable[corpus.Entry], *, most: int = 3, only: Only = lambda stream: True
) -> list[tuple[str, int, bytes]]:
    """Choose stored payloads for the corpus, beside those that it *has*: at most *most* of each (kind, version).

    The smallest ones that differ in what their fields hold; none over 16 KiB, and none that the code does not know.
    """
    chain = log.codec.lifting.chain
    chooser = corpus.Chooser(most, have)
    for part in readable_parts(log.backend):
        if not only(part.reader):
            continue
        for row in log.rows(part.reader, after=part.after, upto=part.upto):
            with suppress(ValueError):  # damaged: for verify to say
                for kind, version, payload in stored_payloads(row.data):
                    if kind in chain.current or chain.lifts(kind, version):
                        chooser.offer(kind, version, payload)
    return chooser.chosen()


def _seen(log: Log, event: Event | Opaque) -> Seen:
    if isinstance(event, Opaque):
        return Seen(event.opaque_kind, event.opaque_version, None, True, event.builtins())
    return Seen(event.kind, event.version, type(event).__name__, False, log.codec.lifting.plain(event))


def _row(log: Log, stream: str, version: int) -> Row:
    head = log.head(stream)
    if version < 1:
        raise BadArgument(f"versions count from 1, there is no version {version}")
    if version > head.version:
        raise StreamNotFound(stream, version=version, head=head.version)
    [row] = log.rows(stream, after=version - 1, upto=version)
    return row


def _pages(log: Log, part: Part, counts: dict[tuple[str, int], _Count]) -> Iterator[list[Row]]:
    """Yield the rows of a part; what is missing is a failure, and ends the part."""
    rows = log.rows(part.reader, after=part.after, upto=part.upto)
    missing: RecordDamaged | None = None
    while missing is None:
        page: list[Row] = []
        try:
            page.extend(islice(rows, RECORDS_PER_PAGE))
        except RecordDamaged as error:
            missing = error
        if not page and missing is None:
            return
        yield page
    lost = counts.setdefault((DAMAGED, 0), _Count())
    lost.add(part.reader, missing.version, missing, events=part.upto - missing.version + 1)


def _decodable(log: Log, stream: str, page: list[Row]) -> list[EngineError | None]:
    if not page:
        return []
    try:
        log.codec.decode_page(stream, page[0].version - 1, [row.data for row in page])
        return [None] * len(page)
    except EngineError:
        return [_failure(log, row, row.data) for row in page]


def _failure(log: Log, row: Row, data: bytes) -> EngineError | None:
    try:
        log.codec.decode(row.stream, row.version, data)
    except EngineError as error:
        return error
    return None


def _parts(log: Log, row: Row, error: EngineError | None) -> Iterator[tuple[tuple[str, int], EngineError | None]]:
    """Yield what a row says, and why it cannot be read: one thing, unless it is a composite."""
    try:
        parts = stored_payloads(row.data)
    except ValueError:
        yield (DAMAGED, 0), error or RecordDamaged(row.stream, row.version, "the record cannot be read")
        return
    if not parts:
        yield (COMPOSITE_KIND, 1), error
    for kind, version, payload in parts:
        why = error
        if error is not None and len(parts) > 1:
            why = _failure(log, row, as_record(kind, version, payload))
        yield (kind, version), why


def _standing(log: Log, kind: str, version: int, *, read: bool) -> tuple[str, int]:
    """Say what the code does with a (kind, version), and with how many steps."""
    codec = log.codec
    chain = codec.lifting.chain
    if kind == DAMAGED:
        return "damaged", 0
    if kind == COMPOSITE_KIND:
        return "says nothing", 0
    known = {name: event.version for name, event in chain.current.items()}
    match chain.standing_among(kind, version, known):
        case Standing.CURRENT:
            return "current", 0
        case Standing.UNKNOWN:
            return "unknown kind: kept as it is", 0
        case Standing.NEWER:
            opaque = codec.newer is Newer.OPAQUE
            return f"newer than the code's {known[kind]}{': kept as it is' if opaque else ''}", 0
    steps = len(list(chain.steps_from(kind, version)))
    if steps:
        ends = " + ".join(tag(*end) for end in chain.ends_of(kind, version)) or "nothing: dropped"
        return f"lifted by {steps} step{'s' * (steps > 1)} to {ends}", steps
    retired = " (retired, but it is here)" if (kind, version) in chain.upcasters.retired else ""
    way = "fits as it is" if read else "without a step"
    return f"older than the code's {known[kind]}, {way}{retired}", 0
