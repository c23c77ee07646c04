"""The suites of the repository's own site, whole: on the test engine, since no model here takes a prompt of 128K tokens."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import Sandbox

pytestmark = pytest.mark.docker


@pytest.fixture
def large(sandbox: Sandbox) -> Sandbox:
    """The test engine with the context, the suites and the profiler's windows of the GB10 site."""
    shutil.rmtree(sandbox.site / "suites")
    shutil.copytree(ROOT / "suites", sandbox.site / "suites")
    for old, new in (
        ("max_model_len: 4096", "max_model_len: 131072"),
        ("    tokens: 4096", "    tokens: 131072"),
        ("suite: retest\n", "suite: retest-2048\n"),
        ("profile: profile\n", "profile: profile128k\n"),
        ("request_s: 5", "request_s: 60"),
    ):
        sandbox.change(old, new)
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    return sandbox


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "requests.jsonl").read_text().splitlines()]


def test_the_long_context_suite_runs_after_the_shorter_ones_and_finds_a_number_in_128k_tokens(large: Sandbox) -> None:
    result = large.gb10("bench", "long-context", timeout_s=500)
    assert result.code == 0, result.out + result.err
    assert [line for line in result.err.splitlines() if line.startswith("first ") and ":" not in line] == [
        "first prefix",
        "first retest-2048",
    ]
    directory = max((large.site / "evidence").glob("*-bench-long-context")) / "long-context"
    timed = {line["case"]: line for line in lines(directory) if line["phase"] == "timed"}
    assert list(timed) == [f"retrieval-{size}-{turn}" for size in ("64k", "128k") for turn in ("first", "again")]
    assert all(line["right"] for line in timed.values())
    for size, tokens in (("64k", 64000), ("128k", 124000)):
        first, again = timed[f"retrieval-{size}-first"], timed[f"retrieval-{size}-again"]
        assert first["prompt_tokens"] == again["prompt_tokens"] == first["prompt_tokens_counted"]
        assert 0.97 * tokens < first["prompt_tokens"] < 1.03 * tokens, "an archive has the size that the suite asks for"
        assert first["hit_tokens"] < 100 < again["hit_tokens"], "a new beginning, then the same one"


def test_a_wrong_answer_in_a_shorter_suite_keeps_the_long_ones_from_being_sent(large: Sandbox) -> None:
    large.faults("TEST_ENGINE_WRONG_ANSWER: median")
    assert large.gb10("deploy-baseline").code == 0
    result = large.gb10("bench", "long-context", timeout_s=500)
    assert result.code == 2, result.out + result.err
    assert "suite long-context: retest-2048, which comes first, has " in result.err
    assert not list((large.site / "evidence").glob("*-bench-long-context/long-context"))


def test_the_profile_suite_of_128k_is_three_rounds_of_five_and_three_traced_requests(large: Sandbox) -> None:
    result = large.gb10("try", "profile", timeout_s=500)
    assert result.code == 0, result.out + result.err
    directory = max((large.site / "evidence").glob("*-try-profile"))
    phases = Counter(line["phase"] for line in lines(directory))
    assert (phases["timed"], phases["traced"]) == (15, 3)
    inputs = {
        line["input_sha256"] for line in lines(directory) if line["phase"] == "timed" and line["case"].startswith("8k")
    }
    assert len(inputs) == 3, "first and again are the same text, and each round has its own"
    traced = [line for line in lines(directory) if line["phase"] == "traced"]
    assert [line["case"] for line in traced] == ["traced-short", "traced-32k-first", "traced-32k-again"]
    assert all("profiler attached" in line["marks"] for line in traced)
    windows = json.loads((directory / "record.json").read_text())["profile"]["windows"]
    assert [window["name"] for window in windows] == [line["case"] for line in traced]
