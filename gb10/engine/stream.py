"""One streamed chat completion with the time of every token: the only client of the engine's answers. Used by client.py and bench/.

Tokens are counted by the engine (`usage`), times by this process (monotonic clock, ns). What goes wrong has a name.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass(frozen=True)
class Failure:
    """Why there is no sound answer. `kind`: http, timeout, stalled, closed, error-event, not-utf-8, not-json, no-usage or empty."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass
class Completion:
    """What came and when, in ns of the monotonic clock. Token chunks are those with text, reasoning or a tool call.

    `last_token_ns` is the later of the last token chunk and the one with the finish reason: the end-of-sequence token is
    counted in `usage`, and that chunk is all that is seen of it. `first_tokens`: how many tokens the engine had counted
    with the first token chunk. More than one when the first token has no text (the first bytes of a character, a tag that
    a reasoning parser swallows) or the chunk holds several; None when the engine does not count on the way.
    """

    sent_ns: int
    ended_ns: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    token_ns: list[int] = field(default_factory=list)
    first_tokens: int | None = None
    first_content_ns: int | None = None
    last_token_ns: int | None = None
    failure: Failure | None = None

    @property
    def first_token_ns(self) -> int | None:
        return self.token_ns[0] if self.token_ns else None

    @property
    def duration_s(self) -> float:
        return (self.ended_ns - self.sent_ns) / 1e9


class StreamFaultError(Exception):
    """The stream itself is not what it should be."""

    def __init__(self, kind: str, what: str):
        self.failure = Failure(kind, what)
        super().__init__(str(self.failure))


def connect() -> httpx.Client:
    """One HTTP client for a whole run, safe to use from several threads. No proxy of the environment."""
    return httpx.Client(trust_env=False, limits=httpx.Limits(max_connections=64, max_keepalive_connections=64))


def chat(http: httpx.Client, url: str, body: dict[str, Any], *, limit_s: float, stall_s: float) -> Completion:
    """POST a chat completion as a stream. Never raises for what the engine does: `failure` says it.

    `limit_s`: seconds for the whole answer. `stall_s`: seconds without a byte (before the first one it is a timeout).
    """
    request = body | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    timeout = httpx.Timeout(min(stall_s, limit_s))
    sending = http.build_request("POST", f"{url}/v1/chat/completions", json=request, timeout=timeout)
    found = Completion(sent_ns=time.monotonic_ns())  # the body is encoded by now: that time is not the engine's
    try:
        _receive(http, sending, found, limit_s)
    except StreamFaultError as error:
        found.failure = error.failure
    except httpx.TimeoutException:
        kind = "stalled" if found.token_ns else "timeout"
        found.failure = Failure(kind, f"nothing for {min(stall_s, limit_s):g} s")
    except (httpx.RemoteProtocolError, httpx.ReadError) as error:
        found.failure = Failure("closed", f"the connection ended in the middle ({type(error).__name__})")
    except httpx.HTTPError as error:
        found.failure = Failure("http", f"{type(error).__name__}: {error}")
    found.ended_ns = time.monotonic_ns()
    return found


def _receive(http: httpx.Client, request: httpx.Request, found: Completion, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    with contextlib.closing(http.send(request, stream=True)) as response:
        if response.status_code != 200:
            text = response.read()[:200].decode("utf-8", "replace")
            raise StreamFaultError("http", f"HTTP {response.status_code}: {text}")
        done = False
        for data in events(_timed(response, deadline, limit_s)):
            done = _take(found, data) or done
    if not done:
        raise StreamFaultError("closed", "the stream ended without [DONE]")
    if not found.token_ns:
        raise StreamFaultError("empty", "no token came")
    if found.usage is None:
        raise StreamFaultError("no-usage", "the engine gave no token counts")


def _timed(response: httpx.Response, deadline: float, limit_s: float) -> Iterator[bytes]:
    for chunk in response.iter_raw():
        if time.monotonic() > deadline:
            raise StreamFaultError("timeout", f"no whole answer within {limit_s:g} s")
        yield chunk


def events(chunks: Iterator[bytes]) -> Iterator[str]:
    """The data of each server-sent event, as soon as its blank line is there. Raises `StreamFaultError` for bytes that are no UTF-8."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                try:
                    yield b"\n".join(lines).decode()
                except UnicodeDecodeError:
                    raise StreamFaultError("not-utf-8", "bytes that are no UTF-8 text") from None


def _take(found: Completion, data: str) -> bool:
    """One event into the completion; True for the last one."""
    if data == "[DONE]":
        return True
    now = time.monotonic_ns()
    try:
        document = json.loads(data)
    except ValueError:
        raise StreamFaultError("not-json", f"an event that is no JSON: {data[:80]!r}") from None
    if not isinstance(document, dict) or "error" in document:
        what = document.get("error") if isinstance(document, dict) else document
        message = what.get("message", what) if isinstance(what, dict) else what
        raise StreamFaultError("error-event", str(message)[:200])
    choices, before = document.get("choices") or [], len(found.token_ns)
    if document.get("usage") and (not choices or any(choice.get("finish_reason") for choice in choices)):
        found.usage = document["usage"]  # of the whole answer; what the chunks before say is a count on the way
    for choice in choices:
        _take_choice(found, choice, now)
    if not before and found.token_ns:
        found.first_tokens = (document.get("usage") or {}).get("completion_tokens")
    return False


def _take_choice(found: Completion, choice: dict[str, Any], now: int) -> None:
    delta = choice.get("delta") or {}
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    content, calls = delta.get("content") or "", delta.get("tool_calls") or []
    try:
        json.dumps(delta, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate: no file could hold it
        raise StreamFaultError("not-utf-8", "text that is no UTF-8 (half of a character)") from None
    if reasoning or content or calls:
        found.token_ns.append(now)
        found.last_token_ns = now
    if content or calls:
        found.first_content_ns = found.first_content_ns or now
    found.text += content
    found.reasoning += reasoning
    for part in calls:
        _take_call(found.tool_calls, part)
    if choice.get("finish_reason"):
        found.finish_reason = choice["finish_reason"]
        found.last_token_ns = now


def _take_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = int(part.get("index") or 0)
    while len(calls) <= index:
        calls.append({"function": {"name": "", "arguments": ""}})
    function, delta = calls[index]["function"], part.get("function") or {}
    function["name"] += delta.get("name") or ""
    function["arguments"] += delta.get("arguments") or ""
