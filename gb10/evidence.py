"""The facts that one deploy, try or restore leaves in the site's evidence/. Written at every stage, so a kill loses only the last.

What is committed holds nothing but what docs/schemas/evidence.schema.json names: no environment, and of arguments only those of committed files.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from gb10 import comparison, effect, facts, files, patches
from gb10.context import Context
from gb10.engine import client
from gb10.engine.smoke import Judged
from gb10.errors import Gb10Error
from gb10.memory import LowWater
from gb10.node import Container
from gb10.overlays import unescaped
from gb10.restore import Restored
from gb10.site import commit_of
from gb10.state import now
from gb10.verify import Report

SCHEMA = 2
"""Of record.json, recovery.json and manifest.json: docs/schemas/evidence.schema.json."""


class Evidence:
    """One directory `evidence/<time>-<what>/`: record.json, the files that ran, recovery.json and manifest.json."""

    def __init__(self, context: Context, what: str):
        stamp = now().replace(":", "").replace("-", "")
        self.context = context
        self.began = time.time()
        self.directory = _free(context.site.directory / "evidence" / f"{stamp}-{what}")
        available = facts.available_bytes()
        self._low_water = LowWater(available)
        self._committed: set[str] = set()
        commit = commit_of(context.site)
        self.record: dict[str, Any] = {
            "schema": SCHEMA,
            "kind": "record",
            "what": what,
            "project": context.site.project,
            "host": facts.host_name(),
            "started_at": now(),
            "commit": commit.id,
            "changed_files": {"unknown": commit.unknown} if commit.unknown else commit.dirty,
            "compose_yaml": {"before": _hash(context.baseline_file)},
            "boot_id": {"before": facts.boot_id().as_json()},
            "oom_kill": {"before": facts.oom_kill_count().as_json()},
            "available_bytes": {"before": available.as_json()},
            "stages": [],
            "verdict": "unfinished",
        }

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Name a stage, show it, and record its seconds and outcome."""
        began = time.monotonic()
        entry = {"name": name, "outcome": "unfinished"}
        self.record["stages"].append(entry)
        try:
            with self.context.progress.stage(name):
                yield
            entry["outcome"] = "done"
        except BaseException as error:
            entry["outcome"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise
        finally:
            entry["duration_s"] = round(time.monotonic() - began, 3)
            self.save()

    def ran(self, paths: list[Path]) -> None:
        """Keep a copy of each file that is about to run, with its hash."""
        hashes = self.record.setdefault("files", {})
        for path in paths:
            data = path.read_bytes()
            files.write(self.directory / path.name, data)
            hashes[path.name] = files.sha256(data)
            self._committed |= _words(data)
        self.save()

    def also_ran(self, path: Path) -> None:
        """The file that a restore went back to: kept unless a file of that name is here already. Never raises for a full disk."""
        try:
            if path.name not in self.record.get("files", {}):
                self.ran([path])
            self._committed |= _words(path.read_bytes())
        except OSError as error:
            self.context.progress.note(f"{path} could not be copied into the evidence ({error.strerror})")

    def container(self, key: str, container: Container) -> None:
        """Identify a container: which image and arguments ran, since when, which patches are in the image, and whether
        the graphs that its arguments ask for took effect."""
        node = self.context.node
        self.record[key] = {
            "id": container.id,
            "name": container.name,
            "image_id": container.image_id,
            "image_tag": container.image_tag,
            "image_digests": read_fact(lambda: list((node.image(container.image_id) or {}).get("RepoDigests") or [])),
            "patches": read_fact(lambda: _outcomes(patches.manifest_in(node, container))),
            "argv": comparison.public(container.argv, self._committed),
            "started_at": container.started_at,
            "restart_policy": container.restart_policy,
            "restart_count": container.restart_count,
            "health": container.health,
        }
        if effect.asked_for(container.argv):
            self.record[key]["graph_effective"] = self._effect(container)
        self.record["versions"] = {
            "docker": read_fact(lambda: str(node.version()["Version"])),
            "compose": read_fact(lambda: node.run(self.context.project.version()).strip()),
            "vllm": client.version(self.context.site.url) or {"unknown": "GET /version did not answer"},
            "driver": facts.nvidia_driver().as_json(),
            "kernel": facts.kernel(),
        }
        self.save()

    def _effect(self, container: Container) -> dict[str, Any]:
        log = read_fact(lambda: self.context.node.log(container.id).decode("utf-8", "replace"))
        return effect.recorded(log) if isinstance(log, str) else {"value": log, "log_line": ""}

    def smoke(self, judged: list[Judged], key: str = "smoke") -> None:
        """The judged answers: prompt, rule, answer and verdict."""
        self.record["sampling"] = {"temperature": client.TEMPERATURE, "seed": client.SEED}
        self.record[key] = [j.as_json() for j in judged]
        self.save()

    def recovered(self, restored: Restored, report: Report, why: str) -> None:
        """recovery.json: where the node is after a restore, and how that was seen."""
        current = self.context.state.current()
        stored = current.sha256 if current else None
        self.record["compose_yaml"] |= {"after": _hash(self.context.baseline_file), "stored": stored}
        recovery = {
            "schema": SCHEMA,
            "kind": "recovery",
            "at": now(),
            "why": why,
            "moved": restored.moved,
            "container": self.record["baseline"],
            "compose_yaml": {
                **self.record["compose_yaml"],
                "as_before": self.record["compose_yaml"]["before"] == self.record["compose_yaml"]["after"],
                "as_stored": self.record["compose_yaml"]["after"] == stored,
            },
            "boot_id": self.record["boot_id"] | {"after": facts.boot_id().as_json()},
            "oom_kill": self.record["oom_kill"] | {"after": facts.oom_kill_count().as_json()},
            "available_bytes": facts.available_bytes().as_json(),
            "failed_units": _failed_units(),
            "smoke": [judged.as_json() for judged in restored.smoke],
            "checks": report.as_json(),
        }
        self._write("recovery.json", recovery)

    def close(self, verdict: str) -> None:
        """Write the end: verdict, counters and memory afterwards, and the list of raw files."""
        self.record["ended_at"] = now()
        self.record["verdict"] = verdict
        self.record["boot_id"]["after"] = facts.boot_id().as_json()
        self.record["oom_kill"]["after"] = facts.oom_kill_count().as_json()
        available, memory = facts.available_bytes(), self.record["available_bytes"]
        memory["after"] = available.as_json()
        lowest, guarded = self._low_water.stop(available), self.record.get("guard", {}).get("lowest_available_bytes")
        memory["lowest"] = min(lowest.value, guarded) if lowest.value and guarded else lowest.as_json()
        self.record["failed_units"] = _failed_units()
        self.kept()

    def kept(self) -> None:
        """Write record and manifest: at the end, and again when something was read from raw files after it."""
        self._write("manifest.json", self._manifest())
        self.save()

    def save(self) -> None:
        """Write the record."""
        self._write("record.json", self.record)

    def _manifest(self) -> dict[str, Any]:
        """Raw files of this command: they may hold arguments and secrets and stay in the state directory (0700)."""
        head = {"schema": SCHEMA, "kind": "manifest", "at": now()}
        raw = self.context.state.directory / "raw"
        manifest = head | {"directory": str(raw), "files": files_since(raw, self.began)}
        profile = self.record.get("profile")
        if profile is not None:
            facts_of = {key: profile[key] for key in ("tool", "tool_version", "graph_trace", "gpu", "driver")}
            facts_of["export_schema"] = profile.get("summary", {}).get("export_schema")
            facts_of["argv"] = self.record.get("experiment_container", {}).get("argv")
            traces = {"directory": profile["output_dir"], "files": profile.get("files", [])}
            manifest["traces"] = traces | facts_of
        return manifest

    def _write(self, name: str, document: dict[str, Any]) -> None:
        """A full disk is told, and never breaks off a restore; nor does text that is none (an engine's lone surrogate)."""
        try:
            files.write_json(self.directory / name, document)
        except (OSError, ValueError) as error:
            self.context.progress.note(f"{self.directory / name} could not be written ({error})")


def files_since(directory: Path, since: float) -> Any:
    """Files in a directory written since a time (seconds since 1970): name, size in bytes and SHA-256.

    Or why that is unknown: a profiler's files can belong to another user.
    """
    return read_fact(lambda: _list_files(directory, since))


def _list_files(directory: Path, since: float) -> list[dict[str, Any]]:
    found = []
    for path in sorted(directory.rglob("*") if directory.is_dir() else []):
        if path.is_file() and path.stat().st_mtime >= since - 1:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = path.stat().st_size
            found.append({"name": str(path.relative_to(directory)), "size_bytes": size, "sha256": digest})
    return found


def read_fact(read: Callable[[], Any]) -> Any:
    """A fact for the record, or why it is unknown: what only describes never breaks off what it describes."""
    try:
        return read()
    except Gb10Error as error:
        return {"unknown": error.faults[0].what}
    except Exception as error:
        return {"unknown": type(error).__name__}


def _outcomes(manifest: dict[str, Any] | None) -> dict[str, str]:
    if manifest is None:
        return {"unknown": "the container has no patch manifest"}
    return {entry["id"]: entry["outcome"] for entry in manifest["entries"]}


def _failed_units() -> dict[str, Any]:
    return {"system": facts.failed_units().as_json(), "user": facts.failed_units(user=True).as_json()}


def _hash(path: Path) -> str | None:
    try:
        return files.sha256(path.read_bytes())
    except OSError:
        return None


def _words(data: bytes) -> set[str]:
    """The words of entrypoints and commands in a rendered file: committed, and so public."""
    services = (yaml.safe_load(data) or {}).get("services") or {}
    words: list[str] = []
    for service in services.values():
        words += [*(service.get("entrypoint") or []), *(service.get("command") or [])]
    return set(unescaped([str(word) for word in words]))


def _free(path: Path) -> Path:
    """`path`, or with a number when an evidence of the same second is there."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate
