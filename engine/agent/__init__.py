"""The agent runtime: a loop that writes down what it will do before it does it. docs/agents.md walks through it."""

from tailfold.engine.agent.decide import decider
from tailfold.engine.agent.events import RunRedirected, RunStarted, ToolCall, Usage
from tailfold.engine.agent.listing import RunRow, run_list, runs_of
from tailfold.engine.agent.loop import Agent, Model, ModelError, Reply
from tailfold.engine.agent.messages import Message, ModelRequest
from tailfold.engine.agent.replaying import Replayed, replay
from tailfold.engine.agent.runtime import RunExists, resume, start
from tailfold.engine.agent.state import RunState, run_fold
from tailfold.engine.agent.tools import Tool, Toolbox, ToolFailed

__all__ = [
    "Agent",
    "Message",
    "Model",
    "ModelError",
    "ModelRequest",
    "Replayed",
    "Reply",
    "RunExists",
    "RunRedirected",
    "RunRow",
    "RunStarted",
    "RunState",
    "Tool",
    "ToolCall",
    "ToolFailed",
    "Toolbox",
    "Usage",
    "decider",
    "replay",
    "resume",
    "run_fold",
    "run_list",
    "runs_of",
    "start",
]
