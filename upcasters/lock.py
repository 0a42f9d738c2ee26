"""The schema lock: what every (kind, version) and every step was when it was committed, as one readable file.

Versions stay in it for ever, long after their classes are gone. Pure: `engine.schema_files` reads and writes it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from tailfold.snapshots import fingerprint
from tailfold.upcasters.errors import LockError, LockTooNewError
from tailfold.upcasters.register import Upcasters
from tailfold.upcasters.schema import Description, Field, Shape, describe
from tailfold.upcasters.steps import Step, TypedStep
from tailfold.upcasters.widening import compare

LOCK_FORMAT = 1
"""The format of lock files that this release writes, and the newest that it reads."""
LINE_CHARS = 100


class LockedKind(msgspec.Struct, frozen=True):
    """One kind: its versions, and which of them the code had."""

    current: int | None
    """None if the code had none any more: its events are lifted to other kinds, or dropped."""
    versions: dict[str, Description]


class LockedStep(msgspec.Struct, frozen=True):
    """One step, by what it says and by a hash of the code that it calls."""

    to: list[str]
    does: list[str]
    code: str = ""


class Lock(msgspec.Struct, frozen=True):
    """The content of a lock file."""

    lock: int
    kinds: dict[str, LockedKind]
    steps: dict[str, LockedStep]
    """By the ``kind@version`` that each lifts."""
    retired: list[str]

    def described(self, kind: str, version: int) -> Description | None:
        """Return the description of (kind, version), if the lock has it."""
        found = self.kinds.get(kind)
        return found.versions.get(str(version)) if found is not None else None


EMPTY = Lock(LOCK_FORMAT, {}, {}, [])


def lock_of(upcasters: Upcasters) -> Lock:
    """Describe the code alone: current events, the structs of typed steps, and the steps."""
    kinds: dict[str, LockedKind] = {}
    kept = [cls for step in upcasters if isinstance(step, TypedStep) for cls in (step.old, step.new)]
    for event in [*upcasters.events, *kept]:
        known = kinds.setdefault(event.kind, LockedKind(None, {}))
        current = event.version if event in upcasters.events else known.current
        versions = known.versions if str(event.version) in known.versions else None
        kinds[event.kind] = LockedKind(current, versions or known.versions | {str(event.version): describe(event)})
    steps = {tag_text(step.kind, step.version): locked_step(step) for step in upcasters}
    return Lock(LOCK_FORMAT, kinds, steps, sorted(tag_text(*tag) for tag in upcasters.retired))


def locked_step(step: Step) -> LockedStep:
    """Return what the lock says of a step."""
    code = ""
    if step.code:
        try:
            code = fingerprint.part(fingerprint.source_text({"code": step.code}))
        except Exception as error:  # too large, or the program's own attributes raise: as good as always new
            code = f"unknown: {type(error).__name__}"
    return LockedStep([tag_text(*target) for target in step.targets], step.does, code)


def merged(lock: Lock, now: Lock) -> Lock:
    """Return the lock to commit: *now*, and every version that only *lock* knows.

    A field that came to a version after it was locked is marked as added, because payloads from before lack it.
    """
    kinds = dict(lock.kinds)
    for kind, found in now.kinds.items():
        before = kinds.get(kind, LockedKind(None, {}))
        versions = dict(before.versions)
        for version, description in found.versions.items():
            earlier = versions.get(version)
            versions[version] = description if earlier is None else _aged(earlier, description)
        kinds[kind] = LockedKind(found.current, versions)
    for kind in kinds.keys() - now.kinds.keys():
        kinds[kind] = LockedKind(None, kinds[kind].versions)
    return Lock(LOCK_FORMAT, kinds, now.steps, now.retired)


def _aged(old: Description, new: Description) -> Description:
    pairs = compare(old, new).pairs
    shapes = {}
    for name, shape in new.shapes.items():
        earlier = old.shapes.get(pairs.get(name, name))
        shapes[name] = shape if earlier is None else _aged_shape(earlier, shape)
    own = _aged_shape(old.shape, new.shape)
    return msgspec.structs.replace(new, fields=own.fields, shapes=shapes)


def _aged_shape(old: Shape, new: Shape) -> Shape:
    before = _by_key(old)
    fields = {}
    for name, field in new.fields.items():
        earlier = before.get(name if new.stored == "map" else field.at)
        fields[name] = msgspec.structs.replace(field, added=earlier is None or earlier.added)
    return msgspec.structs.replace(new, fields=fields)


def _by_key(shape: Shape) -> dict[Any, Field]:
    return {name if shape.stored == "map" else field.at: field for name, field in shape.fields.items()}


def tag_text(kind: str, version: int) -> str:
    """Return ``kind@version``."""
    return f"{kind}@{version}"


def split_text(tag: str) -> tuple[str, int]:
    """Take ``kind@version`` apart; raise ValueError."""
    kind, _, version = tag.rpartition("@")
    return kind, int(version)


# -- the file ----------------------------------------------------------------------------------------------


def render(lock: Lock) -> str:
    """Return the lock as JSON for review: sorted, one field a line, the same text for the same content."""
    return _pretty(msgspec.to_builtins(lock), "") + "\n"


def parse(text: str) -> Lock:
    """Read a lock file's text; raise `LockError`, or `LockTooNewError` for a format of a later release."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise LockError(f"it is not JSON: {error}{_conflict(text)}") from None
    number = found.get("lock") if isinstance(found, dict) else None
    if type(number) is not int:
        raise LockError('it is no schema lock: it has no "lock" number')
    if number > LOCK_FORMAT:
        raise LockTooNewError(number, LOCK_FORMAT)
    try:
        lock = msgspec.convert(found, Lock)
        for tag in [*lock.steps, *lock.retired]:
            split_text(tag)
        for kind in lock.kinds.values():
            for version, description in kind.versions.items():
                int(version)
                compare(description, description)  # every type can be parsed
    except (msgspec.ValidationError, ValueError) as error:
        raise LockError(str(error)) from None
    return lock


def _conflict(text: str) -> str:
    return ". It has the marks of a merge: settle it, then lock anew" if "<<<<<<<" in text else ""


def _pretty(value: Any, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value:
        return line
    inner = value.values() if isinstance(value, dict) else value
    if len(indent) + len(line) <= LINE_CHARS and not any(isinstance(one, dict) and one for one in inner):
        return line
    deeper = indent + "  "
    if isinstance(value, list):
        lines = [deeper + _pretty(one, deeper) for one in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    lines = [
        f"{deeper}{json.dumps(key, ensure_ascii=False)}: {_pretty(value[key], deeper)}"
        for key in sorted(value, key=_order)
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _order(key: str) -> tuple[int, str]:
    """Numbers by size, the format's number first, words by the alphabet."""
    return (int(key), "") if key.isdigit() else (0 if key == "lock" else 1, key)
