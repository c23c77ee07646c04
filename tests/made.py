"""Request records and run.json made for the tests of gb10/bench: good ones, and what a test changes in them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gb10.bench.records import Record

CASES = ("short", "retrieval")


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def record(arm: str, case: str, number: int, speed: float, **fields: Any) -> Record:
    """A request that came back with the right answer. `speed`: decode tokens per second."""
    values: dict[str, Any] = {
        "arm": arm,
        "round": number // 4 + 1,
        "case": case,
        "slot": 0,
        "phase": "timed",
        "request": number % 4,
        "concurrency": 1,
        "input_sha256": sha(f"{case} {number}"),
        "prompt_tokens_counted": 36,
        "prompt_tokens": 36,
        "completion_tokens": 214,
        "reasoning_tokens": 20,
        "ttft_s": 0.25,
        "ttft_content_s": 0.5,
        "decode_tokens_per_s": speed,
        "duration_s": 0.25 + 213 / speed,
        "finish_reason": "stop",
        "truncated": False,
        "answer": "42",
        "expect": "exact: 42",
        "right": True,
        "hit_tokens": 0,
    }
    return Record(**(values | fields))


def arm(name: str, speed: float, pairs: int = 12, change: Callable[[Record], Record] = lambda one: one) -> list[Record]:
    """`pairs` requests of each case around a decode speed, one warm-up and one traced request that must not count."""
    noise = random.Random(name)
    made = [
        record(name, case, number, speed * (1 + noise.uniform(-0.005, 0.005)))
        for case in CASES
        for number in range(pairs)
    ]
    warm = record(name, "short", 0, 1000 * speed, round=0, phase="warm-up", right=None, truncated=True)
    traced = record(name, "short", 0, 0.001 * speed, phase="traced", truncated=True)
    return [warm, *(change(one) for one in made), traced]


def first(**fields: Any) -> Callable[[Record], Record]:
    """A change of the first timed short request only."""

    def change(one: Record) -> Record:
        return replace(one, **fields) if (one.case, one.round, one.request) == ("short", 1, 0) else one

    return change


def run(**changes: Any) -> dict[str, Any]:
    """A run.json of two arms in which all went well. `baseline`, `experiment`: changes of an arm; else of the run."""
    arms = {}
    for name in ("baseline", "experiment"):
        arms[name] = {
            "overlays": ["graph"] if name == "experiment" else [],
            "image_id": "sha256:" + sha(name),
            "argv": ["vllm", "serve", "/model"],
            "container_started_at": "2026-09-17T10:00:00Z",
            "block_size": 16,
            "graph_effective": True if name == "experiment" else None,
            "guard_tripped": None,
            "oom_kill": {"before": 25, "after": 25},
            "lowest_available_bytes": 16 * 2**30,
        } | changes.pop(name, {})
    return {
        "schema": 1,
        "kind": "run",
        "site": "gb10",
        "commit": "0" * 40,
        "host": "node",
        "started_at": "2026-09-17T10:00:00Z",
        "ended_at": "2026-09-17T11:00:00Z",
        "suite": {"name": "retest-2048", "sha256": sha("suite")},
        "rounds": 3,
        "order": ["baseline", "experiment"],
        "partial": None,
        "diagnostic": None,
        "arms": arms,
        "requests": {"file": "requests.jsonl", "sha256": sha("requests")},
        "events": [{"at_s": 1.5, "arm": "baseline", "what": "ready"}],
        "memory": [{"at_s": 0.0, "available_bytes": 2**34}],
        "floors": {"stop_below_bytes": 2**30, "sustained_below_bytes": 2**31},
    } | changes
