"""comparison.json and its verdict, on records made so that the right answer is known. Every result is held against its schema."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gb10.bench.compare import METRICS, compare
from gb10.bench.records import Failure, Record, Records
from gb10.bench.runs import KEYS, read_run
from gb10.bench.sides import Named
from gb10.bench.verdict import Thresholds
from gb10.errors import Fault, RefusedError
from tests.compared import SCHEMAS, compared, held, rule, short
from tests.conftest import ROOT
from tests.made import arm, first, record, run, sha


def test_the_schemas_describe_every_field() -> None:
    def properties(node: Any) -> list[tuple[str, Any]]:
        if not isinstance(node, dict):
            return [one for item in node for one in properties(item)] if isinstance(node, list) else []
        own = list(node["properties"].items()) if isinstance(node.get("properties"), dict) else []
        return own + [one for value in node.values() for one in properties(value)]

    for name in ("request", "run", "comparison"):
        text = (ROOT / f"docs/schemas/{name}.schema.json").read_text()
        jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
        assert len(text.splitlines()) < 300, name
        for key, value in properties(SCHEMAS[name]):
            assert value.get("description") or "$ref" in value, f"{name}: {key}"
    assert list(SCHEMAS["comparison"]["$defs"]["case"]["properties"]["metrics"]["properties"]) == list(METRICS)


def test_a_gain_with_right_answers_is_adopted() -> None:
    found = compared()
    assert found["verdict"]["decision"] == "adopt"
    assert all(one["holds"] is True for one in found["verdict"]["rules"])
    assert found["verdict"]["why"].startswith("Every rule holds: gain 1.1")
    assert rule(found, 1) == (True, "wrong in B 0 of 24, in A 0 of 24")
    assert rule(found, 4) == (
        True,
        "A: no trip, oom_kill 25 before and 25 after; B: no trip, oom_kill 25 before and 25 after",
    )
    assert found["inputs_equal"] is True
    assert short(found)["ranking"] == "B is better"
    assert short(found, "duration_s")["ranking"] == "B is better"
    assert short(found, "ttft_s")["ranking"] == "no ranking: the interval 1.000 to 1.000 contains 1"
    assert found["totals"]["answers"]["b"] == {"right": 24, "wrong": 0, "unknown": 0, "total": 24}


def test_the_numbers_of_a_case_are_those_of_its_timed_requests() -> None:
    found = compared(pairs=3)
    case = found["cases"][0]
    assert (case["case"], case["phase"], case["concurrency"]) == ("short", "timed", 1)
    speed = short(found)
    assert speed["a"]["n"] == speed["pairs"] == 3
    assert 29 < speed["a"]["min"] <= speed["a"]["median"] <= speed["a"]["max"] < 31, "no warm-up, no traced request"
    assert speed["ratio_range"][0] <= speed["ratio"] <= speed["ratio_range"][1]
    assert speed["ratio_of_medians"] == speed["b"]["median"] / speed["a"]["median"]
    assert case["max_completion_tokens"] == {"a": 214, "b": 214}
    assert case["max_reasoning_tokens"] == {"a": 20, "b": 20}
    assert case["hit_tokens"] == {"a": [0, 0, 0], "b": [0, 0, 0]}
    traced = found["cases"][-1]
    assert (traced["phase"], traced["metrics"], traced["truncated"]) == ("traced", {}, {"a": 1, "b": 1})
    assert found["totals"]["truncated"] == {"a": 0, "b": 0}


def test_nine_pairs_have_no_interval_and_are_never_adopted() -> None:
    found = compared(pairs=9, speeds=(30.0, 300.0))
    assert found["verdict"]["decision"] == "keep baseline"
    assert short(found)["interval"] is None
    assert short(found)["ranking"] == "no ranking: 9 pairs, and no interval is given below 10"
    assert rule(found, 6)[0] is False
    assert (
        "Small sample (short n = 9, retrieval n = 9 pairs): below 10 pairs no interval is given and nothing is ranked."
        in found["sentences"]
    )
    assert compared(pairs=10)["verdict"]["decision"] == "adopt"


def test_too_small_a_gain_keeps_the_baseline() -> None:
    found = compared(speeds=(30.0, 30.6))
    assert found["verdict"]["decision"] == "keep baseline"
    assert short(found)["ranking"] == "B is better", "better, and not by enough"
    assert compared(speeds=(30.0, 30.6), thresholds=Thresholds(min_gain=1.01))["verdict"]["decision"] == "adopt"


def test_an_interval_that_contains_1_ranks_nothing() -> None:
    noise = random.Random(9)
    found = compared(b=lambda one: replace(one, decode_tokens_per_s=30 * noise.choice([0.7, 1.5])))
    assert short(found)["ranking"].startswith("no ranking: the interval ")
    assert found["verdict"]["decision"] == "keep baseline"


def test_a_loss_is_ranked_and_keeps_the_baseline() -> None:
    found = compared(speeds=(33.0, 30.0))
    assert short(found)["ranking"] == short(found, "duration_s")["ranking"] == "A is better"
    assert found["verdict"]["decision"] == "keep baseline"


def test_a_metric_that_is_better_when_lower_gains_by_falling() -> None:
    down = Thresholds(metric="ttft_s", case="retrieval", min_gain=1.2)
    found = compared(b=lambda one: replace(one, ttft_s=0.2), thresholds=down)
    assert found["verdict"]["decision"] == "adopt"
    assert rule(found, 6) == (True, "gain 1.250 in 12 pairs, interval 1.250 to 1.250")
    assert compared(b=lambda one: replace(one, ttft_s=0.3), thresholds=down)["verdict"]["decision"] == "keep baseline"


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (Thresholds(case="code"), "code was not measured"),
        (Thresholds(metric="group_tokens_per_s"), "there is no ratio of group_tokens_per_s"),
    ],
)
def test_what_was_not_measured_is_no_gain(wanted: Thresholds, numbers: str) -> None:
    found = compared(thresholds=wanted)
    assert rule(found, 6) == (None, numbers)
    assert found["verdict"]["decision"] == "keep baseline"


def test_profiled_timings_are_compared_between_profiled_runs_only() -> None:
    both = compared(diagnostic="profiler attached")
    assert both["verdict"]["decision"] == "none"
    assert short(both)["ranking"] == "B is better (profiler attached in both)"
    assert both["sentences"][0] == (
        "Both ran with a profiler attached: the timings compare these two only, and give no verdict."
    )
    plain, profiled = held("run", run()), held("run", run(diagnostic="profiler attached"))
    one = held("comparison", compare(plain, arm("baseline", 30.0), profiled, arm("experiment", 33.0), Thresholds()))
    speed = short(one)
    assert (speed["ratio"], speed["interval"], speed["ratio_of_medians"]) == (None, None, None)
    assert speed["ranking"] == speed["interval_why"] == "not comparable: profiler attached only in B"
    assert one["verdict"]["decision"] == "none"
    assert "Only B ran with a profiler attached: its timings are not compared with the other's." in one["sentences"]


def test_another_diagnostic_run_is_not_ranked() -> None:
    assert short(compared(diagnostic="forced eager"))["ranking"] == "no ranking: A is a diagnostic run (forced eager)"


def test_speculative_decoding_makes_speeds_approximate() -> None:
    found = compared(b=first(drafted_tokens=40))
    assert short(found)["approximate"]
    assert not short(found, "ttft_s")["approximate"]
    assert (
        "Decode speeds are approximate (short): speculative decoding, or several tokens in a chunk."
        in found["sentences"]
    )


def groups(name: str, speed: float, broken: int | None = None) -> list[Record]:
    """Twelve groups of four; each record has its group's throughput. One request of group `broken` failed."""
    return [
        record(
            name,
            "four",
            0,
            30.0,
            round=1 + number,
            request=0,
            slot=slot,
            concurrency=4,
            group=f"g{number}",
            group_tokens_per_s=speed + number,
            input_sha256=sha(f"{number} {slot}"),
            failure=Failure("timeout", "x") if (number, slot) == (broken, 3) else None,
        )
        for number in range(12)
        for slot in reversed(range(4))
    ]


