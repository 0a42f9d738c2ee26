"""The fold id: a hash over everything that decides what a fold gives, so that no code change makes a snapshot lie.

The source of the handlers is taken as a syntax tree, without formatting, comments and docstrings, so that it
does not change with them nor with the Python version. What the handlers use is followed: functions, classes and
constants of their own program by content, other installed packages by version, the standard library not at all.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ID_BYTES = 16
PART_CHARS = 16
_SKIPPED_FIELDS = {"ctx", "type_comment", "kind", "type_params", "type_ignores"}
_CONSTANTS = (str, bytes, int, float, complex, bool, type(None))
_MOST_FOLLOWED = 2000


def fold_id(parts: dict[str, str]) -> bytes:
    """Return the fold id of named parts."""
    joined = "\n".join(f"{name}={parts[name]}" for name in sorted(parts))
    return hashlib.blake2b(joined.encode(), digest_size=ID_BYTES, person=b"tailfold.foldid").digest()


def part(text: str) -> str:
    """Return a part's own short hash, to be kept beside the id."""
    return hashlib.blake2b(text.encode(), digest_size=PART_CHARS // 2).hexdigest()


def changed_parts(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Return the names of the parts that differ."""
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def source_text(roots: Iterable[Callable[..., Any] | type]) -> str:
    """Return the normalised source of *roots* and of all that they use, as one text."""
    follow = _Follow()
    for root in roots:
        follow.add(root)
    return follow.text()


class _Follow:
    """Collects what is reachable from functions and classes by the names that their code uses."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # ids in _seen stay valid
        self._home: set[str] = set()

    def text(self) -> str:
        return "\n".join(f"{name}: {self._texts[name]}" for name in sorted(self._texts))

    def add(self, thing: Any) -> None:
        self._home.add(_top(getattr(thing, "__module__", None) or ""))
        self._visit("", thing)

    def _visit(self, name: str, thing: Any) -> None:
        if id(thing) in self._seen or len(self._seen) > _MOST_FOLLOWED:
            return
        if isinstance(thing, _CONSTANTS):
            self._texts[f"constant {name}"] = repr(thing)
            return
        self._seen.add(id(thing))
        self._alive.append(thing)
        if isinstance(thing, functools.partial):
            self._visit(f"{name}.func", thing.func)
            self._visit(f"{name}.args", (thing.args, tuple(thing.keywords.items())))
        elif isinstance(thing, staticmethod | classmethod | types.MethodType):
            self._visit(name, thing.__func__)
        elif isinstance(thing, property):
            for accessor in (thing.fget, thing.fset):
                if accessor is not None:
                    self._visit(name, accessor)
        elif isinstance(thing, types.FunctionType):
            if self._followed(name, thing.__module__):
                self._function(thing)
        elif isinstance(thing, type):
            if self._followed(name, thing.__module__):
                self._class(thing)
        elif isinstance(thing, types.ModuleType):
            self._followed(name, thing.__name__)
        elif isinstance(thing, tuple | list | frozenset | set):
            for index, item in enumerate(sorted(thing, key=repr) if isinstance(thing, set | frozenset) else thing):
                self._visit(f"{name}[{index}]", item)
        elif isinstance(thing, dict):
            for key, item in thing.items():
                self._visit(f"{name}[{key!r}]", item)
        elif hasattr(thing, "__wrapped__"):
            self._visit(name, thing.__wrapped__)
        elif type(thing).__module__ not in ("builtins",) and not callable(thing):
            # An object that the code uses: its class is code, its value may be a constant (an enum, a Decimal).
            self._visit(f"{name}.__class__", type(thing))
            if "object at 0x" not in repr(thing):
                self._texts[f"constant {name}"] = repr(thing)

    def _followed(self, name: str, module: str | None) -> bool:
        """Say whether things of *module* are taken by source; note the version of other packages."""
        top = _top(module or "")
        if top in self._home:
            return True
        if not top or top in sys.stdlib_module_names or top == "builtins":
            return False
        version = _version(top)
        if version is None:
            return True  # a module of the program's own, beside the handlers' package
        self._texts[f"package {top}"] = version
        return False

    def _function(self, function: types.FunctionType) -> None:
        name = f"function {_name(function)}"
        self._texts[name] = _source(function.__code__)
        for index, default in enumerate(function.__defaults__ or ()):
            self._visit(f"{name} default {index}", default)
        for key, default in (function.__kwdefaults__ or {}).items():
            self._visit(f"{name} default {key}", default)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                self._visit(f"{name} closure {variable}", cell.cell_contents)
            except ValueError:
                continue  # a variable that is not set yet
        self._names(_used(function.__code__), function.__globals__)

    def _names(self, names: set[str], scope: dict[str, Any]) -> None:
        for used in sorted(names):
            if used not in scope:
                continue
            thing = scope[used]
            if isinstance(thing, types.ModuleType) and self._followed(used, thing.__name__):
                # module.function: follow every name of the code that the module has.
                inside = {n: getattr(thing, n) for n in names if n != used and hasattr(thing, n)}
                for inner, value in sorted(inside.items()):
                    self._visit(f"{used}.{inner}", value)
            else:
                self._visit(used, thing)

    def _class(self, cls: type) -> None:
        name = f"class {_name(cls)}"
        if name in self._texts:
            return
        self._texts[name] = ", ".join(base.__qualname__ for base in cls.__bases__)
        for base in cls.__bases__:
            self._visit(base.__qualname__, base)
        for attribute, value in sorted(vars(cls).items()):
            if isinstance(value, types.FunctionType | staticmethod | classmethod | property):
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if isinstance(function, types.FunctionType) and _has_source(function.__code__):
                    self._visit(f"{name}.{attribute}", value)
            elif isinstance(value, _CONSTANTS) and not attribute.startswith("__"):
                self._texts[f"{name}.{attribute}"] = repr(value)


def _top(module: str) -> str:
    return module.split(".")[0]


def _name(thing: Any) -> str:
    line = getattr(getattr(thing, "__code__", None), "co_firstlineno", "")
    qualname: str = thing.__qualname__
    # Handlers are often all called "_": their order in the file tells them apart, not their line.
    return f"{qualname}" if not qualname.endswith(("_", "<lambda>")) else f"{qualname}#{line and _ordinal(thing)}"


def _ordinal(function: Any) -> str:
    """Return what tells functions of one name apart: their own text."""
    return part(_source(function.__code__))


@functools.cache
def _packages() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


@functools.cache
def _version(top: str) -> str | None:
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        for distribution in _packages().get(top, []):
            return f"{distribution} {importlib.metadata.version(distribution)}"
    return None


def _used(code: types.CodeType) -> set[str]:
    """Return the global and attribute names that code and the functions inside it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _used(constant)
    return names


@functools.cache
def _source(code: types.CodeType) -> str:
    """Return code as a normalised tree; as bytecode, with the Python version, where no source fits it."""
    node = _node(code)
    if node is not None:
        return _dump(node)
    return f"bytecode {sys.version_info[:2]} {_bytecode(code)}"


def _has_source(code: types.CodeType) -> bool:
    return Path(code.co_filename).is_file()


def _bytecode(code: types.CodeType) -> str:
    digest = hashlib.blake2b(code.co_code, digest_size=16)
    digest.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        digest.update(
            _bytecode(constant).encode() if isinstance(constant, types.CodeType) else repr(constant).encode()
        )
    return digest.hexdigest()


def _node(code: types.CodeType) -> ast.AST | None:
    """Return the syntax tree of *code*, if the file still holds the very source that is running."""
    module = _module(code.co_filename)
    if module is None:
        return None
    tree, compiled = module
    if _bytecode_key(code) not in compiled:
        return None  # the file was edited after it was loaded: its text is not what runs
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and _first_line(node) == code.co_firstlineno
    ]
    named = [node for node in found if getattr(node, "name", "<lambda>") == code.co_name]
    if len(named) == 1:
        return named[0]
    # Several lambdas on one line: take them all, which is too much rather than too little.
    return (
        ast.Module(body=[ast.Expr(node) for node in named if isinstance(node, ast.Lambda)], type_ignores=[])
        if named
        else None
    )


def _first_line(node: Any) -> int:
    decorators = getattr(node, "decorator_list", [])
    return int(decorators[0].lineno if decorators else node.lineno)


def _bytecode_key(code: types.CodeType) -> tuple[str, int, str]:
    return code.co_name, code.co_firstlineno, _bytecode(code)


@functools.cache
def _module(filename: str) -> tuple[ast.Module, frozenset[tuple[str, int, str]]] | None:
    try:
        text = Path(filename).read_text(encoding="utf-8")
        tree = ast.parse(text)
        code = compile(text, filename, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None
    keys: set[tuple[str, int, str]] = set()
    todo = [code]
    while todo:
        one = todo.pop()
        keys.add(_bytecode_key(one))
        todo += [c for c in one.co_consts if isinstance(c, types.CodeType)]
    return tree, frozenset(keys)


def _dump(node: Any) -> str:
    """Return a tree as text: node types and what they hold, without positions, comments and docstrings."""
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name in _SKIPPED_FIELDS or value is None or value == []:
                continue
            if name == "body" and isinstance(value, list):
                value = _without_docstring(value)
            if name in ("decorator_list", "returns", "annotation"):
                continue  # registration and annotations do not change what a function does
            fields.append(f"{name}={_dump(value)}")
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    return repr(node)


def _without_docstring(body: list[Any]) -> list[Any]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body


def is_source_available(function: Callable[..., Any]) -> bool:
    """Say whether a function is taken by its source (True) or by its bytecode (False)."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and _node(code) is not None
