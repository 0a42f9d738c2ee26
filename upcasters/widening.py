"""Whether payloads of one description are read truly by another: the rules of what may change under a version.

Pure comparison of plain data, without the classes: the older side is a file, whose classes are long gone.
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET
from tailfold.upcasters.schema import Description, Field, Shape


class FieldChange(NamedTuple):
    """One thing that differs between two descriptions of a (kind, version)."""

    field: str
    """Its path: ``usage.output_tokens``."""
    compatible: bool
    """Every payload of the older description is read by the newer one, and keeps its values."""
    what: str
    change: str = ""
    """What to declare in a step, if one is needed."""


class Compared(NamedTuple):
    """What differs, and which shapes were compared with each other."""

    changes: list[FieldChange]
    pairs: dict[str, str]
    """The older name of each newer shape."""


def compare(old: Description, new: Description) -> Compared:
    """Return what differs. Raises ValueError for a type text that cannot be parsed."""
    comparison = _Comparison(old.shapes, new.shapes)
    changes = comparison.shapes(old.shape, new.shape, "")
    return Compared(changes, dict(comparison.pairs))


def fits(old: str, new: str, one: Description, other: Description) -> bool:
    """Say whether values of the type *old* in *one* are read truly as the type *new* in *other*."""
    found = _Comparison(one.shapes, other.shapes).types(_parse(old), _parse(new), "")
    return found is not None and all(change.compatible for change in found)


class _Comparison:
    def __init__(self, old: dict[str, Shape], new: dict[str, Shape]) -> None:
        self._old, self._new = old, new
        self.pairs: dict[str, str] = {}
        self._met: set[tuple[str, str]] = set()

    # -- shapes: fields by name or by place ------------------------------------------------------------

    def shapes(self, old: Shape, new: Shape, path: str) -> list[FieldChange]:
        if old.stored == "array":
            return self._by_place(old, new, path)
        gone = [name for name in old.fields if name not in new.fields]
        come = [name for name in new.fields if name not in old.fields]
        changes = []
        renamed = self._renamed(old, new, gone, come)
        for name in gone:
            where = _join(path, name)
            if name in renamed:
                to = renamed[name]
                change = f"RenameField({name!r}, {to!r})" if not path else _convert(path)
                what = f"removed, and {to!r} added with the same type: renamed? (if not: DropField and AddField)"
                changes.append(_needs(where, what, change))
            else:
                what = "removed: old events would lose it"
                changes.append(_needs(where, what, _convert(path) if path else f"DropField({name!r})"))
        for name in come:
            if name not in renamed.values():
                changes.append(_added(path, name, new.fields[name]))
        for name, field in old.fields.items():
            if name in new.fields:
                changes += self._field(_join(path, name), field, new.fields[name], always=not old.omits)
        return changes

    def _renamed(self, old: Shape, new: Shape, gone: list[str], come: list[str]) -> dict[str, str]:
        """Guess renames: the one removed field of a type, and the one added field that can hold it."""
        found: dict[str, str] = {}
        for name in gone:
            able = [c for c in come if self._fit(old.fields[name].type, new.fields[c].type)]
            rivals = [g for g in gone if able and self._fit(old.fields[g].type, new.fields[able[0]].type)]
            if len(able) == 1 and rivals == [name]:
                found[name] = able[0]
        return found

    def _by_place(self, old: Shape, new: Shape, path: str) -> list[FieldChange]:
        before, after = (sorted(shape.fields.items(), key=lambda i: int(i[1].at or 0)) for shape in (old, new))
        changes = []
        for i, (name, field) in enumerate(before):
            if i < len(after):
                changes += self._field(_join(path, after[i][0]), field, after[i][1], always=not old.omits)
            else:
                changes.append(_needs(_join(path, name), "removed: old events would lose it", _convert(path)))
        changes += [_added(path, name, field) for name, field in after[len(before) :]]
        return changes

    def _field(self, path: str, old: Field, new: Field, *, always: bool) -> list[FieldChange]:
        found = self.types(_parse(old.type), _parse(new.type), path)
        if found is None:
            return [_needs(path, f"type changed from {old.type} to {new.type}", _convert(path))]
        if not found and self._nameless(old.type) != self._nameless(new.type):
            found = [FieldChange(path, True, f"type widened from {old.type} to {new.type}")]
        sure = old.sure and always
        if new.required and not old.required:
            if sure:
                found.append(FieldChange(path, True, "has to be given now; every stored payload has it"))
            else:
                found.append(_needs(path, "has to be given now, and payloads from before lack it", _add(path)))
        elif old.required and not new.required:
            found.append(FieldChange(path, True, "may be left out now"))
        elif (old.default, old.varies) != (new.default, new.varies) and not new.required:
            what = f"default changed from {_said(old)} to {_said(new)}"
            if sure:
                found.append(FieldChange(path, True, f"{what}; every stored payload has the field"))
            else:
                what += ": payloads from before lack the field, and would change what they say"
                found.append(_needs(path, what, _add(path, _said(old))))
        return found

    # -- types -----------------------------------------------------------------------------------------

    def _fit(self, old: str, new: str) -> bool:
        found = self.types(_parse(old), _parse(new), "")
        return found is not None and all(change.compatible for change in found)

    def types(self, old: ast.expr, new: ast.expr, path: str) -> list[FieldChange] | None:
        """Return the changes inside, or None if values of *old* cannot be read as *new*."""
        changes: list[FieldChange] = []
        for one in _options(old):
            best: list[FieldChange] | None = None
            options = _options(new)
            for other in options:
                found = self._one(one, other, path) if _within(one, other, options) else None
                if found is not None and (best is None or _grave(found) < _grave(best)):
                    best = found
            if best is None:
                return None
            changes += [change for change in best if change not in changes]
        return changes

    def _one(self, old: ast.expr, new: ast.expr, path: str) -> list[FieldChange] | None:
        first, second = _Type(old), _Type(new)
        if second.head == "Any":
            return [] if self._is_plain(old) else None
        if not _looser(first.limits, second.limits):
            return None
        before, after = self._values(first, self._old), self._values(second, self._new)
        if before is not None:
            if after is None:
                return [] if not second.limits and all(_is_a(value, second.head) for value in before) else None
            if not all(any(_same(b, a) for a in after) for b in before):
                return None
            more = ", ".join(repr(a) for a in after if not any(_same(b, a) for b in before))
            return [FieldChange(path, True, f"may be {more} as well now")] if more else []
        if first.head in self._old and second.head in self._new:
            return self._shape_pair(first.head, second.head, path)
        if (first.head, second.head) == ("int", "float"):
            return [FieldChange(path, True, "read as float now; integers past 2**53 are rounded")]
        if first.head == second.head == "tuple" and len(first.args) != len(second.args):
            return None
        same = first.head == second.head and not (after or first.head in self._old or second.head in self._new)
        return self._arguments(first, second, path) if same or _reads(first.head, second.head) else None

    def _arguments(self, first: _Type, second: _Type, path: str) -> list[FieldChange] | None:
        changes: list[FieldChange] = []
        for one, other in zip(first.args, second.args, strict=False):
            found = self.types(one, other, path)
            if found is None:
                return None
            changes += found
        return changes

    def _shape_pair(self, old: str, new: str, path: str) -> list[FieldChange] | None:
        if (old, new) in self._met:
            return []
        one, other = self._old[old], self._new[new]
        if one.stored != other.stored or (one.tag, one.tag_field) != (other.tag, other.tag_field):
            return None
        self._met.add((old, new))
        try:
            changes = self.shapes(one, other, path)
        finally:
            self._met.discard((old, new))
        self.pairs.setdefault(new, old)
        return changes

    def _values(self, kind: _Type, shapes: dict[str, Shape]) -> list[Any] | None:
        if kind.head == "Literal":
            return [ast.literal_eval(arg) for arg in kind.args]
        shape = shapes.get(kind.head)
        return shape.values if shape is not None and shape.stored == "enum" else None

    def _nameless(self, text: str) -> str:
        """Return a type's text without the names of classes: renaming one changes nothing."""
        node = _parse(text)
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and (name.id in self._old or name.id in self._new):
                name.id = "_"
        return ast.unparse(node)

    def _is_plain(self, old: ast.expr) -> bool:
        names = {node.id for node in ast.walk(old) if isinstance(node, ast.Name)}
        return names <= {"int", "str", "float", "bool", "list", "dict", "Any", "Literal"}