def test_a_group_has_one_throughput_and_none_when_one_of_it_failed() -> None:
    a, b = groups("baseline", 100.0), groups("experiment", 200.0, broken=5)
    found = held("comparison", compare(run(), a, run(), b))
    metrics = found["cases"][0]["metrics"]
    assert metrics["group_tokens_per_s"]["a"] == {"n": 12, "median": 105.5, "min": 100.0, "max": 111.0}
    assert (metrics["group_tokens_per_s"]["b"]["n"], metrics["group_tokens_per_s"]["pairs"]) == (11, 11)
    assert (metrics["ttft_s"]["b"]["n"], found["cases"][0]["concurrency"]) == (47, 4)


def test_a_request_that_only_one_arm_has_is_an_input_difference() -> None:
    a, b = arm("baseline", 30.0), arm("experiment", 33.0)
    missing = [one for one in b if (one.case, one.round) != ("retrieval", 3)]
    found = held("comparison", compare(run(), a, run(), missing))
    assert found["input_differences"] == ["retrieval: 4 requests only in A"]
    assert found["verdict"]["decision"] == "keep baseline"
    other = run(suite={"name": "smoke", "sha256": sha("x")})
    assert compare(run(), a, other, b)["input_differences"] == ["A ran the suite retest-2048, B smoke"]
    assert compare(run(), a, other, b)["suite"] == "retest-2048 / smoke"


