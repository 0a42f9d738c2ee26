"""What a migration would do, found by doing all but the writing: the dry run, and the first pass of any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from tailfold.engine.backend import chain
from tailfold.engine.backend.port import Backend, Row
from tailfold.engine.errors import BlobDamaged, RecordDamaged, SchemaError
from tailfold.engine.events import Blob, Event, tag
from tailfold.engine.log import ROWS_PER_PAGE
from tailfold.engine.migration.rewriting import How, Rewriter, Rewritten
from tailfold.engine.rawrecords import blobs_in, tag_of_record, tags_in
from tailfold.engine.shape import Shape

FAILURES_MAX = 1000
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many events of it are done, and how many there are."""


class Failure(NamedTuple):
    """An event that cannot be brought to the code's current version."""

    stream: str
    version: int
    stored: str
    error: SchemaError


@dataclass
class Plan:
    """What becomes of every record of the source."""

    streams: int = 0
    events: int = 0
    upto: int = 0
    """The last position of the source that is taken along."""
    before: Counter[str] = field(default_factory=Counter)
    """Records by stored tag in the source."""
    after: Counter[str] = field(default_factory=Counter)
    """Records by stored tag in the destination."""
    how: Counter[How] = field(default_factory=Counter)
    by_tag: dict[str, Counter[How]] = field(default_factory=dict)
    steps: dict[str, list[str]] = field(default_factory=dict)
    """The steps that lift a stored tag, by label."""
    said: set[str] = field(default_factory=set)
    """Every tag in the destination, parts of composites included."""
    types: set[type[Event]] = field(default_factory=set)
    """Event classes that something was encoded from."""
    failures: list[Failure] = field(default_factory=list)
    """At most `FAILURES_MAX`."""


def make_plan(rewriter: Rewriter, upto: int, *, go_on: bool = False, progress: Progress | None = None) -> Plan:
    """Rewrite every record of the source at positions 1..*upto* and keep only the count.

    The source has to be sound for that: raises `RecordDamaged` where chain, versions or positions are not as they
    were written, or a blob is missing, `BlobDamaged` for a blob that is another. Raises the first `SchemaError`, or
    with *go_on* gathers them.
    """
    plan = Plan()
    held = _sound_blobs(rewriter.backend)
    links: dict[str, bytes] = {}
    versions: dict[str, int] = {}
    known: set[tuple[str, tuple[str, ...]]] = set()
    for rows in by_position(rewriter.backend, rewriter.shape, 0, upto):
        for row in rows:
            check_row(row, links, versions, rewriter.shape)
            for digest in blobs_in(row.data):
                if digest not in held and rewriter.backend.blob(digest) is None:
                    raise RecordDamaged(row.stream, row.version, f"blob {digest.hex()} is missing")
            plan.before[tag(*tag_of_record(row.data))] += 1
        for one in _rewrite(rewriter, rows, plan if go_on else None):
            plan.how[one.how] += 1
            plan.by_tag.setdefault(one.stored, Counter())[one.how] += 1
            plan.after[tag(*tag_of_record(one.data))] += 1
            plan.said.update(one.tags)
            plan.types.update(one.types)
            if one.how in (How.LIFTED, How.SPLIT, How.DROPPED):
                tags = tuple(tags_in(one.row.data))
                if (one.stored, tags) not in known:
                    known.add((one.stored, tags))
                    steps = plan.steps.setdefault(one.stored, [])
                    steps += [step for step in rewriter.steps(one.row.stream, tags) if step not in steps]
        plan.events += len(rows)
        if progress:
            progress("looking through the source", rows[-1].position, upto)
        if len(plan.failures) >= FAILURES_MAX:
            break
    plan.streams = len(rewriter.shape.heads)
    plan.upto = upto
    return plan


def _sound_blobs(backend: Backend) -> set[bytes]:
    held: set[bytes] = set()
    after = b""
    while page := backend.blobs(after=after):
        for digest, content in page:
            if Blob.digest_of(content) != digest:
                raise BlobDamaged(digest.hex())
            held.add(digest)
        after = page[-1][0]
    return held


def _rewrite(rewriter: Rewriter, rows: list[Row], plan: Plan | None) -> list[Rewritten]:
    try:
        return rewriter.rewrite(rows)
    except SchemaError:
        if plan is None:
            raise
    found = []
    for row in rows:
        try:
            found += rewriter.rewrite([row])
        except SchemaError as error:
            plan.failures.append(Failure(row.stream, row.version, tag(*tag_of_record(row.data)), error))
    return found


def by_position(backend: Backend, shape: Shape, after: int, upto: int) -> Iterator[list[Row]]:
    """Yield the kept rows of positions *after*+1..*upto* in commit order, neighbours of one stream together."""
    for page in pages(backend, shape, after, upto):
        yield from runs(page)


def runs(page: list[Row]) -> Iterator[list[Row]]:
    """Yield the rows of a page that follow each other in one stream and without a gap."""
    for _, rows in groupby(enumerate(page), key=lambda item: (item[1].stream, item[1].position - item[0])):
        yield [row for _, row in rows]


def pages(backend: Backend, shape: Shape, after: int, upto: int) -> Iterator[list[Row]]:
    """Yield the kept rows of positions *after*+1..*upto* in pages; raise `RecordDamaged` at a hole (I2)."""
    while after < upto:
        page = backend.rows_by_position(after=after, limit=min(ROWS_PER_PAGE, upto - after))
        for row in page:
            after += 1
            if row.position > upto:
                break
            if row.position != after and not shape.has_gaps:
                raise RecordDamaged(row.stream, row.version, f"it stands at position {row.position}, not {after}")
            after = row.position
        if not page and not shape.has_gaps:
            raise RecordDamaged("", 0, f"no event stands at position {after + 1}")
        kept = [row for row in page if row.position <= upto and shape.keeps(row.stream, row.version)]
        if kept:
            yield kept
        if not page:
            return


def check_row(row: Row, links: dict[str, bytes], versions: dict[str, int], shape: Shape) -> None:
    """Check that *row* is the next of its stream and that its bytes give its chain hash; raise `RecordDamaged`."""
    stream = row.stream
    if stream not in links:
        versions[stream], links[stream] = shape.begin(stream)
    version = versions[stream] + 1
    if row.version != version:
        raise RecordDamaged(stream, version, "the event is missing")
    link = chain.link(links[stream], chain.digest(row.data))
    if link != row.hash:
        raise RecordDamaged(stream, version, "the stored bytes do not give the chain hash")
    try:
        tags_in(row.data)
    except ValueError as error:
        raise RecordDamaged(stream, version, f"the record has no kind@version: {error}") from None
    links[stream], versions[stream] = link, version
