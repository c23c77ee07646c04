"""Ways to put a node into a state that a restore has to come back from. Each is a function of a sandbox whose baseline serves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gb10 import compose, facts, overlays
from tests.e2e.conftest import Sandbox

STATES: dict[str, Callable[[Sandbox], None]] = {}


def state(function: Callable[[Sandbox], None]) -> Callable[[Sandbox], None]:
    """Add a row to the table, named after the function."""
    STATES[function.__name__.replace("_", " ")] = function
    return function


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s"
        time.sleep(0.02)


def compose_command(box: Sandbox, *words: str, overlay: str | None = "graph") -> list[str]:
    """A Compose call by hand on the stored baseline, with an overlay of the site."""
    current = box.state.current()
    assert current is not None
    files = [box.state.file_of(current)]
    if overlay:
        files.append(box.site / f"overlays/{overlay}.yaml")
    return list(overlays.project_for(box.project, box.state.directory).command(files, *words).argv)


def compose_children(box: Sandbox) -> list[int]:
    """Pids of Compose calls on this project."""
    return facts.processes_with(overlays.project_for(box.project, box.state.directory).words)


def by_hand(command: list[str], *, check: bool = True) -> None:
    subprocess.run(command, env=compose.environment(), check=check, capture_output=True, timeout=60)


def kill_hard(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """kill -9 of the process alone: its children live on."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)


def experiment_is_up(box: Sandbox) -> bool:
    containers = box.node.containers(box.project)
    return len(containers) == 1 and containers[0].restart_policy == "no" and containers[0].health == "healthy"


@contextlib.contextmanager
def deaf_engine(box: Sandbox) -> Iterator[None]:
    """The baseline's process stopped (SIGSTOP), so that it does not react to SIGTERM: a stop takes the whole grace period."""
    pid = box.container().raw["State"]["Pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@state
def on_the_baseline_already(box: Sandbox) -> None:
    box.container()


@state
def nothing_running(box: Sandbox) -> None:
    by_hand(["docker", "rm", "--force", box.container().id])


@state
def experiment_running_and_its_controller_killed(box: Sandbox) -> None:
    process = box.start("try", "graph", "--hold", "60")
    wait_for(lambda: experiment_is_up(box), "the experiment's start")
    kill_hard(process)


@state
def experiment_starting_and_its_controller_killed(box: Sandbox) -> None:
    process = box.start("try", "graph", "--hold", "60")
    wait_for(
        lambda: any(c.restart_policy == "no" for c in box.node.containers(box.project)), "the experiment's container"
    )
    kill_hard(process)


@state
def compose_killed_while_it_stops_the_old_engine(box: Sandbox) -> None:
    """Trap 1: leaves the new container created under a prefixed name, or the old one half stopped."""
    with deaf_engine(box):
        process = subprocess.Popen(
            compose_command(box, "up", "--detach", "--pull", "never"),
            env=compose.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        wait_for(lambda: len(box.node.containers(box.project)) == 2, "the second container")
        kill_hard(process)


@state
def running_under_the_prefixed_name(box: Sandbox) -> None:
    """Trap 1, and one `up` more: the engine runs as <id>_<name>, which later `up`s keep."""
    compose_killed_while_it_stops_the_old_engine(box)
    by_hand(compose_command(box, "up", "--detach", "--pull", "never"))


@state
def compose_child_orphaned_while_it_recreates(box: Sandbox) -> None:
    """Trap 2: the controller is gone, its Compose child still recreates; an `up` of the baseline now would say Running."""
    with deaf_engine(box):
        subprocess.Popen(
            compose_command(box, "up", "--detach", "--pull", "never"),
            env=compose.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for(lambda: len(box.node.containers(box.project)) == 2, "the second container")
        assert compose_children(box), "the Compose child still works"


@state
def old_engine_removed_and_new_one_only_created(box: Sandbox) -> None:
    by_hand(["docker", "rm", "--force", box.container().id])
    by_hand(compose_command(box, "create", "--pull", "never"))


@state
def baseline_created_but_not_started(box: Sandbox) -> None:
    by_hand(["docker", "rm", "--force", box.container().id])
    by_hand(compose_command(box, "create", "--pull", "never", overlay=None))


@state
def stopped_by_hand(box: Sandbox) -> None:
    by_hand(["docker", "stop", box.container().id])


@state
def killed_by_hand(box: Sandbox) -> None:
    by_hand(["docker", "kill", box.container().id])


@state
def paused(box: Sandbox) -> None:
    by_hand(["docker", "pause", box.container().id])


@state
def wedged_with_health_still_200(box: Sandbox) -> None:
    """The worker is frozen: /health answers, a completion does not."""
    for line in subprocess.run(
        ["docker", "top", box.container().id, "-eo", "pid,comm"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if "TEST::Worker" in line:
            os.kill(int(line.split()[0]), signal.SIGSTOP)
            return
    raise AssertionError("the test engine has no worker")


@state
def restart_policy_changed_by_hand(box: Sandbox) -> None:
    by_hand(["docker", "update", "--restart=no", box.container().id])


@state
def image_tag_points_at_another_image(box: Sandbox) -> None:
    by_hand(["docker", "tag", f"{box.project}/engine:graph", f"{box.project}/engine:eager"])
    by_hand(["docker", "rm", "--force", box.container().id])


@state
def image_tag_removed_and_images_pruned(box: Sandbox) -> None:
    by_hand(["docker", "rm", "--force", box.container().id])
    by_hand(["docker", "rmi", f"{box.project}/engine:eager"])
    by_hand(["docker", "image", "prune", "--force"])


@state
def repository_file_edited(box: Sandbox) -> None:
    path = box.site / "compose.yaml"
    path.write_text(path.read_text() + "# an edit of the owner's\n")
    by_hand(["docker", "rm", "--force", box.container().id])


@state
def repository_file_removed(box: Sandbox) -> None:
    (box.site / "compose.yaml").unlink()
    by_hand(["docker", "stop", box.container().id])


@state
def state_directory_removed_while_the_baseline_runs(box: Sandbox) -> None:
    shutil.rmtree(box.state.directory)


@state
def state_directory_removed_while_an_experiment_runs(box: Sandbox) -> None:
    experiment_running_and_its_controller_killed(box)
    shutil.rmtree(box.state.directory)


@state
def state_directory_and_repository_file_removed(box: Sandbox) -> None:
    shutil.rmtree(box.state.directory)
    (box.site / "compose.yaml").unlink()
    by_hand(["docker", "rm", "--force", box.container().id])


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """A directory that root cannot write either: a read-only bind mount of itself."""
    by_hand(["mount", "--bind", str(path), str(path)])
    try:
        by_hand(["mount", "-o", "remount,bind,ro", str(path)])
        yield
    finally:
        by_hand(["umount", str(path)])
