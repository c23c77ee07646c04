"""What the tests of the way back share: a bystander, a row of the table, and what restored means."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gb10.node import Node
from tests.e2e.conftest import ON_BASELINE, Run, Sandbox, remove_project

REPOSITORY_FINDINGS = {"compose yaml has the stored bytes", "every rendered file fits the variables"}
__all__ = ["ON_BASELINE"]


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
