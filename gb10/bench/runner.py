"""Runs a suite against one arm: warm-up, then rounds; every request judged, timed and written at once. Called by measure.py."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from gb10.bench import suite as suites
from gb10.bench.counters import Counters
from gb10.bench.records import PROFILER
from gb10.bench.suite import Request, Suite
from gb10.engine import client, oracle, stream
from gb10.engine.stream import Completion
from gb10.errors import FailedError

SCHEMA = 1


@dataclass(frozen=True)
class Limits:
    """Seconds for a whole answer, and without a byte."""

    answer_s: float
    stall_s: float


@dataclass(frozen=True)
class Target:
    """The arm that is asked: its name in the records, where it answers, and the model's name there."""

    arm: str
    url: str
    model: str
    limits: Limits
    marks: tuple[str, ...] = ()
    marked: Callable[[int, int], list[str]] = lambda sent_ns, ended_ns: []
    opening: Callable[[str], None] = lambda window: None
    """Told the name of each capture window before it is opened."""

    @property
    def profiled(self) -> bool:
        """Is a profiler attached, so that traced cases can be recorded?"""
        return PROFILER in self.marks


def run(
    suite: Suite,
    rounds: int,
    target: Target,
    write: Callable[[dict[str, Any]], None],
    progress: Callable[[str], None],
    earlier: int = 0,
) -> Iterator[dict[str, Any]]:
    """Round 0 (warm-up), then `rounds` rounds. Each record is written before it is yielded, so that a break loses none.

    `earlier`: starts of this arm that were measured before; their rounds are counted on, and the warm-up is not kept again.
    """
    with stream.connect() as http:
        began, sent = time.monotonic(), 0
        for number in [0, *range(earlier * rounds + 1, (earlier + 1) * rounds + 1)]:
            traced = target.profiled and number == (earlier + 1) * rounds
            count = partial(_tokens, http, target)
            groups = list(suites.requests(suite, target.model, number, count, traced=traced))
            counted = [[_count(http, target, request) for request in group] for group in groups]
            total = (rounds + 1) * len(groups)
            for position, (group, counts) in enumerate(zip(groups, counted, strict=True), 1):
                left = (time.monotonic() - began) / sent * (total - sent) if sent else None
                eta = f", about {left:.0f} s left" if left is not None else ""
                what = f"round {number} of {(earlier + 1) * rounds}" if number else "warm-up"
                progress(f"{what}, {group[0].case.name} ({position} of {len(groups)}){eta}")
                for record in _group(http, target, group, counts):
                    if number or not earlier:
                        write(record)
                        yield record
                sent += 1


def _tokens(http: httpx.Client, target: Target, text: str) -> int:
    return client.count_tokens(http, target.url, client.body_of(target.model, text, max_tokens=1))


def _count(http: httpx.Client, target: Target, request: Request) -> int | None:
    try:
        return client.count_tokens(http, target.url, request.body)
    except client.RequestFailedError:
        return None


def _group(
    http: httpx.Client, target: Target, group: list[Request], counts: list[int | None]
) -> Iterator[dict[str, Any]]:
    """Send the requests of a group at the same time, with the engine's counters around them."""
    limits = {"limit_s": target.limits.answer_s, "stall_s": target.limits.stall_s}
    before = Counters.read(target.url)
    with _window(target, group[0]), ThreadPoolExecutor(len(group)) as pool:
        answers = list(pool.map(lambda request: stream.chat(http, target.url, request.body, **limits), group))
    growth = Counters.read(target.url).growth_since(before)
    together = _group_speed(answers)
    for request, count, answer in zip(group, counts, answers, strict=True):
        yield _record(target, request, count, answer, growth, together, len(group))


@contextlib.contextmanager
def _window(target: Target, request: Request) -> Iterator[None]:
    """A capture window of the profiler around a traced case; stopped once, also when the case fails."""
    case = request.case
    if not case.traced:
        yield
        return
    name = case.name if case.repeat == 1 else f"{case.name}-{request.index + 1}"
    target.opening(name)
    _profiler(target, "start", name)
    try:
        yield
    finally:
        _profiler(target, "stop", name)


def _profiler(target: Target, word: str, window: str) -> None:
    try:
        client.profiler(target.url, word)
    except client.RequestFailedError as error:
        mend = "read the engine's log in the raw directory"
        raise FailedError(
            f"capture window {window}", f"could not be {'opened' if word == 'start' else 'closed'} ({error})", mend
        ) from None


def _group_speed(answers: list[Completion]) -> float | None:
    """All completion tokens over the wall time of the group; None when one of them is unknown."""
    tokens = [(answer.usage or {}).get("completion_tokens") for answer in answers]
    if any(count is None for count in tokens) or any(answer.failure for answer in answers):
        return None
    wall_ns = max(answer.ended_ns for answer in answers) - min(answer.sent_ns for answer in answers)
    return sum(tokens) / (wall_ns / 1e9)  # type: ignore[arg-type]


