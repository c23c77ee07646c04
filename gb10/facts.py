"""Facts of the host from /proc and systemd. A fact that cannot be read is unknown with a reason, never zero."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")
GIB = 1024**3
KERNEL_STAMP = re.compile(r"^<\d+>\[\s*(\d+\.\d+)\]", re.M)


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A value, or why it is unknown."""

    value: T | None
    why: str = ""

    @property
    def known(self) -> bool:
        return self.value is not None

    def as_json(self) -> Any:
        """The value itself, or `{"unknown": reason}`."""
        return self.value if self.known else {"unknown": self.why}


def available_bytes() -> Fact[int]:
    """MemAvailable: what the kernel thinks can be given out without swapping, in bytes."""
    return _meminfo("MemAvailable")


def total_bytes() -> Fact[int]:
    """MemTotal in bytes."""
    return _meminfo("MemTotal")


def _meminfo(key: str) -> Fact[int]:
    for line in _lines("/proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == key:
            return Fact(int(rest.split()[0]) * 1024)
    return Fact(None, f"/proc/meminfo has no {key}")


def oom_kill_count() -> Fact[int]:
    """`oom_kill` of /proc/vmstat: OOM kills since boot, those inside a container's memory limit included."""
    for line in _lines("/proc/vmstat"):
        if line.startswith("oom_kill "):
            return Fact(int(line.split()[1]))
    return Fact(None, "/proc/vmstat has no oom_kill")


def boot_id() -> Fact[str]:
    """The kernel's id of this boot."""
    lines = _lines("/proc/sys/kernel/random/boot_id")
    return Fact(lines[0].strip()) if lines else Fact(None, "the kernel gives no boot id")


def kernel_log_end_s() -> Fact[float]:
    """The time stamp of the kernel log's last line: the log's own clock, which drifts from every other one."""
    try:
        result = subprocess.run(
            ["dmesg", "--raw"], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Fact(None, f"dmesg did not answer ({type(error).__name__})")
    stamps = KERNEL_STAMP.findall(result.stdout)
    return Fact(float(stamps[-1])) if stamps else Fact(None, "the kernel log cannot be read (it needs root)")


def nvidia_driver() -> Fact[str]:
    """The version of NVIDIA's kernel driver, from its own file."""
    for line in _lines("/proc/driver/nvidia/version"):
        for word in line.split():
            if word[0].isdigit() and word.count(".") >= 1:
                return Fact(word)
    return Fact(None, "/proc/driver/nvidia/version is not there: no NVIDIA driver is loaded")


def gpu_name() -> Fact[str]:
    """The model of the first NVIDIA GPU, from the driver's own file."""
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in _lines(str(path)):
            key, _, value = line.partition(":")
            if key == "Model" and value.strip():
                return Fact(value.strip())
    return Fact(None, "/proc/driver/nvidia/gpus names no GPU")


def host_name() -> str:
    """The name of this node."""
    return os.uname().nodename


def kernel() -> str:
    """Release of the running kernel."""
    return os.uname().release


def machine_id() -> Fact[str]:
    """The id of this installation (systemd's machine-id), which tells one machine's state directory from another's."""
    lines = _lines("/etc/machine-id")
    return Fact(lines[0].strip()) if lines and lines[0].strip() else Fact(None, "/etc/machine-id is missing or empty")


def free_disk_bytes(path: Path) -> Fact[int]:
    """Free space for `path`, or for its nearest parent that exists."""
    for candidate in [path, *path.parents]:
        if candidate.exists():
            return Fact(shutil.disk_usage(candidate).free)
    return Fact(None, f"{path} does not exist")


def has_systemd() -> bool:
    """Is systemd the init of this machine?"""
    return Path("/run/systemd/system").is_dir()


def failed_units(user: bool = False) -> Fact[list[str]]:
    """Names of failed systemd units, of the system or of the calling user; unknown where there is no systemd."""
    if not has_systemd():
        return Fact(None, "systemd is not running here")
    scope = ["--user"] if user else []
    try:
        result = subprocess.run(
            ["systemctl", *scope, "list-units", "--failed", "--output=json", "--no-pager"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Fact(None, f"systemctl did not answer ({type(error).__name__})")
    if result.returncode != 0:
        first = (result.stderr.strip().splitlines() or ["no reason given"])[0]
        return Fact(None, f"systemctl failed: {first}")
    try:
        return Fact([unit["unit"] for unit in json.loads(result.stdout or "[]")])
    except (ValueError, KeyError, TypeError):
        return Fact(None, "systemctl gave no JSON")


def processes_with(words: list[str]) -> list[int]:
    """Pids of the processes whose arguments hold `words` one after the other; this process is left out."""
    wanted = "\0".join(["", *words, ""])
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = "\0" + path.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if wanted in arguments and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def process_start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; with the pid it names one process. None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
