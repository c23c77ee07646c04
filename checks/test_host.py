"""History: what happened on this host since the deploy. Red until it is mended or acknowledged; never in a restore's way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import fail, unknown

from gb10.facts import GIB
from gb10.node import Container
from gb10.site import Site
from gb10.state import History, State

pytestmark = pytest.mark.history

ACKNOWLEDGE = "find out why, then: make acknowledge"


def test_the_engine_was_never_restarted(history: History, container: Container) -> None:
    if container.restart_count:
        fail(
            "0 restarts", f"{container.restart_count}", "look at `docker logs` for why it ended, then: make acknowledge"
        )


def test_no_oom_kill_since_the_deploy(host: Any, history: History) -> None:
    lines = [line.split() for line in host.file("/proc/vmstat").content_string.splitlines()]
    counts = [int(words[1]) for words in lines if words[0] == "oom_kill"]
    if not counts:
        unknown("/proc/vmstat has no oom_kill")
    if history.oom_kill is None:
        unknown("the counter was not readable at the deploy")
    if counts[0] != history.oom_kill:
        fail(f"oom_kill {history.oom_kill} as at {history.since}", str(counts[0]), ACKNOWLEDGE)


def test_the_host_was_not_rebooted_since_the_deploy(host: Any, history: History) -> None:
    now = host.file("/proc/sys/kernel/random/boot_id").content_string.strip()
    if history.boot_id is None:
        unknown("the boot id was not readable at the deploy")
    if now != history.boot_id:
        fail(f"boot {history.boot_id[:8]} of {history.since}", f"boot {now[:8]}", ACKNOWLEDGE)


def test_no_system_unit_is_failed(host: Any, site: Site) -> None:
    _no_failed_units(host, site, "")


def test_no_user_unit_is_failed(host: Any, site: Site) -> None:
    _no_failed_units(host, site, "--user ")


def test_enough_memory_is_available(host: Any, site: Site) -> None:
    for line in host.file("/proc/meminfo").content_string.splitlines():
        if line.startswith("MemAvailable:"):
            available, floor = int(line.split()[1]) * 1024 / GIB, site.variables.checks.minimum_available_gib
            if available < floor:
                fail(
                    f"at least {floor:g} GiB available",
                    f"{available:.2f} GiB",
                    "find the user with: ps aux --sort=-rss | head",
                )
            return
    unknown("/proc/meminfo has no MemAvailable")


def test_enough_disk_is_free(host: Any, site: Site, state: State) -> None:
    result = host.run("timeout 20 df --output=avail -B1 %s", str(state.directory))
    if result.rc != 0:
        unknown(f"df failed: {result.stderr.strip()}")
    free, floor = int(result.stdout.split()[-1]) / GIB, site.variables.checks.minimum_disk_gib
    if free < floor:
        fail(
            f"at least {floor:g} GiB free for {state.directory}",
            f"{free:.1f} GiB",
            "remove old raw records there, or unused images",
        )


def _no_failed_units(host: Any, site: Site, scope: str) -> None:
    if not host.file("/run/systemd/system").is_directory:
        unknown("systemd is not running here")
    result = host.run(f"timeout 20 systemctl {scope}list-units --failed --output=json --no-pager")
    if result.rc != 0:
        unknown(f"systemctl {scope}failed: {(result.stderr.strip().splitlines() or ['no reason'])[0]}")
    failed = {unit["unit"] for unit in json.loads(result.stdout or "[]")} - set(
        site.variables.checks.allowed_failed_units
    )
    if failed:
        fail("no failed units", ", ".join(sorted(failed)), f"look at: systemctl {scope}status {sorted(failed)[0]}")
