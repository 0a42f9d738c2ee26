"""The built-in model: rules, no language model. It lets the main job run where no Ollama is."""

from __future__ import annotations

from collections.abc import Callable

from tailfold.engine.agent.loop import Reply
from tailfold.engine.agent.messages import ModelRequest

Rule = Callable[[ModelRequest], Reply]
"""A pure function from the request to the reply: it sees what a language model would see, and no more."""


class RuleModel:
    """A model that answers by one agent's rules. No LLM: it understands the questions it was made for."""

    NAME = "rules"

    def __init__(self, rule: Rule) -> None:
        self.name = self.NAME
        self._rule = rule

    async def reply(self, request: ModelRequest) -> Reply:
        """Apply the rule."""
        return self._rule(request)
