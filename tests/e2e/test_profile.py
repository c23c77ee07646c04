"""`try profile` for real: vLLM under the torch profiler, marks on its functions, a trace for each window, and no profiler left.

What can go wrong on the way is tried on the test engine, Nsight Systems with a stand-in: no one working on this has a GPU.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import Sandbox
from tests.e2e.states import wait_for

pytestmark = pytest.mark.docker

WINDOWS = ["traced-short", "traced-long-first", "traced-long-again"]
MARKS = ["step", "prepare", "dispatch", "forward", "sample"]
GB10 = [sys.executable, "-m", "gb10"]
ONLY_PROFILED = "TEST_ENGINE_ONLY_WITH: --profiler-config"
REQUEST = "api:Handler._chat"
"""A function of the test engine."""


def in_the_traces(record: dict[str, Any]) -> Iterator[tuple[str, Path]]:
    """Each window's files, whose size and hash the record has."""
    for window in record["profile"]["windows"]:
        for file in window["files"]:
            path = Path(record["profile"]["output_dir"]) / file["name"]
            data = path.read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size_bytes"], file["sha256"])
            yield window["name"], path


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


def test_marks_that_are_applied_are_told_from_those_that_are_not(sandbox: Sandbox) -> None:
    """On the test engine: one function is there, one is wrapped in the source only when the engine runs, one never comes in."""
    marks = [
        f"{{name: chat, function: '{REQUEST}', show: {{}}}}",
        "{name: state, function: 'api:Server.daemon_threads', show: {}}",
    ]
    marks.append("{name: never, function: 'json.tool:main', show: {}}")
    sandbox.change("  marks: []\n", f"  marks: [{', '.join(marks)}]\n")
    sandbox.change("  environment:\n", "  environment:\n    PYTHONPATH: /srv/theirs  # kept\n")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    state = sandbox.state_root / sandbox.project
    old = {"an entry of an older version": [], "of an image that is gone": {"image": "sha256:0", "verdicts": []}}
    (state / "marks.json").write_text(json.dumps(old))
    result = sandbox.gb10("try", "profile")
    assert result.code == 0, result.err
    assert [len(entry["verdicts"]) for entry in json.loads((state / "marks.json").read_text()).values()] == [3]
    assert (
        "mark state: unknown until the engine starts (Server.daemon_threads is assigned there, not defined)"
        in result.err
    )
    assert "mark state is not applied: it cannot be called" in result.err
    found = {mark["name"]: mark["applied"] for mark in sandbox.evidence()["profile"]["marks"]}
    assert (found["chat"], found["state"]) == (True, False)
    assert "its module was not imported" in found["never"]["unknown"]
    overlay = (sandbox.site / "overlays/profile.yaml").read_text()
    assert 'PYTHONPATH: "/opt/gb10-marks:/srv/theirs"' in overlay
    sandbox.assert_on_baseline()


def test_a_window_without_a_trace_fails_the_try_by_name_and_the_node_is_back(sandbox: Sandbox) -> None:
    sandbox.faults(ONLY_PROFILED, 'TEST_ENGINE_NO_TRACE: "2"')
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "profile")
    assert result.code == 1, result.err
    assert "profile: window traced-long-first left no trace in " in result.err
    record = sandbox.evidence()
    assert record["verdict"] == "failed, restored"
    assert [(window["name"], len(window["files"])) for window in record["profile"]["windows"]] == [
        ("traced-short", 1),
        ("traced-long-first", 0),
        ("traced-long-again", 1),
    ]
    sandbox.assert_on_baseline()


