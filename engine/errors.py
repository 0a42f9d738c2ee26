"""Every error that tailfold raises on purpose, in one tree.

EngineError
├── BadArgument            an argument is outside its documented range; nothing was done
├── NotFound
│   ├── StoreNotFound      no store at the path (or the path holds something else)
│   ├── StreamNotFound     the store has no such stream, or not that version of it
│   ├── StreamDeleted      the stream was deleted; its tombstone keeps the name
│   ├── BlobNotFound       an event names a blob that the store does not hold
│   └── LockNotFound       no schema lock at the path
├── RunEnded               the run has ended; there is nothing to drive
├── LeaseHeld              another process drives the run
├── ReplayDiverged         the replayed loop asked for something else than the journal records
├── Corruption             stored bytes are not what was written
│   ├── StoreDamaged       the file itself: pages, size, missing tables
│   ├── RecordDamaged      one stored event
│   ├── BlobDamaged        the content of a blob
│   └── ChunkLost          a piece of a state that folding the log anew does not give back
├── SchemaError
│   ├── FormatTooNew       the store's format is newer than this release
│   ├── SchemaTooNew       an event's schema version is newer than the code's
│   ├── SchemaTooOld       an event's schema version is older and no step lifts it
│   ├── Undecodable        a payload does not fit its own (kind, version)
│   ├── StepFailed         a step of the upcasters raised, or gave what the current schema refuses
│   ├── BadSteps           the upcasters do not form a chain to the code's events
│   ├── LockTooNew         the schema lock was written by a later release
│   ├── SchemaChanged      the code has changes that the schema lock says would break stored journals
│   └── UnknownKind        a strict fold met a kind that it does not know
├── Conflict               somebody else was first; nothing was written
│   ├── WrongVersion       the stream is not at the expected version
│   ├── KeyReused          the idempotency key was used for other content
│   ├── StreamExists       a fork was to have a name that is taken
│   ├── StreamNeeded       a stream was to be deleted that forks, or a named head, rest on
│   ├── HeadMoved          a named head is not where the caller believed
│   └── Fenced             the lease was taken over by another driver
├── FoldFailed             a fold's own handler raised
├── StoreFull              no room left on the disk; nothing was written
├── StoreReadOnly          the store lies on a medium, or under permissions, that allow no writing
├── OutcomeUnknown         the disk refused a commit half-way; reopen to see what is there
└── StoreClosed            the store was closed, or opened before a fork

Errors carry their data as attributes and say the remedy. Exceptions of lmdb and msgspec never leave the
modules that use those libraries. Unless a class says otherwise, the store is as it was before the call.
"""

from __future__ import annotations

from typing import Any

PAYLOAD_SHOWN = 500
"""Characters of a payload that an error's message shows; the error carries all of it."""


def _rebuild(cls: type[EngineError], args: tuple[Any, ...], data: dict[str, Any]) -> EngineError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(data)
    return error


class EngineError(Exception):
    """The root: catch this to catch everything that tailfold raises on purpose."""

    def __reduce__(self) -> Any:
        # Subclasses take data, not messages, so the default (cls, args) would not rebuild them.
        return _rebuild, (type(self), self.args, self.__dict__)


class BadArgument(EngineError, ValueError):
    """An argument is outside its documented range; nothing was done."""


class NotFound(EngineError, LookupError):
    """What was asked for is not there."""


class StoreNotFound(NotFound):
    """No store at the path, or something that is not a tailfold store."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"no tailfold store at {path}: {why}")
        self.path = path


class StreamNotFound(NotFound):
    """The store has no such stream, or the stream does not reach that version."""

    def __init__(self, stream: str, *, version: int | None = None, head: int | None = None) -> None:
        if version is None:
            message = f"no stream {stream!r} in this store"
        else:
            message = f"stream {stream!r} has versions 1..{head}, there is no version {version}"
        super().__init__(message)
        self.stream = stream
        self.version = version
        self.head = head


class StreamDeleted(NotFound):
    """The stream was deleted. Its tombstone keeps the name, so that no other history can pass for it."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream!r} was deleted; its name stays taken. Use another name")
        self.stream = stream


class BlobNotFound(NotFound):
    """An event names a blob that the store does not hold."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the store holds no blob {digest}")
        self.digest = digest


class LockNotFound(NotFound):
    """No schema lock at the path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no schema lock at {path}: write one with tailfold schema lock, and commit it")
        self.path = path


class RunEnded(EngineError):
    """The run has ended, so there is nothing to resume."""

    def __init__(self, stream: str, reason: str) -> None:
        more = "a larger --max-turns" if reason == "budget_exhausted" else "another --question"
        super().__init__(
            f"run {stream!r} has ended ({reason}): look at it with show, state or replay, go on in a fork of it"
            f" with {more}, or start a new run"
        )
        self.stream = stream
        self.reason = reason


