"""The same starting states with the restore itself killed (kill -9) at three points; the next call finishes it."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Sandbox
from tests.e2e.returning import ON_BASELINE, assert_restored, bystander, row, timed_restore
from tests.e2e.states import STATES, compose_children, kill_hard, wait_for

pytestmark = pytest.mark.docker
__all__ = ["bystander", "row"]


def restore_holds_the_lock(box: Sandbox) -> bool:
    lock = box.state.directory / "lock"
    return lock.is_file() and "gb10 restore" in lock.read_text()


POINTS = {
    "just after it took the lock": restore_holds_the_lock,
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
