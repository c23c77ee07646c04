"""An OOM kill, shown red. The host's counter is everybody's: this file runs when no other test does (`make test` sees to it)."""

from __future__ import annotations

import subprocess

import pytest

from tests.e2e.conftest import Sandbox
from tests.e2e.states import wait_for

pytestmark = [pytest.mark.docker, pytest.mark.alone]

CHILD = "nothing in the container was killed for memory"
HOST = "no oom kill since the deploy"
HUNGRY = """
import pathlib
pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
held = bytearray(400 * 2**20)
"""


def test_a_child_killed_for_memory_is_seen_in_the_container_and_on_the_host(
    sandbox: Sandbox, request: pytest.FixtureRequest
) -> None:
    """The limit of the container is 300 MiB: the machine's own memory is far from its end. Docker's OOMKilled stays false."""
    sandbox.change("memory_limit: 8g", "memory_limit: 300m")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    container = sandbox.container()
    words = ["docker", "exec", container.id, "python3", "-c", HUNGRY]
    result = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert result.returncode == 137, result.stderr
    wait_for(lambda: sandbox.container().health == "healthy", "health")
    found = {s: message for s, (outcome, message) in sandbox.checks().items() if outcome == "failed"}
    assert set(found) == {CHILD, HOST}
    assert "expected 0 OOM kills, found 1 in its cgroup; find out what grew" in found[CHILD]
    for check, other in ((CHILD, HOST), (HOST, CHILD)):
        cells = [check, "a child of the engine killed by its cgroup", found[check], other]
        request.node.user_properties.append(("breakage", cells))
    assert sandbox.gb10("acknowledge").code == 0
    assert sandbox.gb10("verify").code == 0
    assert sandbox.gb10("restore").code == 0, "history is never in the way"
