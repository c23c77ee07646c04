"""Requests to the engine, each bounded as a whole. Used by readiness, the canary and smoke."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

TEMPERATURE = 0
SEED = 42


class RequestFailedError(Exception):
    """No usable answer; the text says why in a few words."""


@dataclass(frozen=True)
class Answer:
    """One chat completion. `usage` holds the engine's own token counts; None when it gave none."""

    text: str
    finish_reason: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] | None = None
    duration_s: float = 0.0


def is_healthy(url: str, timeout_s: float = 2.0) -> bool:
    """Does GET /health answer 200? It can, while the engine is wedged: see `complete` for proof of life."""
    try:
        return httpx.get(f"{url}/health", timeout=timeout_s, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def iterations(url: str, timeout_s: float = 5.0) -> float | None:
    """Scheduler steps since the start (`vllm:iteration_tokens_total_count`); None when /metrics does not say."""
    try:
        text = httpx.get(f"{url}/metrics", timeout=timeout_s, trust_env=False).text
        values = [
            line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith("vllm:iteration_tokens_total_count")
        ]
        return sum(map(float, values)) if values else None
    except (httpx.HTTPError, ValueError):
        return None


def version(url: str, timeout_s: float = 5.0) -> str | None:
    """What GET /version says. A label, not a number to compare (nightlies call themselves 0.3.1.dev3)."""
    try:
        return str(httpx.get(f"{url}/version", timeout=timeout_s, trust_env=False).json()["version"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


def complete(
    url: str, model: str, prompt: str, *, max_tokens: int, timeout_s: float, tool: dict[str, Any] | None = None
) -> Answer:
    """One chat completion at temperature 0 and seed 42: headers within `timeout_s` seconds, the whole within twice that.

    `tool`: a function schema that the model is required to call. Raises `RequestFailedError`.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": TEMPERATURE,
        "seed": SEED,
    }
    if tool is not None:
        body |= {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
    began = time.monotonic()
    raw = _post(f"{url}/v1/chat/completions", body, began + timeout_s, timeout_s)
    try:
        document = json.loads(raw)
        choice = document["choices"][0]
        message = choice["message"]
        return Answer(
            text=message.get("content") or "",
            finish_reason=choice["finish_reason"] or "none",
            tool_calls=message.get("tool_calls") or [],
            usage=document.get("usage"),
            duration_s=time.monotonic() - began,
        )
    except (ValueError, KeyError, IndexError, TypeError):
        raise RequestFailedError(f"the answer is not a chat completion: {raw[:80]!r}") from None


def _post(url: str, body: dict[str, Any], deadline: float, timeout_s: float) -> bytes:
    try:
        with httpx.Client(timeout=timeout_s, trust_env=False) as http, http.stream("POST", url, json=body) as response:
            raw = b""
            for chunk in response.iter_bytes():
                raw += chunk
                if time.monotonic() > deadline:
                    raise RequestFailedError(f"no whole answer within {timeout_s:g} s")
    except httpx.TimeoutException:
        raise RequestFailedError(f"no answer within {timeout_s:g} s") from None
    except httpx.HTTPError as error:
        raise RequestFailedError(f"{type(error).__name__}: {error}") from None
    if response.status_code != 200:
        raise RequestFailedError(f"HTTP {response.status_code}: {raw[:200].decode('utf-8', 'replace')}")
    return raw


def profiler(url: str, word: str, timeout_s: float = 120.0) -> None:
    """POST /start_profile or /stop_profile. Raises `RequestFailedError`; without a profiler the engine answers 404."""
    try:
        status = httpx.post(f"{url}/{word}_profile", timeout=timeout_s, trust_env=False).status_code
    except httpx.HTTPError as error:
        raise RequestFailedError(f"/{word}_profile: {type(error).__name__}") from None
    if status != 200:
        raise RequestFailedError(f"/{word}_profile answered {status}")
