"""The verdict, on records made so that the right decision is known: rejected, kept, none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gb10.bench.records import Failure, Record
from tests.compared import compared, rule, short
from tests.made import first, sha

WRONG = first(right=False, answer="41")
REJECTED: list[tuple[dict[str, Any], str]] = [
    ({"b": WRONG}, "Not: no more wrong answers in B than in A (wrong in B 1 of 24, in A 0 of 24)."),
    (
        {"b": first(truncated=None, finish_reason="length")},
        "Not: no truncated answer in B (truncated in B 1 of 24, in A 0 of 24).",
    ),
    (
        {"b": first(failure=Failure("stalled", "no byte for 30 s"), right=None, answer=None)},
        "Not: no failed request in B (failed in B 1 of 24 (stalled), in A 0 of 24).",
    ),
    (
        {"experiment": {"guard_tripped": "available 0.9 GiB"}},
        "Not: no guard trip and no OOM kill in either arm (A: no trip, oom_kill 25 before and 25 after; "
        "B: the guard ended it (available 0.9 GiB)).",
    ),
    (
        {"baseline": {"oom_kill": {"before": 25, "after": 26}}},
        "Not: no guard trip and no OOM kill in either arm (A: oom_kill went from 25 to 26; "
        "B: no trip, oom_kill 25 before and 25 after).",
    ),
]


@pytest.mark.parametrize(("changes", "why"), REJECTED)
def test_what_is_wrong_is_rejected_in_words(changes: dict[str, Any], why: str) -> None:
    found = compared(**changes)
    assert found["verdict"] == found["verdict"] | {"decision": "reject", "why": why}


def test_every_broken_rule_is_named() -> None:
    found = compared(b=first(right=False, truncated=True))
    assert found["verdict"]["why"].count("ot: ") == 2


def test_the_baseline_need_not_be_perfect() -> None:
    found = compared(a=WRONG, b=WRONG)
    assert found["verdict"]["decision"] == "adopt"
    assert rule(found, 1) == (True, "wrong in B 1 of 24, in A 1 of 24")
    assert compared(a=first(truncated=True))["verdict"]["decision"] == "adopt"


def test_a_failed_request_has_no_time_in_the_numbers() -> None:
    found = compared(
        a=first(failure=Failure("closed", "in the middle"), right=None, duration_s=0.001, decode_tokens_per_s=1.0)
    )
    assert short(found)["a"]["n"] == short(found)["pairs"] == 11
    assert short(found)["a"]["min"] > 29
    assert "1 timed request of A failed (closed 1): no time of theirs is in the numbers." in found["sentences"]
    assert found["totals"]["failures"] == {"a": 1, "b": 0}


KEPT: list[tuple[dict[str, Any], int, bool | None, str, str]] = [
    (
        {"experiment": {"graph_effective": False}},
        5,
        False,
        "they are asked for and did not take effect",
        "The graphs of B are asked for and did not take effect: its numbers are eager ones.",
    ),
    (
        {"experiment": {"graph_effective": {"unknown": "no log"}}},
        5,
        None,
        "unknown: no log",
        "Whether graphs of B took effect is unknown: no log.",
    ),
    (
        {"experiment": {"graph_effective": None}},
        5,
        None,
        "unknown: not recorded",
        "Whether graphs of B took effect is unknown: not recorded.",
    ),
    (
        {"b": first(input_sha256=sha("other"))},
        7,
        False,
        "short: 1 of 14 inputs differ, the first in round 1",
        "The inputs differ: short: 1 of 14 inputs differ, the first in round 1.",
    ),
    (
        {"b": first(input_sha256=None)},
        7,
        None,
        "not every input has a known SHA-256",
        "Whether the inputs are equal is unknown: not every record has a hash of its input.",
    ),
    (
        {"b": first(marks=["clock collapse"])},
        6,
        None,
        "but the clocks collapsed in 1 timed request of B: measure again",
        '1 timed request of B carries the mark "clock collapse".',
    ),
    (
        {"experiment": {"oom_kill": {"before": 25, "after": {"unknown": "no /proc"}}}},
        4,
        None,
        "A: no trip, oom_kill 25 before and 25 after; B: the oom_kill counter is unknown",
        "Each arm ran on one start of its engine: what changes from one start to the next is in no interval.",
    ),
]


@pytest.mark.parametrize(("changes", "number", "holds", "numbers", "sentence"), KEPT)
def test_what_is_not_proved_keeps_the_baseline(
    changes: dict[str, Any], number: int, holds: bool | None, numbers: str, sentence: str
) -> None:
    found = compared(**changes)
    assert found["verdict"]["decision"] == "keep baseline"
    assert rule(found, number)[0] is holds
    assert rule(found, number)[1].endswith(numbers)
    assert sentence in found["sentences"]
    assert all(one["holds"] is True for n, one in enumerate(found["verdict"]["rules"], 1) if n != number)


def test_inputs_that_differ_are_not_ranked() -> None:
    found = compared(b=first(input_sha256=sha("other")))
    assert short(found)["ranking"] == "no ranking: the inputs differ"
    assert found["inputs_equal"] is False


def test_an_experiment_without_a_graph_overlay_needs_no_graph() -> None:
    found = compared(experiment={"overlays": ["other"], "graph_effective": None})
    assert rule(found, 5) == (True, "it asks for none")
    assert found["verdict"]["decision"] == "adopt"


NO_VERDICT: list[tuple[dict[str, Any], str]] = [
    ({"partial": "interrupted"}, "A is partial (interrupted); B is partial (interrupted)."),
    (
        {"diagnostic": "forced eager"},
        "A is a diagnostic run (forced eager); B is a diagnostic run (forced eager).",
    ),
    (
        {"b": lambda one: replace(one, marks=["profiler attached"])},
        "B is a diagnostic run (profiler attached).",
    ),
    ({"b": first(right=None)}, "1 answer of B was not judged: without answers there is no verdict."),
    (
        {
            "a": lambda one: replace(one, right=None, expect=None),
            "b": lambda one: replace(one, right=None, expect=None),
        },
        "No answer was judged: without answers there is no verdict.",
    ),
    (
        {"b": WRONG, "partial": "interrupted"},
        "A is partial (interrupted); B is partial (interrupted). What is known is against it: "
        "not: no more wrong answers in B than in A (wrong in B 1 of 24, in A 0 of 24).",
    ),
]


@pytest.mark.parametrize(("changes", "why"), NO_VERDICT)
def test_what_is_not_whole_gives_no_verdict(changes: dict[str, Any], why: str) -> None:
    found = compared(**changes)
    assert found["verdict"] == found["verdict"] | {"decision": "none", "why": why}


def test_a_case_without_a_rule_does_not_keep_a_verdict_back() -> None:
    def free(one: Record) -> Record:
        return replace(one, right=None, expect=None) if one.case == "retrieval" else one

    found = compared(a=free, b=free)
    assert found["verdict"]["decision"] == "adopt"
    assert rule(found, 1) == (True, "wrong in B 0 of 12, in A 0 of 12")
