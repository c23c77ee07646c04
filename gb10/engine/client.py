"""Requests to the engine, each bounded as a whole. Used by readiness, the canary, smoke and bench/."""

from __future__ import annotations

import json
from typing import Any

import httpx

from gb10.engine import stream
from gb10.engine.stream import Completion

TEMPERATURE = 0
SEED = 42


class RequestFailedError(Exception):
    """No usable answer; the text says why in a few words."""


def is_healthy(url: str, timeout_s: float = 2.0) -> bool:
    """Does GET /health answer 200? It can, while the engine is wedged: see `complete` for proof of life."""
    try:
        return httpx.get(f"{url}/health", timeout=timeout_s, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def iterations(url: str, timeout_s: float = 5.0) -> float | None:
    """Scheduler steps since the start (`vllm:iteration_tokens_total_count`); None when /metrics does not say."""
    return total(metrics(url, timeout_s) or "", "vllm:iteration_tokens_total_count")


def total(text: str, name: str) -> float | None:
    """The sum of a metric over its labels in Prometheus text; None when it is not there."""
    lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    try:
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines) if lines else None
    except ValueError:
        return None


def version(url: str, timeout_s: float = 5.0) -> str | None:
    """What GET /version says. A label, not a number to compare (nightlies call themselves 0.3.1.dev3)."""
    try:
        return str(httpx.get(f"{url}/version", timeout=timeout_s, trust_env=False).json()["version"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


def metrics(url: str, timeout_s: float = 5.0) -> str | None:
    """GET /metrics as Prometheus text; None when it does not answer."""
    try:
        response = httpx.get(f"{url}/metrics", timeout=timeout_s, trust_env=False)
    except httpx.HTTPError:
        return None
    return response.text if response.status_code == 200 else None


def count_tokens(http: httpx.Client, url: str, body: dict[str, Any], timeout_s: float = 60.0) -> int:
    """How many tokens the engine makes of a request's prompt (POST /tokenize). Raises `RequestFailedError`."""
    asked = {key: body[key] for key in ("model", "messages", "tools") if key in body}
    try:
        response = http.post(f"{url}/tokenize", json=asked, timeout=timeout_s)
        return int(response.json()["count"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise RequestFailedError(f"/tokenize gave no count ({type(error).__name__})") from None


def body_of(
    model: str, prompt: str, *, max_tokens: int, tool: dict[str, Any] | None = None, effort: str | None = None
) -> dict[str, Any]:
    """A chat request at temperature 0 and seed 42. `tool`: a function schema that the model is required to call."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": TEMPERATURE,
        "seed": SEED,
    }
    if effort is not None:
        body["reasoning_effort"] = effort
    if tool is not None:
        body |= {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
    return body


def canonical(body: dict[str, Any]) -> bytes:
    """A request as bytes that are the same wherever it is made."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def complete(
    url: str, model: str, prompt: str, *, max_tokens: int, timeout_s: float, tool: dict[str, Any] | None = None
) -> Completion:
    """One whole chat completion within `timeout_s` seconds. Raises `RequestFailedError` when none comes."""
    body = body_of(model, prompt, max_tokens=max_tokens, tool=tool)
    with stream.connect() as http:
        found = stream.chat(http, url, body, limit_s=timeout_s, stall_s=timeout_s)
    if found.failure is not None:
        raise RequestFailedError(str(found.failure))
    return found


def profiler(url: str, word: str, timeout_s: float = 120.0) -> None:
    """POST /start_profile or /stop_profile. Raises `RequestFailedError`; without a profiler the engine answers 404."""
    try:
        status = httpx.post(f"{url}/{word}_profile", timeout=timeout_s, trust_env=False).status_code
    except httpx.HTTPError as error:
        raise RequestFailedError(f"/{word}_profile: {type(error).__name__}") from None
    if status != 200:
        raise RequestFailedError(f"/{word}_profile answered {status}")
