"""Ollama behind the model port, through the ``ollama`` package (``OLLAMA_HOST`` says where)."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailfold.engine.agent.events import ToolCall, Usage
from tailfold.engine.agent.loop import ModelError, Reply
from tailfold.engine.agent.messages import Message, ModelRequest, ToolSchema
from tailfold.engine.errors import BadArgument

if TYPE_CHECKING:
    import ollama

DEFAULT_MODEL = "qwen3:8b"
REPLY_TIMEOUT_S = 300.0
PROBE_TIMEOUT_S = 2.0
TIMEOUT_VARIABLE = "TAILFOLD_OLLAMA_TIMEOUT_S"

_THINKING = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


class OllamaModel:
    """One model of an Ollama server. Every error of it becomes a `ModelError`: an event, not a crash."""

    def __init__(
        self, model: str = DEFAULT_MODEL, *, host: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Name the model.

        *host* defaults to ``OLLAMA_HOST``, *timeout_s* to ``TAILFOLD_OLLAMA_TIMEOUT_S``, else 300 s.
        """
        self.model = model
        self.name = f"ollama:{model}"
        self.host = host or os.environ.get("OLLAMA_HOST") or "127.0.0.1:11434"
        self._timeout_s = timeout_s if timeout_s is not None else _timeout_from_environment()

    async def unavailable(self) -> str | None:
        """Return why the model cannot be used now, or None if the server answers and has it."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S), self._client() as client:
                listed = await client.list()
        except (TimeoutError, ConnectionError):
            return f"no Ollama answers at {self.host}"
        except Exception as error:
            return f"what answers at {self.host} is no Ollama ({_in_one_line(error, 80)})"
        names = {str(entry.model) for entry in listed.models}
        if self.model in names or f"{self.model}:latest" in names:
            return None
        return f"Ollama at {self.host} does not have {self.model} (ollama pull {self.model})"

    async def reply(self, request: ModelRequest) -> Reply:
        """Send the request; raise `ModelError` if there is no usable reply within the time."""
        messages = [{"role": "system", "content": request.system}]
        messages += [_message(message) for message in request.messages]
        try:
            async with asyncio.timeout(self._timeout_s), self._client() as client:
                response = await client.chat(
                    self.model,
                    messages,
                    tools=[_tool(schema) for schema in request.tools],
                    options=request.options or None,
                )
        except TimeoutError:
            raise ModelError(f"no reply from Ollama within {self._timeout_s:g} s") from None
        except Exception as error:
            # The package raises its own errors, httpx's, pydantic's and json's: all mean the same here.
            raise ModelError(f"Ollama: {_in_one_line(error)}") from error
        return _reply(response)

    def _client(self) -> ollama.AsyncClient:
        import ollama  # half a second of imports, only for those who use it

        return ollama.AsyncClient(host=self.host)


def _reply(response: ollama.ChatResponse) -> Reply:
    calls = [
        ToolCall("", call.function.name, dict(call.function.arguments))
        for call in response.message.tool_calls or ()
    ]
    text = _THINKING.sub("", response.message.content or "").strip()
    if not calls and not text:
        raise ModelError("Ollama: an empty reply, neither text nor a tool call")
    usage = Usage(
        response.prompt_eval_count or 0,
        response.eval_count or 0,
        (response.total_duration or 0) // 1_000_000,
    )
    return Reply(text, calls, usage)


def _message(message: Message) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        sent["tool_calls"] = [
            {"function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls
        ]
    if message.tool_name:
        sent["tool_name"] = message.tool_name
    return sent


def _tool(schema: ToolSchema) -> dict[str, Any]:
    function = {
        "name": schema.name,
        "description": schema.description,
        "parameters": schema.parameters,
    }
    return {"type": "function", "function": function}


def _in_one_line(error: Exception, most: int = 300) -> str:
    lines: Sequence[str] = str(error).split()
    text = " ".join(lines) or type(error).__name__
    return text if len(text) <= most else text[: most - 1] + "…"


def _timeout_from_environment() -> float:
    stated = os.environ.get(TIMEOUT_VARIABLE)
    if not stated:
        return REPLY_TIMEOUT_S
    try:
        seconds = float(stated)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise BadArgument(f"{TIMEOUT_VARIABLE}={stated!r} must be a number of seconds above 0")
    return seconds
