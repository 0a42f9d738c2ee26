"""Verify: recompute what the store claims. Reads only; every finding names what and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from tailfold.engine.backend import chain
from tailfold.engine.backend.port import Head, Row, Tombstone
from tailfold.engine.checkpoints import read as read_checkpoint
from tailfold.engine.errors import Corruption, RecordDamaged, SchemaError, StreamDeleted, StreamNotFound
from tailfold.engine.events import Blob
from tailfold.engine.log import ROWS_PER_PAGE, Log
from tailfold.engine.origin import COPYING, read_origin
from tailfold.engine.rawrecords import blobs_in

FINDINGS_MAX = 1000


class Finding(NamedTuple):
    """One thing that is not as it was written."""

    stream: str | None
    version: int | None
    what: str

    def __str__(self) -> str:
        if self.stream is None:
            return self.what
        where = f"stream {self.stream!r}"
        return f"{where} version {self.version}: {self.what}" if self.version else f"{where}: {self.what}"


class Verified(NamedTuple):
    """What was checked, and what was found."""

    streams: int
    events: int
    findings: list[Finding]
    head: Head | None
    """The head of the one stream that was asked for."""

    @property
    def sound(self) -> bool:
        """True if nothing was found."""
        return not self.findings


Progress = Callable[[int], None]


def verify(
    log: Log,
    stream: str | None = None,
    *,
    head: str | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Check pages, and every event of *stream* or the store: versions (I1), positions (I2, I3), chain (I4).

    Of one stream, all that it sees is checked, also what a fork inherits; of a store, every stored event once, also
    what only forks of a deleted stream still need, the checkpoints of followers, and how forks hang together.

    With *head*, a chain hash in hex that was noted elsewhere, the stream must also still contain that
    hash: cutting off the newest events, or rewriting the whole chain, shows too. *progress* is called
    with the number of events done since its last call.
    """
    findings = [Finding(None, None, f"page check: {what}") for what in log.backend.check()]
    if findings:
        # Reading rows through damaged pages may crash the process; the page check has the answer.
        return Verified(0, 0, findings, None)
    if stream is not None:
        found = log.head(stream)
        root = log.backend.lineage(stream)[0].stream
        events = _verify_stream(log, found, 0, chain.seed(root), findings, progress)
        if head is not None and not _contains(log, found, head):
            findings.append(
                Finding(stream, None, f"no version has the hash {head}: events were cut off or replaced")
            )
        return Verified(1, events, findings, found)
    streams = events = 0
    before, deleted = log.backend.count(), log.backend.tombstones()
    for found in log.streams():
        streams += 1
        own: list[Finding] = []
        try:
            events += _verify_stream(log, found, found.base, _hash_at_base(log, found, own), own, progress)
            if own:
                log.head(found.stream)
        except StreamDeleted:
            own = []  # meanwhile: what is left of it is looked at below
        findings += own
        if len(findings) >= FINDINGS_MAX:
            return Verified(streams, events, findings, None)
    given_back = 0
    for tombstone in log.backend.tombstones():
        own = []
        try:
            events += _verify_tombstone(log, tombstone, own)
        except RecordDamaged as error:
            own.append(
                Finding(tombstone.stream, error.version, f"{error.why} (of a deleted stream that forks need)")
            )
        except StreamNotFound:
            own.append(Finding(tombstone.stream, None, "its name is missing (of a deleted stream)"))
        given_back += tombstone.version - tombstone.kept
        if own and tombstone in log.backend.tombstones():  # else a sweep was here meanwhile
            findings += own
    _verify_blobs(log, findings)
    _verify_checkpoints(log, findings)
    if not _being_copied(log):
        findings += [Finding(name or None, None, what) for name, what in log.backend.check_forks()]
    after = log.backend.count()
    if log.backend.tombstones() != deleted:  # streams were deleted, or given back, meanwhile
        return Verified(streams, events, findings, None)
    counted = before[1] <= events + given_back <= after[1] and before[0] <= streams <= after[0]
    if not findings and not counted and not _being_copied(log):
        # Between the two others may have appended; what was there before has to be there still.
        findings.append(
            Finding(None, None, f"{before[1]} positions stand for {events} events of {streams} streams (I2)")
        )
    return Verified(streams, events, findings, None)


