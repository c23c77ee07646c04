"""The main job on real vLLM with the real model: deploy, try, come back, and refuse what cannot be traced."""

from __future__ import annotations

import hashlib
import json
import signal
import time
from pathlib import Path

import pytest

from gb10 import facts, flags
from gb10.arguments import engine_arguments, profiler_entrypoint
from gb10.context import Context
from gb10.facts import GIB
from gb10.signals import Signals
from gb10.site import Site
from gb10.terminal import Terminal
from tests.conftest import ROOT
from tests.e2e.conftest import Sandbox
from tests.e2e.states import wait_for

pytestmark = pytest.mark.docker

ONLY_GRAPH = "TEST_ENGINE_ONLY_WITH: --compilation-config"


def test_a_deploy_leaves_a_verified_baseline_with_evidence(vllm: Sandbox) -> None:
    vllm.assert_on_baseline()
    first = min(
        (vllm.site / "evidence").glob("*-deploy-baseline/record.json")
    )  # other files' tests may have come before
    record = json.loads(first.read_text())
    assert record["verdict"] == "deployed"
    assert [case["passed"] for case in record["smoke"]] == [True, True, True]
    assert record["files"]["compose.yaml"] == hashlib.sha256((vllm.site / "compose.yaml").read_bytes()).hexdigest()
    assert record["baseline"]["image_id"] == vllm.container().image_id
    assert record["baseline"]["argv"] == vllm.container().argv
    assert record["commit"] == vllm.git("rev-list", "--max-parents=0", "HEAD").strip()
    assert record["versions"]["vllm"] == "0.32.0"
    assert [stage["name"] for stage in record["stages"]] == ["switch", "ready", "smoke", "verify"]


def test_state_md_says_what_runs_and_keeps_notes(vllm: Sandbox) -> None:
    path = vllm.site / "STATE.md"
    assert vllm.container().image_id[:19] in path.read_text()
    path.write_text(
        path.read_text().replace("# State of this node\n", "# State of this node\n\nA note of mine.\n")
        + "\nAnother note.\n"
    )
    assert vllm.gb10("restore").code == 0
    text = path.read_text()
    assert "A note of mine." in text
    assert "Another note." in text
    assert "restore: was on the baseline already" in text


def test_deploying_the_same_again_keeps_the_running_container(vllm: Sandbox) -> None:
    before = vllm.container()
    result = vllm.gb10("deploy-baseline")
    assert result.code == 0
    assert "was running already" in result.out
    assert (vllm.container().id, vllm.container().started_at) == (before.id, before.started_at)


def test_the_graph_experiment_runs_is_judged_and_gives_way_to_the_same_baseline(vllm: Sandbox) -> None:
    before = vllm.container()
    result = vllm.gb10("try", "graph")
    assert result.code == 0, result.err
    assert "graph overlay: applied, not effective" in result.err
    record = vllm.evidence()
    assert record["verdict"] == "passed without effect, restored"
    assert record["graph_effective"]["value"] is False
    assert any(word.startswith("--compilation-config=") for word in record["experiment_container"]["argv"])
    assert record["experiment_container"]["restart_policy"] == "no"
    assert record["experiment_container"]["image_id"] != record["baseline"]["image_id"]
    assert all(case["passed"] for case in record["smoke"] + record["smoke_after_restore"])
    assert record["guard"]["samples"] > 5
    samples = [json.loads(line) for line in Path(record["guard"]["log"]).read_text().splitlines()]
    assert record["guard"]["lowest_available_bytes"] == min(sample["available_bytes"] for sample in samples)
    assert vllm.container().image_id == before.image_id
    vllm.assert_on_baseline()


def test_ctrl_c_while_the_experiment_starts_restores_and_exits_130(vllm: Sandbox) -> None:
    process = vllm.start("try", "graph")
    deadline = time.monotonic() + 60
    while not any(c.running and c.restart_policy == "no" for c in vllm.node.containers(vllm.project)):
        assert time.monotonic() < deadline, "the experiment never started"
        time.sleep(0.1)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    assert "still bringing the node back" in err or "still restoring the baseline" in err
    assert vllm.evidence()["verdict"] == "interrupted, restored"
    vllm.assert_on_baseline()


def test_sigterm_during_smoke_restores_and_exits_130(vllm: Sandbox) -> None:
    process = vllm.start("try", "graph")
    wait_for(lambda: (lease := vllm.state.lease()) is not None and lease.stage == "prove", "the smoke requests", 90)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    vllm.assert_on_baseline()


def test_kill_9_during_the_switch_is_mended_by_the_next_restore(vllm: Sandbox) -> None:
    process = vllm.start("try", "graph")
    wait_for(lambda: (lease := vllm.state.lease()) is not None and lease.stage == "switch", "the switch", 60)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    result = vllm.gb10("restore")
    assert result.code == 0, result.err
    vllm.assert_on_baseline()


def test_dry_runs_print_commands_and_change_nothing(vllm: Sandbox) -> None:
    before = vllm.container()
    for words in (("deploy-baseline",), ("try", "graph"), ("restore",)):
        result = vllm.gb10(*words, "--dry-run")
        assert result.code == 0, result.err
        assert f"--project-name {vllm.project}" in result.out
        assert "nothing was changed" in result.out
    assert vllm.container().started_at == before.started_at


