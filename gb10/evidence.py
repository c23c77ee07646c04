"""The facts that one deploy, try or restore leaves in the site's evidence/. Written at every stage, so a kill loses only the last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gb10 import facts, files
from gb10.context import Context
from gb10.engine import client
from gb10.node import Container
from gb10.site import commit_of
from gb10.state import now

SCHEMA = 1


class Evidence:
    """One directory `evidence/<time>-<what>/` with record.json and the files that ran."""

    def __init__(self, context: Context, what: str):
        stamp = now().replace(":", "").replace("-", "")
        self.context = context
        self.began = time.time()
        self.directory = _free(context.site.directory / "evidence" / f"{stamp}-{what}")
        commit = commit_of(context.site)
        self.record: dict[str, Any] = {
            "schema": SCHEMA,
            "what": what,
            "project": context.site.project,
            "started_at": now(),
            "commit": commit.id,
            "changed_files": {"unknown": commit.unknown} if commit.unknown else commit.dirty,
            "boot_id": facts.boot_id().as_json(),
            "oom_kill": {"before": facts.oom_kill_count().as_json()},
            "available_bytes": {"before": facts.available_bytes().as_json()},
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
        self.record["files"] = {}
        for path in paths:
            data = path.read_bytes()
            files.write(self.directory / path.name, data)
            self.record["files"][path.name] = files.sha256(data)
        self.save()

    def container(self, key: str, container: Container) -> None:
        """Identify a container: which image and arguments ran, since when."""
        self.record[key] = {
            "id": container.id,
            "image_id": container.image_id,
            "image_tag": container.image_tag,
            "argv": container.argv,
            "started_at": container.started_at,
            "restart_policy": container.restart_policy,
            "health": container.health,
        }
        self.record["versions"] = {
            "docker": self.context.node.version().get("Version"),
            "kernel": facts.kernel(),
            "engine": client.version(self.context.site.url) or {"unknown": "GET /version did not answer"},
        }
        self.save()

    def close(self, verdict: str) -> None:
        """Write the end: verdict, counters and memory afterwards."""
        self.record["ended_at"] = now()
        self.record["verdict"] = verdict
        self.record["oom_kill"]["after"] = facts.oom_kill_count().as_json()
        self.record["available_bytes"]["after"] = facts.available_bytes().as_json()
        self.save()

    def save(self) -> None:
        """Write the record. A full disk is told, and never breaks off a restore."""
        try:
            files.write_json(self.directory / "record.json", self.record)
        except OSError as error:
            self.context.progress.note(f"{self.directory}: the evidence could not be written ({error.strerror})")


def _free(path: Path) -> Path:
    """`path`, or with a number when an evidence of the same second is there."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate
