"""The state directory of one project on one node: lock, lease, stored baselines, history. Used by deploy, restore and experiment."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gb10 import facts, files
from gb10.errors import RefusedError

FORMAT = 1
SYSTEM_ROOT = Path("/var/lib/gb10")


def default_root() -> Path:
    """`GB10_STATE` when set, /var/lib/gb10 for root, else the user's state directory."""
    if named := os.environ.get("GB10_STATE"):
        return Path(named).absolute()
    if os.geteuid() == 0:
        return SYSTEM_ROOT
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gb10"


def stored_repository(project: str) -> str:
    """The image repository whose tags keep a project's stored images from being pruned."""
    return f"gb10-stored/{project}"


def baseline_key(digest: str, image_id: str) -> str:
    """What tells one stored baseline from another: the first digits of its bytes' SHA-256 and of its image's id."""
    return f"{digest[:12]}-{image_id.removeprefix('sha256:')[:12]}"


def now() -> str:
    """The time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Baseline:
    """A baseline whose bytes are stored beside this record. The current one ran and passed."""

    key: str
    sha256: str
    image_tag: str
    image_id: str
    stored_tag: str
    commit: str
    dirty: bool
    deployed_at: str


@dataclass(frozen=True)
class Lease:
    """An experiment holds the node until `deadline`; on disk before anything changes."""

    experiment: str
    overlays: list[str]
    pid: int
    stage: str
    since: str
    deadline: str
    baseline: str


@dataclass(frozen=True)
class History:
    """What the host's counters were when the baseline was deployed; None where they could not be read."""

    boot_id: str | None
    oom_kill: int | None
    since: str
    kernel_log_s: float | None = None
    """Stamp of the kernel log's last line: what comes after it came since the deploy."""

    @classmethod
    def now(cls) -> History:
        """What is read on this host now."""
        return cls(facts.boot_id().value, facts.oom_kill_count().value, now(), facts.kernel_log_end_s().value)


