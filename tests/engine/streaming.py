"""A completion as the server-sent events of an OpenAI stream, and the ways in which a stream can be odd or broken. Used by api.py."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from worker import DEAD, WorkerDeadError

DONE = b"data: [DONE]\n\n"
EARLY_S = 0.5
"""How long a chunk without a token (role_only_first, empty_choices_first) comes before the first token."""
TOKENS_IN_A_CHUNK = 3
"""With multi_token; vLLM's multi-token prediction sends several in a chunk too. With late_text, only in the first."""


class CutError(Exception):
    """The connection is to be closed in the middle."""


@dataclass(frozen=True)
class Chat:
    """What all chunks of one answer share. `usage_asked`: stream_options.include_usage; `counts`: continuous_usage_stats."""

    id: str
    model: str
    prompt_tokens: int
    usage_asked: bool = False
    counts: bool = False

    def usage(self, completion_tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        }

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None, count: int | None = None) -> bytes:
        more = {"usage": self.usage(count)} if self.counts and count is not None else {}
        return self.event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}], **more)

    def event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": int(time.time()), "model": self.model}
        return _data({**head, "choices": choices, **more})


def tool_calls_of(chat: Chat, tool: list[str]) -> list[dict[str, Any]]:
    name, arguments = tool
    return [
        {"id": f"call-{chat.id}", "type": "function", "index": 0, "function": {"name": name, "arguments": arguments}}
    ]


def frames(chat: Chat, events: Iterable[dict[str, Any]], kind: str, first_token_s: float) -> Iterator[bytes]:
    """The stream, one server-sent event an item. `kind` is TEST_ENGINE_STREAM. Raises `CutError`; never ends with stall."""
    key = "reasoning" if kind == "reasoning_only" else "content"
    yield from _early(chat, kind)
    time.sleep(first_token_s)
    count, waiting, finish = 0, [], {}
    try:
        for event in events:
            if "token" not in event:
                finish = event
                break
            if not count and kind != "role_only_first":
                yield chat.chunk({"role": "assistant", "content": ""})
            count += 1
            waiting.append(event["token"])
            if kind == "multi_token" and len(waiting) < TOKENS_IN_A_CHUNK:
                continue
            if kind == "late_text" and count < TOKENS_IN_A_CHUNK:
                continue
            yield chat.chunk({key: "".join(waiting)}, count=count)
            waiting = []
            yield from _break(chat, kind)
    except WorkerDeadError:
        yield _error() + DONE
        return
    if waiting:
        yield chat.chunk({key: "".join(waiting)}, count=count)
    yield chat.chunk({}, finish["finish_reason"])
    if chat.usage_asked and kind != "no_usage":
        yield chat.event([], usage=chat.usage(count))
    yield DONE


def tool_frames(chat: Chat, events: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """The stream of a tool call: one chunk holds it. No fault of `frames` applies."""
    try:
        *tokens, finish = events
    except WorkerDeadError:
        yield _error() + DONE
        return
    yield chat.chunk({"role": "assistant", "content": ""})
    if finish["tool"]:
        yield chat.chunk({"tool_calls": tool_calls_of(chat, finish["tool"])})
    yield chat.chunk({}, finish["finish_reason"])
    if chat.usage_asked:
        yield chat.event([], usage=chat.usage(len(tokens)))
    yield DONE


def _early(chat: Chat, kind: str) -> Iterator[bytes]:
    if kind == "role_only_first":
        yield chat.chunk({"role": "assistant"})
    elif kind == "empty_choices_first":
        yield chat.event([])
    else:
        return
    time.sleep(EARLY_S)


def _break(chat: Chat, kind: str) -> Iterator[bytes]:
    """What goes wrong after the first token."""
    if kind == "error_event":
        raise WorkerDeadError
    if kind == "cut":
        raise CutError
    if kind == "non_utf8":
        yield chat.chunk({"content": "?"}).replace(b'"?"', b'"\xff\xfe"')
    while kind == "stall":
        time.sleep(1)


def error_of(code: int, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    """An error as vLLM words it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _error() -> bytes:
    return _data(error_of(500, "InternalServerError", DEAD))


def _data(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"