class LeaseHeld(EngineError):
    """Another live process (or another handle of this one) drives the run."""

    def __init__(self, stream: str, pid: int, epoch: int, note: str = "") -> None:
        super().__init__(
            f"run {stream!r} is driven by process {pid} (epoch {epoch}): wait until it ends, or stop"
            f" that process and try again{note}"
        )
        self.stream = stream
        self.pid = pid
        self.epoch = epoch


class ReplayDiverged(EngineError):
    """The replayed loop asked for something else than the journal records (I15)."""

    def __init__(self, stream: str, version: int, recorded: Any, replayed: Any, why: str) -> None:
        super().__init__(f"replay of {stream!r} diverged at version {version}: {why}")
        self.stream = stream
        self.version = version
        self.recorded = recorded
        self.replayed = replayed
        self.why = why


class Corruption(EngineError):
    """Stored bytes are not what was written."""


class StoreDamaged(Corruption):
    """The store's file is damaged: its pages, its size, or a table that has to be there."""

    def __init__(self, path: str, findings: list[str]) -> None:
        shown = "; ".join(findings[:3])
        more = f" (and {len(findings) - 3} more)" if len(findings) > 3 else ""
        super().__init__(f"the store at {path} is damaged: {shown}{more}. Nothing was changed; restore a copy")
        self.path = path
        self.findings = findings


class RecordDamaged(Corruption):
    """One stored event, or what the store keeps about it, is not what was written."""

    def __init__(self, stream: str, version: int, why: str) -> None:
        before = (
            f"what is before it can be read with --at, and kept: fork --at {version - 1}, " if version > 1 else ""
        )
        super().__init__(
            f"stream {stream!r} version {version} is damaged: {why}. Nothing was changed; restore a copy."
            f" To go on without it: {before}delete --reroot, gc"
        )
        self.stream = stream
        self.version = version
        self.why = why


class BlobDamaged(Corruption):
    """The stored content of a blob does not have the digest that it is stored under."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the content of blob {digest} is damaged. Nothing was changed; restore a copy")
        self.digest = digest


class ChunkLost(Corruption):
    """A piece of a snapshot is gone, and folding the log anew does not give it: the fold is not pure."""

    def __init__(self, stream: str, fold: str, digest: str) -> None:
        super().__init__(
            f"chunk {digest} of fold {fold!r} at stream {stream!r} is lost, and folding the log anew does not"
            " give it: the fold must have read a clock, randomness or something else outside its events."
            " Prune its snapshots and load again"
        )
        self.stream = stream
        self.fold = fold
        self.digest = digest


class SchemaError(EngineError):
    """The code and the stored data do not speak the same schema."""


class FormatTooNew(SchemaError):
    """The store was written in a format that this release does not know (I10)."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"the store at {path} has format version {found}; this tailfold knows format versions up to"
            f" {known}. Upgrade tailfold; nothing was written"
        )
        self.path = path
        self.found = found
        self.known = known


class SchemaTooNew(SchemaError):
    """An event was written at a schema version that is newer than the code's."""

    def __init__(self, stream: str, version: int, kind: str, stored: int, known: int) -> None:
        super().__init__(
            f"stream {stream!r} version {version}: {kind!r} was written at schema version {stored},"
            f" the code knows up to {known}. Run the newer code that wrote it"
        )
        self.stream = stream
        self.version = version
        self.kind = kind
        self.stored = stored
        self.known = known


class SchemaTooOld(SchemaError):
    """An event was written at an older schema version, and no step lifts it."""

    def __init__(self, stream: str, version: int, kind: str, stored: int, known: int) -> None:
        super().__init__(
            f"stream {stream!r} version {version}: {kind!r} was written at schema version {stored},"
            f" the code is at {known} and no step lifts {stored}. Register it with Upcasters, or"
            " open the store with code that has it and migrate"
        )
        self.stream = stream
        self.version = version
        self.kind = kind
        self.stored = stored
        self.known = known


class Undecodable(SchemaError):
    """A stored payload does not fit the schema of its own (kind, version)."""

    def __init__(self, stream: str, version: int, tag: str, why: str) -> None:
        super().__init__(
            f"stream {stream!r} version {version}: the payload does not fit {tag!r}: {why}. Was a field"
            " changed without a new schema version?"
        )
        self.stream = stream
        self.version = version
        self.tag = tag
        self.why = why