def _reads(old: str, new: str) -> bool:
    """Say whether *new* reads the stored array of *old* as the same value."""
    return any(old in heads and new in heads for heads in (("list", "tuple…"), ("set", "frozenset")))


class _Type:
    """One option of a type, taken apart: head, arguments, limits."""

    def __init__(self, node: ast.expr) -> None:
        self.limits: dict[str, Any] = {}
        if isinstance(node, ast.Call):
            self.limits = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
            node = node.func
        self.args: list[ast.expr] = []
        if isinstance(node, ast.Subscript):
            self.args = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
            node = node.value
        self.head = node.id if isinstance(node, ast.Name) else ast.unparse(node)
        if self.head == "tuple" and self.args and ast.unparse(self.args[-1]) == "...":
            self.head, self.args = "tuple…", self.args[:1]


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r} is no type") from None


def _options(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_options(node.left), *_options(node.right)]
    return [node]


def _within(old: ast.expr, new: ast.expr, options: list[ast.expr]) -> bool:
    """Say whether *old* keeps the limits of every option with the head of *new*: a decoder knows one of each."""
    head, limits = _Type(new).head, _Type(old).limits
    return all(_looser(limits, other.limits) for other in map(_Type, options) if other.head == head)


def _looser(old: dict[str, Any], new: dict[str, Any]) -> bool:
    for name, limit in new.items():
        had = old.get(name)
        if had is None:
            return False
        if had == limit:
            continue
        lower = name in ("gt", "ge", "min_length") and limit < had
        upper = name in ("lt", "le", "max_length") and limit > had
        if not (lower or upper):
            return False
    return True


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _is_a(value: Any, head: str) -> bool:
    return type(value).__name__ == head or (value is None and head == "None")


def _grave(changes: list[FieldChange]) -> tuple[int, int]:
    return sum(not change.compatible for change in changes), len(changes)


def _added(path: str, name: str, field: Field) -> FieldChange:
    where = _join(path, name)
    if field.required:
        return _needs(where, "added without a default: old events lack it", _convert(path) if path else _add(name))
    if field.varies is not UNSET:
        what = f"added with a default ({field.varies}) that is another one each time: old events would not keep it"
        return _needs(where, what, _convert(path) if path else _add(name))
    return FieldChange(where, True, f"added with a default: old events get {_said(field)}")


def _needs(path: str, what: str, change: str) -> FieldChange:
    return FieldChange(path, False, what, change)


def _add(path: str, default: str = "…") -> str:
    return f"AddField({path.split('.')[0]!r}, {default})" if "." not in path else _convert(path)


def _convert(path: str) -> str:
    return f"ConvertField({path.split('.')[0]!r}, …)"


def _said(field: Field) -> str:
    if field.varies is not UNSET:
        return str(field.varies)
    return "none" if field.default is UNSET else msgspec.json.encode(field.default).decode()


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
