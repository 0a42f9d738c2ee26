"""The judgement of `schema check`: what differs between the committed lock and the code, and what to do then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from tailfold.upcasters.chain import Chain
from tailfold.upcasters.corpus import CorpusChecked, Failure
from tailfold.upcasters.declared import faults
from tailfold.upcasters.lock import Lock, LockedKind, lock_of, merged, split_text, tag_text
from tailfold.upcasters.schema import Description
from tailfold.upcasters.widening import compare

TAKE_BACK = "Take the change back; or, if it is meant, schema lock --force: stored events say something else then"


class Judgement(Enum):
    """Whether journals that are there already can still be read truly."""

    COMPATIBLE = "compatible"
    """They can, with the code as it is."""
    NEEDS_STEP = "needs a version and a step"
    """Not under the same version: raise it, and declare a step from the old one."""
    BREAKING = "breaking"
    """They cannot, and no new version helps: the change itself has to be taken back or mended."""


class Verdict(NamedTuple):
    """One change, and what it means for journals."""

    kind: str
    version: int
    field: str | None
    judgement: Judgement
    what: str
    remedy: str
    """What to do; empty if there is nothing to do."""

    def __str__(self) -> str:
        where = tag_text(self.kind, self.version) + (f".{self.field}" if self.field else "")
        return f"{where}: {self.judgement.value}: {self.what}" + (f". {self.remedy}" if self.remedy else "")


def judge(lock: Lock, chain: Chain, corpus: CorpusChecked) -> list[Verdict]:
    """Return a verdict for every difference between *lock* and the code of *chain*, in the order of kinds."""
    return sorted(_Judge(lock, chain, corpus).verdicts(), key=lambda v: (v.kind, v.version))


class _Judge:
    def __init__(self, lock: Lock, chain: Chain, corpus: CorpusChecked) -> None:
        self._lock, self._chain, self._corpus = lock, chain, corpus
        self._now = lock_of(chain.upcasters)
        self._union = merged(lock, self._now)

    def verdicts(self) -> Iterator[Verdict]:
        found: list[Verdict] = []
        for kind in sorted(self._lock.kinds.keys() | self._now.kinds.keys()):
            found += self._kind(kind)
        found += self._steps()
        bad = {(v.kind, v.version) for v in found if v.judgement is not Judgement.COMPATIBLE}
        found += self._corpus_failures(bad)
        yield from found

    # -- kinds and their versions ----------------------------------------------------------------------

    def _kind(self, kind: str) -> Iterator[Verdict]:
        locked, now = self._lock.kinds.get(kind), self._now.kinds.get(kind, LockedKind(None, {}))
        if locked is None:
            for version in sorted(map(int, now.versions)):
                what = "new kind" if version == now.current else "the old struct of a new step"
                yield Verdict(kind, version, None, Judgement.COMPATIBLE, what, "")
            return
        for text, description in sorted(locked.versions.items(), key=lambda item: int(item[0])):
            version = int(text)
            if text in now.versions:
                yield from self._same_version(kind, version, description, now.versions[text], now.current)
            if version != now.current:
                yield from self._no_longer_current(kind, version, description, now, locked)
        for text in sorted(now.versions.keys() - locked.versions.keys(), key=int):
            what = "new version" if int(text) == now.current else "the struct of a typed step"
            yield Verdict(kind, int(text), None, Judgement.COMPATIBLE, what, "")

    def _same_version(
        self, kind: str, version: int, old: Description, new: Description, current: int | None
    ) -> Iterator[Verdict]:
        changes = compare(old, new).changes
        wanted = ", ".join(dict.fromkeys(change.change for change in changes if not change.compatible))
        for change in changes:
            if change.compatible:
                judgement, remedy = Judgement.COMPATIBLE, ""
            elif version != current:
                judgement = Judgement.BREAKING
                remedy = f"The struct that a typed step reads {kind}@{version} with has to stay as it was locked"
            else:
                judgement = Judgement.NEEDS_STEP
                step = f"change({kind!r}, {version}, {wanted})"
                remedy = f"Set version = {version + 1} in the class, and declare {step}"
            yield Verdict(kind, version, change.field or None, judgement, change.what, remedy)

    def _no_longer_current(
        self, kind: str, version: int, old: Description, now: LockedKind, locked: LockedKind
    ) -> Iterator[Verdict]:
        if self._chain.lifts(kind, version):
            return
        if (kind, version) in self._chain.upcasters.retired:
            if tag_text(kind, version) not in self._lock.retired:
                what = "retired: events of it can be read no more"
                remedy = "Make sure that no store holds it: tailfold schema survey"
                yield Verdict(kind, version, None, Judgement.COMPATIBLE, what, remedy)
            return
        if now.current is None:
            what = "the kind is gone from the code, and no step leads from it"
            remedy = f"Bring the class back, or declare rename_kind({kind!r}, {version}, …), split or drop"
            yield Verdict(kind, version, None, Judgement.BREAKING, what, remedy)
        elif version > now.current:
            what = f"the code is back at version {now.current}, and cannot read what was written since"
            remedy = f"Set version = {locked.current or version} again, and raise it for further changes"
            yield Verdict(kind, version, None, Judgement.BREAKING, what, remedy)
        elif self._only_adds(old, now.versions[str(now.current)]):
            if locked.current == version:
                what = f"version {now.current} only adds fields with defaults: old events are read as they are"
                yield Verdict(kind, version, None, Judgement.COMPATIBLE, what, "")
        else:
            wanted = [c.change for c in compare(old, now.versions[str(now.current)]).changes if c.change]
            step = ", ".join([repr(kind), str(version), *dict.fromkeys(wanted)])
            to = f", to={now.current}" if now.current != version + 1 else ""
            what = f"the code is at version {now.current}, and no step lifts {kind}@{version}"
            remedy = f"Declare change({step}{to}), or a function with step({kind!r}, {version}{to})"
            yield Verdict(kind, version, None, Judgement.NEEDS_STEP, what, remedy)

    def _only_adds(self, old: Description, new: Description) -> bool:
        """Say whether the engine reads *old* with the newer class: every field as it was, others with defaults."""
        kept = all(name in new.fields and new.fields[name].type == field.type for name, field in old.fields.items())
        return kept and all(change.compatible for change in compare(old, new).changes)

    # -- steps -----------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[Verdict]:
        for tag in sorted(self._lock.steps.keys() - self._now.steps.keys()):
            kind, version = split_text(tag)
            if (kind, version) in self._chain.upcasters.retired:
                continue
            what = "its step is gone, and stores may hold such events"
            remedy = f"Bring it back; or retire({kind!r}, {version}), if no store holds any"
            yield Verdict(kind, version, None, Judgement.BREAKING, what, remedy)
        for step in self._chain.upcasters:
            tag = tag_text(*step.source)
            was, now = self._lock.steps.get(tag), self._now.steps[tag]
            for field, what, remedy in faults(step, self._union, self._chain):
                yield Verdict(*step.source, field, Judgement.BREAKING, what, remedy)
            if was == now:
                continue
            proved = self._corpus.proves(*step.source)
            failed = any(failure.step == step.source for failure in self._corpus.failures)
            if was is None:
                entries = [*self._corpus.lifted, *(failure.entry for failure in self._corpus.failures)]
                seen = any(entry.tag == step.source for entry in entries)
                unseen = "" if seen else "No golden payload of it is there: schema lock --store DIR takes some"
                what = f"new step: {'; '.join(step.does)}"
                yield Verdict(*step.source, None, Judgement.COMPATIBLE, what, unseen)
            elif proved and not failed:
                what = f"the step has changed, and gives the same for {proved} golden payloads"
                yield Verdict(*step.source, None, Judgement.COMPATIBLE, what, "")
            elif not failed:
                what = "the step has changed, and no golden payload proves it harmless"
                yield Verdict(*step.source, None, Judgement.BREAKING, what, TAKE_BACK)

    def _corpus_failures(self, known: set[tuple[str, int]]) -> Iterator[Verdict]:
        """One verdict for all golden payloads that fail at one step, and nothing of what is said already."""
        counts: Counter[tuple[str, int]] = Counter()
        first: dict[tuple[str, int], Failure] = {}
        for failure in self._corpus.failures:
            at = failure.step or failure.entry.tag
            counts[at] += 1
            first.setdefault(at, failure)
        for at, failure in first.items():
            if at in known or failure.entry.tag in known:
                continue
            of = tag_text(*failure.entry.tag)
            what = f"{counts[at]} golden payloads of {of} no longer lift as they did: {failure.what}"
            yield Verdict(*at, None, Judgement.BREAKING, what, TAKE_BACK)