def test_a_torn_line_makes_its_run_partial() -> None:
    torn = Fault("requests.jsonl:26", "is torn after 17 bytes", "it is left out")
    b = Records(arm("experiment", 33.0), "runs/x/requests.jsonl", sha("requests"), torn)
    found = held("comparison", compare(run(), arm("baseline", 30.0), run(), b))
    assert found["verdict"]["why"] == "B is partial (requests.jsonl:26 is torn after 17 bytes)."
    assert found["b"] == {
        "label": "experiment",
        "source": "runs/x/requests.jsonl",
        "arm": "experiment",
        "requests_sha256": sha("requests"),
    }


def test_failures_outside_of_the_timed_requests_are_told() -> None:
    b = arm("experiment", 33.0)
    b[0] = replace(b[0], failure=Failure("http", "500"))
    found = compare(run(), arm("baseline", 30.0), run(), b)
    assert found["verdict"]["decision"] == "adopt"
    assert (
        "1 warm-up or traced request of B failed or got a wrong answer; none is in the numbers." in found["sentences"]
    )


def test_records_without_a_run_give_numbers_and_no_verdict() -> None:
    found = held("comparison", compare(None, arm("baseline", 30.0), None, arm("experiment", 33.0)))
    assert short(found)["ranking"] == "B is better"
    assert found["verdict"]["decision"] == "none"
    assert found["verdict"]["why"] == (
        "Whether A was measured to its end is unknown (there is no run.json); "
        "whether B was measured to its end is unknown (there is no run.json)."
    )


def test_nothing_measured_gives_no_verdict() -> None:
    found = held("comparison", compare(run(), [], run(), []))
    assert (found["verdict"]["decision"], found["cases"], found["inputs_equal"]) == ("none", [], None)


def test_requests_without_a_number_are_paired_by_their_place() -> None:
    def bare(one: Record) -> Record:
        return replace(one, request=None)

    assert short(compared(a=bare, b=bare)) == short(compared())


def test_the_same_request_twice_is_refused() -> None:
    twice = [*arm("baseline", 30.0), record("baseline", "short", 0, 30.0)]
    with pytest.raises(RefusedError) as error:
        compare(run(), twice, run(), arm("experiment", 33.0), a=Named(source="runs/a"))
    assert str(error.value) == (
        "runs/a: has two records of short, round 1, request 0, slot 0; "
        "compare one run with one run: runs are never pooled"
    )


def test_an_arm_is_chosen_by_name() -> None:
    records = arm("baseline", 30.0) + arm("experiment", 33.0)
    found = compare(run(), records, run(), records, a=Named(arm="experiment", label="graph", source="runs/1"))
    assert found["a"]["arm"] == "experiment"
    assert found["a"]["label"] == "graph"
    assert short(found)["ratio"] == 1.0
    with pytest.raises(RefusedError, match=r"A: has no arm basline; did you mean baseline\?"):
        compare(run(), records, run(), records, a=Named(arm="basline"))
    with pytest.raises(RefusedError, match=r"A: has the arms x, y and none is called baseline; name the arm to use"):
        compare(run(), arm("x", 30.0) + arm("y", 30.0), run(), records)


def test_records_that_are_not_those_of_the_run_are_refused() -> None:
    other = Records(arm("baseline", 30.0), "runs/a/requests.jsonl", sha("changed"))
    with pytest.raises(RefusedError, match=r"is not the file that run\.json names"):
        compare(run(), other, run(), arm("experiment", 33.0))


def test_the_same_records_give_the_same_comparison() -> None:
    assert compared() == compared()


def test_a_run_is_read_and_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run()))
    assert read_run(path) == run()
    assert KEYS == list(SCHEMAS["run"]["properties"]) == SCHEMAS["run"]["required"]
    lost = {key: value for key, value in run().items() if key != "partial"}
    arm_lost = run()
    del arm_lost["arms"]["experiment"]["guard_tripped"]
    see = "compare it with docs/schemas/run.schema.json"
    for document, message in [
        (run(kind="comparison"), "is not a run; name the run.json that a run left"),
        (run(schema=2), "has schema 2, this version reads 1; read it with the version that wrote it"),
        (run(parital=None), "parital: unknown key; did you mean partial?"),
        (lost, f"partial: is missing; {see}"),
        (arm_lost, f"arms.experiment.guard_tripped: is missing; {see}"),
        (run(partial=True), f"partial: does not have the form that stands here; {see}"),
    ]:
        path.write_text(json.dumps(document))
        with pytest.raises(RefusedError) as error:
            read_run(path)
        assert str(error.value) == f"{path}: {message}"
    path.write_text("{")
    with pytest.raises(RefusedError, match="is not JSON"):
        read_run(path)