class StepFailed(SchemaError):
    """A step of the upcasters raised, or gave what the current schema refuses. The cause is attached."""

    def __init__(self, stream: str, version: int, stored: str, step: str, payload: Any, why: str) -> None:
        shown = repr(payload)
        shown = shown if len(shown) <= PAYLOAD_SHOWN else f"{shown[:PAYLOAD_SHOWN]}… ({len(shown)} characters)"
        super().__init__(
            f"stream {stream!r} version {version}, stored as {stored!r}: step {step} failed: {why}. It was given"
            f" {shown}. Nothing was changed; mend the step (tailfold schema explain shows each one)"
        )
        self.stream = stream
        self.version = version
        self.stored = stored
        self.step = step
        self.payload = payload
        self.why = why


class BadSteps(SchemaError):
    """The upcasters do not form a chain to the code's events: a gap, a cycle, a dead target, an unknown kind."""


class LockTooNew(SchemaError):
    """The schema lock has a format that this release does not know."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"the schema lock {path} has format {found}; this tailfold knows formats up to {known}. Upgrade"
            " tailfold; nothing was written"
        )
        self.path = path
        self.found = found
        self.known = known


class SchemaChanged(SchemaError):
    """The code has changes under which stored journals could not be read truly. Nothing was written."""

    def __init__(self, path: str, verdicts: list[Any]) -> None:
        lines = "".join(f"\n  {verdict}" for verdict in verdicts)
        super().__init__(f"the code does not go with the schema lock {path}:{lines}")
        self.path = path
        self.verdicts = verdicts


class UnknownKind(SchemaError):
    """A strict fold met a kind that it does not know."""

    def __init__(self, stream: str, version: int, kind: str, fold: str) -> None:
        super().__init__(
            f"stream {stream!r} version {version}: strict fold {fold!r} has no handler for kind {kind!r}"
        )
        self.stream = stream
        self.version = version
        self.kind = kind
        self.fold = fold


class Conflict(EngineError):
    """Somebody else was first; nothing was written."""


class WrongVersion(Conflict):
    """The stream is not at the version that the writer expected."""

    def __init__(self, stream: str, expected: int | str, actual: int) -> None:
        super().__init__(
            f"stream {stream!r} is at version {actual}, expected {expected}: read what is new, decide again"
        )
        self.stream = stream
        self.expected = expected
        self.actual = actual


class KeyReused(Conflict):
    """The idempotency key was used before, for other content."""

    def __init__(self, stream: str, key: str, version: int) -> None:
        super().__init__(
            f"stream {stream!r}: idempotency key {key!r} already stands for other events, from version"
            f" {version} on. Use a new key for new content"
        )
        self.stream = stream
        self.key = key
        self.version = version


class StreamExists(Conflict):
    """A fork was to have a name that is taken, by a stream or by the tombstone of one."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream!r} exists already: give the fork another name")
        self.stream = stream


class StreamNeeded(Conflict):
    """A stream was to be deleted on which forks or a named head rest; nothing was deleted."""

    def __init__(self, stream: str, children: list[str], heads: list[str]) -> None:
        shown = ", ".join(map(repr, children[:5])) + (f" and {len(children) - 5} more" if len(children) > 5 else "")
        if children:
            message = (
                f"stream {stream!r} has forks: {shown}. Delete them first, or re-root them (--reroot):"
                " they keep what they saw, and only what no fork needs is given back"
            )
        else:
            names = ", ".join(map(repr, heads))
            message = f"stream {stream!r} is what the named head {names} stands for: move or drop the head first"
        super().__init__(message)
        self.stream = stream
        self.children = children
        self.heads = heads


class HeadMoved(Conflict):
    """A named head is not where the caller believed; nothing was changed."""

    def __init__(self, name: str, expected: str | None, actual: str | None) -> None:
        super().__init__(
            f"named head {name!r} stands for {actual!r}, not for {expected!r}: it was moved; look, decide again"
        )
        self.name = name
        self.expected = expected
        self.actual = actual


class Fenced(Conflict):
    """The run's lease was taken over, so this driver may not append any more (I13)."""

    def __init__(self, stream: str, epoch: int, current: int) -> None:
        super().__init__(
            f"run {stream!r}: this driver holds epoch {epoch}, the current one is {current}. Another"
            " process has taken over; stop driving"
        )
        self.stream = stream
        self.epoch = epoch
        self.current = current


class FoldFailed(EngineError):
    """A fold's own handler raised; the cause is attached."""

    def __init__(self, fold: str, stream: str, version: int, kind: str, why: str) -> None:
        super().__init__(f"fold {fold!r} failed at stream {stream!r} version {version} ({kind}): {why}")
        self.fold = fold
        self.stream = stream
        self.version = version
        self.kind = kind


class StoreFull(EngineError):
    """The disk has no room left; nothing was written."""


class StoreReadOnly(EngineError):
    """The store can only be read: its medium or its permissions allow no writing. Nothing was written."""


class OutcomeUnknown(EngineError):
    """The disk failed during a commit: the append may or may not be there. Reopen the store and look."""


class StoreClosed(EngineError):
    """The store was closed, or was opened before this process was forked."""
