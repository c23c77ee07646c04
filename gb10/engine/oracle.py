"""Is an answer right? One rule a case, judged on the whole completion. Used by smoke.py and bench/."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

from gb10.engine.stream import Completion
from gb10.variables import toolcalls
from gb10.variables.model import Expect

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def fault(expect: Expect, answer: Completion) -> str:
    """What is wrong with a completion, in words; empty when it is right. "Completed" alone is never right."""
    if answer.failure is not None:
        return str(answer.failure)
    if answer.finish_reason == "length":
        return "cut off by max_tokens"
    if expect.tool_call is not None:
        return _tool_fault(expect, answer)
    if answer.finish_reason != "stop":
        return f"finish_reason is {answer.finish_reason}, not stop"
    text = answer.text.rpartition("</think>")[2].strip()  # a reasoning block that the engine left in the text
    return _text_fault(expect, text) if text else "empty answer"


def _text_fault(expect: Expect, text: str) -> str:
    if expect.exact is not None and text != expect.exact.strip():
        return f"is not exactly {expect.exact!r}"
    if expect.one_of is not None and text.casefold() not in {word.casefold() for word in expect.one_of}:
        return f"is none of {', '.join(expect.one_of)}"
    if expect.contains is not None and not any(word.casefold() in text.casefold() for word in expect.contains):
        return f"contains none of {', '.join(expect.contains)}"
    if expect.regex is not None and not re.search(expect.regex, text):
        return f"nothing in it matches {expect.regex}"
    if expect.number is not None:
        numbers = NUMBER.findall(text.replace(",", ""))
        if not numbers or float(numbers[-1]) != float(expect.number):
            return f"the last number is {numbers[-1] if numbers else 'missing'}, not {expect.number:g}"
    if expect.script is not None and (share := script_share(text, expect.script)) < 0.5:
        return f"{share:.0%} of the letters are {expect.script}"
    return ""


def _tool_fault(expect: Expect, answer: Completion) -> str:
    wanted = expect.tool_call
    assert wanted is not None
    if not answer.tool_calls:
        return "no tool call"
    function = answer.tool_calls[0].get("function") or {}
    if function.get("name") != wanted.name:
        return f"called {function.get('name')}, not {wanted.name}"
    try:
        arguments = json.loads(function.get("arguments") or "")
    except (ValueError, RecursionError):
        return "the arguments are not JSON"
    if not isinstance(arguments, dict):
        return "the arguments are no JSON object"
    if wanted.parameters is not None:
        why = toolcalls.misfit(wanted.parameters, arguments)
        return f"the arguments do not fit the schema ({why})" if why else ""
    expected = wanted.arguments or {}
    for name, value in expected.items():
        found = arguments.get(name)
        if str(found).casefold() != str(value).casefold():
            return f"argument {name} is {found!r}, not {value!r}"
    further = sorted(set(arguments) - set(expected))
    return f"argument {further[0]} is not in the tool's schema" if further else ""


def script_share(text: str, script: str) -> float:
    """The share of a text's letters that belong to a script: `han` or `latin`. 0 when there is no letter."""
    prefix = {"han": "CJK UNIFIED", "latin": "LATIN"}[script]
    letters = [character for character in text if character.isalpha()]
    belong = sum(unicodedata.name(character, "").startswith(prefix) for character in letters)
    return belong / len(letters) if letters else 0.0


def tool_of(expect: Expect) -> dict[str, Any] | None:
    """The function schema for a case that wants a tool call.

    Its parameters are the rule's schema, or else the expected arguments by name and type.
    """
    call = expect.tool_call
    if call is None:
        return None
    parameters = call.parameters if call.parameters is not None else _parameters(call.arguments or {})
    return {"name": call.name, "description": call.name.replace("_", " "), "strict": True, "parameters": parameters}


def _parameters(arguments: dict[str, Any]) -> dict[str, Any]:
    kinds = {bool: "boolean", int: "integer", float: "number"}
    properties = {name: {"type": kinds.get(type(value), "string")} for name, value in arguments.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
