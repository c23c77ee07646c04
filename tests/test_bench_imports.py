"""Records of other origin: real ones of vLLM 0.26 on a data-centre GPU (tests/data/records), and results of vllm bench serve."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gb10.bench.compare import compare
from gb10.bench.imports import own_column, plain, side_by_side, vllm_bench
from gb10.bench.records import as_line
from gb10.errors import RefusedError
from tests.conftest import ROOT
from tests.made import arm
from tests.test_bench_compare import held

RECORDS = ROOT / "tests/data/records"
HYBRID_BLOCK = 560  # logged by that server: Setting attention block size to 560 tokens


def compared(model: str) -> dict[str, Any]:
    a, b = plain(RECORDS / f"{model}-eager.jsonl", "baseline"), plain(RECORDS / f"{model}-graph.jsonl", "experiment")
    return held("comparison", compare(None, a, None, b))


def metric(found: dict[str, Any], case: str, name: str) -> dict[str, Any]:
    return next(one["metrics"][name] for one in found["cases"] if (one["case"], one["phase"]) == (case, "timed"))


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_each_line_becomes_a_record_that_holds_against_the_schema(path: Path) -> None:
    validator = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/schemas/request.schema.json").read_text()))
    records = plain(path, "baseline")
    assert len(records) == len(path.read_text().splitlines()) == 13
    for one in records:
        validator.validate(json.loads(as_line(one)))
    assert [one.phase for one in records] == ["warm-up", *["timed"] * 9, *["traced"] * 3]
    assert [(one.case, one.round) for one in records[1:5]] == [
        ("short", 1),
        ("long-first", 1),
        ("long-repeat", 1),
        ("short", 2),
    ]
    assert records[0].round == 0
    assert records[0].unknown is not None
    assert records[0].unknown["right"] == "not in the imported record"


def test_the_dense_model_decodes_about_4_5_times_as_fast_with_graphs() -> None:
    speed = metric(compared("dense"), "short", "decode_tokens_per_s")
    assert speed["ratio_of_medians"] == pytest.approx(4.5, abs=0.01)
    assert speed["ratio"] == pytest.approx(4.41, abs=0.01), "median of the pairwise ratios"
    assert speed["ratio_range"] == pytest.approx([4.22, 5.02], abs=0.01)
    assert not speed["approximate"]


def test_the_dense_models_first_token_of_a_long_prompt_is_as_late_with_graphs() -> None:
    first = metric(compared("dense"), "long-first", "ttft_s")
    assert first["ratio"] == pytest.approx(1, abs=0.02)
    assert first["ratio_of_medians"] == pytest.approx(1, abs=0.02)


def test_the_hybrid_model_decodes_about_5_3_times_as_fast_with_graphs() -> None:
    found = compared("hybrid-mtp")
    speed = metric(found, "short", "decode_tokens_per_s")
    assert speed["ratio_of_medians"] == pytest.approx(5.3, abs=0.02)
    assert speed["ratio"] == pytest.approx(4.99, abs=0.01), "median of the pairwise ratios"
    assert speed["approximate"], "it drafts tokens"
    assert any(one.startswith("Decode speeds are approximate") for one in found["sentences"])


def test_the_hybrid_models_hits_are_whole_blocks() -> None:
    found = compared("hybrid-mtp")
    hits = [count for case in found["cases"] for side in ("a", "b") for count in case["hit_tokens"][side]]
    assert set(hits) == {0, 37 * HYBRID_BLOCK}
    by_case = {(case["case"], case["phase"]): case["hit_tokens"]["a"] for case in found["cases"]}
    assert by_case["long-repeat", "timed"] == [37 * HYBRID_BLOCK] * 3
    assert by_case["long-first", "timed"] == [0, 0, 0]


@pytest.mark.parametrize("model", ["dense", "hybrid-mtp"])
def test_without_answers_there_is_no_verdict(model: str) -> None:
    found = compared(model)
    assert found["verdict"]["decision"] == "none"
    assert found["verdict"]["why"].startswith("No answer was judged: without answers there is no verdict.")
    assert found["inputs_equal"] is None
    assert found["totals"]["truncated"] == found["totals"]["failures"] == {"a": None, "b": None}
    assert found["sentences"][0].startswith("Small sample (short n = 3, long-first n = 3, long-repeat n = 3 pairs)")
    assert all(one["metrics"] == {} for one in found["cases"] if one["phase"] == "traced")


def test_a_counter_that_fell_or_was_not_read_is_unknown(tmp_path: Path) -> None:
    counters = [
        {"prefix_cache_hits_total": 100.0},
        None,
        {"prefix_cache_hits_total": 200.0},
        {"prefix_cache_hits_total": 9.0},
    ]
    text = "".join(json.dumps({"label": "short"} | ({"metrics": one} if one else {})) + "\n" for one in counters)
    (tmp_path / "r.jsonl").write_text(text)
    found = plain(tmp_path / "r.jsonl", "baseline")
    assert [one.hit_tokens for one in found] == [None] * 4
    assert [(one.unknown or {})["hit_tokens"] for one in found] == [
        "the counter before the request is not in the file",
        "not in the imported record",
        "the counter before the request is not in the file",
        "the counter fell: the server was started anew",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"label": "short", "ttft": 0.1}', r"r\.jsonl:1: ttft: unknown key; did you mean ttft_s\?"),
        ('{"ttft_s": 0.1}', r"r\.jsonl:1: label: is missing"),
        ('{"label": "short", "prompt": 1.5}', r"r\.jsonl:1: prompt: 1\.5 is not a whole number"),
    ],
)
def test_a_plain_line_is_read_as_strictly_as_our_own(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "r.jsonl").write_text(line + "\n")
    with pytest.raises(RefusedError, match=message):
        plain(tmp_path / "r.jsonl", "baseline")


BENCH = {
    "date": "20260917-100000",
    "backend": "openai-chat",
    "label": None,
    "model_id": "model",
    "num_prompts": 3,
    "max_concurrency": 1,
    "duration": 21.0,
    "completed": 3,
    "failed": 0,
    "output_throughput": 30.5,
    "median_ttft_ms": 250.0,
    "median_tpot_ms": 31.25,
    "median_itl_ms": 30.0,
}


def bench(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(BENCH | changes))
    return path


def test_a_result_of_vllm_bench_serve_stands_beside_our_own(tmp_path: Path) -> None:
    theirs = vllm_bench(bench(tmp_path / "bench.json"))
    assert theirs.values == {"ttft_s": 0.25, "decode_tokens_per_s": 32.0, "group_tokens_per_s": 30.5}
    assert theirs.unknown == dict.fromkeys(["inter_token_p95_s", "duration_s"], "not in the result file")
    assert (theirs.label, theirs.requests, theirs.failed) == ("model", 3, 0)
    ours = own_column(arm("baseline", 32.0), "ours")
    rows = {row["metric"]: row for row in side_by_side(ours, theirs)}
    assert rows["ttft_s"] == {"metric": "ttft_s", "a": 0.25, "b": 0.25, "ratio": 1.0, "why": ""}
    assert rows["decode_tokens_per_s"]["ratio"] == pytest.approx(1, abs=0.005)
    assert rows["duration_s"]["ratio"] is None
    assert rows["duration_s"]["why"] == "model: not in the result file"
    assert rows["group_tokens_per_s"]["why"] == "ours: no timed request has it"


def test_the_detailed_lists_leave_failed_requests_out(tmp_path: Path) -> None:
    theirs = vllm_bench(
        bench(
            tmp_path / "bench.json",
            completed=2,
            failed=1,
            ttfts=[0.2, 0.0, 0.4],
            output_lens=[11, 0, 21],
            itls=[[0.1] * 10, [], [0.05] * 20],
            errors=["", "Bad Request", ""],
        )
    )
    assert theirs.values["ttft_s"] == pytest.approx(0.3)
    assert theirs.values["decode_tokens_per_s"] == pytest.approx(15)
    assert theirs.values["duration_s"] == pytest.approx(1.3)
    assert (theirs.requests, theirs.failed) == (2, 1)


def test_lists_without_numbers_are_refused(tmp_path: Path) -> None:
    path = bench(tmp_path / "b.json", ttfts=[0.2], output_lens=[3], itls=[None], errors=[""])
    with pytest.raises(RefusedError, match="has lists of requests that do not hold numbers"):
        vllm_bench(path)


def test_a_result_in_which_nothing_completed_has_no_medians(tmp_path: Path) -> None:
    theirs = vllm_bench(bench(tmp_path / "b.json", completed=0, median_ttft_ms=0.0, median_tpot_ms=0.0))
    assert set(theirs.values) == {"group_tokens_per_s"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{}", "is not a result of vllm bench serve (no completed, no duration)"),
        ("[]", "is not a result of vllm bench serve (no completed, no duration)"),
        ("x", "is not JSON"),
        (f"{json.dumps(BENCH)}\n{json.dumps(BENCH)}", "holds several results (--append-result)"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(RefusedError, match=re.escape(f"b.json: {what}; name the file that --save-result wrote")):
        vllm_bench(tmp_path / "b.json")
