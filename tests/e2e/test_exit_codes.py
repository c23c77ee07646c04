"""Exit codes say where the node is: each code of each command, judged by what the node runs afterwards. On the test engine."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time

import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import Sandbox, build_engine
from tests.e2e.states import by_hand, experiment_is_up, wait_for

pytestmark = pytest.mark.docker

ONLY_GRAPH = "TEST_ENGINE_ONLY_WITH: --compilation-config"


def identity(box: Sandbox) -> tuple[str, str]:
    container = box.container()
    return container.id, container.started_at


# deploy-baseline


FAILING_DEPLOYS = {
    "a crash loop": (['TEST_ENGINE_CRASH_AT_START: "7"'], "keeps ending (restart"),
    "an engine that is never ready": (['TEST_ENGINE_NEVER_READY: "1"'], "is unhealthy"),
    "a worker that dies, leaving exit code 0": (['TEST_ENGINE_WORKER_DIES_AFTER_S: "0.1"'], "keeps ending (restart"),
    "a wrong answer": (['TEST_ENGINE_WRONG_ANSWER: "1"'], "answers arithmetic wrongly"),
    "a wedged engine whose /health is still 200": (['TEST_ENGINE_WEDGE_AFTER: "0"'], "a completion does not"),
    "an answer that is cut off": (['TEST_ENGINE_TRUNCATE: "1"'], "cut off by max_tokens"),
    "an engine that dies on its first request": (['TEST_ENGINE_DIE_AFTER_REQUESTS: "0"'], "a completion does not"),
}


@pytest.mark.parametrize("name", FAILING_DEPLOYS)
def test_a_deploy_that_fails_brings_back_the_last_good_baseline_and_exits_1(name: str, serving: Sandbox) -> None:
    lines, reason = FAILING_DEPLOYS[name]
    good = serving.state.current()
    serving.faults(*lines)
    result = serving.gb10("deploy-baseline")
    assert result.code == 1, result.err
    assert reason in result.err
    assert "serves again" in result.err
    assert serving.state.current() == good
    assert serving.evidence()["verdict"] == "failed, restored"
    serving.revert()
    serving.assert_on_baseline()
    assert "limits.ready_s" not in result.err, "it was noticed before the whole time to be ready was over"


def test_the_engines_own_last_lines_are_shown(serving: Sandbox) -> None:
    serving.faults('TEST_ENGINE_CRASH_AT_START: "7"')
    result = serving.gb10("deploy-baseline")
    assert "  | " in result.err
    assert "Traceback" in result.err or "Error" in result.err


def test_a_first_deploy_that_fails_leaves_nothing_running_and_exits_3(sandbox: Sandbox) -> None:
    sandbox.faults('TEST_ENGINE_CRASH_AT_START: "7"')
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 3, result.err
    assert "nothing is running now" in result.err
    assert sandbox.node.containers(sandbox.project) == []
    assert sandbox.gb10("restore").code == 3


def test_a_wrong_flag_that_no_parser_could_judge_is_noticed_when_the_engine_exits(serving: Sandbox) -> None:
    serving.change("extra_arguments: []", "extra_arguments: [--no-such-flag]")
    serving.render()
    result = serving.gb10("deploy-baseline")
    assert result.code == 1, result.err
    assert "unrecognized arguments: --no-such-flag" in result.err
    serving.revert()
    serving.assert_on_baseline()


def test_a_port_in_use_is_refused_and_nothing_is_touched(sandbox: Sandbox) -> None:
    import socket

    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", sandbox.port))
        other.listen()
        result = sandbox.gb10("deploy-baseline")
    assert result.code == 2
    assert f"127.0.0.1:{sandbox.port} cannot be bound" in result.err
    assert sandbox.node.containers(sandbox.project) == []


def test_a_full_disk_is_refused_before_anything_changes(serving: Sandbox) -> None:
    before = identity(serving)
    small = serving.state_root / serving.project
    keep = serving.state_root / "keep"
    small.rename(keep)
    small.mkdir()
    by_hand(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)])
    try:
        by_hand(["cp", "-a", f"{keep}/.", str(small)])
        with (small / "filler").open("wb") as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"\0" * 65536)
                filler.flush()
        for words in (("deploy-baseline", "--fresh"), ("try", "graph")):
            result = serving.gb10(*words)
            assert result.code == 2, result.err
            assert "MiB are free" in result.err or "No space left" in result.err
        assert identity(serving) == before
        by_hand(["docker", "stop", serving.container().id])
        result = serving.gb10("restore")
        assert result.code == 0, result.err
        assert identity(serving) != before
    finally:
        by_hand(["umount", str(small)])
        small.rmdir()
        keep.rename(small)
    serving.assert_on_baseline()


def test_a_deploy_that_is_terminated_restores_and_exits_130(serving: Sandbox) -> None:
    good = serving.state.current()
    serving.faults('TEST_ENGINE_START_S: "8"')
    process = serving.start("deploy-baseline")
    wait_for(lambda: any(c.health == "starting" for c in serving.node.containers(serving.project)), "the start")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert serving.state.current() == good
    serving.revert()
    serving.assert_on_baseline()


# try


FAILING_EXPERIMENTS = {
    "a wrong answer": (['TEST_ENGINE_WRONG_ANSWER: "1"'], "smoke: arithmetic is wrong"),
    "an engine that ends at once": (['TEST_ENGINE_CRASH_AT_START: "3"'], "exit code 3"),
    "an engine that dies on its first request": (['TEST_ENGINE_DIE_AFTER_REQUESTS: "0"'], "a completion does not"),
    "a wedged engine": (['TEST_ENGINE_WEDGE_AFTER: "1"'], "smoke: arithmetic is wrong"),
    "an engine that ignores SIGTERM": (['TEST_ENGINE_IGNORE_SIGTERM: "1"', 'TEST_ENGINE_WRONG_ANSWER: "1"'], "smoke"),
}


@pytest.mark.parametrize("name", FAILING_EXPERIMENTS)
def test_an_experiment_that_fails_exits_1_on_the_baseline(name: str, sandbox: Sandbox) -> None:
    lines, reason = FAILING_EXPERIMENTS[name]
    sandbox.faults(ONLY_GRAPH, *lines)
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "graph")
    assert result.code == 1, result.err
    assert reason in result.err
    assert sandbox.evidence()["verdict"] == "failed, restored"
    sandbox.assert_on_baseline()


def test_a_floor_that_the_node_is_under_already_is_refused(sandbox: Sandbox) -> None:
    sandbox.change("memory_gib: 7.5", "memory_gib: 4000.0")
    sandbox.change("sustained_below_gib: 2.0", "sustained_below_gib: 3000.0")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    before = identity(sandbox)
    result = sandbox.gb10("try", "graph")
    assert result.code == 2
    assert "under the floor 3000 already" in result.err
    assert identity(sandbox) == before


def test_an_experiment_whose_way_back_is_destroyed_exits_3(sandbox: Sandbox) -> None:
    serving = sandbox
    build_engine(sandbox.node, f"{sandbox.project}/engine:eager", {"only": sandbox.project})
    assert serving.gb10("deploy-baseline").code == 0
    process = serving.start("try", "graph", "--hold", "60")
    wait_for(lambda: experiment_is_up(serving), "the experiment")
    current = serving.state.current()
    assert current is not None
    by_hand(["docker", "rmi", "--force", current.image_tag, current.stored_tag])
    assert serving.node.image(current.image_id) is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "is gone" in err
    lease = serving.state.lease()
    assert lease is not None
    assert lease.experiment == "graph"
    assert serving.gb10("restore").code == 3


def test_hold_keeps_the_experiment_up_and_then_restores(serving: Sandbox) -> None:
    process = serving.start("try", "graph", "--hold", "4")
    wait_for(lambda: experiment_is_up(serving), "the experiment")
    wait_for(lambda: (lease := serving.state.lease()) is not None and lease.stage == "hold", "the hold")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "the experiment serves at" in err
    serving.assert_on_baseline()


@pytest.mark.parametrize(
    ("stage", "name"), [("ready", "SIGHUP"), ("prove", "SIGINT"), ("hold", "SIGTERM"), ("hold", "SIGHUP")]
)
def test_a_signal_at_any_stage_ends_with_130_on_the_baseline(stage: str, name: str, sandbox: Sandbox) -> None:
    if stage != "hold":
        sandbox.faults(ONLY_GRAPH, 'TEST_ENGINE_START_S: "3"', 'TEST_ENGINE_TOKEN_MS: "100"')
    assert sandbox.gb10("deploy-baseline").code == 0
    process = sandbox.start("try", "graph", "--hold", "60")
    wait_for(lambda: (lease := sandbox.state.lease()) is not None and lease.stage == stage, stage)
    time.sleep(0.2)
    process.send_signal(getattr(signal, name))
    time.sleep(0.3)
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"{name}: still" in err, "a second signal is told what is still being done"
    sandbox.assert_on_baseline()


def test_a_reader_that_goes_away_does_not_break_the_restore(serving: Sandbox) -> None:
    process = serving.start("try", "graph", "--hold", "3")
    assert process.stderr is not None
    assert process.stdout is not None
    process.stderr.close()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    serving.assert_on_baseline()


def test_a_lost_terminal_does_not_break_the_restore(serving: Sandbox) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        serving.argv("try", "graph", "--hold", "60"),
        cwd=ROOT,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    wait_for(lambda: experiment_is_up(serving), "the experiment")
    os.close(leader)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 130
    serving.assert_on_baseline()


# restore, verify and the rest


def test_a_restore_that_is_interrupted_finishes_and_exits_130(serving: Sandbox) -> None:
    by_hand(["docker", "rm", "--force", serving.container().id])
    process = serving.start("restore")
    wait_for(lambda: any(c.health == "starting" for c in serving.node.containers(serving.project)), "the start")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "still restoring the baseline" in err
    serving.assert_on_baseline()


def test_a_lock_names_its_holder_and_frees_itself_when_the_holder_dies(serving: Sandbox) -> None:
    process = serving.start("try", "graph", "--hold", "60")
    wait_for(lambda: experiment_is_up(serving), "the experiment")
    result = serving.gb10("deploy-baseline")
    assert result.code == 2
    assert f"held by pid {process.pid} (`gb10 try graph" in result.err
    assert f"kill -INT {process.pid}" in result.err
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    result = serving.gb10("try", "graph")
    assert result.code == 2
    assert "experiment graph holds the node since" in result.err
    assert serving.gb10("restore").code == 0
    serving.assert_on_baseline()


def test_verify_exits_0_1_and_2(serving: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert serving.gb10("verify").code == 0
    by_hand(["docker", "stop", serving.container().id])
    result = serving.gb10("verify")
    assert result.code == 1
    assert "the engine is running: expected running, found exited" in result.out
    assert f"make restore SITE={serving.site}" in result.out
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    result = serving.gb10("verify")
    assert result.code == 2
    assert "no engine answers" in result.err


STATE_FILES = {
    "a half-written lease": ("lease.json", '{"experiment": "gra', "cannot be read"),
    "a newer format": ("format.json", '{"format": 99, "machine": null}', "has format 99, this version reads 1"),
    "another machine's directory": (
        "format.json",
        '{"format": 1, "machine": "0123456789abcdef"}',
        "belongs to another machine",
    ),
    "a baseline whose bytes were changed": ("baseline", "services: {}\n", "does not have the bytes that were stored"),
}


@pytest.mark.parametrize("name", STATE_FILES)
def test_a_damaged_state_directory_is_one_clear_line_and_nothing_is_lost(name: str, serving: Sandbox) -> None:
    file, text, reason = STATE_FILES[name]
    current = serving.state.current()
    assert current is not None
    path = serving.state.file_of(current) if file == "baseline" else serving.state.directory / file
    before = identity(serving)
    path.write_text(text)
    result = serving.gb10("try", "graph")
    assert result.code == 2, result.err
    assert reason in result.err
    assert "Traceback" not in result.err
    assert identity(serving) == before
    assert path.read_text() == text