def test_what_cannot_be_traced_or_could_not_work_is_refused_and_nothing_is_touched(vllm: Sandbox) -> None:
    before = vllm.container()
    graph = vllm.site / "overlays/graph.yaml"
    good = graph.read_text()

    graph.write_text(good + "# edited\n")
    result = vllm.gb10("deploy-baseline")
    assert result.code == 2
    assert "overlays/graph.yaml: is not committed" in result.err
    assert "overlays/graph.yaml: differs from vars.yaml" in result.err
    assert vllm.gb10("try", "graph").code == 2
    graph.write_text(good)

    result = vllm.gb10("try", "grpah")
    assert result.code == 2
    assert "did you mean graph?" in result.err

    vllm.change("extra_arguments: []", "extra_arguments: [--no-such-flag]")
    vllm.render()
    result = vllm.gb10("deploy-baseline")
    assert result.code == 2
    assert "the engine's parser refuses them: unrecognized arguments: --no-such-flag" in result.err
    result = vllm.gb10("try", "graph")
    assert result.code == 2
    assert "is not the baseline that is deployed" in result.err
    vllm.revert()

    vllm.change("tag: gb10-gitops/vllm-cpu:0.32.0", "tag: gb10-gitops/vllm-cpu:not-built")
    vllm.render()
    result = vllm.gb10("deploy-baseline")
    assert result.code == 2
    assert "images.eager: gb10-gitops/vllm-cpu:not-built is not on this node" in result.err
    vllm.revert()

    with vllm.state.lock("a test"):
        result = vllm.gb10("restore")
    assert result.code == 2
    assert "held by pid" in result.err

    after = vllm.container()
    assert (after.id, after.started_at) == (before.id, before.started_at)


def test_uncommitted_files_are_deployed_only_on_request_and_recorded(vllm: Sandbox) -> None:
    vllm.change("canary_s: 30", "canary_s: 31")
    assert vllm.gb10("deploy-baseline").code == 2
    result = vllm.gb10("deploy-baseline", "--allow-dirty")
    assert result.code == 0, result.err
    assert vllm.evidence()["changed_files"] == ["vars.yaml"]
    vllm.revert()


def test_diff_says_in_words_what_an_experiment_would_change(vllm: Sandbox) -> None:
    assert vllm.gb10("diff").out == "no difference\n"
    result = vllm.gb10("diff", "--experiment", "graph")
    assert result.code == 1
    assert "argument: expected not there, found --enforce-eager" in result.out
    assert "restart policy: expected no, found unless-stopped" in result.out


@pytest.mark.parametrize("name", ["gb10", "cpu"])
def test_the_real_parser_accepts_the_flags_of_every_experiment(name: str, vllm: Sandbox) -> None:
    """The CPU image's vLLM 0.32 judges both sites. For the GB10's nightly that proves nothing: doctor asks its own image."""
    site = Site.load({"gb10": ROOT, "cpu": ROOT / "examples/cpu"}[name])
    terminal = Terminal(open("/dev/null", "w"))  # noqa: SIM115, PTH123
    vllm.state.prepare()
    context = Context(site, vllm.node, vllm.state, terminal, Signals(terminal.note))
    image_id = vllm.container().image_id
    profiler = [word for word in profiler_entrypoint(site.variables) if word.startswith("--profiler-config")]
    for graph in (None, site.variables.graph):
        arguments = engine_arguments(site.variables, graph)
        verdict = flags.judge(context, image_id, [*profiler, *arguments])
        assert verdict.outcome == "accepted", verdict.why
    arguments = engine_arguments(site.variables, site.variables.graph)
    wrong = [word.replace("cudagraph_mode", "cudagraph_modee") for word in arguments]
    verdict = flags.judge(context, image_id, wrong)
    assert verdict.outcome == "refused"
    assert "cudagraph_modee" in verdict.why


# Memory floors, on the test engine: when nothing else runs, for a real vLLM that starts beside them would cross the floor.


@pytest.mark.alone
def test_the_guard_ends_a_leaking_experiment_and_says_with_which_numbers(sandbox: Sandbox) -> None:
    available = (facts.available_bytes().value or 0) / GIB
    floor = round(available - 0.5, 2)
    sandbox.change("memory_gib: 7.5", "memory_gib: 4000.0")
    sandbox.change("stop_below_gib: 1.0", f"stop_below_gib: {floor}")
    sandbox.change("sustained_below_gib: 2.0", f"sustained_below_gib: {floor}")
    sandbox.faults(ONLY_GRAPH, 'TEST_ENGINE_LEAK_MIB_PER_S: "300"', 'TEST_ENGINE_LEAK_MAX_MIB: "1000"')
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "graph", "--hold", "60")
    assert result.code == 1, result.err
    assert "the guard ended it: available memory" in result.err
    assert f"below guard.stop_below_gib {floor:g}" in result.err
    record = sandbox.evidence()
    assert record["guard"]["lowest_available_bytes"] < floor * GIB
    assert record["guard"]["tripped"] in result.err
    sandbox.assert_on_baseline()


@pytest.mark.alone
def test_memory_that_is_low_for_a_while_ends_it_too(sandbox: Sandbox) -> None:
    available = (facts.available_bytes().value or 0) / GIB
    floor = round(available - 0.3, 2)
    sandbox.change("memory_gib: 7.5", "memory_gib: 4000.0")
    sandbox.change("sustained_below_gib: 2.0", f"sustained_below_gib: {floor}")
    sandbox.change("sustained_s: 5", "sustained_s: 2")
    sandbox.faults(ONLY_GRAPH, 'TEST_ENGINE_JUMP_MIB_AFTER_S: "3:900"')
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "graph", "--hold", "60")
    assert result.code == 1, result.err
    assert f"below guard.sustained_below_gib {floor:g} for" in result.err
    sandbox.assert_on_baseline()