def _being_copied(log: Log) -> bool:
    """Say whether a migration is on its way: what explains missing positions, deleted streams, comes last."""
    origin = read_origin(log.backend)
    return origin is not None and origin.state == COPYING


def _hash_at_base(log: Log, head: Head, findings: list[Finding]) -> bytes:
    """Return the chain hash with which the own events of a stream begin; empty and a finding if it is not there."""
    if not head.base:
        return chain.seed(head.stream)
    try:
        rows = log.backend.rows(head.stream, after=head.base - 1, upto=head.base, limit=1)
    except RecordDamaged as error:
        findings.append(Finding(head.stream, error.version, f"what it was forked from: {error.why}"))
        return b""
    if not rows or rows[0].version != head.base:
        findings.append(Finding(head.stream, head.base, "what it was forked from: the event is missing"))
        return b""
    return rows[0].hash


def _verify_tombstone(log: Log, tombstone: Tombstone, findings: list[Finding]) -> int:
    """Check what forks still need of a deleted stream."""
    expected = tombstone.base_hash or chain.seed(tombstone.stream)
    version = tombstone.base
    while page := log.backend.own_rows(tombstone.stream, after=version, limit=ROWS_PER_PAGE):
        for row in page:
            expected = chain.link(expected, chain.digest(row.data))
            if row.version != version + 1 or row.hash != expected:
                what = "the stored bytes do not give the chain hash (of a deleted stream that forks need)"
                findings.append(Finding(tombstone.stream, row.version, what))
                expected = row.hash
            version = row.version
            for blob in blobs_in(row.data):
                _verify_reference(log, row, blob, findings)
    if version != tombstone.kept:
        what = f"forks need versions up to {tombstone.kept} of this deleted stream, there are {version}"
        findings.append(Finding(tombstone.stream, version + 1, what))
    return version - tombstone.base


def _verify_stream(
    log: Log, head: Head, after: int, expected: bytes, findings: list[Finding], progress: Progress | None
) -> int:
    stream = head.stream
    events = 0
    position = 0
    try:
        for row, where in _placed(log, log.rows(stream, after=after, upto=head.version)):
            events += 1
            # Without the hash before it, which is a finding by then, the first one is believed.
            expected = chain.link(expected, chain.digest(row.data)) if expected else row.hash
            if row.hash != expected:
                findings.append(Finding(stream, row.version, "the stored bytes do not give the chain hash"))
                expected = row.hash  # go on from what is stored: one changed byte is one finding
            if row.position <= position:
                findings.append(
                    Finding(stream, row.version, f"position {row.position} is not past {position} (I2)")
                )
            position = row.position
            if where != (row.origin, row.version):
                findings.append(
                    Finding(
                        stream,
                        row.version,
                        f"position {row.position} stands for another event (I3)",
                    )
                )
            for blob in blobs_in(row.data):
                _verify_reference(log, row, blob, findings)
            if progress and events % 1000 == 0:
                progress(1000)
            if len(findings) >= FINDINGS_MAX:
                return events
    except RecordDamaged as error:
        findings.append(Finding(stream, error.version, error.why))
        return events
    except (Corruption, ValueError) as error:
        findings.append(Finding(stream, after + events + 1, str(error)))
        return events
    if expected != head.hash:
        findings.append(Finding(stream, head.version, "the head's hash is not the last event's (I4)"))
    past = log.backend.rows(stream, after=head.version, upto=head.version + 1, limit=1)
    if past and log.head(stream).version == head.version:  # else somebody has appended meanwhile
        findings.append(Finding(stream, head.version + 1, "an event stands past the head (I4)"))
    if progress:
        progress(events % 1000)
    return events


def _placed(log: Log, rows: Iterator[Row]) -> Iterator[tuple[Row, tuple[str, int] | None]]:
    """Yield each row with what its position stands for, looked up page by page."""
    error: Exception | None = None
    while error is None:
        page: list[Row] = []
        try:
            page.extend(islice(rows, ROWS_PER_PAGE))
        except Corruption as found:
            error = found
        if not page:
            break
        yield from zip(page, log.backend.where([row.position for row in page]), strict=True)
    if error is not None:
        raise error


