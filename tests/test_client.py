"""The client and the runner against the test engine as a plain process: what goes wrong is found and named, and numbers are true."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gb10.bench import counters, measure, records, runner, suite
from gb10.engine import client, stream
from tests.conftest import ROOT

SUITE, _ = suite.load(ROOT / "tests/data/suite.yaml")
WITHIN = 0.02


@contextlib.contextmanager
def engine(**faults: str) -> Iterator[str]:
    """The test engine with faults, on a port of its own; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {f"TEST_ENGINE_{name.upper()}": value for name, value in faults.items()}
    command = [sys.executable, str(ROOT / "tests/engine/server.py"), "--served-model-name=small", f"--port={port}"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 10
    try:
        while not client.is_healthy(url):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield url
    finally:
        process.kill()
        process.wait()


def run(url: str, rounds: int = 1, *, only: str = "") -> list[dict[str, Any]]:
    cases = [case for case in SUITE.cases if only in ("", case.name)]
    target = runner.Target("baseline", url, "small", runner.Limits(10.0, 5.0))
    chosen = SUITE.model_copy(update={"cases": cases})
    return list(runner.run(chosen, rounds, target, lambda record: None, lambda text: None))


def of(lines: list[dict[str, Any]], case: str, number: int = 1) -> dict[str, Any]:
    return next(line for line in lines if (line["case"], line["round"]) == (case, number))


def ask(url: str, prompt: str = "one two three four five six", **limits: float) -> stream.Completion:
    with stream.connect() as http:
        body = client.body_of("small", prompt, max_tokens=64)
        return stream.chat(http, url, body, limit_s=limits.get("limit_s", 10), stall_s=limits.get("stall_s", 5))


def test_a_sound_engine_answers_every_case_right_with_known_numbers() -> None:
    with engine() as url:
        lines = run(url)
    assert [line for line in lines if not line["right"]] == []
    assert {line["phase"] for line in lines if line["round"] == 0} == {"warm-up"}
    timed = [line for line in lines if line["phase"] == "timed"]
    assert len(timed) == 7
    for line in timed:
        assert line["prompt_tokens"] == line["prompt_tokens_counted"]
        assert line["failure"] is None
        assert line["ttft_s"] is not None
    assert of(lines, "again")["hit_tokens"] > 0
    assert of(lines, "again")["input_sha256"] == of(lines, "first")["input_sha256"]
    assert len({line["group_tokens_per_s"] for line in timed if line["case"] == "two-at-once"}) == 1


def test_inputs_are_the_same_bytes_in_every_run_and_new_in_every_round() -> None:
    with engine() as url:
        one = run(url, 2)
    with engine() as url:
        two = run(url, 2)
    assert [line["input_sha256"] for line in one] == [line["input_sha256"] for line in two]
    assert of(one, "first", 1)["input_sha256"] != of(one, "first", 2)["input_sha256"]
    assert of(one, "sum", 1)["input_sha256"] == of(one, "sum", 2)["input_sha256"]


@pytest.mark.parametrize(
    ("faults", "case", "why"),
    [
        ({"wrong_answer": "1"}, "sum", "the last number is"),
        ({"truncate": "1"}, "words", "cut off by max_tokens"),
        ({"stream": "error_event"}, "words", "error-event: "),
        ({"stream": "cut"}, "words", "closed: the connection ended in the middle"),
        ({"stream": "non_utf8"}, "words", "not-utf-8: bytes that are no UTF-8 text"),
        ({"stream": "no_usage"}, "words", "no-usage: the engine gave no token counts"),
        ({"wrong_prompt_tokens": "1"}, "words", "prompt-tokens-differ: usage says"),
        ({"stream": "reasoning_only"}, "words", "empty answer"),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else None,
)
def test_a_fault_of_the_engine_is_named_and_never_a_zero(faults: dict[str, str], case: str, why: str) -> None:
    with engine(**faults) as url:
        line = of(run(url, only=case), case)
    assert line["right"] is False
    assert why in line["why"]
    if line["failure"]:
        assert why.startswith(line["failure"]["kind"])
        assert line["decode_tokens_per_s"] is None
        assert line["unknown"]["ttft_s"] == line["why"]


def test_a_stalled_stream_and_an_engine_that_never_answers_end_within_their_bounds() -> None:
    with engine(stream="stall") as url:
        began = time.monotonic()
        stalled = ask(url, stall_s=0.5)
    assert str(stalled.failure) == "stalled: nothing for 0.5 s"
    with engine(wedge_after="0") as url:
        silent = ask(url, stall_s=0.5)
    assert str(silent.failure) == "timeout: nothing for 0.5 s"
    with engine(token_ms="200") as url:
        slow = ask(url, limit_s=0.5)
    assert str(slow.failure) == "timeout: no whole answer within 0.5 s"
    assert time.monotonic() - began < 15


@pytest.mark.alone
def test_times_are_what_the_engine_was_told_to_take() -> None:
    """100 ms before each token: decode speed, inter-token and first-token times within 2%, of the least disturbed of five runs."""
    with engine(token_ms="100") as url:
        lines = [of(run(url, only="words"), "words") for _ in range(5)]
    for name, told in (("decode_tokens_per_s", 10), ("inter_token_p50_s", 0.1), ("ttft_s", 0.1)):
        least = min((line[name] for line in lines), key=lambda value: abs(value - told))
        assert least == pytest.approx(told, rel=WITHIN if name != "ttft_s" else 5 * WITHIN), name
    assert not any(line["decode_approximate"] for line in lines)


@pytest.mark.alone
def test_a_late_first_token_is_seen_in_the_first_token_time_alone() -> None:
    with engine(stream="slow_first_token:0.4", token_ms="20") as url:
        line = of(run(url, only="words"), "words")
    assert line["ttft_s"] == pytest.approx(0.42, rel=0.1)
    assert line["decode_tokens_per_s"] == pytest.approx(50, rel=0.1)


def test_role_only_and_empty_chunks_are_no_first_token() -> None:
    for kind in ("role_only_first", "empty_choices_first"):
        with engine(stream=kind) as url:
            assert of(run(url, only="words"), "words")["ttft_s"] >= 0.45


def test_several_tokens_in_a_chunk_make_speed_approximate_and_inter_token_times_unknown() -> None:
    with engine(stream="multi_token") as url:
        line = of(run(url, only="words"), "words")
    assert line["right"] is True
    assert line["decode_approximate"] is True
    assert line["inter_token_p50_s"] is None
    assert "tokens came in" in line["unknown"]["inter_token_p50_s"]


def test_tokens_without_text_before_the_first_one_do_not_make_the_engine_faster() -> None:
    with engine(stream="late_text", token_ms="50") as url:
        lines = [of(run(url, only="words"), "words") for _ in range(3)]
    best = min(lines, key=lambda line: abs(line["decode_tokens_per_s"] - 20))
    assert best["first_tokens"] == 3
    assert best["decode_tokens_per_s"] == pytest.approx(20, rel=WITHIN)
    assert best["ttft_s"] == pytest.approx(0.150, abs=0.02)


def test_reasoning_counts_for_the_first_token_and_not_for_the_first_content() -> None:
    with engine(stream="reasoning_only") as url:
        found = ask(url)
    assert found.first_token_ns is not None
    assert found.first_content_ns is None
    assert found.reasoning


def test_hits_that_are_no_whole_blocks_are_not_exercised() -> None:
    with engine(hit_tokens="7") as url:
        lines = run(url)
    assert measure.not_exercised(lines, SUITE, 16) == ["round 1, again: 7 tokens are not whole blocks of 16"]
    with engine() as url:
        assert measure.not_exercised(run(url), SUITE, 16) == []
        assert counters.block_size(url).value == 16


def test_records_of_a_run_are_read_back_whole(tmp_path: Any) -> None:
    path = tmp_path / "requests.jsonl"
    with engine() as url, records.Writer(path) as writer:
        lines = run(url)
        for line in lines:
            writer.write(records.parsed(line["group"], line))
    assert len(records.read(path)) == len(lines)


def test_half_a_character_is_a_named_failure_and_leaves_text_that_a_file_can_hold() -> None:
    chunks = [
        '{"choices": [{"delta": {"content": "good"}}]}',
        '{"choices": [{"delta": {"content": "\\ud800"}}]}',
        "[DONE]",
    ]
    body = "".join(f"data: {chunk}\n\n" for chunk in chunks).encode()
    with httpx.Client(
        transport=httpx.MockTransport(lambda request: httpx.Response(200, stream=httpx.ByteStream(body)))
    ) as http:
        found = stream.chat(http, "http://engine", {}, limit_s=5, stall_s=5)
    assert str(found.failure) == "not-utf-8: text that is no UTF-8 (half of a character)"
    assert found.text == "good"