def _record(
    target: Target,
    request: Request,
    counted: int | None,
    answer: Completion,
    growth: dict[str, int | None],
    together: float | None,
    concurrency: int,
) -> dict[str, Any]:
    usage = answer.usage or {}
    failure = answer.failure
    prompt_tokens = usage.get("prompt_tokens")
    if failure is None and counted is not None and prompt_tokens != counted:
        what = f"usage says {prompt_tokens} prompt tokens, /tokenize counted {counted}"
        failure = stream.Failure("prompt-tokens-differ", what)
    why = str(failure) if failure else oracle.fault(request.expect, answer)
    marks = list(target.marks) + (["preemption"] if growth["preemptions"] else [])
    marks += target.marked(answer.sent_ns, answer.ended_ns)
    phase = "warm-up" if request.round == 0 else "traced" if request.case.traced else "timed"
    return {
        "schema": SCHEMA,
        "arm": target.arm,
        "round": request.round,
        "case": request.case.name,
        "slot": request.slot,
        "request": request.index,
        "phase": phase,
        "concurrency": concurrency,
        "group": f"{target.arm}/{request.round}/{request.case.name}/{request.index}",
        "input_sha256": request.input_sha256,
        "prompt_tokens_counted": counted,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": usage.get("completion_tokens"),
        "reasoning_tokens": (usage.get("completion_tokens_details") or {}).get("reasoning_tokens"),
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        "sent_ns": answer.sent_ns,
        "first_token_ns": answer.first_token_ns,
        "first_tokens": answer.first_tokens,
        "first_content_ns": answer.first_content_ns,
        "last_token_ns": answer.last_token_ns,
        "ended_ns": answer.ended_ns,
        **_times(answer, failure, growth),
        "group_tokens_per_s": _rounded(together),
        "chunks": len(answer.token_ns),
        "finish_reason": answer.finish_reason,
        "truncated": answer.finish_reason == "length",
        "answer": answer.text,
        "reasoning": answer.reasoning or None,
        "tool_calls": [call["function"] for call in answer.tool_calls] or None,
        "expect": request.expect.as_json(),
        "right": not why,
        "why": why,
        "failure": {"kind": failure.kind, "what": failure.what} if failure else None,
        **growth,
        "marks": marks,
    }


def _times(answer: Completion, failure: stream.Failure | None, growth: dict[str, int | None]) -> dict[str, Any]:
    """The metrics of docs/metrics.md. A failed request has none; an inter-token time needs one token a chunk."""
    names = ("ttft_s", "ttft_content_s", "decode_tokens_per_s", "inter_token_p50_s", "inter_token_p95_s", "duration_s")
    if failure is not None:
        return {**dict.fromkeys(names), "decode_approximate": None, "unknown": dict.fromkeys(names, str(failure))}
    tokens, chunks = (answer.usage or {}).get("completion_tokens") or 0, len(answer.token_ns)
    unknown: dict[str, str] = {}
    first, last = answer.first_token_ns, answer.last_token_ns
    decode, at_first = None, answer.first_tokens or 1
    if first is not None and last is not None and last > first and tokens > at_first:
        decode = (tokens - at_first) / ((last - first) / 1e9)
    else:
        unknown["decode_tokens_per_s"] = (
            "fewer than two tokens" if tokens < 2 else "no token came after the first chunk"
        )
    single = tokens - chunks in (0, 1)  # the end-of-sequence token has no chunk of its own
    gaps = [(b - a) / 1e9 for a, b in zip(answer.token_ns, answer.token_ns[1:], strict=False)] if single else []
    if not gaps:
        why = "fewer than two tokens" if single else f"{tokens} tokens came in {chunks} chunks"
        unknown |= {"inter_token_p50_s": why, "inter_token_p95_s": why}
    return {
        "ttft_s": _rounded(_since(answer, first)),
        "ttft_content_s": _rounded(_since(answer, answer.first_content_ns)),
        "decode_tokens_per_s": _rounded(decode),
        "decode_approximate": not single or bool(growth["drafted_tokens"]),
        "inter_token_p50_s": _rounded(percentile(gaps, 0.50)),
        "inter_token_p95_s": _rounded(percentile(gaps, 0.95)),
        "duration_s": _rounded(answer.duration_s),
        "unknown": unknown,
    }


def percentile(values: list[float], share: float) -> float | None:
    """The nearest-rank percentile; None for no values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def _since(answer: Completion, at_ns: int | None) -> float | None:
    return None if at_ns is None else (at_ns - answer.sent_ns) / 1e9


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
