"""An experiment that is measured: two arms, each freshly started, judged one against the other, and back on the baseline."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import Run, Sandbox
from tests.e2e.states import wait_for

pytestmark = pytest.mark.docker

ONLY_GRAPH = "TEST_ENGINE_ONLY_WITH: --compilation-config"


def measured(box: Sandbox, rounds: int = 2, *faults: str, prove: str = "small") -> None:
    """Measure the graph experiment with the tests' own suite, which the test engine can answer."""
    (box.site / "suites/small.yaml").write_text((ROOT / "tests/data/suite.yaml").read_text())
    box.change("  experiments: []\n", "  experiments: [graph]\n")
    box.change("  prove: prefix\n", f"  prove: {prove}\n")
    box.change("  suite: retest\n", "  suite: small\n")
    box.change("  rounds: 2\n", f"  rounds: {rounds}\n")
    box.change("  case: short\n", "  case: words\n")
    if faults:
        box.faults(ONLY_GRAPH, *faults)
    box.render()
    assert box.gb10("deploy-baseline").code == 0


def newest(box: Sandbox) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The evidence directory of the newest try, its run and its comparison."""
    directory = max((box.site / "evidence").glob("*-try-graph"))
    run, comparison = ((directory / f"{name}.json") for name in ("run", "comparison"))
    return directory, json.loads(run.read_text()), json.loads(comparison.read_text())


def rules(comparison: dict[str, Any]) -> dict[str, bool | None]:
    return {rule["rule"].split(" of ")[0]: rule["holds"] for rule in comparison["verdict"]["rules"]}


def tried(box: Sandbox) -> Run:
    result = box.gb10("try", "graph")
    box.assert_on_baseline()
    return result


def test_both_arms_are_measured_on_fresh_engines_and_compare_gives_the_same_again(sandbox: Sandbox) -> None:
    measured(sandbox, 2, 'TEST_ENGINE_TOKEN_MS: "20"')
    result = tried(sandbox)
    assert result.code == 0, result.err
    directory, run, comparison = newest(sandbox)
    assert run["order"] == ["baseline", "experiment"]
    arms = run["arms"]
    assert arms["baseline"]["image_id"] != arms["experiment"]["image_id"]
    assert arms["baseline"]["container_started_at"] < arms["experiment"]["container_started_at"]
    assert arms["experiment"]["graph_effective"] is True
    assert comparison["verdict"]["decision"] == "keep baseline"
    assert comparison["inputs_equal"] is True
    assert comparison["totals"]["answers"]["b"]["right"] == comparison["totals"]["answers"]["b"]["total"]
    words = next(case for case in comparison["cases"] if case["case"] == "words")["metrics"]["decode_tokens_per_s"]
    assert words["ratio"] < 1, "20 ms a token in the experiment, none in the baseline"
    assert "verdict: keep baseline" in result.err
    again = sandbox.gb10("compare", str(directory), str(directory), "--json")
    assert again.code == 0, again.err
    reproduced = json.loads(again.out)
    assert reproduced["verdict"] == comparison["verdict"]
    assert reproduced["cases"] == comparison["cases"]
    report = (directory / "report.html").read_text()
    assert "Keep the baseline" in report
    assert comparison["a"]["requests_sha256"] in report
    (directory / "report.html").unlink()
    assert sandbox.gb10("report", "--experiment", "graph").code == 0
    assert (directory / "report.html").read_text() == report


def test_both_arms_can_be_measured_on_two_starts_each(sandbox: Sandbox) -> None:
    sandbox.change("  order: AB\n", "  order: ABBA\n")
    measured(sandbox, 1)
    result = tried(sandbox)
    assert result.code == 0, result.err
    directory, run, comparison = newest(sandbox)
    assert run["order"] == ["baseline", "experiment", "experiment", "baseline"]
    lines = [json.loads(line) for line in (directory / "requests.jsonl").read_text().splitlines()]
    rounds = {(line["arm"], line["round"]) for line in lines}
    assert rounds == {(arm, number) for arm in ("baseline", "experiment") for number in (0, 1, 2)}
    first = next(case for case in comparison["cases"] if case["case"] == "first")
    assert first["metrics"]["ttft_s"]["pairs"] == 2


def test_an_earlier_run_of_the_same_baseline_can_stand_in_and_another_cannot(sandbox: Sandbox) -> None:
    measured(sandbox, 1)
    assert tried(sandbox).code == 0
    earlier, _, _ = newest(sandbox)
    result = sandbox.gb10("try", "graph", "--baseline-run", str(earlier))
    assert result.code == 0, result.err
    assert "baseline, measure" not in result.err
    _, run, comparison = newest(sandbox)
    assert run["order"] == ["experiment"]
    assert comparison["inputs_equal"] is True
    assert comparison["a"]["source"] == str(earlier)
    sandbox.change("max_num_seqs: 4", "max_num_seqs: 5")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "graph", "--baseline-run", str(earlier))
    assert result.code == 2
    assert "cannot stand for the baseline: its arguments are not the stored baseline's" in result.err


def test_wrong_answers_of_the_experiment_are_recorded_rejected_and_end_with_exit_1(sandbox: Sandbox) -> None:
    measured(sandbox, 1, "TEST_ENGINE_WRONG_ANSWER: 20+22", prove="null")
    result = tried(sandbox)
    assert result.code == 1
    assert "wrong answer: experiment, round 1, two-at-once" in result.err
    _, run, comparison = newest(sandbox)
    assert run["partial"] is None, "the run went on"
    assert comparison["verdict"]["decision"] == "reject"
    assert sandbox.evidence()["verdict"] == "failed, restored"


def test_an_experiment_that_does_not_start_leaves_a_partial_run_with_the_baselines_numbers(sandbox: Sandbox) -> None:
    measured(sandbox, 1, 'TEST_ENGINE_CRASH_AT_START: "7"')
    result = tried(sandbox)
    assert result.code == 1
    directory = max((sandbox.site / "evidence").glob("*-try-graph"))
    run = json.loads((directory / "run.json").read_text())
    assert run["order"] == ["baseline"]
    assert run["partial"].startswith("the experiment ended before its end (")
    assert len((directory / "requests.jsonl").read_text().splitlines()) == 14
    assert not (directory / "comparison.json").exists()
    assert "the experiment ended before its end" in (directory / "report.md").read_text()


def test_a_bench_of_the_baseline_says_what_was_wrong_and_keeps_its_records(sandbox: Sandbox) -> None:
    measured(sandbox, 1)
    before = sandbox.container().started_at
    result = sandbox.gb10("bench", "small", "--rounds", "2")
    assert result.code == 0, result.err
    assert "14 of 14 right" in result.out
    assert sandbox.container().started_at == before, "nothing was started or stopped"
    directory = max((sandbox.site / "evidence").glob("*-bench-small")) / "small"
    lines = (directory / "requests.jsonl").read_text().splitlines()
    assert len(lines) == 21, "seven of the warm-up, and two rounds"
    assert sandbox.gb10("bench", "smal").code == 2
    assert "did you mean small?" in sandbox.gb10("bench", "smal").err


def test_a_suite_beyond_the_verified_context_is_refused_unless_a_person_says_so(sandbox: Sandbox) -> None:
    measured(sandbox, 1)
    path = sandbox.site / "suites/small.yaml"
    path.write_text(path.read_text().replace("tokens: 300", "tokens: 5000"))
    result = sandbox.gb10("bench", "small")
    assert result.code == 2
    assert "asks for 5000 tokens, beyond the verified context of 4096" in result.err


def test_real_vllm_on_the_cpu_is_measured_and_never_adopted(vllm: Sandbox) -> None:
    """The overlay is applied and not effective there: the server's own log says so, and the comparison with it."""
    vllm.change("  experiments: []\n", "  experiments: [graph]\n")
    vllm.change("  rounds: 2\n", "  rounds: 1\n")
    vllm.render()
    result = tried(vllm)
    assert result.code == 0, result.err
    assert "prefix: 5 of 5 right, prefix reuse exercised" in result.err
    directory, run, comparison = newest(vllm)
    assert run["arms"]["experiment"]["graph_effective"] is False
    assert comparison["verdict"]["decision"] == "keep baseline"
    assert any("not" in sentence and "effect" in sentence for sentence in comparison["sentences"])
    assert run["arms"]["baseline"]["block_size"] == 128
    lines = [json.loads(line) for line in (directory / "requests.jsonl").read_text().splitlines()]
    again = [line for line in lines if line["case"] == "long-again"]
    assert all(line["hit_tokens"] and line["hit_tokens"] % 128 == 0 for line in again)


def test_ctrl_c_keeps_what_was_measured_and_marks_it_partial(sandbox: Sandbox) -> None:
    measured(sandbox, 1)
    sandbox.faults('TEST_ENGINE_TOKEN_MS: "30"')
    assert sandbox.gb10("deploy-baseline").code == 0
    process = sandbox.start("bench", "small", "--rounds", "50")
    found = sandbox.site / "evidence"
    wait_for(lambda: [p for p in found.glob("*-bench-small/small/requests.jsonl") if p.stat().st_size], "a record")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    directory = max(found.glob("*-bench-small")) / "small"
    run = json.loads((directory / "run.json").read_text())
    assert run["partial"] == "ended in baseline by Interrupted"
    lines = (directory / "requests.jsonl").read_text().splitlines()
    assert lines
    assert all(json.loads(line)["arm"] == "baseline" for line in lines)
    assert "partial" in (directory / "report.md").read_text().lower()
    assert (
        sandbox.gb10("compare", str(directory), str(directory), "--a-arm", "baseline", "--b-arm", "baseline").code == 0
    )
    sandbox.assert_on_baseline()
