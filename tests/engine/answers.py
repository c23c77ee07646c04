"""What the test engine answers, and how it counts tokens. Used by worker.py (answers) and api.py (counts).

No model: a sum, a capital and a tool call are looked up or computed, everything else is echoed.
"""

from __future__ import annotations

import json
import operator
import re
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

PIECE = re.compile(r"\s?\w{1,4}|\s?[^\w\s]|\s")
SUM = re.compile(r"(\d+)\s*([-+*/])\s*(\d+)")
LOOKED_UP = re.compile(r"how many (\w+) from (\w+) in the (.+) are there\?")
"""What is asked of an inventory that stands before the question (gb10/bench/archive.py)."""
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
TEMPLATE_TOKENS = 4
"""Tokens that the chat template adds to each message."""


@dataclass(frozen=True)
class Answer:
    """One answer as tokens. `tool`: the name and the JSON arguments of the call that they spell."""

    tokens: list[str]
    finish_reason: str
    tool: tuple[str, str] | None = None


def tokens_of(text: str) -> list[str]:
    """A text in pieces of at most five characters, which joined give the text again."""
    return PIECE.findall(text)


def prompt_of(body: dict[str, Any]) -> str:
    """The text of all messages, or the prompt of a /tokenize request."""
    if "messages" not in body:
        return str(body["prompt"])
    if not body["messages"]:
        raise ValueError("messages is empty")
    return "\n".join(_text(message) for message in body["messages"])


def prompt_tokens_of(body: dict[str, Any]) -> list[str]:
    """The prompt's tokens, the same for /tokenize and for a completion."""
    template = ["<|template|>"] * (TEMPLATE_TOKENS * len(body.get("messages", [])))
    return [*template, *tokens_of(prompt_of(body))]


def answer(body: dict[str, Any], *, wrong: str = "", truncate: bool = False) -> Answer:
    """The answer to a chat request. `wrong`: 1 for every prompt, or a text that the prompts to answer wrongly hold."""
    question = _text(body["messages"][-1])
    is_wrong = wrong == "1" or (wrong not in {"", "0"} and wrong.casefold() in question.casefold())
    tool = _tool_call(body, question, is_wrong)
    tokens = tokens_of(tool[1] if tool else _text_answer(question, is_wrong))
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit and body.get("ignore_eos"):
        return Answer(list(islice(cycle(tokens), limit)), "length")
    if truncate:
        limit = max(1, len(tokens) // 2)
    if limit and (truncate or len(tokens) > limit):
        return Answer(tokens[:limit], "length")
    return Answer(tokens, "tool_calls" if tool else "stop", tool)


def requires_tool(body: dict[str, Any]) -> bool:
    """Whether the answer has to be a tool call. With `auto` the test engine never calls one."""
    return bool(body.get("tools")) and body.get("tool_choice") not in (None, "auto", "none")


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def _text_answer(question: str, is_wrong: bool) -> str:
    found = SUM.search(question)
    if found:
        left, sign, right = found.groups()
        return f"{left} {sign} {right} = {OPERATORS[sign](int(left), int(right)) + is_wrong}"
    asked = LOOKED_UP.search(question)
    if asked:
        thing, place, where = asked.groups()
        line = re.search(rf"The {re.escape(where)} holds (\d+) {re.escape(thing)} from {re.escape(place)}\.", question)
        return f"{int(line[1]) + is_wrong}" if line else "There are none."
    function = re.search(r"Python function `?(\w+)", question)
    if function and not is_wrong:
        return f"def {function[1]}(values): ..."
    if "capital of france" in question.casefold():
        return "Rome" if is_wrong else "Paris"
    return "It is a kind of cheese." if is_wrong else f"You said: {question[-60:]}"


def _tool_call(body: dict[str, Any], question: str, is_wrong: bool) -> tuple[str, str] | None:
    """The call of the first tool when one is required: numbers and names are taken from the question in their order."""
    if not requires_tool(body):
        return None
    function = body["tools"][0]["function"]
    question = question.rpartition("\n\n")[2]  # what stands behind an inventory
    names = iter(re.findall(r"(?<=\w )[A-Z]\w+", question))
    numbers = iter(re.findall(r"\d+", question))
    arguments: dict[str, Any] = {}
    for name, schema in function.get("parameters", {}).get("properties", {}).items():
        if schema.get("type") in {"number", "integer"}:
            arguments[name] = int(next(numbers, "0")) + is_wrong
        elif schema.get("type") == "boolean":
            arguments[name] = not is_wrong
        else:
            arguments[name] = "Rome" if is_wrong else next(names, "")
    return function["name"], json.dumps(arguments)
