"""What can go wrong with capture windows, on the test engine; Nsight Systems with a stand-in: no one working on this has a GPU."""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import Sandbox
from tests.e2e.profiled import WINDOWS, in_the_traces
from tests.e2e.states import wait_for

pytestmark = pytest.mark.docker

ONLY_PROFILED = "TEST_ENGINE_ONLY_WITH: --profiler-config"
REQUEST = "api:Handler._chat"
"""A function of the test engine."""


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
