"""The fold id: a hash over everything that decides what a fold gives, so that no code change makes a snapshot lie.

What a fold's handlers reach is written down as a graph: every function, class, object and container is a node,
numbered in the order in which it is met, with its content and its labelled edges. Code is taken as a syntax tree,
without formatting, comments and docstrings, so that it does not change with them nor with the Python version.
Whatever belongs to the program itself is followed; other installed packages stand by version, the standard
library by name.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import hashlib
import importlib
import importlib.metadata
import sys
import types
import typing
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec
from tailfold.snapshots.source import dotted_names, source_of

ID_BYTES = 16
PART_CHARS = 16
NODES_MOST = 100_000
"""A program that reaches more than this is not looked through: its folds have to be pinned."""

_ATOMS = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented))
_QUIET = frozenset(
    [
        "__module__",
        "__dict__",
        "__weakref__",
        "__doc__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__firstlineno__",
        "__static_attributes__",
        "__orig_bases__",
        "__parameters__",
        "__abstractmethods__",
        "_abc_impl",
        "__match_args__",
        "__qualname__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__struct_fields__",
        "__struct_encode_fields__",
        "__struct_defaults__",
        "__struct_config__",
        "__struct_offsets__",
        "__post_struct__",
        "__slots__",
        "__hash__",
        "__annotations_cache__",
        "__type_params__",
        "__classcell__",
    ]
)
_GENERATED = frozenset(
    [
        "__init__",
        "__repr__",
        "__eq__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "__hash__",
        "__setattr__",
        "__delattr__",
        "__replace__",
        "__new__",
        "_replace",
        "_asdict",
        "_make",
        "__getnewargs__",
    ]
)
_ENUM_OWN = frozenset(
    [
        "_member_map_",
        "_member_names_",
        "_value2member_map_",
        "_member_type_",
        "_generate_next_value_",
        "_new_member_",
        "_unhashable_values_",
        "_unhashable_values_map_",
        "_hashable_values_",
        "_use_args_",
        "_value_repr_",
        "_inverted_",
        "_flag_mask_",
        "_all_bits_",
        "_boundary_",
        "_singles_mask_",
        "__new__",
        "__reduce_ex__",
        "__or__",
        "__and__",
        "__xor__",
        "__invert__",
        "__ror__",
        "__rand__",
        "__rxor__",
        "__format__",
        "__str__",
        "__repr__",
    ]
)


class TooLargeError(Exception):
    """What a fold reaches is too much to be looked through."""


def fold_id(parts: dict[str, str]) -> bytes:
    """Return the fold id of named parts."""
    joined = "\n".join(f"{name}={parts[name]}" for name in sorted(parts))
    return hashlib.blake2b(joined.encode(), digest_size=ID_BYTES, person=b"tailfold.foldid").digest()


def part(text: str) -> str:
    """Return a part's own short hash, to be kept beside the id."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=PART_CHARS // 2).hexdigest()


