"""Back to the baseline from any state: a table of starting states on real containers."""

from __future__ import annotations

import threading

import pytest

from gb10.engine import client
from tests.e2e.conftest import Sandbox
from tests.e2e.returning import ON_BASELINE, assert_restored, bystander, row, timed_restore
from tests.e2e.states import STATES, read_only

pytestmark = pytest.mark.docker
__all__ = ["bystander", "row"]


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


def test_an_edited_file_is_a_repository_finding_and_stays_as_it_is(serving: Sandbox) -> None:
    STATES["repository file edited"](serving)
    result = serving.gb10("restore")
    assert result.code == 0
    assert "repository: 3 passed, 2 failed" in result.out
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
    """No canary comes back in time, but the iteration counter grows: nothing is restarted."""
    sandbox.faults('TEST_ENGINE_TOKEN_MS: "500"')
    sandbox.change("canary_s: 4", "canary_s: 60")
    sandbox.change("request_s: 5", "request_s: 100")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    before = sandbox.container()
    sandbox.change("canary_s: 60", "canary_s: 1.5")
    sandbox.render()
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            client.complete(f"http://127.0.0.1:{sandbox.port}", "smollm2-135m", "Work.", max_tokens=1, timeout_s=30)

    user = threading.Thread(target=work)
    user.start()
    try:
        result = sandbox.gb10("restore")
    finally:
        over.set()
        user.join(30)
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
