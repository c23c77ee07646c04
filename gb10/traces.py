"""The record of a profiled experiment: its capture windows, the files they left, and which marks were applied. Called by experiment.py.

Raw traces stay in profile.output_dir (0700), those of each experiment in a directory of its own that has its evidence's name.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gb10 import facts, marks
from gb10.compose import Command
from gb10.context import Context
from gb10.engine import client, smoke
from gb10.errors import FailedError
from gb10.evidence import Evidence, files_since, read_fact
from gb10.node import Container

TRACES = {"nsys": (".nsys-rep",), "torch": (".pt.trace.json", ".pt.trace.json.gz")}
NUMBER = re.compile(r"\.(\d+)\.nsys-rep$")
KILLED = 137
VERSION = "import importlib.metadata as m; print(m.version('torch'))"
CANARY = "canary"


@dataclass
class Traces:
    """The windows of one experiment, in order, each with the files that were there before it was opened."""

    context: Context
    evidence: Evidence
    windows: list[tuple[str, set[str]]] = field(default_factory=list)

    @classmethod
    def begin(cls, context: Context, evidence: Evidence, program: dict[str, str]) -> Traces:
        """Nothing is recorded yet. Traces that a killed experiment left are moved out of the way: nsys overwrites none.

        `program`: the SHA-256 of each file of the marks' program, as it was placed on the node.
        """
        profile = context.site.variables.profile
        evidence.record["profile"] = {
            "tool": profile.tool,
            "tool_version": {"unknown": "the engine did not get ready"},
            "graph_trace": profile.graph_trace,
            "gpu": facts.gpu_name().as_json(),
            "driver": facts.nvidia_driver().as_json(),
            "output_dir": profile.output_dir,
            "program": program,
            "marks": [
                {"name": mark.name, "function": mark.function, "applied": {"unknown": "the engine did not get ready"}}
                for mark in profile.marks
            ],
            "ended": {"unknown": "the experiment ended before its engine was stopped"},
            "windows": [],
        }
        traces = cls(context, evidence)
        _move(traces.directory, traces._names(), f"before-{evidence.directory.name}")
        return traces

    @property
    def directory(self) -> Path:
        """Where the profiler writes."""
        return Path(self.context.site.variables.profile.output_dir)

    def ready(self, container: Container) -> None:
        """What can be read when the engine serves: the tool's version, and which marks its log says were applied."""
        self.evidence.record["profile"]["tool_version"] = read_fact(lambda: self._version(container))
        self._marks(container)

    def open(self, name: str) -> None:
        """A window of this name is about to be opened."""
        self.windows.append((name, self._names()))

    def canary(self) -> None:
        """One window around a canary, for an experiment without a suite; the profiler is stopped once, also when the canary fails."""
        url = self.context.site.url
        self.open(CANARY)
        try:
            client.profiler(url, "start")
            try:
                smoke.canary(url, self.context.site.variables)
            finally:
                client.profiler(url, "stop")
        except client.RequestFailedError as error:
            mend = "read the engine's log in the raw directory"
            raise FailedError("profile", f"the capture window failed: {error}", mend) from None

    def stop(self) -> None:
        """End the engine within its grace period, whatever its health says: nsys writes its reports when the engine has ended."""
        wanted = self.evidence.record.get("experiment_container", {}).get("id")
        container = self.context.node.container(wanted) if wanted else None
        if container is None:
            return
        if not container.running:
            entry = {"exit_code": container.exit_code, "killed": container.exit_code == KILLED, "duration_s": 0.0}
            self.evidence.record["profile"]["ended"] = entry
            self._marks(container)
            return
        grace = self.context.site.variables.profile.stop_grace_s
        began = time.monotonic()
        self.context.progress.waiting(f"the engine ends and its profiler writes (at most {grace} s)")
        self.context.node.run(Command(("docker", "stop", "-t", str(grace), container.id), grace + 30))
        duration_s = round(time.monotonic() - began, 1)
        ended = self.context.node.container(container.id)
        code = ended.exit_code if ended else None
        if code is not None:
            killed = code == KILLED and duration_s >= grace
            entry = {"exit_code": code, "killed": killed, "duration_s": duration_s}
            self.evidence.record["profile"]["ended"] = entry
            if killed:
                self.context.progress.note(
                    f"  the profiled engine had to be killed after {grace} s (profile.stop_grace_s)"
                )
        self._marks(container)

    def collect(self) -> str:
        """Give each window its files and move all to a directory of this experiment. Called when the engine is gone; never raises.

        Returns why a window has no trace that is known, in words, or ''.
        """
        record, moved = self.evidence.record["profile"], self.evidence.directory.name
        new = self._names()
        assigned = self._assigned(new)
        try:
            _move(self.directory, new, moved)
        except OSError as error:
            record["files"] = {"unknown": f"they could not be moved to {moved} ({error.strerror})"}
            return f"the traces in {self.directory} could not be moved ({error.strerror}); they are still there"
        found = files_since(self.directory / moved, 0)
        if isinstance(found, dict):
            record["files"] = found
            return f"the traces in {self.directory / moved} could not be listed ({found['unknown']})"
        known = [one | {"name": f"{moved}/{one['name']}"} for one in found]
        record["files"] = known
        record["windows"] = [
            {"name": name, "files": [one for one in known if one["name"].partition("/")[2] in theirs]}
            for name, theirs in assigned
        ]
        lost = [window["name"] for window in record["windows"] if not any(one["size_bytes"] for one in window["files"])]
        if not lost:
            return ""
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        killed = "; its engine had to be killed" if record["ended"].get("killed") else ""
        return f"window {lost[0]}{more} left no trace in {self.directory}{killed}"

    def summarise(self) -> None:
        """Read the windows into profile.json and profile.md, for the report too. Never raises: the traces can be read again later."""
        self.evidence.record["profile"]["summary"] = read_fact(self._summary)
        self.evidence.kept()

    def not_summarised(self, why: str) -> None:
        """The windows were not read to their end."""
        self.evidence.record["profile"]["summary"] = {"unknown": why}
        self.evidence.kept()

    def _summary(self) -> dict[str, Any]:
        try:
            from gb10.profile import summary  # its packages are an extra: a node can record without them
        except ModuleNotFoundError as error:
            return {"unknown": f"the packages for reading traces are not installed ({error.name} is missing)"}
        record, profile = self.evidence.record["profile"], self.context.site.variables.profile
        windows = [
            (window["name"], [self.directory / file["name"] for file in window["files"]])
            for window in record["windows"]
        ]
        nsys = Path(profile.nsys_dir) / "bin/nsys" if profile.nsys_dir else None
        note = self.context.progress.note
        read = summary.summarise(windows, self.evidence.directory, self.context.progress.waiting, nsys)
        for line in read.lines():
            note(f"  {line}")
        if read.report is None:
            why = "; ".join(f"{one['file']} {one['why']}" for one in read.not_read) or "no window left a trace"
            return {"unknown": why}
        capture = read.report["windows"][0]["capture"]
        return {"file": summary.FILE, "export_schema": capture["schema"], "not_read": read.not_read}

    def _assigned(self, new: set[str]) -> list[tuple[str, set[str]]]:
        """nsys numbers its reports; the torch profiler of each process writes its file when a window is closed."""
        tool = self.context.site.variables.profile.tool
        traces = {name for name in new if name.endswith(TRACES[tool])}
        if tool == "nsys":
            numbers = {name: int(found.group(1)) for name in traces if (found := NUMBER.search(name))}
            return [
                (name, {file for file in traces if numbers.get(file, 1) == number})
                for number, (name, _) in enumerate(self.windows, 1)
            ]
        until = [before for _, before in self.windows[1:]] + [traces]
        return [(name, (traces & end) - before) for (name, before), end in zip(self.windows, until, strict=False)]

    def _names(self) -> set[str]:
        """Files that lie in the output directory itself."""
        with contextlib.suppress(OSError):
            return {path.name for path in self.directory.iterdir() if path.is_file()}
        return set()

    def _marks(self, container: Container) -> None:
        """Which marks the engine's log says were applied; told once, when one was not."""
        v, record = self.context.site.variables, self.evidence.record["profile"]
        log = self.context.node.log(container.id).decode("utf-8", "replace")
        before, record["marks"] = record["marks"], marks.applied(v, log)
        why = marks.why_not(log)
        for old, one in zip(before, record["marks"], strict=True):
            if one["applied"] is False and old["applied"] is not False:
                self.context.progress.note(
                    f"  mark {one['name']} is not applied: {why.get(one['name'], 'no reason given')}"
                )

    def _version(self, container: Container) -> str:
        profile = self.context.site.variables.profile
        inside = ("docker", "exec", container.id, "python3", "-c", VERSION)
        words = inside if profile.tool == "torch" else (f"{profile.nsys_dir}/bin/nsys", "--version")
        return self.context.node.run(Command(words, 30)).strip().splitlines()[-1]


def _move(directory: Path, names: set[str], to: str) -> None:
    """Move files of a directory into one below it; nothing to move makes none."""
    if names:
        target = directory / to
        target.mkdir(mode=0o700, exist_ok=True)
        for name in names:
            (directory / name).rename(target / name)
