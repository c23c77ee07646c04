"""Back to the baseline from any state: a table of starting states on real containers, and the same under kill -9 of the restore itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gb10.node import Node
from tests.e2e.conftest import ON_BASELINE, Run, Sandbox, remove_project
from tests.e2e.states import STATES, compose_children, kill_hard, read_only, wait_for

pytestmark = pytest.mark.docker

REPOSITORY_FINDINGS = {"compose yaml has the stored bytes", "every rendered file fits the variables"}


@pytest.fixture
def bystander(serving: Sandbox, node: Node) -> Iterator[None]:
    """A container of another Compose project on the same engine: never touched."""
    project = f"{serving.project}-other"
    api = node.client.api
    labels = {"com.docker.compose.project": project}
    container = api.create_container("gb10-gitops/base:bookworm", ["sleep", "300"], labels=labels)
    api.start(container["Id"])
    found = node.container(container["Id"])
    assert found is not None
    yield
    after = node.container(found.id)
    remove_project(node, project)
    assert after is not None
    assert (after.running, after.started_at) == (True, found.started_at)


def assert_restored(box: Sandbox) -> None:
    """On the baseline, by the checks; only repository findings may be left, and only where the state made them."""
    checks = box.checks()
    red = {
        name: message
        for name, (outcome, message) in checks.items()
        if outcome == "failed" and name not in REPOSITORY_FINDINGS
    }
    assert not red, red
    assert box.state.lease() is None
    container = box.container()
    assert (container.name, container.restart_policy) == (box.project, "unless-stopped")


@pytest.fixture
def row(request: pytest.FixtureRequest) -> list[str]:
    """A row of the table that is printed at the end: state, seconds, seconds, where the node was."""
    cells = ["?", "-", "-", "NOT ON THE BASELINE"]
    request.node.user_properties.append(("starting state", cells))
    return cells


def timed_restore(box: Sandbox) -> tuple[Run, str]:
    began = time.monotonic()
    result = box.gb10("restore")
    assert result.code == 0, result.err
    return result, f"{time.monotonic() - began:.1f} s"


@pytest.mark.parametrize("name", STATES)
def test_the_node_comes_back_and_a_second_restore_has_nothing_to_do(
    name: str, serving: Sandbox, bystander: None, row: list[str]
) -> None:
    row[0] = name
    STATES[name](serving)
    edited = {path: path.read_bytes() for path in serving.site.glob("*.yaml")}
    _, row[1] = timed_restore(serving)
    assert_restored(serving)
    before = serving.container()
    again, row[2] = timed_restore(serving)
    assert "was on its baseline already" in again.out
    assert (serving.container().id, serving.container().started_at) == (before.id, before.started_at)
    assert {path: path.read_bytes() for path in serving.site.glob("*.yaml")} == edited, "a restore never edits these"
    row[3] = ON_BASELINE


POINTS = {
    "just after it took the lock": lambda box: "gb10 restore" in (box.state.directory / "lock").read_text(),
    "while Compose starts the baseline": compose_children,
    "while it waits until ready": lambda box: any(
        c.running and c.restart_policy == "unless-stopped" and c.health == "starting"
        for c in box.node.containers(box.project)
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_restore_that_is_killed_three_times_is_finished_by_the_next_one(
    name: str, serving: Sandbox, bystander: None, row: list[str]
) -> None:
    """kill -9 of the restore at three points one after the other; a restore with nothing to start never reaches the last two."""
    STATES[name](serving)
    killed = 0
    for point, reached in POINTS.items():
        process = serving.start("restore")
        wait_for(lambda reached=reached, process=process: process.poll() is not None or reached(serving), point)
        killed += process.poll() is None
        kill_hard(process)
    row[0] = f"{name}; its restore killed {killed} times"
    assert killed, "no restore was there to be killed"
    _, row[1] = timed_restore(serving)
    assert_restored(serving)
    row[3] = ON_BASELINE


def test_an_edited_file_is_a_repository_finding_and_stays_as_it_is(serving: Sandbox) -> None:
    STATES["repository file edited"](serving)
    result = serving.gb10("restore")
    assert result.code == 0
    assert "repository: 0 passed, 2 failed" in result.out
    assert serving.checks()["compose yaml has the stored bytes"][0] == "failed"
    assert serving.gb10("verify").code == 1
    assert serving.gb10("acknowledge").code == 0
    assert serving.checks()["compose yaml has the stored bytes"][0] == "acknowledged"
    assert serving.gb10("verify").code == 0
    path = serving.site / "compose.yaml"
    path.write_text(path.read_text() + "# another edit\n")
    assert serving.checks()["compose yaml has the stored bytes"][0] == "failed", "a changed finding is a new one"


def test_an_image_built_since_the_deploy_keeps_its_tag_and_is_what_the_next_deploy_takes(serving: Sandbox) -> None:
    STATES["image tag points at another image"](serving)
    result = serving.gb10("restore")
    assert result.code == 0, result.err
    assert "means another image than the one deployed" in result.err
    newer = serving.node.image_id(f"{serving.project}/engine:graph")
    assert serving.node.image_id(f"{serving.project}/engine:eager") == newer
    assert serving.container().image_id != newer
    assert serving.gb10("deploy-baseline").code == 0
    assert serving.container().image_id == newer


def test_damaged_stored_bytes_are_recovered_from_the_evidence(serving: Sandbox) -> None:
    current = serving.state.current()
    assert current is not None
    serving.state.file_of(current).write_text("services: {}\n")
    result = serving.gb10("restore")
    assert result.code == 0, result.err
    assert "does not have the bytes that were stored" in result.err
    assert_restored(serving)


def test_a_busy_engine_is_not_taken_for_a_dead_one(sandbox: Sandbox) -> None:
    """Its canary does not come back in time, but its iteration counter grows: nothing is restarted."""
    sandbox.faults('TEST_ENGINE_TOKEN_MS: "1100"')
    sandbox.change("canary_s: 4", "canary_s: 60")
    sandbox.change("request_s: 5", "request_s: 100")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    before = sandbox.container()
    sandbox.change("canary_s: 60", "canary_s: 2")
    sandbox.render()
    result = sandbox.gb10("restore")
    assert "the engine is busy" in result.err
    assert (sandbox.container().id, sandbox.container().started_at) == (before.id, before.started_at)


def test_a_lost_state_directory_is_told(serving: Sandbox) -> None:
    STATES["state directory removed while the baseline runs"](serving)
    result = serving.gb10("restore")
    assert "the state directory was lost: lease, history, acknowledgements and raw records are gone" in result.err
    assert serving.checks()["no oom kill since the deploy"][0] == "unknown"


def test_a_read_only_state_directory_is_refused_before_anything_changes(serving: Sandbox) -> None:
    before = serving.container()
    with read_only(serving.state.directory):
        for words in (("restore",), ("deploy-baseline",), ("try", "graph")):
            result = serving.gb10(*words)
            assert result.code == 2, result.err
            assert "cannot be written (Read-only file system)" in result.err
    assert (serving.container().id, serving.container().started_at) == (before.id, before.started_at)