def _verify_reference(log: Log, row: Row, digest: bytes, findings: list[Finding]) -> None:
    content = log.backend.blob(digest)
    if content is None:
        what = f"blob {digest.hex()} is missing"
    elif Blob.digest_of(content) != digest:
        what = f"the content of blob {digest.hex()} is damaged"
    else:
        return
    findings.append(Finding(row.stream, row.version, what))


def _verify_blobs(log: Log, findings: list[Finding]) -> None:
    """Check blobs that no event needs, too: one may be needed again."""
    after = b""
    while page := log.backend.blobs(after=after):
        for digest, content in page:
            if Blob.digest_of(content) != digest:
                findings.append(Finding(None, None, f"the content of blob {digest.hex()} is damaged"))
        after = page[-1][0]


def _verify_checkpoints(log: Log, findings: list[Finding]) -> None:
    """Check that each can be read, and is not past the end: its follower would pass over what comes next."""
    for name, stored in log.backend.checkpoints():
        try:
            found = read_checkpoint(name, stored)
            last = _end_of(log, found.stream)
        except StreamDeleted:
            continue
        except Corruption as error:
            findings.append(Finding(None, None, str(error)))
            continue
        if found.position > last:
            of = "the store" if found.stream is None else f"stream {found.stream!r}"
            what = f"checkpoint {name!r} is at {found.position}, and {of} ends at {last}: drop it"
            findings.append(Finding(None, None, what))


def _end_of(log: Log, stream: str | None) -> int:
    if stream is None:
        return log.backend.count()[1]
    head = log.backend.head(stream)
    return head.version if head is not None else 0


def _contains(log: Log, head: Head, wanted: str) -> bool:
    wanted = wanted.lower()
    if head.hash.hex() == wanted:
        return True
    rows = log.rows(head.stream, after=0, upto=head.version, backwards=True)
    try:
        return any(row.hash.hex() == wanted for row in rows)
    except RecordDamaged:  # which is a finding of its own
        return False


def check_rows(log: Log, page: Sequence[Row]) -> None:
    """Raise `RecordDamaged` unless every row of *page* is as it was written, given the hash before it.

    The rows may be of many streams; those of one stream are in order of versions, with any gaps.
    """
    hashes: dict[str, tuple[int, bytes]] = {}
    for row in page:
        version, previous = hashes.get(row.stream, (0, chain.seed(row.stream)))
        if version != row.version - 1:
            previous = _hash_before(log, row)
        if row.hash != chain.link(previous, chain.digest(row.data)):
            raise RecordDamaged(row.stream, row.version, "the stored bytes do not give the chain hash")
        hashes[row.stream] = row.version, row.hash


def _hash_before(log: Log, row: Row) -> bytes:
    """Return the chain hash before a row that stands under its own stream, which may be deleted by now."""
    before = row.version - 1
    try:
        found = log.backend.rows(row.stream, after=before - 1, upto=before, limit=1)
    except StreamDeleted:
        pieces = log.backend.lineage(row.stream, deleted=True)
        [owner] = [piece.stream for piece in pieces if piece.after < before <= piece.upto] or [row.stream]
        found = log.backend.own_rows(owner, after=before - 1, limit=1)
    return found[0].hash if found and found[0].version == before else b""


def check_readable(log: Log, stream: str, *, upto: int | None = None) -> int:
    """Check that *stream* can be read truly up to *upto*: chain and decoding. Return the number of events.

    For callers that must not show half an answer. Raises `RecordDamaged`, `StreamNotFound` or a
    `SchemaError` that names the first event that cannot be trusted.
    """
    head = log.head(stream)
    last = head.version if upto is None else upto
    if last > head.version:
        raise StreamNotFound(stream, version=last, head=head.version)
    expected = chain.seed(log.backend.lineage(stream)[0].stream)
    schema_error: SchemaError | None = None
    for row in log.rows(stream, after=0, upto=last):
        expected = chain.link(expected, chain.digest(row.data))
        if row.hash != expected:
            raise RecordDamaged(stream, row.version, "the stored bytes do not give the chain hash")
        if schema_error is None:
            try:
                log.codec.decode(stream, row.version, row.data)
            except SchemaError as error:
                schema_error = error  # a damaged event further on is the graver thing to say
    if last == head.version and expected != head.hash:
        raise RecordDamaged(stream, last, "the head's hash is not the last event's")
    if schema_error is not None:
        raise schema_error
    return last
