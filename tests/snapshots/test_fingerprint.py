"""The source fingerprint: what changes it, and what does not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tailfold.snapshots import fingerprint, source

BASE = '''
from helper import rate
LIMIT = 10

def used(x):
    return x + 1

class Kept:
    step = 2
    def twice(self, x):
        return self.step * x

def handler(state, event):
    """Say what it does."""
    state.total += used(event.amount) * LIMIT + rate()
    state.kept = Kept()
    return state
'''

HELPER = "def rate():\n    return 3\n\ndef unused():\n    return 1\n"

numbers = count()


def load(folder: Path, text: str, helper: str = HELPER) -> ModuleType:
    """Load a program of two modules, fresh."""
    place = folder / f"p{next(numbers)}"
    place.mkdir()
    (place / "helper.py").write_text(helper)
    (place / "program.py").write_text(text)
    sys.path.insert(0, str(place))
    try:
        sys.modules.pop("helper", None)
        spec = importlib.util.spec_from_file_location("program", place / "program.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["program"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def mark(folder: Path, text: str, helper: str = HELPER) -> str:
    return fingerprint.source_text([load(folder, text, helper).handler])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    return x + 1", "    return x + 1  # why"),
        ("    return x + 1", "    # a comment\n    return (x  +  1)"),
        ('    """Say what it does."""\n', ""),
        ('"""Say what it does."""', '"""Say it in other words."""'),
        ("def handler(state, event):", "\n\n\ndef handler(\n    state, event\n):"),
        ("def used(x):", "def used(x: int) -> int:"),
        ("LIMIT = 10", "LIMIT = 10\nOTHER = 5"),
        ("def used(x):", "def another():\n    return 9\n\ndef used(x):"),
    ],
)
def test_what_does_not_change_the_meaning_does_not_change_it(before: str, after: str, tmp_path: Path) -> None:
    assert before in BASE
    assert mark(tmp_path, BASE) == mark(tmp_path, BASE.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("used(event.amount)", "used(event.amount + 1)"),
        ("    return x + 1", "    return x + 2"),
        ("LIMIT = 10", "LIMIT = 11"),
        ("step = 2", "step = 3"),
        ("return self.step * x", "return self.step + x"),
        ("return state\n", "return None\n"),
    ],
)
def test_what_changes_the_meaning_changes_it(before: str, after: str, tmp_path: Path) -> None:
    assert before in BASE
    assert mark(tmp_path, BASE) != mark(tmp_path, BASE.replace(before, after))


def test_helpers_in_other_modules_of_the_program_count(tmp_path: Path) -> None:
    assert mark(tmp_path, BASE) != mark(tmp_path, BASE, HELPER.replace("return 3", "return 4"))
    assert mark(tmp_path, BASE) == mark(tmp_path, BASE, HELPER.replace("return 1", "return 2")), "unused"
    by_module = BASE.replace("from helper import rate", "import helper").replace("rate()", "helper.rate()")
    assert mark(tmp_path, by_module) != mark(tmp_path, by_module, HELPER.replace("return 3", "return 4"))


def test_closures_defaults_and_partials_count(tmp_path: Path) -> None:
    template = """
import functools
def make(n):
    def handler(state, event, k={k}):
        return state + n + k
    return handler
handler = {form}
"""
    one = template.format(k=1, form="make(1)")
    assert mark(tmp_path, one) == mark(tmp_path, one)
    assert mark(tmp_path, one) != mark(tmp_path, template.format(k=1, form="make(2)"))
    assert mark(tmp_path, one) != mark(tmp_path, template.format(k=2, form="make(1)"))


def test_lambdas_on_one_line_are_told_apart_or_taken_together(tmp_path: Path) -> None:
    text = "handlers = [lambda s, e: s + 1, lambda s, e: s + {n}]\nhandler = handlers[0]\n"
    assert mark(tmp_path, text.format(n=2)) == mark(tmp_path, text.format(n=2))
    assert mark(tmp_path, "handler = lambda s, e: s + 1\n") != mark(tmp_path, "handler = lambda s, e: s + 2\n")


def test_a_file_that_was_edited_after_loading_is_not_believed(tmp_path: Path) -> None:
    module = load(tmp_path, BASE)
    path = Path(str(module.__file__))
    path.write_text(BASE.replace("return x + 1", "return x + 2"))
    source._module.cache_clear()
    source.source_of.cache_clear()
    running = fingerprint.source_text([module.handler])
    assert "bytecode" in running, "the text is not what runs, so it is not what is hashed"


def test_code_without_a_file_has_a_fingerprint_too() -> None:
    scope: dict[str, Any] = {}
    exec("def handler(state, event):\n    return state + 1", scope)
    one = fingerprint.source_text([scope["handler"]])
    exec("def handler(state, event):\n    return state + 2", scope)
    assert one != fingerprint.source_text([scope["handler"]])


def test_recursion_and_cycles_end(tmp_path: Path) -> None:
    text = "def handler(s, e):\n    return other(s, e)\ndef other(s, e):\n    return handler(s, e) if s else C()\n"
    text += "class C:\n    def back(self):\n        return handler(self, C)\n"
    assert "handler" in mark(tmp_path, text)


def test_packages_of_others_count_by_version(tmp_path: Path) -> None:
    text = "import msgspec\ndef handler(s, e):\n    return msgspec.json.encode(e)\n"
    assert "package msgspec " in mark(tmp_path, text)


def test_it_is_the_same_in_a_process_with_another_hash_seed(tmp_path: Path) -> None:
    module = load(tmp_path, BASE)
    script = f"""
import sys, importlib.util
sys.path.insert(0, {str(Path(str(module.__file__)).parent)!r})
import program
from tailfold.snapshots import fingerprint, source
print(fingerprint.part(fingerprint.source_text([program.handler])))
"""
    marks = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONHASHSEED": seed}, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(marks) == 1


def test_ids_and_parts() -> None:
    ours = {"name": "a", "version": "1", "source": "x"}
    assert fingerprint.fold_id(ours) == fingerprint.fold_id(dict(reversed(ours.items())))
    assert fingerprint.fold_id(ours) != fingerprint.fold_id({**ours, "source": "y"})
    assert fingerprint.changed_parts(ours, {**ours, "source": "y", "codec": "2"}) == ["codec", "source"]


def test_a_global_that_has_the_name_of_a_local_is_none_of_a_functions_business(tmp_path: Path) -> None:
    """A script that leaves results in globals, and a module whose handlers are all called _."""
    text = "K = 1\ndef handler(state, event):\n    a, _, b = event\n    return [state for r in a] + [K, state.r]\n"
    assert source.source_of(load(tmp_path, text).handler.__code__)[1] == [["K"]]
    before = mark(tmp_path, text)
    assert mark(tmp_path, text + "state = 1\nr = object\n_ = len\na = 3\n") == before
    assert mark(tmp_path, text.replace("K = 1", "K = 2")) != before
