"""Declared steps, checked without a payload: against the fields that the lock has of where they start and end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from tailfold.upcasters.chain import Chain
from tailfold.upcasters.changes import AddField, Change, ConvertField, RenameField
from tailfold.upcasters.lock import Lock
from tailfold.upcasters.schema import Description
from tailfold.upcasters.steps import FieldStep, Part, RenameKind, SplitStep, Step
from tailfold.upcasters.widening import fits


def faults(step: Step, lock: Lock, chain: Chain) -> Iterator[tuple[str | None, str, str]]:
    """Yield (field, what is wrong, what to do) of a step. *lock* knows old versions and those of the code.

    Functions say nothing, so only the corpus can judge them.
    """
    source = lock.described(*step.source)
    if source is None:
        return
    if isinstance(step, FieldStep | RenameKind):
        changes = step.changes if isinstance(step, FieldStep) else ()
        yield from _Fields(source, changes, lock, chain).faults(step.label, step.targets[0])
    elif isinstance(step, SplitStep):
        for part in step.parts:
            yield from _part(step, part, source, lock)


class _Fields:
    """The fields of a version on their way through changes."""

    def __init__(self, source: Description, changes: tuple[Change, ...], lock: Lock, chain: Chain) -> None:
        self._source, self._changes = source, changes
        self._lock, self._chain = lock, chain
        self.names = set(source.fields)
        self.certain = {name for name, field in source.fields.items() if field.sure}
        self.types: dict[str, str | None] = {name: field.type for name, field in source.fields.items()}
        """The type of what is there; None where a converter or a default decides it."""

    def faults(self, label: str, target: tuple[str, int]) -> Iterator[tuple[str | None, str, str]]:
        for change in self._changes:
            needed = change.needs()
            if needed is not None and needed not in self.names:
                have = ", ".join(sorted(self.names)) or "none"
                yield needed, f"step {label}: {change}: there is no field {needed!r} then", f"it has {have}"
            if isinstance(change, RenameField) and change.new in self.names and change.old in self.names:
                what = f"step {label}: {change}: a field {change.new!r} is there already and would be lost"
                yield change.new, what, f"DropField({change.new!r}) before it, if that is meant"
            self._apply(change, needed)
        end = self._lock.described(*target)
        if end is not None:
            yield from self._end(label, target, end)

    def _apply(self, change: Change, needed: str | None) -> None:
        given = needed is None or needed in self.certain
        self.certain = change.fields(self.certain) - (set() if given else change.fields({str(needed)}))
        self.names = change.fields(self.names)
        if isinstance(change, RenameField):
            self.types[change.new] = self.types.get(change.old)
        elif isinstance(change, AddField):
            self.types.setdefault(change.name, None)
        elif isinstance(change, ConvertField):
            self.types[change.name] = None

    def _end(self, label: str, target: tuple[str, int], end: Description) -> Iterator[tuple[str | None, str, str]]:
        for name, field in end.fields.items():
            if name not in self.certain and field.required:
                what = f"step {label}: nothing gives {name!r}, which {target[0]}@{target[1]} has to have"
                yield name, what, f"add AddField({name!r}, …), or a RenameField from what it was"
            had = self.types.get(name)
            if name in self.names and had is not None and not fits(had, field.type, self._source, end):
                what = f"step {label}: {name!r} arrives as {had} and has to be {field.type}"
                yield name, what, f"add ConvertField({name!r}, …)"
        for name in sorted(self.names - end.fields.keys()):
            what = (
                f"step {label}: {name!r} is lost: {target[0]}@{target[1]} has no such field, and no change says so"
            )
            yield name, what, f"add DropField({name!r}), or a RenameField to what it is now"
        yield from self._defaults(label, target)

    def _defaults(self, label: str, target: tuple[str, int]) -> Iterator[tuple[str | None, str, str]]:
        """Defaults that the current class refuses; of classes that are gone nobody can say."""
        event_type = self._chain.current.get(target[0])
        if event_type is None or event_type.version != target[1]:
            return
        types: dict[str, Any] = {field.encode_name: field.type for field in msgspec.structs.fields(event_type)}
        for change in self._changes:
            if not isinstance(change, AddField) or change.name not in types:
                continue
            if any(isinstance(c, ConvertField) and c.name == change.name for c in self._changes):
                continue
            try:
                self._chain.build(change.default, types[change.name])
            except Exception as error:
                what = f"step {label}: {change}: {event_type.__name__} refuses the default: {error}"
                yield change.name, what, "give a plain value of the field's type"


def _part(step: Step, part: Part, source: Description, lock: Lock) -> Iterator[tuple[str | None, str, str]]:
    for name in (*part.fields, *part.renamed.values()):
        if name not in source.fields:
            have = ", ".join(sorted(source.fields)) or "none"
            never = f"which {step.kind}@{step.version} never had"
            what = f"step {step.label}: the part {part.kind} takes {name!r}, {never}"
            yield name, what, f"it has {have}"
    end = lock.described(part.kind, part.version)
    if end is None:
        return
    taken = {name: name for name in part.fields} | part.renamed
    sure = {new for new, old in taken.items() if old in source.fields and source.fields[old].sure}
    for name, field in end.fields.items():
        if field.required and name not in sure | part.added.keys():
            what = f"step {step.label}: nothing gives {name!r}, which {part.kind}@{part.version} has to have"
            yield name, what, f"name it in the part's fields, or in added={{{name!r}: …}}"
