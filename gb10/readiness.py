"""Is the engine ready, and is it alive? Our own polling: fails at once on an exit, a restart or an unhealthy state. Used by launch.py."""

from __future__ import annotations

import re
import time

from gb10.context import Context
from gb10.engine import client, smoke
from gb10.errors import FailedError, RefusedError
from gb10.node import Container, EngineGoneError

POLL_S = 0.5
BUSY_CANARIES = 5
TAIL_LINES = 15
PERCENT = re.compile(r"(\d{1,3})%")


def wait_until_ready(context: Context) -> Container:
    """Wait, at most `limits.ready_s`, for one running, healthy container that answers GET /health.

    Raises `FailedError` with the engine's own last lines as soon as it cannot become ready any more.
    """
    v = context.site.variables
    began = time.monotonic()
    while True:
        elapsed = time.monotonic() - began
        try:
            container = _only_container(context)
        except (EngineGoneError, RefusedError) as error:  # the engine restarts: bounded by the same limit
            if elapsed > v.limits.ready_s:
                raise
            context.progress.waiting(f"{elapsed:.0f} s, {error.faults[0].what}")
            time.sleep(POLL_S)
            continue
        _fail_if_dead(context, container)
        if container.health in {"healthy", "none"} and client.is_healthy(context.site.url):
            return container
        if elapsed > v.limits.ready_s:
            raise _failure(context, container, f"not ready after {elapsed:.0f} s (limits.ready_s)")
        context.progress.waiting(f"{elapsed:.0f} s, {_stage_of_start(context, container)}")
        time.sleep(POLL_S)


def prove_alive(context: Context, container: Container) -> None:
    """The canary: one bounded completion. Raises `FailedError` when none comes back and the engine does not work either.

    A busy engine is not a dead one: while its iteration counter grows, the canary is asked again, and after
    `BUSY_CANARIES` times the counter is taken for the proof of life.
    """
    url, v = context.site.url, context.site.variables
    before = client.iterations(url)
    for _ in range(BUSY_CANARIES):
        try:
            smoke.canary(url, v)
            return
        except client.RequestFailedError as error:
            after = client.iterations(url)
            if before is None or after is None or after <= before:
                raise _failure(context, container, f"/health answers but a completion does not: {error}") from None
            context.progress.note(f"  the engine is busy ({after - before:.0f} steps in the meantime)")
            before = after


def confirm_settled(context: Context, container: Container, since: float) -> Container:
    """Look again, at least `limits.settle_s` after `since` (monotonic): the same container, the same start, still running."""
    wait_s = context.site.variables.limits.settle_s - (time.monotonic() - since)
    if wait_s > 0:
        context.progress.waiting("looking again after the settle time")
        time.sleep(wait_s)
    again = context.node.container(container.id)
    if again is None:
        raise FailedError(
            container.name, "disappeared after it was ready", "look at `docker events`, then: make restore"
        )
    _fail_if_dead(context, again)
    if again.started_at != container.started_at:
        raise _failure(context, again, "was started again after it was ready")
    return again


def _only_container(context: Context) -> Container:
    containers = context.node.containers(context.site.project)
    if len(containers) != 1:
        names = ", ".join(f"{c.name} ({c.status})" for c in containers) or "none"
        raise FailedError(context.site.project, f"expected one container, found {names}", "run: make restore")
    return containers[0]


def _fail_if_dead(context: Context, container: Container) -> None:
    if container.status == "created":
        raise _failure(context, container, "was created but not started")
    if container.restart_count > 0 or container.status == "restarting":
        code = "" if container.running else f", exit code {container.exit_code}"
        raise _failure(context, container, f"keeps ending (restart {max(1, container.restart_count)}{code})")
    if container.status != "running":
        code = f"exit code {container.exit_code}" + (", OOM killed" if container.oom_killed else "")
        raise _failure(context, container, f"is {container.status} ({code})")
    if container.health == "unhealthy":
        raise _failure(context, container, "is unhealthy")


def _failure(context: Context, container: Container, what: str) -> FailedError:
    tail = context.node.log_tail(container.id, TAIL_LINES)
    return FailedError(container.name, what, "read the engine's last lines below", tail=tail)


def _stage_of_start(context: Context, container: Container) -> str:
    """What the engine says it is doing: the last line of its log, and a percentage when it shows one."""
    last = (context.node.log_tail(container.id, 3).splitlines() or ["no output yet"])[-1].strip()
    text = re.sub(r"^\S*\(?\w*\s*pid=\d+\)?\s*", "", last)[:90]
    percent = PERCENT.search(last)
    return f"{container.health}, {percent.group(0)} of a step, {text}" if percent else f"{container.health}, {text}"
