"""Smoke: a few requests whose answers are judged, and the canary. Run after every deploy, try and restore."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gb10.engine import oracle
from gb10.engine.client import RequestFailedError, complete
from gb10.engine.stream import Completion
from gb10.variables import Variables
from gb10.variables.model import SmokeCase

CANARY_PROMPT = "Say hello."


@dataclass(frozen=True)
class Judged:
    """One case, its answer and the verdict. `why` says what was wrong with a failed one."""

    name: str
    passed: bool
    why: str
    prompt: str
    prompt_sha256: str
    expect: dict[str, Any]
    answer: str
    finish_reason: str
    usage: dict[str, int] | None
    duration_s: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def canary(url: str, v: Variables) -> Completion:
    """One short completion. Raises `RequestFailedError` when none comes back in time: `/health` alone proves nothing."""
    return complete(url, v.model.served_name, CANARY_PROMPT, max_tokens=8, timeout_s=v.limits.canary_s)


def run(url: str, v: Variables, each: Callable[[Judged], None] = lambda judged: None) -> list[Judged]:
    """Every smoke case in order; a wrong or missing answer is recorded and the run goes on."""
    results = []
    for case in v.smoke:
        judged = judge(case, _ask(url, v, case))
        each(judged)
        results.append(judged)
    return results


def _ask(url: str, v: Variables, case: SmokeCase) -> Completion | str:
    tool = oracle.tool_of(case.expect)
    try:
        return complete(
            url, v.model.served_name, case.prompt, max_tokens=case.max_tokens, timeout_s=v.limits.request_s, tool=tool
        )
    except RequestFailedError as error:
        return str(error)


def judge(case: SmokeCase, answer: Completion | str) -> Judged:
    """The verdict on one answer; a text in its place is the reason why there is none."""
    digest = hashlib.sha256(case.prompt.encode()).hexdigest()
    rule = case.expect.as_json()
    if isinstance(answer, str):
        return Judged(case.name, False, answer, case.prompt, digest, rule, "", "none", None, 0.0)
    why = oracle.fault(case.expect, answer)
    shown = answer.text or json.dumps([call.get("function") for call in answer.tool_calls], ensure_ascii=False)
    return Judged(
        case.name,
        not why,
        why,
        case.prompt,
        digest,
        rule,
        shown,
        answer.finish_reason or "none",
        answer.usage,
        round(answer.duration_s, 3),
    )
