"""What goes to a model: messages, the exact request, and its hash. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec
from tailfold.engine.agent.events import ToolCall

Role = Literal["user", "assistant", "tool"]


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of the conversation, as the model sees it."""

    role: Role
    content: str
    tool_calls: list[ToolCall] = []
    call_id: str | None = None
    """For a tool message: the call that it answers."""
    tool_name: str | None = None


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool as the model sees it: name, description and JSON schema of the arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


class ModelRequest(msgspec.Struct, frozen=True):
    """Everything that one model call is given. Its hash proves what the model saw."""

    model: str
    system: str
    messages: list[Message]
    tools: list[ToolSchema]
    options: dict[str, Any] = {}
    """Sampling options, as the model's adapter understands them."""

    def hash(self) -> str:
        """Return the BLAKE2b-128 of the request's deterministic JSON, in hex."""
        encoded = msgspec.json.encode(self, order="sorted")
        return hashlib.blake2b(encoded, digest_size=16, person=b"tailfold.request").hexdigest()
