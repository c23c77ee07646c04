"""Put one flattened configuration on the node and prove that exactly it runs. Used by deploy, restore and experiment."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gb10 import comparison, facts, files, node, readiness
from gb10.comparison import Expected
from gb10.context import Context
from gb10.errors import FailedError, NotOnBaselineError
from gb10.node import Container
from gb10.overlays import flatten, service_of
from gb10.state import now

UP_TIMEOUT_S = 180.0
REMOVAL_S = 30.0


@dataclass(frozen=True)
class Target:
    """What should run: files in Compose's order, the engine's service in them, and what that makes of a container."""

    files: list[Path]
    service: dict[str, Any]
    expected: Expected


def target_of(context: Context, files: list[Path], image_id: str) -> Target:
    """Flatten `files`; `image_id` is what their image tag must mean."""
    service = service_of(flatten(context.node, context.project, files))
    return Target(files, service, Expected.of(service, image_id))


def running(context: Context, target: Target) -> Container | None:
    """The project's only container when it is exactly the target, running and healthy; else None."""
    containers = context.node.containers(context.site.project)
    if len(containers) != 1:
        return None
    container = containers[0]
    if not container.running or not container.is_ready or container.name != target.service["container_name"]:
        return None
    return None if differences(context, target, container) else container


def differences(context: Context, target: Target, container: Container) -> list[comparison.Difference]:
    """In what the container differs from the target."""
    image = comparison.environment_of(context.node.image(container.image_id))
    return comparison.differences(target.expected, container, image)


def orphans(context: Context) -> list[int]:
    """Compose calls on this project that outlived their command; the lock is ours, so none can be wanted."""
    return facts.processes_with(context.project.words)


def clear(context: Context) -> None:
    """End Compose calls left by a command that died, then stop and remove every container of the project, by label.

    Each container's log is kept in the raw directory first, as far as that is possible.
    """
    for pid in orphans(context):
        context.progress.note(f"ending Compose (pid {pid}) left by an earlier command")
        node.end_group(pid)
    for container in context.node.containers(context.site.project):
        context.progress.waiting(f"ending {container.name} ({container.status}, {container.health})")
        keep_log(context, container)
        try:
            for command in node.remove(container):
                context.node.run(command)
        except FailedError as error:  # perhaps a killed command's removal is still under way: wait for its end
            if not _gone(context, container):
                raise NotOnBaselineError(
                    container.name,
                    f"could not be removed ({error.faults[0].what})",
                    f"try: docker rm -f {container.name}",
                ) from None
    left = context.node.containers(context.site.project)
    if left:
        raise NotOnBaselineError(
            context.site.project, f"{left[0].name} could not be removed", f"try: docker rm -f {left[0].name}"
        )


def _gone(context: Context, container: Container) -> bool:
    """Does the container disappear within `REMOVAL_S`?"""
    deadline = time.monotonic() + REMOVAL_S
    while context.node.container(container.id) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def kill(context: Context) -> None:
    """End the project's containers at once, without grace: memory is running out. What fails here, `clear` does again."""
    with contextlib.suppress(Exception):
        for container in context.node.containers(context.site.project):
            context.node.run(node.kill(container))


def keep_log(context: Context, container: Container) -> None:
    """The container's log into the raw directory (0700): best effort, never in the way of what comes next."""
    with contextlib.suppress(Exception):
        stamp = now().replace(":", "").replace("-", "")
        path = context.state.raw_directory() / f"{stamp}-{container.name}-{container.id[:12]}.log"
        files.write(path, context.node.log(container.id), 0o600)


def start(context: Context, target: Target) -> float:
    """`compose up` of the target; returns when it was called (monotonic)."""
    began = time.monotonic()
    context.node.run(context.project.up(target.files, UP_TIMEOUT_S))
    return began


def launch(context: Context, target: Target, stage: Callable[[str], Any]) -> Container:
    """Clear, start, wait until ready, canary, look again, and compare id, start time, image and argv with the target.

    `stage` gives the context manager that names each stage: switch, ready. Raises `FailedError`.
    """
    with stage("switch"):
        clear(context)
        began = start(context, target)
    with stage("ready"):
        container = readiness.wait_until_ready(context)
        readiness.prove_alive(context, container)
        container = readiness.confirm_settled(context, container, began)
        wrong = differences(context, target, container)
        if wrong:
            raise FailedError(container.name, f"is not what was asked for ({wrong[0]})", "run: make restore")
    return container
