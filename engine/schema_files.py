"""The schema lock and its corpus as files: read, check the code against them, write them anew.

Two files beside each other, both to be committed: ``NAME.json`` and ``NAME.corpus.jsonl``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tailfold.engine.errors import BadArgument, LockNotFound, LockTooNew, SchemaChanged
from tailfold.engine.records import Codec
from tailfold.upcasters import Chain, LiftError, Upcasters, corpus, lock
from tailfold.upcasters.errors import LockError, LockTooNewError, StepsError
from tailfold.upcasters.verdicts import Judgement, Verdict, judge

LOCK_DEFAULT = "tailfold.schema.json"


class Checked(NamedTuple):
    """What a check of the code against its lock found."""

    verdicts: list[Verdict]
    """One for each change since the lock was written; none if nothing has changed."""
    golden: int
    """Golden payloads that lift as they did."""
    failed: int
    """Golden payloads that do not."""
    passed_over: int
    """Golden payloads of retired versions: nothing reads them."""

    @property
    def compatible(self) -> bool:
        """Whether every journal that the lock knows of can still be read truly."""
        return not self.failed and all(v.judgement is Judgement.COMPATIBLE for v in self.verdicts)


class Locked(NamedTuple):
    """What was written."""

    first: bool
    """There was no lock before."""
    checked: Checked
    """The check before it: what has changed since the lock that was there."""
    kinds: int
    versions: int
    taken: int
    """Golden payloads that are new."""
    golden: int
    """Golden payloads in all."""
    refused: int
    """Payloads that were offered and cannot be read by the code."""


def corpus_path(path: Path) -> Path:
    """Return where the corpus of the lock at *path* is; raise `BadArgument` for a folder."""
    if not path.name or path.is_dir():
        raise BadArgument(f"the schema lock is a file, and {path} is a folder")
    return path.with_name(f"{path.stem}.corpus.jsonl")


def chain_of(upcasters: Upcasters) -> Chain:
    """Build the chain of *upcasters* without a store; raise `BadArgument` or `BadSteps`."""
    codec = Codec(lambda digest: None)
    try:
        codec.adopt(upcasters)
    except TypeError as error:  # msgspec's, for a type that no decoder can be made for
        raise BadArgument(f"the events cannot be decoded: {error}") from None
    return codec.ordered_chain()


def check(upcasters: Upcasters, path: Path) -> Checked:
    """Compare the code with the lock at *path* and run its corpus; nothing is written.

    Raises `LockNotFound`, `LockTooNew`, `BadArgument` for files that cannot be read, `BadSteps`.
    """
    return _checked(chain_of(upcasters), read_lock(path), read_corpus(corpus_path(path)))[0]


def write(
    upcasters: Upcasters,
    path: Path,
    *,
    payloads: Iterable[tuple[str, int, bytes]] = (),
    force: bool = False,
) -> Locked:
    """Write the lock of the code to *path*, and its corpus with *payloads* (kind, version, stored bytes) added.

    Versions and golden payloads that are there stay. Each file is replaced whole; a crash between the two leaves
    the older lock beside the newer corpus, which go together. Raises `SchemaChanged` with nothing written if
    the code has incompatible changes, unless *force*; otherwise as `check`, but the lock may be missing.
    """
    chain = chain_of(upcasters)
    before = read_lock(path) if path.exists() else lock.EMPTY
    entries = read_corpus(corpus_path(path))
    checked, ran = _checked(chain, before, entries)
    if not checked.compatible and not force:
        raise SchemaChanged(str(path), [v for v in checked.verdicts if v.judgement is not Judgement.COMPATIBLE])
    after = lock.merged(before, _described(chain.upcasters))
    lifted = {(entry.tag, entry.msgpack): entry for entry in ran.anew}
    kept = [lifted.get((entry.tag, entry.msgpack)) or _recorded_anew(chain, entry) for entry in entries]
    new, refused = [], 0
    for one in payloads:
        try:
            new.append(corpus.record(chain, *one))
        except LiftError:
            refused += 1
    _replace(corpus_path(path), corpus.render([*kept, *new]))
    _replace(path, lock.render(after))
    versions = sum(len(kind.versions) for kind in after.kinds.values())
    return Locked(
        before is lock.EMPTY, checked, len(after.kinds), versions, len(new), len(kept) + len(new), refused
    )


def read_lock(path: Path) -> lock.Lock:
    """Read a lock; raise `LockNotFound`, `LockTooNew`, or `BadArgument` for what is no lock."""
    try:
        return lock.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LockNotFound(str(path)) from None
    except OSError as error:
        raise BadArgument(f"cannot read {path}: {error.strerror}") from None
    except LockTooNewError as error:
        raise LockTooNew(str(path), error.found, error.known) from None
    except ValueError as error:
        raise BadArgument(f"the schema lock {path} cannot be read: {error}") from None


def read_corpus(path: Path) -> list[corpus.Entry]:
    """Read a corpus, empty if there is none; raise `BadArgument` naming file and line."""
    try:
        return corpus.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadArgument(f"cannot read {path}: {error.strerror}") from None
    except (LockError, ValueError) as error:
        raise BadArgument(f"the corpus {path} cannot be read: {error}") from None


def _described(upcasters: Upcasters) -> lock.Lock:
    try:
        return lock.lock_of(upcasters)
    except StepsError as error:
        raise BadArgument(str(error)) from None


def _checked(chain: Chain, before: lock.Lock, entries: list[corpus.Entry]) -> tuple[Checked, corpus.CorpusChecked]:
    ran = corpus.check(entries, chain)
    try:
        verdicts = judge(before, chain, ran)
    except StepsError as error:
        raise BadArgument(str(error)) from None
    return Checked(verdicts, len(ran.lifted), len(ran.failures), ran.passed_over), ran


def _recorded_anew(chain: Chain, entry: corpus.Entry) -> corpus.Entry:
    """Record what an entry lifts to now, although it was something else; one that lifts no more stays as it was."""
    try:
        return corpus.record(chain, entry.kind, entry.version, entry.stored)
    except LiftError:
        return entry


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BadArgument(f"cannot write {path}: {error.strerror}") from None
