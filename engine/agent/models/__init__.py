"""Adapters of models behind the port `engine.agent.loop.Model`, and how a name chooses one."""

from __future__ import annotations

from tailfold.engine.agent.loop import Model
from tailfold.engine.agent.models.ollama import DEFAULT_MODEL, OllamaModel
from tailfold.engine.agent.models.rules import Rule, RuleModel
from tailfold.engine.errors import BadArgument

OLLAMA = "ollama"


async def choose_model(name: str, rule: Rule) -> tuple[Model, str]:
    """Return the model that *name* asks for (``auto``, ``rules``, ``ollama`` or ``ollama:NAME``), and why.

    ``auto`` takes Ollama where it answers and has the default model, else the rules.
    """
    if name == "auto":
        model = OllamaModel(DEFAULT_MODEL)
        why_not = await model.unavailable()
        if why_not is None:
            return model, f"{DEFAULT_MODEL} on Ollama at {model.host}"
        return RuleModel(rule), f"the built-in rules (no language model): {why_not}"
    return named_model(name, rule), f"{name}, as asked"


def named_model(name: str, rule: Rule) -> Model:
    """Return the model with this name in a journal or on the command line; raise `BadArgument`."""
    if name == RuleModel.NAME:
        return RuleModel(rule)
    if name == OLLAMA:
        return OllamaModel(DEFAULT_MODEL)
    kind, _, model = name.partition(":")
    if kind == OLLAMA and model.strip():
        return OllamaModel(model)
    raise BadArgument(f"no model is called {name!r}: use auto, rules, or ollama:NAME (ollama:{DEFAULT_MODEL})")


__all__ = ["DEFAULT_MODEL", "OllamaModel", "Rule", "RuleModel", "choose_model", "named_model"]
