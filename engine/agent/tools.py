"""Tools with typed arguments: what the model sent is validated before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import msgspec
from tailfold.engine.agent.events import Effect, ToolCall
from tailfold.engine.agent.messages import ToolSchema
from tailfold.engine.errors import BadArgument


class ToolFailed(Exception):
    """A tool raises this to tell the model what went wrong, in words that help it to call better."""


class Tool:
    """A function that the model may call, with the class of its arguments and its effect.

    *arguments* is a msgspec Struct whose fields are what the model may send. An ``idempotent`` tool is given the
    keyword ``key``: the id of the event that wrote the call down, such as ``run-7@4``. It is the same whenever
    the call is run again, by whichever driver or fork, and no other call of the store has it. *run* may be a
    coroutine function. It raises `ToolFailed` for what the model should be told.
    """

    def __init__(
        self,
        name: str,
        description: str,
        arguments: type[msgspec.Struct],
        run: Callable[..., Any | Awaitable[Any]],
        *,
        effect: Effect = "read_only",
    ) -> None:
        """Declare the tool; its JSON schema is derived from *arguments*. Raises `BadArgument`."""
        if not name or not isinstance(name, str):
            raise BadArgument("a tool needs a name")
        if not isinstance(arguments, type) or not issubclass(arguments, msgspec.Struct):
            raise BadArgument(f"tool {name!r}: its arguments are a msgspec.Struct class, not {arguments!r:.60}")
        if effect not in get_args(Effect):
            raise BadArgument(f"tool {name!r}: its effect is {' or '.join(get_args(Effect))}, not {effect!r}")
        _check_takes(name, run, effect)
        self.name = name
        self.description = description
        self.arguments = arguments
        self.effect = effect
        self._run = run

    def schema(self) -> ToolSchema:
        """Return the tool as the model sees it."""
        (schema,), components = msgspec.json.schema_components([self.arguments], ref_template="#/$defs/{name}")
        # Models read one flat object better than references: lift the arguments' own definition out.
        name = self.arguments.__name__
        own = components.get(name, schema)
        if f"#/$defs/{name}".encode() not in msgspec.json.encode(components):
            components.pop(name, None)  # nothing inside refers back to it
        parameters = _for_models({key: value for key, value in own.items() if key != "title"})
        if components:
            parameters["$defs"] = _for_models({"$defs": components})["$defs"]
        return ToolSchema(self.name, self.description, parameters)

    def parse(self, call: ToolCall) -> msgspec.Struct:
        """Return the typed arguments of *call*; raise `ToolFailed` saying what does not fit."""
        unknown = set(call.arguments) - {f.encode_name for f in msgspec.structs.fields(self.arguments)}
        if unknown:
            names = ", ".join(sorted(map(repr, unknown)))
            raise ToolFailed(f"{self.name} has no argument {names}")
        try:
            # Not strict: models send "5" for 5; what can be read as the declared type is.
            return msgspec.convert(call.arguments, self.arguments, strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"bad arguments for {self.name}: {error}") from None

    async def run(self, call: ToolCall, key: str) -> Any:
        """Run *call* under *key* and return its result as builtins; raise `ToolFailed`."""
        arguments = self.parse(call)
        extra = {"key": key} if self.effect == "idempotent" else {}
        try:
            result = self._run(arguments, **extra)
            if inspect.isawaitable(result):
                result = await result
            return msgspec.to_builtins(result)
        except ToolFailed:
            raise
        except Exception as error:
            # An error of the tool is an event that the model sees; it must not take the run down.
            raise ToolFailed(f"{self.name} failed: {type(error).__name__}: {error}") from error


def _check_takes(name: str, run: Callable[..., Any], effect: Effect) -> None:
    """Raise `BadArgument` if *run* cannot be called as a tool is: better now than in the middle of a run."""
    if not callable(run):
        raise BadArgument(f"tool {name!r}: what it runs is a function, not {run!r:.60}")
    keywords = {"key": ""} if effect == "idempotent" else {}
    try:
        inspect.signature(run).bind(None, **keywords)
    except TypeError as error:
        takes = "its arguments and the keyword key" if keywords else "its arguments, as one value"
        raise BadArgument(f"tool {name!r}: as {effect}, its function takes {takes} ({error})") from None
    except ValueError:  # of some that are written in C nobody knows
        pass


_CHECKED_BY_US = {
    "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "pattern", "multipleOf",
}  # fmt: skip


def _for_models(schema: Any) -> Any:
    """Leave out the bounds that `Tool.parse` checks: clients drop them, and what is hashed is what is sent."""
    if isinstance(schema, list):
        return [_for_models(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _CHECKED_BY_US}
    return {
        # Under these two the keys are names, not keywords.
        key: {name: _for_models(inner) for name, inner in value.items()}
        if key in ("properties", "$defs")
        else _for_models(value)
        for key, value in kept.items()
    }


class Toolbox:
    """The tools of an agent, by name."""

    def __init__(self, *tools: Tool) -> None:
        """Take the tools, in the order in which the model sees them; raise `BadArgument` for what is none."""
        for tool in tools:
            if not isinstance(tool, Tool):
                raise BadArgument(f"a Toolbox takes tools, as in Toolbox(one, two), not {tool!r:.60}")
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) != len(tools):
            raise BadArgument("two tools have the same name")

    def schemas(self) -> list[ToolSchema]:
        """Return all tools as the model sees them."""
        return [tool.schema() for tool in self._tools.values()]

    def effect(self, name: str) -> Effect:
        """Return the effect of a tool; a name that does not exist cannot do anything."""
        tool = self._tools.get(name)
        return tool.effect if tool else "read_only"

    async def run(self, call: ToolCall, key: str) -> Any:
        """Run *call* under *key*; raise `ToolFailed` also for a tool that does not exist."""
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(self._tools)
            raise ToolFailed(f"there is no tool {call.name!r}; the tools are: {names}")
        return await tool.run(call, key)