class State:
    """All reads and writes of one project's directory. Every write is atomic and synced."""

    def __init__(self, root: Path, project: str):
        self.directory = root / project
        self.project = project

    def prepare(self) -> None:
        """Make the directory (0700) and its format record, or refuse a directory that is not ours to use."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.directory.chmod(0o700)
            probe = self.directory / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RefusedError(
                str(self.directory),
                f"cannot be written ({error.strerror})",
                "run with sudo, or name another state directory with GB10_STATE",
            ) from None
        record = self._read("format.json")
        machine = facts.machine_id().value
        if record is None:
            files.write_json(self.directory / "format.json", {"format": FORMAT, "machine": machine}, 0o600)
            return
        if record.get("format") != FORMAT:
            raise RefusedError(
                str(self.directory / "format.json"),
                f"has format {record.get('format')}, this version reads {FORMAT}",
                "use the version of this repository that wrote it, or move the directory away",
            )
        if machine and record.get("machine") not in (None, machine):
            raise RefusedError(
                str(self.directory),
                "belongs to another machine (its machine-id differs)",
                "move it away and deploy; its baselines name images that are not here",
            )

    @contextlib.contextmanager
    def lock(self, purpose: str) -> Iterator[None]:
        """Hold the node for one command that changes it. The lock of a dead process is free at once (flock)."""
        self.prepare()
        path = self.directory / "lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(os.read(handle, 4096))
                raise RefusedError(
                    str(path),
                    f"held by pid {holder.get('pid', '?')} (`{holder.get('command', '?')}`) since {holder.get('since', '?')}",
                    f"wait for it, or end it with: kill -INT {holder.get('pid', '?')} (it restores the baseline first)",
                ) from None
            holder = {"pid": os.getpid(), "command": purpose, "since": now()}
            with contextlib.suppress(OSError):  # a full disk: the lock itself holds, only its label is lost
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(holder).encode(), 0)
                os.fsync(handle)
            yield
        finally:
            os.close(handle)

    # stored baselines

    def store(self, data: bytes, image_tag: str, image_id: str, commit: str, dirty: bool) -> Baseline:
        """Keep a baseline's bytes under its key (bytes and image). It becomes current only with `promote`."""
        digest = files.sha256(data)
        key = baseline_key(digest, image_id)
        baseline = Baseline(
            key, digest, image_tag, image_id, f"{stored_repository(self.project)}:{key}", commit, dirty, now()
        )
        files.write(self.file_of(baseline), data, 0o600)
        files.write_json(self.directory / "baselines" / key / "baseline.json", asdict(baseline), 0o600)
        return baseline

    def promote(self, baseline: Baseline, history: History) -> None:
        """Make a stored baseline the one that restore goes back to."""
        files.write_json(self.directory / "history.json", asdict(history), 0o600)
        files.write_json(self.directory / "current.json", asdict(baseline), 0o600)

    def demote(self) -> None:
        """No baseline is current: a first deploy did not hold."""
        files.remove(self.directory / "current.json")

    def current(self) -> Baseline | None:
        """The baseline that restore goes back to, its stored bytes checked against their hash."""
        record = self._read("current.json")
        if record is None:
            return None
        baseline = self._record(Baseline, record, "current.json")
        path = self.file_of(baseline)
        data = path.read_bytes() if path.is_file() else b""
        if files.sha256(data) != baseline.sha256:
            raise RefusedError(
                str(path),
                "does not have the bytes that were stored",
                "run: make restore (it looks for a copy in the evidence), or make deploy-baseline",
            )
        return baseline

    def file_of(self, baseline: Baseline) -> Path:
        """The stored compose.yaml of a baseline."""
        return self.directory / "baselines" / baseline.key / "compose.yaml"

    def history(self) -> History | None:
        """The counters to compare with, or None before the first deploy."""
        record = self._read("history.json")
        return self._record(History, record, "history.json") if record else None

    def acknowledge(self, findings: list[str]) -> None:
        """A person has seen these findings, by their exact words; kept with time and user. A changed finding is a new one."""
        earlier = self._read("acknowledged.json") or {"records": []}
        earlier["records"].append({"at": now(), "uid": os.getuid(), "findings": findings})
        files.write_json(self.directory / "acknowledged.json", earlier, 0o600)

    def acknowledged(self) -> set[str]:
        """Every finding that was acknowledged since the last deploy."""
        history, record = self.history(), self._read("acknowledged.json") or {"records": []}
        since = history.since if history else ""
        try:
            return {finding for entry in record["records"] if entry["at"] >= since for finding in entry["findings"]}
        except (KeyError, TypeError):
            what = "does not hold the fields of this version"
            raise RefusedError(str(self.directory / "acknowledged.json"), what, "move it away") from None

    # lease

    def lease(self) -> Lease | None:
        """The open lease, if any."""
        record = self._read("lease.json")
        return self._record(Lease, record, "lease.json") if record else None

    def write_lease(self, lease: Lease) -> None:
        """Open a lease, or note its next stage."""
        files.write_json(self.directory / "lease.json", asdict(lease), 0o600)

    def close_lease(self) -> None:
        """The baseline is verified: the node is free again."""
        files.remove(self.directory / "lease.json")

    # plain records

    def raw_directory(self) -> Path:
        """Logs and samples that may hold arguments and secrets: 0700, never committed."""
        path = self.directory / "raw"
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def read_record(self, name: str) -> dict[str, Any] | None:
        """A JSON record by file name, such as `flags.json`."""
        return self._read(name)

    def write_record(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON record."""
        files.write_json(self.directory / name, value, 0o600)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RefusedError(
                str(path), f"cannot be read ({error})", "move it away; `make restore` goes back to the baseline"
            ) from None
        if not isinstance(value, dict):
            raise RefusedError(
                str(path), "is not a JSON object", "move it away; `make restore` goes back to the baseline"
            )
        return value

    def _record(self, kind: Any, record: dict[str, Any], name: str) -> Any:
        try:
            return kind(**record)
        except TypeError:
            raise RefusedError(
                str(self.directory / name), "does not hold the fields of this version", "move it away and deploy again"
            ) from None


def _holder(data: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(data))
    except (ValueError, TypeError):
        return {}


def lease_for(experiment: str, overlays: list[str], stage: str, seconds: float, baseline: str) -> Lease:
    """A lease of this process, `seconds` long."""
    until = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Lease(experiment, overlays, os.getpid(), stage, now(), until, baseline)


def command_line() -> str:
    """How this process was called, for the lock's holder record."""
    return " ".join(["gb10", *sys.argv[1:]])
