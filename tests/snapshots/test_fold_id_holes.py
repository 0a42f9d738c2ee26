"""Ways in which code can decide what a fold gives: each must change the fold id. Programs are edited and rerun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
from dataclasses import dataclass, field
import collections, enum, functools, operator, re, types
import msgspec
from tailfold.engine import Event, Fold
class A(Event, frozen=True):
    kind = "a"
    n: int
    scale: int = 1
    def scaled(self): return self.n * 1
class B(Event, frozen=True):
    kind = "b"
    n: int
@dataclass
class State:
    total: float = 0
"""
ON = """
fold = Fold("f", State)
@fold.on(A)
def _(state, event):
    {body}
"""

ONE: list[tuple[str, str, str, str]] = [
    # (definitions, body of the handler, before, after)
    (
        'def p(x): return x\ndef m(x): return -x\nOPS = {"a": p, "b": m}',
        'state.total += OPS["a"](event.n)',
        '"a": p, "b": m',
        '"a": m, "b": p',
    ),
    (
        "def p(x): return x\ndef m(x): return -x\nop = p",
        "state.total += op(event.n) + 0 * p(1) + 0 * m(1)",
        "op = p",
        "op = m",
    ),
    ("class K:\n    rates = [1]", "state.total += K.rates[0]", "[1]", "[2]"),
    ("class K:\n    class In:\n        x = 1", "state.total += K.In.x", "x = 1", "x = 2"),
    (
        "class K:\n    @functools.cached_property\n    def r(self): return 1",
        "state.total += K().r",
        "return 1",
        "return 2",
    ),
    (
        "class K:\n    @functools.lru_cache\n    def r(self): return 1",
        "state.total += K().r()",
        "return 1",
        "return 2",
    ),
    (
        "class K:\n    def _r(self, x): return x\n    r = functools.partialmethod(_r, 1)",
        "state.total += K().r()",
        "_r, 1",
        "_r, 2",
    ),
    ("class P:\n    def r(self): return 1\nclass K(P): pass", "state.total += K().r()", "return 1", "return 2"),
    ("class E(enum.Enum):\n    X = 1", "state.total += E.X.value", "X = 1", "X = 2"),
    ("class E(enum.Enum):\n    X = 1\n    def w(self): return 1", "state.total += E.X.w()", "return 1", "return 2"),
    ("class K:\n    def __call__(self, x): return x * 1\nk = K()", "state.total += k(event.n)", "x * 1", "x * 2"),
    ("class C:\n    def __init__(self, r): self.r = r\nCFG = C(1)", "state.total += CFG.r", "C(1)", "C(2)"),
    ('R = types.MappingProxyType({"a": 1})', 'state.total += R["a"]', '"a": 1', '"a": 2'),
    ("R = range(1)", "state.total += len(R)", "range(1)", "range(2)"),
    ('R = re.compile("x" * 300 + "|3")', "state.total += 1 if R.match(str(event.n)) else 0", '"|3"', '"|4"'),
    ("R = collections.defaultdict(lambda: 1)", 'state.total += R["q"]', "lambda: 1", "lambda: 2"),
    ("def h(x): return x * h.rate\nh.rate = 1", "state.total += h(event.n)", "h.rate = 1", "h.rate = 2"),
    (
        "@functools.singledispatch\ndef h(x): return 0\n@h.register\ndef _i(x: int): return x * 1",
        "state.total += h(event.n)",
        "x * 1",
        "x * 2",
    ),
    (
        'inner = Fold("inner", State)\n@inner.on(A)\ndef _(s, e): s.total += e.n * 1',
        "inner.evolve(state, event)",
        "e.n * 1",
        "e.n * 2",
    ),
    ("BIG = {i: (i, i) for i in range(3000)}\nRATE = 1", "state.total += RATE + len(BIG)", "RATE = 1", "RATE = 2"),
    ("", "state.total += event.scaled()", "self.n * 1", "self.n * 2"),
    ("", "state.total += event.scale", "scale: int = 1", "scale: int = 2"),
    (
        "@dataclass\nclass It:\n    xs: list = field(default_factory=lambda: [1])",
        "state.total += It().xs[0]",
        "[1]",
        "[2]",
    ),
    (
        "def scaled(k):\n    def deco(f): return lambda x: f(x) * k\n    return deco",
        "inner = scaled(2)(abs); state.total += inner(event.n)",
        "scaled(2)",
        "scaled(3)",
    ),
    ("hs = [lambda x: x + 1, lambda x: x + 2]\nh = hs[0]", "state.total += h(event.n)", "h = hs[0]", "h = hs[1]"),
    ("g = operator.itemgetter(0)", "state.total += g((1, 2))", "itemgetter(0)", "itemgetter(1)"),
]

