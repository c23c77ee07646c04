"""Smoke: a few requests whose answers are judged, and the canary. Run after every deploy, try and restore."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gb10.engine.client import Answer, RequestFailedError, complete
from gb10.variables import Variables
from gb10.variables.model import Expect, SmokeCase

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


def canary(url: str, v: Variables) -> Answer:
    """One short completion. Raises `RequestFailedError` when none comes back in time: `/health` alone proves nothing."""
    answer = complete(url, v.model.served_name, CANARY_PROMPT, max_tokens=8, timeout_s=v.limits.canary_s)
    if answer.usage is not None and not answer.usage.get("completion_tokens"):
        raise RequestFailedError("the completion holds no token")
    return answer


def run(url: str, v: Variables, each: Callable[[Judged], None] = lambda judged: None) -> list[Judged]:
    """Every smoke case in order; a wrong or missing answer is recorded and the run goes on."""
    results = []
    for case in v.smoke:
        judged = judge(case, _ask(url, v, case))
        each(judged)
        results.append(judged)
    return results


def _ask(url: str, v: Variables, case: SmokeCase) -> Answer | str:
    tool = _schema(case.expect) if case.expect.tool_call else None
    try:
        return complete(
            url, v.model.served_name, case.prompt, max_tokens=case.max_tokens, timeout_s=v.limits.request_s, tool=tool
        )
    except RequestFailedError as error:
        return str(error)


def judge(case: SmokeCase, answer: Answer | str) -> Judged:
    """The verdict on one answer; a text in its place is the reason why there is none."""
    digest = hashlib.sha256(case.prompt.encode()).hexdigest()
    rule = case.expect.model_dump(exclude_none=True)
    if isinstance(answer, str):
        return Judged(case.name, False, answer, case.prompt, digest, rule, "", "none", None, 0.0)
    why = _fault(case.expect, answer)
    shown = answer.text or json.dumps([call.get("function") for call in answer.tool_calls], ensure_ascii=False)
    return Judged(
        case.name,
        not why,
        why,
        case.prompt,
        digest,
        rule,
        shown,
        answer.finish_reason,
        answer.usage,
        round(answer.duration_s, 3),
    )


def _fault(expect: Expect, answer: Answer) -> str:
    """What is wrong with an answer; empty when it is right."""
    if answer.finish_reason == "length":
        return "cut off by max_tokens"
    if expect.tool_call is not None:
        return _tool_fault(expect, answer)
    if answer.finish_reason != "stop":
        return f"finish_reason is {answer.finish_reason}, not stop"
    text = _without_reasoning(answer.text)
    if not text.strip():
        return "empty answer"
    if expect.contains is not None and not any(word.casefold() in text.casefold() for word in expect.contains):
        return f"contains none of {', '.join(expect.contains)}"
    if expect.number is not None:
        numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
        if not numbers or float(numbers[-1]) != float(expect.number):
            return f"the last number is {numbers[-1] if numbers else 'missing'}, not {expect.number:g}"
    if expect.script is not None:
        share = script_share(text, expect.script)
        if share < 0.5:
            return f"{share:.0%} of the letters are {expect.script}"
    return ""


def _tool_fault(expect: Expect, answer: Answer) -> str:
    wanted = expect.tool_call
    assert wanted is not None
    if not answer.tool_calls:
        return "no tool call"
    function = answer.tool_calls[0].get("function") or {}
    if function.get("name") != wanted.name:
        return f"called {function.get('name')}, not {wanted.name}"
    try:
        arguments = json.loads(function.get("arguments") or "")
    except ValueError:
        return "the arguments are not JSON"
    for name, value in wanted.arguments.items():
        found = arguments.get(name) if isinstance(arguments, dict) else None
        if str(found).casefold() != str(value).casefold():
            return f"argument {name} is {found!r}, not {value!r}"
    return ""


def script_share(text: str, script: str) -> float:
    """The share of a text's letters that belong to a script: `han` or `latin`. 0 when there is no letter."""
    prefix = {"han": "CJK UNIFIED", "latin": "LATIN"}[script]
    letters = [character for character in text if character.isalpha()]
    return (
        sum(unicodedata.name(character, "").startswith(prefix) for character in letters) / len(letters)
        if letters
        else 0.0
    )


def _without_reasoning(text: str) -> str:
    """The answer after a reasoning block that the engine left in the text."""
    return text.rpartition("</think>")[2]


def _schema(expect: Expect) -> dict[str, Any]:
    assert expect.tool_call is not None
    kinds = {bool: "boolean", int: "integer", float: "number"}
    properties = {
        name: {"type": kinds.get(type(value), "string")} for name, value in expect.tool_call.arguments.items()
    }
    return {
        "name": expect.tool_call.name,
        "description": expect.tool_call.name.replace("_", " "),
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    }
