"""`try profile` for real: vLLM under the torch profiler, marks on its functions, a trace for each window, and no profiler left."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import Sandbox
from tests.e2e.profiled import WINDOWS, in_the_traces

pytestmark = pytest.mark.docker

MARKS = ["step", "prepare", "dispatch", "forward", "sample"]
GB10 = [sys.executable, "-m", "gb10"]


def ranges_of(record: dict[str, Any]) -> dict[str, Counter[str]]:
    """By window, the names of the ranges in its traces, of all processes, with how often they stand there."""
    names: dict[str, Counter[str]] = {}
    for window, path in in_the_traces(record):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        found = [event["name"] for event in events if event.get("cat") == "user_annotation"]
        names.setdefault(window, Counter()).update(found)
    return names


def test_the_profile_experiment_records_its_suite_with_marks_and_leaves_no_profiler(vllm: Sandbox) -> None:
    result = vllm.gb10("try", "profile")
    assert result.code == 0, result.err
    record = vllm.evidence()
    profile = record["profile"]
    assert [window["name"] for window in profile["windows"]] == WINDOWS
    assert {mark["name"]: mark["applied"] for mark in profile["marks"]} == dict.fromkeys(MARKS, True)
    assert profile["tool_version"] == "2.13.0+cpu"
    assert (profile["ended"]["killed"], profile["ended"]["exit_code"]) == (False, 0)
    program = {
        name: hashlib.sha256((ROOT / "overlays/profile" / name).read_bytes()).hexdigest() for name in profile["program"]
    }
    assert program == profile["program"]
    assert set(program) == {"gb10_marks.py", "sitecustomize.py"}
    assert [stage["name"] for stage in record["stages"]][:5] == ["switch", "ready", "prove", "measure", "stop"]
    assert Path(profile["output_dir"]).stat().st_mode & 0o777 == 0o700
    assert all(path.parent.stat().st_mode & 0o777 == 0o700 for _, path in in_the_traces(record))

    directory = max((vllm.site / "evidence").glob("*-try-profile"))
    run = json.loads((directory / "run.json").read_text())
    assert (run["diagnostic"], run["order"], run["partial"]) == ("profiler attached", ["experiment"], None)
    assert not (directory / "comparison.json").exists()
    lines = [json.loads(line) for line in (directory / "requests.jsonl").read_text().splitlines()]
    assert [line["case"] for line in lines if line["phase"] == "traced"] == WINDOWS
    tokens = {line["case"]: line for line in lines if line["phase"] == "traced"}

    ranges = ranges_of(record)
    assert list(ranges) == WINDOWS
    for window, names in ranges.items():
        steps = sum(count for name, count in names.items() if re.fullmatch(r"step:tokens=[1-9]\d*", name))
        assert steps >= 3, names
        for name in ("prepare", "forward", "sample:logits=1x49152", "dispatch"):
            assert names[name] == steps, (window, name, names)
        dispatched = {name: count for name, count in names.items() if name.startswith("dispatch:")}
        assert sum(dispatched.values()) == steps, "one with what was returned, behind each bare one"
        assert all(re.fullmatch(r"dispatch:actual=(\d+),padded=\1,mode=NONE", name) for name in dispatched), dispatched
        prefill = tokens[window]["prompt_tokens"] - tokens[window]["hit_tokens"]
        assert dispatched[f"dispatch:actual={prefill},padded={prefill},mode=NONE"] == 1, (
            "the prompt without what was cached"
        )
    read_at_the_end(vllm, directory, ranges)

    assert httpx.post(f"http://127.0.0.1:{vllm.port}/start_profile").status_code == 404
    assert vllm.checks()["no profiler is left"][0] == "passed"
    assert all("GB10_MARKS" not in entry for entry in vllm.container().raw["Config"]["Env"])
    vllm.assert_on_baseline()


def read_at_the_end(vllm: Sandbox, directory: Path, ranges: dict[str, Counter[str]]) -> None:
    """What the experiment made of its traces: numbers that agree with the ranges, a section of its report, a manifest that holds."""
    found = json.loads((directory / "profile.json").read_text())
    assert [window["name"] for window in found["windows"]] == WINDOWS
    for window in found["windows"]:
        assert {row["name"]: row["count"] for row in window["nvtx"]} == ranges[window["name"]]
        counted = {
            f"dispatch:actual={row['actual']},padded={row['padded']},mode={row['mode']}": row["count"]
            for row in window["dispatches"]
        }
        assert counted == {name: n for name, n in ranges[window["name"]].items() if name.startswith("dispatch:")}
        assert window["steps"]["count"] == sum(counted.values())
        assert window["gpu_busy_ns"] is None, "there is no GPU here: unknown, and not zero"
        assert {"field": "gpu_busy_ns", "why": "the trace holds no GPU activity"} in window["unknown"]
    left_out = vllm.evidence()["profile"]["summary"]["not_read"]
    assert {one["why"] for one in left_out} <= {"holds neither GPU activity nor ranges"}, "the front end's own traces"
    page = (directory / "report.html").read_text()
    assert all(f"Window {name}" in page for name in WINDOWS)
    assert "mode=NONE" in page
    profile = vllm.evidence()["profile"]
    raw = Path(profile["output_dir"]) / profile["windows"][0]["files"][-1]["name"]
    manifest = subprocess.run(
        [*GB10, "profile", "verify-manifest", str(directory)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert manifest.returncode == 0, manifest.stderr
    kept = raw.read_bytes()
    raw.write_bytes(kept[:-1])
    try:
        changed = subprocess.run(
            [*GB10, "profile", "verify-manifest", str(directory)], cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        raw.write_bytes(kept)
    assert changed.returncode == 1
    assert f"{raw.name}: is not what was recorded" in changed.stderr


def test_graphs_under_the_profiler_are_recorded_too_and_set_beside_the_eager_profile(vllm: Sandbox) -> None:
    """On the CPU the graph overlay is applied and not effective: every dispatch says NONE."""
    if not list((vllm.site / "evidence").glob("*-try-profile/profile.json")):  # the test above was not run
        assert vllm.gb10("try", "profile").code == 0
    result = vllm.gb10("try", "graph-profile")
    assert result.code == 0, result.err
    assert "graph overlay: applied, not effective" in result.err
    eager, graph = (max((vllm.site / "evidence").glob(f"*-try-{name}")) for name in ("profile", "graph-profile"))
    words = [*GB10, "profile", "compare", str(eager), str(graph), "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [window["name"] for window in found["windows"]] == WINDOWS
    forward = next(row for row in found["windows"][0]["nvtx"] if row["name"] == "forward")
    assert min(forward[side]["count"] for side in ("eager", "graph")) >= 3
    modes = {
        row["mode"]
        for window in json.loads((graph / "profile.json").read_text())["windows"]
        for row in window["dispatches"]
    }
    assert modes == {"NONE"}
    vllm.assert_on_baseline()


def test_a_mark_that_is_not_in_the_image_refuses_the_try_with_a_near_match_and_touches_nothing(vllm: Sandbox) -> None:
    before = vllm.container()
    for old, new in (
        ("CudagraphDispatcher.dispatch\n", "CudagraphDispatcher.dispach\n"),
        ("gpu_model_runner:GPUModelRunner.execute_model", "gpu_model_runer:GPUModelRunner.execute_model"),
        ("arguments.logits.shape", "arguments.logit.shape"),
    ):
        vllm.change(old, new)
    vllm.render()
    try:
        for words in (("try", "profile"), ("try", "graph-profile", "--dry-run")):
            result = vllm.gb10(*words)
            assert result.code == 2, result.err
            image = "graph" if "graph-profile" in words else "eager"
            for line in (
                f"profile.marks[0].function: step: vllm.v1.worker has no module gpu_model_runer (in images.{image}); "
                "did you mean vllm.v1.worker.gpu_model_runner?",
                "profile.marks[2].function: dispatch: CudagraphDispatcher of vllm.v1.cudagraph_dispatcher has no dispach "
                f"(in images.{image}); did you mean CudagraphDispatcher.dispatch?",
                f"profile.marks[4].show.logits: sample: forward has no argument logit (in images.{image}); did you mean logits?",
            ):
                assert line in result.err
        found = vllm.gb10("doctor")
        assert "missing  marks, eager: profile.marks[2].function: dispatch: " in found.out
        assert vllm.gb10("try", "graph", "--dry-run").code == 0, "the marks are only the profiler's"
    finally:
        vllm.revert()
    assert "ok       marks, eager: step, prepare, dispatch, forward, sample" in vllm.gb10("doctor").out
    after = vllm.container()
    assert (after.id, after.started_at) == (before.id, before.started_at)
