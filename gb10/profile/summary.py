"""The windows that an experiment recorded, read into profile.json and profile.md beside its evidence. Called by traces.py, which imports it then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gb10 import files, report
from gb10.errors import RefusedError
from gb10.profile import command
from gb10.profile.command import Window
from gb10.profile.trace import Progress

FILE = "profile.json"


@dataclass(frozen=True)
class Summary:
    """What was read, and the files that could not be, each with its reason."""

    report: dict[str, Any] | None
    not_read: list[dict[str, str]]

    def lines(self) -> Iterator[str]:
        """For a person who waits for the end of the experiment."""
        for row in self.report["windows"] if self.report else []:
            if row["gpu_busy_ratio"] is None:
                yield f"window {row['name']}: no GPU activity, {len(row['nvtx'])} ranges of the CPU"
                continue
            share = row["graph_kernel_share"]
            graphs = "unknown" if share is None else f"{share:.2%}"
            yield f"window {row['name']}: GPU busy {row['gpu_busy_ratio']:.2%}, {graphs} of the kernels from graphs"


def summarise(windows: list[tuple[str, list[Path]]], directory: Path, progress: Progress, nsys: Path | None) -> Summary:
    """Read each window's files and write both forms to `directory`; a file that tells nothing is left out, and named.

    `windows`: name and files of each, in order; a window with several files that can be read is numbered.
    `nsys`: the program that exports reports, where it is not on PATH.
    """
    rows: list[dict[str, Any]] = []
    not_read: list[dict[str, str]] = []
    for name, paths in windows:
        found = []
        for path in paths:
            try:
                found += command.report([Window(name, path)], progress, strips=True, nsys=nsys)["windows"]
            except RefusedError as error:
                not_read.append({"file": path.name, "why": error.faults[0].what})
        for number, row in enumerate(found, 1):
            rows.append(row if len(found) == 1 else row | {"name": f"{name}, {number}"})
    if not rows:
        return Summary(None, not_read)
    made = {"schema": command.SCHEMA, "kind": "profile", "windows": rows, "total": command.total(rows)}
    files.write_json(directory / FILE, made)
    files.write(directory / "profile.md", report.profile_markdown(made).encode())
    return Summary(made, not_read)
