"""`__all__` says the truth, and what is public is documented."""

from __future__ import annotations

import importlib
import inspect

import pytest
from tailfold.engine import EngineError, errors

MODULES = (
    "tailfold.engine",
    "tailfold.engine.records",
    "tailfold.engine.agent",
    "tailfold.engine.agent.models",
    "tailfold.engine.agents.comparetiers",
    "tailfold.engine.costs",
    "tailfold.snapshots",
    "tailfold.upcasters",
)


@pytest.mark.parametrize("name", MODULES)
def test_all_names_are_there_and_sorted(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for public in module.__all__:
        assert hasattr(module, public), public


@pytest.mark.parametrize("name", MODULES)
def test_public_things_have_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), public


def test_the_tree_of_errors_in_the_docstring_is_the_tree() -> None:
    drawn = [line.strip(" │├└─").split()[0] for line in str(errors.__doc__).splitlines() if "──" in line]
    defined = [
        name
        for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, EngineError) and thing is not EngineError
    ]
    assert sorted(drawn) == sorted(defined)


def test_errors_survive_pickling_with_their_data() -> None:
    import pickle

    error = errors.WrongVersion("s", 3, 5)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.stream, copy.expected, copy.actual) == (
        errors.WrongVersion,
        str(error),
        "s",
        3,
        5,
    )
