"""On the baseline: the one container of the project is the stored baseline, and it answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import fail

from gb10.comparison import Expected, differences, short
from gb10.node import Container
from gb10.site import Site
from gb10.state import State

pytestmark = pytest.mark.baseline

RESTORE = "run: make restore"
CANARY = """
import json, sys, urllib.request
body = json.dumps({"model": sys.argv[1], "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}).encode()
request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=float(sys.argv[2])).read().decode())
"""


def test_one_container_of_the_project_is_there(container: Container) -> None:
    assert container.id


def test_the_engine_is_running(container: Container) -> None:
    if not container.running:
        fail("running", f"{container.status} (exit code {container.exit_code})", RESTORE)


def test_the_engine_is_healthy(container: Container) -> None:
    if container.health != "healthy":
        fail("healthy", container.health, "look at `docker logs`, then: make restore")


def test_the_restart_policy_is_the_baselines(container: Container, expected: Expected) -> None:
    if container.restart_policy != expected.restart:
        fail(expected.restart, container.restart_policy, RESTORE)


def test_the_image_is_the_stored_one(container: Container, expected: Expected) -> None:
    if container.image_id != expected.image_id:
        fail(short(expected.image_id), f"{short(container.image_id)} ({container.image_tag})", RESTORE)


def test_the_arguments_are_the_baselines(
    container: Container, expected: Expected, image_environment: dict[str, str]
) -> None:
    _same("argument", container, expected, image_environment)


def test_environment_mounts_and_ports_are_the_baselines(
    container: Container, expected: Expected, image_environment: dict[str, str]
) -> None:
    _same(("environment", "mount", "port"), container, expected, image_environment)


def test_a_completion_comes_back(host: Any, container: Container, site: Site) -> None:
    limit = site.variables.limits.canary_s
    answer = host.run(
        "timeout 50 docker exec %s python3 -c %s %s %s",
        container.id,
        CANARY,
        site.variables.model.served_name,
        str(min(limit, 40)),
    )
    try:
        choice = json.loads(answer.stdout)["choices"][0]
    except (ValueError, KeyError, IndexError):
        reason = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        fail(f"a completion within {limit:g} s", reason, RESTORE)
    if choice["finish_reason"] not in {"stop", "length"}:
        fail("a finished completion", str(choice["finish_reason"]), RESTORE)


def test_no_experiment_holds_the_node(state: State) -> None:
    lease = state.lease()
    if lease is not None:
        fail(
            "no open lease",
            f"experiment {lease.experiment} since {lease.since} (stage {lease.stage})",
            "run: make restore",
        )


def _same(aspects: str | tuple[str, ...], container: Container, expected: Expected, image: dict[str, str]) -> None:
    found = [d for d in differences(expected, container, image) if d.aspect.startswith(aspects)]
    if found:
        first = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        fail(
            f"{first.aspect} {first.expected}",
            f"{first.found}{more}",
            "run: make diff to see all, make restore to mend",
        )