WHOLE: list[tuple[dict[str, str], str, str, str]] = [
    (
        {"prog.py": HEAD + 'fold = Fold("f", State)\n@fold.on(A)\ndef p(s, e): s.total += e.n\n@fold.on(B)\ndef m(s, e): s.total -= e.n\n'},
        "prog.py", "@fold.on(A)\ndef p(s, e): s.total += e.n\n@fold.on(B)", "@fold.on(B)\ndef p(s, e): s.total += e.n\n@fold.on(A)",
    ),
    (
        {"prog.py": HEAD + "def make(n):\n    def h(s, e): s.total += n\n    return h\nfold = Fold('f', State)\nfold.on(A)(make(1))\nfold.on(B)(make(7))\n"},
        "prog.py", "make(1)", "make(2)",
    ),
    (
        {"prog.py": HEAD + "def h(n, s, e): s.total += n\nfold = Fold('f', State)\nfold.on(A)(functools.partial(h, 1))\nfold.on(B)(functools.partial(h, 7))\n"},
        "prog.py", "h, 1", "h, 2",
    ),
    (
        {"prog.py": HEAD + "class R:\n    def __init__(self, r): self.r = r\n    def h(self, s, e): s.total += self.r\nfold = Fold('f', State)\nfold.on(A)(R(1).h)\n"},
        "prog.py", "R(1)", "R(2)",
    ),
    ({"prog.py": HEAD + "import h1, h2\n" + ON.format(body="state.total += h1.rate() + h2.rate()"), "h1.py": "def rate(): return 1\n", "h2.py": "def rate(): return 1\n"}, "h1.py", "return 1", "return 2"),
    ({"prog.py": HEAD + "import pk.b\n" + ON.format(body="state.total += pk.b.rate()"), "pk/__init__.py": "", "pk/b.py": "def rate(): return 1\n"}, "pk/b.py", "return 1", "return 2"),
    ({"prog.py": HEAD + ON.format(body="from helper import rate; state.total += rate()"), "helper.py": "def rate(): return 1\n"}, "helper.py", "return 1", "return 2"),
    ({"prog.py": HEAD + ON.format(body="import helper; state.total += helper.R[0]"), "helper.py": "R = [1]\n"}, "helper.py", "[1]", "[2]"),
    (
        {"prog.py": HEAD + "class St(msgspec.Struct):\n    total_n: int = 0\nfold = Fold('f', St)\n@fold.on(A)\ndef _(s, e): s.total_n += e.n\n"},
        "prog.py", "St(msgspec.Struct)", "St(msgspec.Struct, rename='camel')",
    ),
    ({"prog.py": HEAD + ON.format(body="state.total += 1")}, "prog.py", 'Fold("f", State)', 'Fold("f", State, strict=True)'),
]  # fmt: skip

RUN = "import prog; from tailfold.engine.fold_facts import FoldFacts; f = FoldFacts(prog.fold); print(f.unusable or f.fold_id.hex())"


def fold_id(folder: Path, files: dict[str, str], seed: str = "0", python: str = sys.executable) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = subprocess.run(
        [python, "-B", "-c", RUN], cwd=folder, capture_output=True, text=True, env={"PYTHONHASHSEED": seed}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CASES = [({"prog.py": HEAD + d + "\n" + ON.format(body=b)}, "prog.py", x, y) for d, b, x, y in ONE] + WHOLE


@pytest.mark.parametrize(("files", "name", "before", "after"), CASES, ids=[str(i) for i in range(len(CASES))])
def test_code_that_decides_the_state_decides_the_fold_id(
    files: dict[str, str], name: str, before: str, after: str, tmp_path: Path
) -> None:
    assert before in files[name]
    one = fold_id(tmp_path / "one", files, "1")
    assert fold_id(tmp_path / "same", files, "2") == one, "neither the place nor the hash seed changes it"
    assert fold_id(tmp_path / "other", {**files, name: files[name].replace(before, after)}) != one


@pytest.mark.parametrize(
    "definitions",
    [
        "import threading\nR = threading.RLock()",
        "import contextvars\nR = contextvars.ContextVar('r')",
        "def f(): pass\nR = {f: 1}",
        "R = {'b', 'a', 'c', 'd', 'e'}",
        "@dataclass\nclass C:\n    s: frozenset\nR = C(frozenset('abcdefgh'))",
    ],
)
def test_what_differs_between_processes_by_chance_does_not_change_it(definitions: str, tmp_path: Path) -> None:
    files = {
        "prog.py": HEAD
        + definitions
        + "\n"
        + ON.format(body="state.total += 1 if R and str(event.n) in {'1', '2', '3'} else 0")
    }
    assert len({fold_id(tmp_path / seed, files, seed) for seed in ("1", "2", "3")}) == 1


def test_a_fold_that_reaches_too_much_has_no_snapshots_rather_than_wrong_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tailfold.engine import MemoryBackend, Store
    from tailfold.engine.fold_facts import FoldFacts
    from tailfold.snapshots import every

    from tests.domain import Deposited, account

    monkeypatch.setattr("tailfold.snapshots.fingerprint.NODES_MOST", 3)
    assert "more than 3" in FoldFacts(account).unusable
    store = Store.open(backend=MemoryBackend(), snapshots=every(1))
    live = store.live("a", account)
    for _ in range(3):
        live.append(Deposited(1))
    assert (store.load("a", account).state.balance, store.counters.snapshots_written) == (3, 0)