def test_a_window_that_cannot_be_closed_ends_the_try_and_the_windows_before_it_are_kept(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Under the stand-in for nsys, which writes when the engine has ended: it has to be given its time after a failure too."""
    sandbox.faults(ONLY_PROFILED, 'TEST_ENGINE_STOP_PROFILE_FAILS: "2"')
    with_nsys(sandbox, tmp_path, writes_s=1.5, grace_s=20)
    result = sandbox.gb10("try", "profile")
    assert result.code == 1, result.err
    record = sandbox.evidence()
    assert "the profiler did not stop" in record["failure"]["cause"] or "500" in record["failure"]["cause"]
    assert record["profile"]["ended"]["killed"] is False
    assert {window["name"]: len(window["files"]) for window in record["profile"]["windows"]} == {
        "traced-short": 1,
        "traced-long-first": 1,
    }
    assert [stage["name"] for stage in record["stages"]].count("stop") == 1
    directory = max((sandbox.site / "evidence").glob("*-try-profile"))
    assert (directory / "profile.json").is_file()
    assert json.loads((directory / "run.json").read_text())["partial"]
    sandbox.assert_on_baseline()


def test_an_interrupt_in_the_suite_still_lets_the_profiler_write(sandbox: Sandbox, tmp_path: Path) -> None:
    with_nsys(sandbox, tmp_path, writes_s=1.0, grace_s=20)
    sandbox.change(
        "  environment:\n", '  environment:\n    TEST_ENGINE_TOKEN_MS: "120"  # slow enough to be interrupted\n'
    )
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    trying = sandbox.start("try", "profile")
    lines = (sandbox.site / "evidence").glob
    wait_for(
        lambda: any('"traced-short"' in path.read_text() for path in lines("*-try-profile/requests.jsonl")), "a window"
    )
    trying.send_signal(signal.SIGINT)
    _, err = trying.communicate(timeout=120)
    assert trying.returncode == 130, err
    record = sandbox.evidence()
    assert record["verdict"] == "interrupted, restored"
    assert record["profile"]["windows"][0]["files"], "written while it was ended"
    sandbox.assert_on_baseline()


def test_without_a_suite_one_window_is_around_a_canary(sandbox: Sandbox) -> None:
    sandbox.change("  profile: profile\n", "  profile: null\n")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "profile")
    assert result.code == 0, result.err
    record = sandbox.evidence()
    assert [(window["name"], len(window["files"])) for window in record["profile"]["windows"]] == [("canary", 1)]
    assert record["profile"]["program"] == {}
    assert "measure" not in [stage["name"] for stage in record["stages"]]
    sandbox.assert_on_baseline()


def test_a_wrong_answer_under_the_profiler_is_a_failure_with_its_traces_kept(sandbox: Sandbox) -> None:
    suite = sandbox.site / "suites/profile.yaml"
    question = 'prompt: "What is the capital of France? Answer in one word."'
    assert question in suite.read_text()
    suite.write_text(suite.read_text().replace(question, 'prompt: "What is the capital of France, please?"'))
    sandbox.faults(ONLY_PROFILED, "TEST_ENGINE_WRONG_ANSWER: please")
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "profile")
    assert result.code == 1, result.err
    assert "wrong answer: experiment, round 1, traced-short" in result.err
    assert all(window["files"] for window in sandbox.evidence()["profile"]["windows"])
    sandbox.assert_on_baseline()


def test_a_profiled_experiment_that_fails_before_its_suite_leaves_no_run(sandbox: Sandbox) -> None:
    sandbox.faults(ONLY_PROFILED, "TEST_ENGINE_WRONG_ANSWER: capital")
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "profile")
    assert result.code == 1, result.err
    assert "smoke: language is wrong" in result.err
    assert sandbox.evidence()["profile"]["windows"] == []
    assert not list((sandbox.site / "evidence").glob("*-try-profile/run.json"))
    result = sandbox.gb10("try", "profile", "--baseline-run", str(sandbox.site))
    assert result.code == 2
    assert "measured under the profiler, without a baseline arm" in result.err
    sandbox.assert_on_baseline()


def with_nsys(box: Sandbox, tmp_path: Path, writes_s: float, grace_s: int) -> None:
    """The test engine under the stand-in for Nsight Systems."""
    program = tmp_path / "nsight/bin/nsys"
    program.parent.mkdir(parents=True)
    program.write_text((ROOT / "tests/e2e/fake_nsys.py").read_text())
    program.chmod(0o755)
    exported = gzip.decompress((ROOT / "tests/data/traces/replay-loop.sqlite.gz").read_bytes())
    program.with_name("exported.sqlite").write_bytes(exported)
    for old, new in (
        ("tool: torch", "tool: nsys"),
        ("nsys_dir: null", f"nsys_dir: {tmp_path}/nsight"),
        ("graph_trace: null", "graph_trace: node"),
        ("stop_grace_s: 60", f"stop_grace_s: {grace_s}"),
        ("  environment:\n", f'  environment:\n    FAKE_NSYS_WRITES_S: "{writes_s}"  # of the stand-in\n'),
    ):
        box.change(old, new)
    box.render()
    assert box.gb10("deploy-baseline").code == 0


def test_nsys_is_given_its_time_and_each_report_goes_to_its_window(sandbox: Sandbox, tmp_path: Path) -> None:
    with_nsys(sandbox, tmp_path, writes_s=1.5, grace_s=20)
    profiles = sandbox.state_root / sandbox.project / "profiles"
    profiles.mkdir(mode=0o700)
    (profiles / "window.1.nsys-rep").write_text("left by an experiment that was killed")
    for _ in range(2):  # nsys does not overwrite: the first experiment's reports must be out of the second one's way
        result = sandbox.gb10("try", "profile")
        assert result.code == 0, result.err
        record = sandbox.evidence()
        texts = {window: path.read_text() for window, path in in_the_traces(record)}
        assert texts == {window: f"window {number}" for number, window in enumerate(WINDOWS, 1)}
        assert record["profile"]["tool_version"] == "NVIDIA Nsight Systems version 0.0.0-fake"
        assert record["profile"]["graph_trace"] == "node"
        assert record["profile"]["ended"]["killed"] is False
        assert record["profile"]["ended"]["duration_s"] >= 1.5
        assert record["profile"]["summary"] == {"file": "profile.json", "export_schema": "3.20.3", "not_read": []}
        directory = max((sandbox.site / "evidence").glob("*-try-profile*"))
        read = json.loads((directory / "profile.json").read_text())["windows"]
        assert [(window["name"], window["graph_kernels"]) for window in read] == [(name, 300) for name in WINDOWS]
        manifest = json.loads((directory / "manifest.json").read_text())["traces"]
        assert (manifest["export_schema"], len(manifest["files"])) == ("3.20.3", 3)
    names = sorted(path.name for path in profiles.iterdir())
    assert [name.rpartition("Z-")[2] for name in names] == ["try-profile", "try-profile", "try-profile"]
    assert [name for name in names if name.startswith("before-")] == names[2:]
    assert (profiles / names[2] / "window.1.nsys-rep").read_text() == "left by an experiment that was killed"
    sandbox.assert_on_baseline()


def test_nsys_that_takes_longer_than_its_grace_is_killed_and_the_evidence_says_so(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with_nsys(sandbox, tmp_path, writes_s=30, grace_s=2)
    result = sandbox.gb10("try", "profile")
    assert result.code == 1, result.err
    assert "the profiled engine had to be killed after 2 s (profile.stop_grace_s)" in result.err
    assert "window traced-short and 2 more left no trace" in result.err
    record = sandbox.evidence()
    assert (record["profile"]["ended"]["exit_code"], record["profile"]["ended"]["killed"]) == (137, True)
    assert record["verdict"] == "failed, restored"
    sandbox.assert_on_baseline()


def test_an_image_with_a_python_path_of_its_own_is_told_and_not_overruled(sandbox: Sandbox, tmp_path: Path) -> None:
    tag = f"{sandbox.project}/engine:eager"
    (tmp_path / "image").mkdir()
    (tmp_path / "image/Dockerfile").write_text(f"FROM {sandbox.node.image_id(tag)}\nENV PYTHONPATH=/opt/theirs\n")
    list(sandbox.node.client.api.build(path=str(tmp_path / "image"), tag=tag, rm=True))
    sandbox.change("  marks: []\n", f"  marks: [{{name: chat, function: '{REQUEST}', show: {{}}}}]\n")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "profile", "--dry-run")
    assert result.code == 2
    assert "profile.marks: images.eager sets PYTHONPATH itself, and the marks' own would take its place; " in result.err
    sandbox.change("  environment:\n", "  environment:\n    PYTHONPATH: /opt/theirs  # as in the image\n")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    assert sandbox.gb10("try", "profile", "--dry-run").code == 0


def test_two_profiled_experiments_are_compared_with_each_other_and_give_no_verdict(sandbox: Sandbox) -> None:
    assert sandbox.gb10("deploy-baseline").code == 0
    for name in ("profile", "graph-profile"):
        result = sandbox.gb10("try", name)
        assert result.code == 0, result.err
        assert "no verdict under a profiler" in result.err
    eager, graph = (max((sandbox.site / "evidence").glob(f"*-try-{name}")) for name in ("profile", "graph-profile"))
    result = sandbox.gb10("compare", str(eager), str(graph), "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["verdict"]["decision"] == "none"
    assert found["inputs_equal"] is True
    assert any("Both ran with a profiler attached" in sentence for sentence in found["sentences"])
    metrics = {case["case"]: bool(case["metrics"]) for case in found["cases"]}
    assert metrics == dict.fromkeys(["short", "long-first", "long-again"], True) | dict.fromkeys(WINDOWS, False)
