"""A suite: cases in YAML, what makes an answer right, and the exact prompts of a round. Called by runner.py and the command line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from gb10.bench import archive
from gb10.engine import client, oracle
from gb10.errors import Fault, RefusedError, VariablesError
from gb10.variables import toolcalls
from gb10.variables.load import located, validated
from gb10.variables.model import Expect, Name, Part, Positive, Text
from gb10.variables.yamlfile import KeyPath, near_miss, read

EXAMPLE = "suites/retest-2048.yaml"


class Archive(Part):
    """A generated text of about so many tokens; the same key gives the same text within a round."""

    key: Name
    tokens: Positive


class Case(Part):
    """One case of a round: its prompts, budget and rule. `again`: the prompt of an earlier case, word for word."""

    name: Name
    prompt: Text | None = None
    prompts: Annotated[list[Text], Field(min_length=2)] | None = None
    archive: Archive | None = None
    question: Text | None = None
    again: Name | None = None
    max_tokens: Positive
    effort: Literal["low", "medium", "high"] | None = None
    repeat: Positive = 1
    traced: bool = False
    hit: bool = False
    expect: Expect | None = None


class Suite(Part):
    """Cases in their order, sent in every round. `fresh`: what has a new beginning, so that no cache knows it."""

    description: Text
    rounds: Positive
    fresh: Literal["round", "never"]
    profiler: bool = False
    needs: list[Name] = Field(default_factory=list)
    cases: Annotated[list[Case], Field(min_length=1)]


@dataclass(frozen=True)
class Request:
    """One request of a round, complete: what is sent and by which rule its answer is judged."""

    round: int
    case: Case
    index: int
    slot: int
    body: dict[str, Any]
    expect: Expect

    @property
    def input_sha256(self) -> str:
        """Of what the engine reads: messages, tools and sampling (not the model's name, which is the site's)."""
        read = {key: value for key, value in self.body.items() if key != "model"}
        return hashlib.sha256(client.canonical(read)).hexdigest()


def load(path: Path) -> tuple[Suite, str]:
    """A suite and the SHA-256 of its file. Raises `VariablesError`, one fault a cause, with path and line."""
    if not path.is_file():
        known = sorted(other.stem for other in path.parent.glob("*.yaml"))
        guess = near_miss(path.stem, known)
        mend = f"did you mean {guess}?" if guess else f"known: {', '.join(known) or 'none'}"
        raise RefusedError(f"suite {path.stem}", f"{path} is not there", mend)
    document = read(path, path.name, yaml.MappingNode)
    if document.faults:
        raise VariablesError.of(document.faults)
    suite: Suite = validated(document, path.name, Suite, EXAMPLE)
    faults = [Fault(located(where, document, path.name), what, mend) for where, what, mend in _findings(suite)]
    if faults:
        raise VariablesError.of(faults)
    return suite, hashlib.sha256(path.read_bytes()).hexdigest()


def _findings(suite: Suite) -> Iterator[tuple[KeyPath, str, str]]:
    """What only the values together show."""
    for index, case in enumerate(suite.cases):
        where: KeyPath = ("cases", index)
        earlier = [other.name for other in suite.cases[:index]]
        ways = [key for key in ("prompt", "prompts", "archive", "again") if getattr(case, key) is not None]
        if case.name in earlier:
            yield (*where, "name"), f"{case.name} is used twice", "name each case differently"
        if len(ways) != 1:
            yield where, f"{case.name} has {len(ways)} prompts", "give exactly one of prompt, prompts, archive, again"
        if case.again is not None and case.again not in earlier:
            yield (*where, "again"), f"no earlier case is named {case.again}", "name a case above this one"
        if case.question is not None and case.archive is None:
            yield (*where, "question"), "belongs to an archive", "add archive, or write it into prompt"
        if case.expect is not None and len(case.expect.given) != 1:
            mend = f"give exactly one of {', '.join(Expect.model_fields)}"
            yield (*where, "expect"), f"has {len(case.expect.given)} conditions", mend
        if case.expect is not None:
            yield from toolcalls.faults(case.expect, (*where, "expect"))
        generated = case.archive is not None and case.question is None
        if case.expect is None and not generated and case.again is None:
            yield (*where, "expect"), f"{case.name} has no rule", "say what makes its answer right"


def requests(
    suite: Suite, model: str, round_number: int, tokens_of: archive.Counter, *, traced: bool = False
) -> Iterator[list[Request]]:
    """The groups of one round in their order; the requests of a group are sent at the same time.

    `traced`: also the cases that are recorded by a profiler, which belong to one round alone.

    Round 0 is the warm-up: the same shapes, with archives that no later round has. `tokens_of` counts a text's tokens as
    the engine does: the same suite, round and tokenizer give the same bytes.
    """
    texts: dict[str, archive.Text] = {}
    prompts: dict[str, tuple[str, Expect]] = {}
    for case in suite.cases:
        if case.archive is not None:
            key = case.archive.key
            if key not in texts:
                beginning = "warm" if round_number == 0 else round_number if suite.fresh == "round" else 1
                texts[key] = archive.generate(f"{key}-{beginning}", case.archive.tokens, tokens_of)
            prompts[case.name] = _asked(case, texts[key])
        elif case.again is not None:
            prompts[case.name] = prompts[case.again]
        for index in range(case.repeat if traced or not case.traced else 0):
            yield [
                Request(round_number, case, index, slot, _body(case, model, prompt, expect), expect)
                for slot, (prompt, expect) in enumerate(_each(case, prompts))
            ]


def _asked(case: Case, text: archive.Text) -> tuple[str, Expect]:
    """The archive with its question, and the rule: the case's own, or the value that the archive holds."""
    if case.question is not None:
        assert case.expect is not None
        return f"{text.body}\n\n{case.question}", case.expect
    return f"{text.body}\n\n{text.question}", case.expect or Expect(number=text.answer)


def _each(case: Case, prompts: dict[str, tuple[str, Expect]]) -> list[tuple[str, Expect]]:
    if case.name in prompts:
        prompt, expect = prompts[case.name]
        return [(prompt, case.expect or expect)]
    assert case.expect is not None
    return [(prompt, case.expect) for prompt in case.prompts or [str(case.prompt)]]


def _body(case: Case, model: str, prompt: str, expect: Expect) -> dict[str, Any]:
    return client.body_of(model, prompt, max_tokens=case.max_tokens, tool=oracle.tool_of(expect), effort=case.effort)
