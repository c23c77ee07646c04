"""The test engine's HTTP side: vLLM's routes that gb10 and its tests ask. Used by server.py."""

from __future__ import annotations

import json
import socketserver
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import worker
from answers import prompt_tokens_of, requires_tool
from faults import Faults
from metrics import Metrics
from streaming import Chat, CutError, error_of, frames, tool_calls_of, tool_frames

VERSION = "0.0.0+gb10.test.engine"
WINDOWS_BEGUN = Path("/tmp/capture-windows")
"""A line for each /start_profile."""
WRONG_BY = 7
"""How many tokens usage is off with TEST_ENGINE_WRONG_PROMPT_TOKENS."""


class Server(ThreadingHTTPServer):
    """One engine behind a port. `state` is loading, ready or dead, set by server.py; `leave` ends the process."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, options: Any, faults: Faults, address: str, leave: Callable[[int], None]) -> None:
        self.options, self.faults, self.address, self.leave = options, faults, address, leave
        self.model = options.served_model_name
        self.metrics = Metrics(self.model, options.enable_prefix_caching, faults.hit_tokens)
        self.state, self.windows = "loading", 0
        super().__init__(("", port), Handler)

    def server_bind(self) -> None:
        """Without the name look-up of the standard library, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "test-engine", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that went away is no error
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        server = self.server
        if self.path == "/health":
            well = server.state == "ready" and not Path("/tmp/no-health").exists()
            return self._send(200 if well else 503, b"", "text/plain")
        if server.state == "loading":
            return self._error(503, "ServiceUnavailableError", "loading")
        if self.path == "/v1/models":
            model = {
                "id": server.model,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "gb10-test-engine",
                "root": server.options.model,
                "parent": None,
                "max_model_len": server.options.max_model_len,
            }
            return self._json(200, {"object": "list", "data": [model]})
        if self.path == "/version":
            return self._json(200, {"version": VERSION})
        if self.path == "/metrics" and not Path("/tmp/no-metrics").exists():
            return self._send(200, server.metrics.text().encode(), "text/plain; version=0.0.4; charset=utf-8")
        if self.path in {"/start_profile", "/stop_profile"} and server.options.profiler_config:
            return self._error(405, "MethodNotAllowed", "Method Not Allowed")
        return self._error(404, "NotFoundError", "Not Found")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.state == "loading":
            return self._error(503, "ServiceUnavailableError", "loading")
        if self.path in {"/start_profile", "/stop_profile"} and self.server.options.profiler_config:
            return self._profiler(self.server.options.profiler_config.get("torch_profiler_dir"))
        act = {"/v1/chat/completions": self._chat, "/tokenize": self._tokenize}.get(self.path)
        if act is None:
            return self._error(404, "NotFoundError", "Not Found")
        try:
            body = json.loads(raw)
            tokens = prompt_tokens_of(body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return self._error(400, "BadRequestError", f"{type(error).__name__}: {error}")
        if body.get("model", self.server.model) != self.server.model:
            return self._error(404, "NotFoundError", f"The model `{body['model']}` does not exist.", "model")
        return act(body, tokens)

    def _profiler(self, directory: str | None) -> None:
        """A window begins or ends; torch then leaves a trace, here an empty one. nsys writes its own: a stand-in reads how many began."""
        faults = self.server.faults
        if self.path == "/start_profile":
            with WINDOWS_BEGUN.open("a") as file:
                file.write("began\n")
            return self._send(200, b"", "text/plain")
        self.server.windows += 1
        if self.server.windows == faults.stop_profile_fails:
            return self._error(500, "InternalServerError", "the profiler did not stop")
        if directory and self.server.windows != faults.no_trace:
            path = Path(directory) / f"rank0.{time.time_ns()}.pt.trace.json"
            path.write_text('{"traceEvents": []}')
        return self._send(200, b"", "text/plain")

    def _tokenize(self, body: dict[str, Any], tokens: list[str]) -> None:
        length = self.server.options.max_model_len
        ids = list(range(len(tokens)))
        self._json(200, {"count": len(tokens), "max_model_len": length, "tokens": ids, "token_strs": None})

    def _chat(self, body: dict[str, Any], tokens: list[str]) -> None:
        server, length = self.server, self.server.options.max_model_len
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or 1
        if len(tokens) + wanted > length:
            what = (
                f"This model's maximum context length is {length} tokens. However, you requested {wanted} output tokens"
            )
            what += f" and your prompt contains {len(tokens)} input tokens."
            return self._error(400, "BadRequestError", what, "input_tokens")
        off = WRONG_BY if server.faults.wrong_prompt_tokens else 0
        asked = body.get("stream_options") or {}
        usage_asked, counts = bool(asked.get("include_usage")), bool(asked.get("continuous_usage_stats"))
        counts = counts and server.faults.stream != "no_usage"
        chat = Chat(f"chatcmpl-{uuid.uuid4().hex[:16]}", server.model, len(tokens) + off, usage_asked, counts)
        number = server.metrics.begin(tokens)
        dies = server.faults.die_after_requests is not None and number > server.faults.die_after_requests
        try:
            events = self._counted(worker.ask(server.address, {"number": number, "body": body}))
            (self._stream if body.get("stream") else self._plain)(chat, events, body, dies)
        finally:
            server.metrics.end()

    def _counted(self, events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for event in events:
            if "token" in event:
                self.server.metrics.step()
            yield event

    def _plain(self, chat: Chat, events: Iterator[dict[str, Any]], body: dict[str, Any], dies: bool) -> None:
        try:
            *tokens, finish = events
        except worker.WorkerDeadError as error:
            return self._error(500, "InternalServerError", str(error))
        if dies:
            self.server.leave(1)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(event["token"] for event in tokens)}
        if finish["tool"]:
            message |= {"content": None, "tool_calls": tool_calls_of(chat, finish["tool"])}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish["finish_reason"]}
        head = {"id": chat.id, "object": "chat.completion", "created": int(time.time()), "model": chat.model}
        return self._json(200, {**head, "choices": [choice], "usage": chat.usage(len(tokens))})

    def _stream(self, chat: Chat, events: Iterator[dict[str, Any]], body: dict[str, Any], dies: bool) -> None:
        faults = self.server.faults
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        odd = (faults.stream, faults.first_token_s)
        stream = tool_frames(chat, events) if requires_tool(body) else frames(chat, events, *odd)
        try:
            for frame in stream:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(frame), frame))
                if dies:
                    self.server.leave(1)
            self.wfile.write(b"0\r\n\r\n")
        except CutError:
            self.close_connection = True

    def _json(self, status: int, document: dict[str, Any]) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _error(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        self._json(status, error_of(status, kind, message, param))

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """As vLLM's, which has no server yet while it loads: the loading lines stay the last ones."""
        if self.server.state == "loading":
            return
        host, port = self.client_address[:2]
        print(f'INFO:     {host}:{port} - "{self.requestline}" {int(code)} {self.responses[int(code)][0]}', flush=True)
