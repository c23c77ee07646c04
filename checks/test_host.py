"""History: what happened on this host since the deploy. Red until it is mended or acknowledged; never in a restore's way."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import fail, unknown

from gb10.facts import GIB
from gb10.site import Site
from gb10.state import History

pytestmark = pytest.mark.history

ACKNOWLEDGE = "find out why, then: make acknowledge"
KERNEL_LOG = "log=$(timeout 20 dmesg --raw) && printf '%s\\n' \"$log\" | head -n 1 && printf '%s\\n' \"$log\" | grep -F {} | tail -n 200"
STAMP = re.compile(r"^<\d+>\[\s*(\d+\.\d+)\]\s*(.*)")
FIRST_LINES_S = 30.0
"""A log that begins so soon after boot is whole."""
ENGINE_UNITS = ("docker.service", "snap.docker.dockerd.service")


def test_no_oom_kill_since_the_deploy(host: Any, history: History) -> None:
    lines = [line.split() for line in host.file("/proc/vmstat").content_string.splitlines()]
    counts = [int(words[1]) for words in lines if words[0] == "oom_kill"]
    if not counts:
        unknown("/proc/vmstat has no oom_kill")
    if history.oom_kill is None:
        unknown("the counter was not readable at the deploy")
    rebooted = history.boot_id is not None and history.boot_id != _boot_id(host)
    wanted = 0 if rebooted else history.oom_kill
    if counts[0] != wanted:
        since = "0 since the reboot" if rebooted else f"{wanted} as at {history.since}"
        fail(f"oom_kill {since}", str(counts[0]), ACKNOWLEDGE)


def test_the_host_was_not_rebooted_since_the_deploy(host: Any, history: History) -> None:
    now = _boot_id(host)
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


def test_enough_disk_is_free(host: Any, site: Site, state_on_node: Path) -> None:
    result = host.run("timeout 20 df --output=avail -B1 %s", str(state_on_node))
    if result.rc != 0:
        unknown(f"df failed: {result.stderr.strip()}")
    free, floor = int(result.stdout.split()[-1]) / GIB, site.variables.checks.minimum_disk_gib
    if free < floor:
        mend = "remove old raw records there, or unused images"
        fail(f"at least {floor:g} GiB free for {state_on_node}", f"{free:.1f} GiB", mend)


def test_the_kernel_log_is_clean_since_the_deploy(host: Any, site: Site, history: History) -> None:
    """On a GB10 the host can wedge after NV_ERR_NO_MEMORY with no OOM kill at all (open-gpu-kernel-modules#1358)."""
    patterns = site.variables.checks.kernel_patterns
    if not patterns:
        return
    words = " ".join(f"-e {shlex.quote(pattern)}" for pattern in patterns)
    output = host.run(KERNEL_LOG.format(words)).stdout
    lines = [(float(m.group(1)), m.group(2)) for line in output.splitlines() if (m := STAMP.search(line))]
    if not lines:
        unknown("the kernel log cannot be read (it needs root)")
    rebooted = history.boot_id is not None and history.boot_id != _boot_id(host)
    since = 0.0 if rebooted else history.kernel_log_s
    if since is None:
        unknown("the kernel log was not readable at the deploy")
    begins, *rest = lines
    found = [text for stamp, text in rest if stamp > since]
    if found:
        seen = [pattern for pattern in patterns if any(pattern in line for line in found)]
        mend = "look at: dmesg; the host may wedge soon, so find out why before you go on, then: make acknowledge"
        fail(f"no {', '.join(seen)} since {history.since}", f"{len(found)} such, the last: {found[-1][:120]}", mend)
    if begins[0] > since + 1 and begins[0] > FIRST_LINES_S:
        unknown(f"the kernel log's older lines are overwritten: ask journalctl --dmesg --since '{history.since}'")


def test_docker_starts_at_boot(host: Any) -> None:
    if not host.file("/run/systemd/system").is_directory:
        unknown("systemd is not running here")
    result = host.run(f"timeout 20 systemctl is-enabled {' '.join(ENGINE_UNITS)}")
    states = [word for word in result.stdout.split() if word != "not-found"]
    if not states:
        unknown(f"systemd knows neither {' nor '.join(ENGINE_UNITS)}")
    if not {"enabled", "alias"} & set(states):
        fail("docker enabled at boot", states[0], "run: sudo systemctl enable docker.service")


def _boot_id(host: Any) -> str:
    return str(host.file("/proc/sys/kernel/random/boot_id").content_string.strip())


def _no_failed_units(host: Any, site: Site, scope: str) -> None:
    if not host.file("/run/systemd/system").is_directory:
        unknown("systemd is not running here")
    runtime = "XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$(id -u)} " if scope else ""
    result = host.run(f"{runtime}timeout 20 systemctl {scope}list-units --failed --output=json --no-pager")
    if result.rc != 0:
        unknown(f"systemctl {scope}failed: {(result.stderr.strip().splitlines() or ['no reason'])[0]}")
    failed = {unit["unit"] for unit in json.loads(result.stdout or "[]")} - set(
        site.variables.checks.allowed_failed_units
    )
    if failed:
        fail("no failed units", ", ".join(sorted(failed)), f"look at: systemctl {scope}status {sorted(failed)[0]}")
