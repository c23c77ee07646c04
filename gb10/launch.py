"""Put one flattened configuration on the node and prove that exactly it runs. Used by deploy, restore and experiment."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gb10 import comparison, node, readiness
from gb10.comparison import Expected
from gb10.context import Context
from gb10.errors import FailedError, NotOnBaselineError
from gb10.node import Container
from gb10.overlays import flatten, service_of

UP_TIMEOUT_S = 180.0


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
    if not container.running or container.health != "healthy" or container.name != target.service["container_name"]:
        return None
    return None if differences(context, target, container) else container


def differences(context: Context, target: Target, container: Container) -> list[comparison.Difference]:
    """In what the container differs from the target."""
    image = comparison.environment_of(context.node.image(container.image_id))
    return comparison.differences(target.expected, container, image)


def clear(context: Context) -> None:
    """End a Compose child of a command that died, then stop and remove every container of the project, by label."""
    child = context.state.child()
    if child is not None:
        context.progress.note(f"ending Compose (pid {child}) left by an earlier command")
        node.end_group(child)
    context.state.forget_child()
    for container in context.node.containers(context.site.project):
        context.progress.waiting(f"ending {container.name} ({container.status}, {container.health})")
        for command in node.remove(container):
            context.node.run(command)
    left = context.node.containers(context.site.project)
    if left:
        raise NotOnBaselineError(
            context.site.project, f"{left[0].name} could not be removed", f"try: docker rm -f {left[0].name}"
        )


def start(context: Context, target: Target) -> float:
    """`compose up` of the target; returns when it was called (monotonic). The child's pid is on disk while it runs."""
    began = time.monotonic()
    try:
        context.node.run(context.project.up(target.files, UP_TIMEOUT_S), started=lambda pid: _note_child(context, pid))
    finally:
        with contextlib.suppress(OSError):
            context.state.forget_child()
    return began


def _note_child(context: Context, pid: int) -> None:
    """A full disk must not keep the baseline from coming up."""
    with contextlib.suppress(OSError):
        context.state.note_child(pid)


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
