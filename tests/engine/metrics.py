"""The counters behind the test engine's GET /metrics, under vLLM's names. Used by api.py."""

from __future__ import annotations

import threading
from collections import deque
from itertools import takewhile
from pathlib import Path

BLOCK = 16
"""Tokens in a KV block: a prefix hit counts in whole blocks, and never the whole prompt."""
REMEMBERED = 32
"""Prompts that the prefix cache holds."""


class Metrics:
    """What was served since the start. Safe to use from the threads of the server."""

    def __init__(self, model: str, prefix_caching: bool, hit_tokens: int | None) -> None:
        self._labels = f'{{engine="0",model_name="{model}"}}'
        self._prefix_caching = prefix_caching
        self._hit_tokens = hit_tokens
        self._lock = threading.Lock()
        self._seen: deque[list[str]] = deque(maxlen=REMEMBERED)
        self._requests = self._running = self._queries = self._hits = 0
        self._prompt = self._generated = self._iterations = 0

    def begin(self, prompt: list[str]) -> int:
        """Count a request in; returns its number, from 1."""
        with self._lock:
            self._requests += 1
            self._running += 1
            self._prompt += len(prompt)
            if self._prefix_caching:
                self._queries += len(prompt)
                self._hits += self._hit(prompt)
                self._seen.append(prompt)
            return self._requests

    def step(self) -> None:
        """Count one engine step, which made one token."""
        with self._lock:
            self._iterations += 1
            self._generated += 1

    def end(self) -> None:
        with self._lock:
            self._running -= 1

    def _hit(self, prompt: list[str]) -> int:
        common = max((_common(prompt, seen) for seen in self._seen), default=0)
        hit = min(common, len(prompt) - 1) // BLOCK * BLOCK
        return self._hit_tokens if hit and self._hit_tokens is not None else hit

    def text(self) -> str:
        """Prometheus text."""
        with self._lock:
            rows = [
                ("gauge", "num_requests_running", self._running),
                ("gauge", "num_requests_waiting", 0),
                ("gauge", "kv_cache_usage_perc", min(1.0, self._running / 100)),
                ("counter", "prefix_cache_queries_total", self._queries),
                ("counter", "prefix_cache_hits_total", self._hits),
                ("counter", "num_preemptions_total", 0),
                ("counter", "prompt_tokens_total", self._prompt),
                ("counter", "generation_tokens_total", self._generated),
            ]
            steps = (self._iterations, self._prompt + self._generated)
        if Path("/tmp/no-preemptions").exists():
            rows = [row for row in rows if row[1] != "num_preemptions_total"]
        lines = []
        for kind, name, value in rows:
            family = name.removesuffix("_total") if kind == "counter" else name
            lines += [f"# TYPE vllm:{family} {kind}", f"vllm:{name}{self._labels} {float(value)}"]
        lines += [
            "# TYPE vllm:cache_config_info gauge",
            f'vllm:cache_config_info{{block_size="{BLOCK}",engine="0"}} 1.0',
        ]
        total = "vllm:iteration_tokens_total"
        lines += [
            f"# TYPE {total} histogram",
            f'{total}_bucket{self._labels[:-1]},le="+Inf"}} {float(steps[0])}',
            f"{total}_count{self._labels} {float(steps[0])}",
            f"{total}_sum{self._labels} {float(steps[1])}",
        ]
        return "\n".join(lines) + "\n"


def _common(one: list[str], other: list[str]) -> int:
    """How many tokens two prompts have in common from their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
