"""A scripted Ollama on loopback: it speaks /api/chat and /api/tags, and breaks as it is told to.

Real HTTP, so that a test runs the adapter with the ``ollama`` package and everything below it. The answers
to /api/chat are given in order; every request is kept in `FakeOllama.chats`.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What the server does with one chat request."""

    body: bytes = b""
    status: int = 200
    dropped: bool = False
    """Close the connection without answering."""
    cut_short: bool = False
    """Promise more bytes than are sent."""
    wait_s: float = 0.0
    """Before anything is sent."""
    stall_s: float = 0.0
    """In the middle of the body."""


def says(text: str, *, prompt_tokens: int = 0, output_tokens: int = 0, duration_ms: int = 0) -> Answer:
    """Answer with a text."""
    usage = {
        "prompt_eval_count": prompt_tokens,
        "eval_count": output_tokens,
        "total_duration": duration_ms * 1_000_000,
    }
    return replies({"content": text}, **usage)


def calls(*wanted: tuple[str, Any], text: str = "") -> Answer:
    """Answer with tool calls, each a name and arguments of whatever type."""
    functions = [{"function": {"name": name, "arguments": arguments}} for name, arguments in wanted]
    return replies({"content": text, "tool_calls": functions})


def replies(message: dict[str, Any], **extra: Any) -> Answer:
    """Answer with a chat response around *message*."""
    return sends({"model": "m", "message": {"role": "assistant", **message}, "done": True, **extra})


def fails(status: int, error: Any) -> Answer:
    """Answer with an error, as Ollama words it."""
    return sends({"error": error}, status)


def sends(value: Any, status: int = 200) -> Answer:
    """Answer with *value*: bytes as they are, anything else as JSON."""
    return Answer(value if isinstance(value, bytes) else json.dumps(value).encode(), status)


class FakeOllama:
    """A running server: where it is, what it was asked, and how to stop it."""

    def __init__(self, script: Sequence[Answer], models: Sequence[str], tags: Answer | None) -> None:
        self.chats: list[dict[str, Any]] = []
        self.asked = threading.Event()
        """Set once a chat request has come."""
        self.surplus = 0
        """Chat requests that came after the end of the script."""
        self._server = _Server(self, script, models, tags)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        """Stop the server, those that wait included; stopping twice is fine."""
        self._server.stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def fake_ollama(*script: Answer, models: Sequence[str] = (), tags: Answer | None = None) -> Iterator[FakeOllama]:
    """Serve *script* and have *models*, or answer /api/tags with *tags*; fail if the script is too short."""
    server = FakeOllama(script, models, tags)
    try:
        yield server
    finally:
        server.stop()
    assert server.surplus == 0, f"{server.surplus} requests came after the end of the script"


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for every handler

    def __init__(
        self, told: FakeOllama, script: Sequence[Answer], models: Sequence[str], tags: Answer | None
    ) -> None:
        self.told = told
        self.script = list(script)
        self.models = models
        self.tags = tags
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def next_answer(self, request: dict[str, Any]) -> Answer:
        with self.lock:
            self.told.chats.append(request)
            self.told.asked.set()
            if self.script:
                return self.script.pop(0)
            self.told.surplus += 1
            return fails(500, "the script has no more answers")


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path != "/api/tags":
            return self._send(fails(404, "not found"))
        listed = [{"name": name, "model": name} for name in self.server.models]
        return self._send(self.server.tags or sends({"models": listed}))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/api/chat":
            return self._send(fails(404, "not found"))
        return self._send(self.server.next_answer(request))

    def _send(self, answer: Answer) -> None:
        self.server.stopping.wait(answer.wait_s)
        if answer.dropped:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        half = len(answer.body) // 2
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[:half])
            self.server.stopping.wait(answer.stall_s)
            if not answer.cut_short:
                self.wfile.write(answer.body[half:])
        except ConnectionError:
            pass  # the client did not wait: that is what the test is about

    def log_message(self, format: str, *args: Any) -> None:
        pass