def changed_parts(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Return the names of the parts that differ."""
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def source_text(roots: dict[str, Any] | Iterable[Any]) -> str:
    """Return the graph of *roots* and of all that they reach, as one text. Roots may be named.

    Raises `TooLargeError`; may raise whatever the program's own attributes raise when they are looked at.
    """
    named = dict(roots) if isinstance(roots, dict) else {str(i): root for i, root in enumerate(roots)}
    return _Graph(named).text()


class _Graph:
    def __init__(self, roots: dict[str, Any]) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # what the numbers stand for: ids stay valid
        self._todo: deque[tuple[int, Any]] = deque()
        code = [root for value in roots.values() for root in (value if isinstance(value, list) else [value])]
        tops = {_top(_module_of(root)) for root in code if callable(root)} | {_main_package()}
        self._home = tops - {"builtins", ""} - set(sys.stdlib_module_names)
        self._packages: set[str] = set()
        lines = [f"{name} = {self._token(root)}" for name, root in roots.items()]
        while self._todo:
            number, thing = self._todo.popleft()
            lines.append(f"#{number} = {self._content(thing)}")
        self._lines = lines + sorted(self._packages)

    def text(self) -> str:
        return "\n".join(self._lines)

    # -- tokens: an atom is itself, everything else is the number of its node --------------------------

    def _token(self, thing: Any) -> str:
        if type(thing) in _ATOMS:
            return f"{type(thing).__name__}:{thing!r}"
        if isinstance(thing, types.ModuleType):
            self._note(thing.__name__)
            return f"module {thing.__name__}"
        if isinstance(thing, types.BuiltinFunctionType) and not isinstance(
            getattr(thing, "__self__", None), types.ModuleType | None
        ):
            return f"builtin {thing.__name__} of {self._token(thing.__self__)}"
        if isinstance(thing, type | types.BuiltinFunctionType) and not self._ours(_module_of(thing)):
            self._note(_module_of(thing))
            return f"{_module_of(thing)}.{getattr(thing, '__qualname__', thing)}"
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self._numbers)
            if number > NODES_MOST:
                raise TooLargeError(f"it reaches more than {NODES_MOST} objects")
            self._alive.append(thing)
            self._todo.append((number, thing))
        return f"#{number}"

    def _tokens(self, things: Iterable[Any]) -> str:
        return ", ".join(map(self._token, things))

    def _pairs(self, things: Iterable[tuple[Any, Any]]) -> str:
        return ", ".join(f"{self._token(key)}: {self._token(value)}" for key, value in things)

    def _named(self, things: Iterable[tuple[str, Any]]) -> str:
        return "; ".join(f"{name}={self._token(value)}" for name, value in things)

    # -- contents --------------------------------------------------------------------------------------

    def _content(self, thing: Any) -> str:
        custom = getattr(type(thing), "__fingerprint__", None)
        if custom is not None:
            return f"{type(thing).__qualname__} {self._token(custom(thing))}"
        origin = typing.get_origin(thing)
        if origin is not None:  # an alias lends its origin's attributes, which are not its own
            return f"alias {self._token(origin)}[{self._tokens(typing.get_args(thing))}]"
        if type(thing).__module__ == "typing":
            return repr(thing)
        if type(thing) in (list, tuple):
            return f"{type(thing).__name__}[{self._tokens(thing)}]"
        if type(thing) in (dict, types.MappingProxyType):
            return f"dict{{{self._pairs(thing.items())}}}"
        if type(thing) in (set, frozenset):
            return f"set{{{', '.join(sorted(map(self._standalone, thing)))}}}"
        if isinstance(thing, types.FunctionType):
            return self._function(thing)
        if isinstance(thing, types.MethodType):
            return f"method {self._token(thing.__func__)} of {self._token(thing.__self__)}"
        if isinstance(thing, type):
            return self._class(thing)
        if isinstance(thing, functools.partial):
            arguments = (thing.args, thing.keywords)
            return f"partial {self._token(thing.func)} {self._token(arguments)}"
        if isinstance(thing, staticmethod | classmethod):
            return f"{type(thing).__name__} {self._token(thing.__func__)}"
        if isinstance(thing, property):
            return f"property {self._tokens((thing.fget, thing.fset, thing.fdel))}"
        if isinstance(thing, functools.cached_property):
            return f"cached_property {self._token(thing.func)}"
        if isinstance(thing, functools.partialmethod):
            return f"partialmethod {self._tokens((thing.func, thing.args, thing.keywords))}"
        return self._object(thing)

    def _standalone(self, thing: Any) -> str:
        """Return a text for a member of a set that does not depend on when it is met."""
        if type(thing) in _ATOMS:
            return self._token(thing)
        if isinstance(thing, type | types.FunctionType):
            return f"{thing.__qualname__} {part(_Graph({'member': thing}).text())}"
        return part(_Graph({"member": thing}).text())

    def _function(self, function: types.FunctionType) -> str:
        edges: list[tuple[str, Any]] = []
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                edges.append((f"closure {variable}", cell.cell_contents))
            except ValueError:
                edges.append((f"closure {variable}", "unset"))
        edges += [(f"attribute {name}", value) for name, value in vars(function).items()]
        module = function.__globals__.get("__name__", function.__module__)
        if module and not self._ours(module):
            # Code of others around code of ours (contextmanager, wraps): the name, and what it holds on to.
            self._note(module)
            return f"function {function.__module__}.{function.__qualname__} ({self._named(edges)})"
        edges.append(("defaults", function.__defaults__ or ()))
        edges.append(("keywords", function.__kwdefaults__ or {}))
        text, names = source_of(function.__code__)
        if names is None:
            names = [[name] for name in sorted(dotted_names(function.__code__))]
        for chain in names:
            found = self._resolve(function, chain)
            if found is not None:
                edges.append(found)
        return f"function {text} ({self._named(edges)})"

    def _resolve(self, function: types.FunctionType, chain: list[str]) -> tuple[str, Any] | None:
        """Return (dotted name, object) of what a chain of names stands for outside the function."""
        scope = function.__globals__
        if chain[0].startswith("import "):
            module = _imported(chain[0].removeprefix("import "), scope.get("__package__"))
            if module is None:
                return None
            thing: Any = module
        elif chain[0] in scope:
            thing = scope[chain[0]]
        else:
            return None  # a local, a closure (an edge already), a builtin
        walked = [chain[0]]
        for name in chain[1:]:
            if not isinstance(thing, types.ModuleType) or not hasattr(thing, name):
                break
            thing = getattr(thing, name)
            walked.append(name)
        if isinstance(thing, types.ModuleType) and self._ours(thing.__name__) and len(chain) == 1:
            # Used as a whole, or code without a source: all names of the code that the module has.
            used = sorted(n for n in dotted_names(function.__code__) if hasattr(thing, n))
            return ".".join(walked), {n: getattr(thing, n) for n in used}
        return ".".join(walked), thing

    def _class(self, cls: type) -> str:
        facts: list[tuple[str, Any]] = [("bases", cls.__bases__)]
        if type(cls) is not type and self._ours(_module_of(type(cls))):
            facts.append(("metaclass", type(cls)))
        if isinstance(cls, enum.EnumMeta):
            facts += [(f"member {name}", cls.__members__[name].value) for name in cls.__members__]
        if dataclasses.is_dataclass(cls):
            for field in dataclasses.fields(cls):
                default = None if field.default is dataclasses.MISSING else (field.default,)
                factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
                facts.append((f"field {field.name}", (default, factory, field.init, field.compare, field.kw_only)))
        if issubclass(cls, msgspec.Struct):
            for info in msgspec.structs.fields(cls):
                default = None if info.default is msgspec.NODEFAULT else (info.default,)
                factory = None if info.default_factory is msgspec.NODEFAULT else info.default_factory
                facts.append((f"field {info.name}", (info.encode_name, default, factory)))
            config = cls.__struct_config__
            facts.append(("config", tuple(str(getattr(config, name)) for name in _config_names(config))))
        annotations = sorted(getattr(cls, "__annotations__", {}).items(), key=lambda item: str(item[0]))
        facts.append(("annotations", tuple((name, str(value)) for name, value in annotations)))
        for name, value in vars(cls).items():
            if name in _QUIET or isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
                continue
            if name.startswith("__") and name.endswith("__") and not callable(getattr(value, "__func__", value)):
                continue  # what libraries remember on a class (msgspec's cache), not what the class does
            if isinstance(cls, enum.EnumMeta) and (name in _ENUM_OWN or name in cls.__members__):
                continue
            if name in _GENERATED and isinstance(value, types.FunctionType) and _is_generated(value, cls):
                continue
            facts.append((f"attribute {name}", value))
        return f"class {cls.__qualname__} ({self._named(facts)})"

    def _object(self, thing: Any) -> str:
        """Return an object by its type and state; of what cannot be taken apart only the type counts."""
        kind = f"object {self._token(type(thing))}"
        if hasattr(thing, "__wrapped__"):  # lru_cache and the like: what they wrap, not what they remember
            return f"{kind} around {self._token(thing.__wrapped__)}"
        if hasattr(thing, "registry") and hasattr(thing, "dispatch"):
            return f"{kind} {self._token(dict(thing.registry))}"
        if isinstance(thing, msgspec.Struct):
            return f"{kind} ({self._named((n, getattr(thing, n)) for n in thing.__struct_fields__)})"
        if isinstance(thing, enum.Enum):
            return f"{kind} {thing.name}"
        state = getattr(thing, "__dict__", None)
        slots = [n for c in type(thing).__mro__ for n in _slots(c) if hasattr(thing, n)]
        inner = self._inner(thing)
        if state or slots:
            pairs = [*sorted((state or {}).items()), *((n, getattr(thing, n)) for n in slots)]
            return f"{kind} ({self._named(pairs)}) {inner}"
        return f"{kind} {inner}" if inner else kind

    def _inner(self, thing: Any) -> str:
        """Return what an object of a built-in kind holds, as its own reduction says."""
        if isinstance(thing, list | tuple):
            return f"[{self._tokens(thing)}]"
        if isinstance(thing, dict):
            factory = getattr(thing, "default_factory", None)
            return f"{{{self._pairs(thing.items())}}} {self._token(factory)}"
        if isinstance(thing, set | frozenset):
            return f"{{{', '.join(sorted(map(self._standalone, thing)))}}}"
        if self._ours(_module_of(type(thing))):
            return ""
        try:
            known = copyreg.dispatch_table.get(type(thing))
            reduced = known(thing) if known is not None else thing.__reduce_ex__(4)
        except Exception:
            return ""  # a lock, a context variable: nothing that a pure fold may depend on
        if isinstance(reduced, str):
            return reduced
        function, arguments, *rest = reduced
        items = [list(part) if part is not None and not isinstance(part, dict) else part for part in rest[1:3]]
        shown = (arguments, rest[0] if rest else None, *items)
        return f"{getattr(function, '__qualname__', function)} {self._token(shown)}"

    # -- what is ours ----------------------------------------------------------------------------------

    def _ours(self, module: str | None) -> bool:
        """Say whether things of *module* belong to the program, and are followed."""
        top = _top(module)
        if top in self._home:
            return True
        if not top or top in sys.stdlib_module_names:
            return False
        return _version(top) is None  # a module beside the handlers' package, not an installed one

    def _note(self, module: str) -> None:
        """Note the version of a package that is used; our own bytes are kept stable by the codec's version."""
        top = _top(module)
        # Python's own modules are of no package; to find that out would read the metadata of all of them (36 ms).
        if top and top not in self._home and top != "tailfold" and top not in sys.stdlib_module_names:
            version = _version(top)
            if version is not None:
                self._packages.add(f"package {version}")


def _config_names(config: Any) -> tuple[str, ...]:
    return tuple(name for name in sorted(dir(config)) if not name.startswith("_"))


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_generated(function: types.FunctionType, cls: type) -> bool:
    """Say whether a method was made by dataclass, NamedTuple or the like, not written in the class's file."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if function.__code__.co_filename == file:
        return False
    return dataclasses.is_dataclass(cls) or issubclass(cls, tuple) or function.__code__.co_filename != "<string>"


def _module_of(thing: Any) -> str:
    if isinstance(thing, types.FunctionType):
        return str(thing.__globals__.get("__name__", thing.__module__))
    if isinstance(thing, types.MethodType):
        return _module_of(thing.__func__)
    if isinstance(thing, functools.partial):
        return _module_of(thing.func)
    return str(getattr(thing, "__module__", None) or type(thing).__module__)


_AGENTS = (["agent"], ["agents"])


def _main_package() -> str:
    """Return the package of the program that was started with ``python -m package.module``."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _top(spec.name) if spec is not None else "__main__"


def _top(module: str | None) -> str:
    parts = (module or "").split(".")
    # The shipped agents are programs that use the engine: what is engine is not theirs.
    return ".".join(parts[:3]) if parts[:2] == ["tailfold", "engine"] and parts[2:3] in _AGENTS else parts[0]


def _imported(name: str, package: str | None) -> types.ModuleType | None:
    """Return the module that an import inside a function names; the function would import it as well."""
    try:
        return importlib.import_module(name, package)
    except Exception:
        return None


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


@functools.cache
def _version(top: str) -> str | None:
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        for distribution in _distributions().get(top, []):
            return f"{distribution} {importlib.metadata.version(distribution)}"
    return None
