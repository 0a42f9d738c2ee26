"""Code as normalised text, and the names that it uses: the same for every Python, formatting and comment."""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import sys
import types
from pathlib import Path
from typing import Any

_SKIPPED_FIELDS = {"ctx", "type_comment", "kind", "type_params", "type_ignores", "returns", "annotation"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@functools.cache
def source_of(code: types.CodeType) -> tuple[str, list[list[str]] | None]:
    """Return (normalised text, chains of names used) of running code.

    Where no source fits the code (edited since it was loaded, no file, lambdas that cannot be told apart) the
    text is of its bytecode, with the Python version, and the chains are None.
    """
    node = _node(code)
    if node is None:
        return f"bytecode {sys.version_info[:2]} {bytecode(code)}", None
    outside = _looked_up(code)
    return _dump(node, top=True), [
        chain for chain in _chains(node) if chain[0] in outside or chain[0].startswith("import ")
    ]


def _looked_up(code: types.CodeType) -> set[str]:
    """Return the names that code looks up among the globals: a local of the same name means something else.

    The bytecode is read only where the tables of names leave it open: that takes far longer.
    """
    names = dotted_names(code)
    own = _own_names(code)
    return names if own.isdisjoint(names) else (names - own) | (_loaded(code) & names)


def _own_names(code: types.CodeType) -> set[str]:
    """Return every name that is local somewhere in code and the functions inside it."""
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _own_names(constant)
    return names


def _loaded(code: types.CodeType) -> set[str]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _loaded(constant)
    return names


def dotted_names(code: types.CodeType) -> set[str]:
    """Return every global and attribute name that code and the functions inside it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= dotted_names(constant)
    return names


def bytecode(code: types.CodeType) -> str:
    """Return a hash of compiled code, without file names, line numbers and the order of sets."""
    digest = hashlib.blake2b(code.co_code, digest_size=16)
    digest.update(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode())
    for constant in code.co_consts:
        digest.update(_constant(constant).encode(errors="surrogatepass"))
    return digest.hexdigest()


def _constant(constant: Any) -> str:
    if isinstance(constant, types.CodeType):
        return bytecode(constant)
    if isinstance(constant, frozenset):
        return f"frozenset{sorted(map(_constant, constant))}"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_constant, constant))})"
    return f"{type(constant).__name__}:{constant!r}"


def _node(code: types.CodeType) -> Any:
    module = _module(code.co_filename)
    if module is None:
        return None
    nodes, compiled = module
    if (code.co_name, code.co_firstlineno, bytecode(code)) not in compiled:
        return None  # the file was edited after it was loaded: its text is not what runs
    found = [n for n in nodes.get(code.co_firstlineno, ()) if getattr(n, "name", "<lambda>") == code.co_name]
    if len(found) > 1:
        found = [n for n in found if _covers(n, code)]
    return found[0] if len(found) == 1 else None


def _covers(node: Any, code: types.CodeType) -> bool:
    """Say whether all instructions of *code* stand inside the body of *node*: tells lambdas of one line apart."""
    body = node.body if isinstance(node, ast.Lambda) else node
    places = [p for p in code.co_positions() if None not in p and p[0] == p[1] == body.lineno]
    begins, ends = body.col_offset, body.end_col_offset
    inside = [p for p in places if p[2] is not None and p[3] is not None and p[3] > 0]
    return bool(inside) and all(begins <= (p[2] or 0) and (p[3] or 0) <= (ends or 0) for p in inside)


@functools.cache
def _module(filename: str) -> tuple[dict[int, list[Any]], frozenset[tuple[str, int, str]]] | None:
    """Return the functions of a file by their first line, and the keys of all code that it compiles to."""
    try:
        text = Path(filename).read_text(encoding="utf-8")
        tree = ast.parse(text)
        code = compile(text, filename, "exec", dont_inherit=True, optimize=-1)
    except (OSError, SyntaxError, ValueError):
        return None
    nodes: dict[int, list[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            decorators = getattr(node, "decorator_list", [])
            nodes.setdefault(decorators[0].lineno if decorators else node.lineno, []).append(node)
    keys: set[tuple[str, int, str]] = set()
    todo = [code]
    while todo:
        one = todo.pop()
        keys.add((one.co_name, one.co_firstlineno, bytecode(one)))
        todo += [c for c in one.co_consts if isinstance(c, types.CodeType)]
    return nodes, frozenset(keys)


def _dump(node: Any, *, top: bool = False) -> str:
    """Return a tree as text: node types and what they hold, without positions, comments and docstrings."""
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name in _SKIPPED_FIELDS or value is None or value == []:
            continue
        if top and name in ("decorator_list", "name"):
            continue  # how a handler is registered and called is told by the graph
        if name == "body" and isinstance(value, list):
            value = _without_docstring(value)
        if name == "values" and isinstance(node, ast.JoinedStr):
            value = [v for v in value if not (isinstance(v, ast.Constant) and v.value == "")]
        fields.append(f"{name}={_dump(value)}")
    return f"{type(node).__name__}({', '.join(fields)})"


def _without_docstring(body: list[Any]) -> list[Any]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body


def _chains(node: Any) -> list[list[str]]:
    """Return the names, with the attributes that follow them, that a function uses, its own ones among them."""
    found: dict[tuple[str, ...], None] = {}
    inner: set[int] = set()
    skipped = {id(n) for outer in getattr(node, "decorator_list", []) for n in ast.walk(outer)}
    for child in ast.walk(node):
        if id(child) in inner or id(child) in skipped:
            continue
        if isinstance(child, ast.Attribute):
            names: list[str] = []
            place: Any = child
            while isinstance(place, ast.Attribute):
                names.append(place.attr)
                place = place.value
                inner.add(id(place))
            if isinstance(place, ast.Name):
                found[(place.id, *reversed(names))] = None
            else:
                inner.discard(id(place))
        elif isinstance(child, ast.Name):
            found[(child.id,)] = None
        elif isinstance(child, ast.Import):
            for alias in child.names:
                found[(f"import {alias.name}",)] = None
        elif isinstance(child, ast.ImportFrom):
            module = "." * child.level + (child.module or "")
            for alias in child.names:
                found[(f"import {module}", alias.name)] = None
    return sorted(map(list, found))
