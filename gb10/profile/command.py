"""Traces into a report, two reports side by side, and a check of kept files. Called by the command line and experiment.py."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gb10.errors import Fault, RefusedError
from gb10.profile import source, tables, timeline, window
from gb10.profile.trace import Progress

SCHEMA = 1
ENDING = re.compile(r"(\.pt\.trace)?\.(sqlite|json|nsys-rep)(\.gz)?$")
TOP = 10
SUMS = ("kernels", "graph_kernels", "graph_launches", "memcpys", "memsets", "gpu_busy_ns", "gpu_span_ns")


@dataclass(frozen=True)
class Window:
    """A trace file and the name of what it shows."""

    name: str
    path: Path


def windows_of(traces: list[Path], named: list[str]) -> list[Window]:
    """Traces under their own names, then `NAME=FILE` pairs. Raises `RefusedError` for none, or a name given twice."""
    windows = [Window(ENDING.sub("", path.name), path) for path in traces]
    for text in named:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise RefusedError(
                "--window", f"{text} is not NAME=FILE", "write one such as --window short=window.1.sqlite"
            )
        windows.append(Window(name, Path(path)))
    if not windows:
        raise RefusedError("profile", "no trace is given", "name one, or more: python -m gb10 profile report TRACE")
    twice = [each.name for index, each in enumerate(windows) if each.name in [w.name for w in windows[:index]]]
    if twice:
        raise RefusedError("profile", f"two windows are named {twice[0]}", "name them: --window NAME=FILE")
    return windows


def report(
    windows: list[Window], progress: Progress, *, top: int = TOP, strips: bool = False, nsys: Path | None = None
) -> dict[str, Any]:
    """Every window in numbers, and their total (docs/profile.md). One fault a bad file.

    `strips`: with a timeline each. `nsys`: the program that exports a report of Nsight Systems, where it is not on PATH.
    """
    rows: list[dict[str, Any]] = []
    faults: list[Fault] = []
    for each in windows:
        try:
            with source.opened(each.path, progress, nsys) as trace:
                row = window.read(trace, each.path.name, each.name, top)
                span = row.pop("span")
                if strips:
                    row["timeline"] = timeline.timeline(trace, span)
                rows.append(row)
        except RefusedError as error:
            faults += error.faults
    if faults:
        raise RefusedError.of(faults)
    return {"schema": SCHEMA, "kind": "profile", "windows": rows, "total": total(rows)}


def total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All windows together; what is unknown in one of them is unknown in all."""
    sums = {key: None if any(row[key] is None for row in rows) else sum(row[key] for row in rows) for key in SUMS}
    known = sums["graph_kernels"] is not None and sums["kernels"]
    share = sums["graph_kernels"] / sums["kernels"] if known else None
    ratio = sums["gpu_busy_ns"] / sums["gpu_span_ns"] if sums["gpu_span_ns"] else None
    return sums | {
        "graph_kernel_share": tables.rounded(share),
        "gpu_busy_ratio": tables.rounded(ratio),
    }


def side(path: Path, progress: Progress) -> dict[str, Any]:
    """One side of a comparison: a trace, a report in JSON, or an evidence directory with its profile.json."""
    if path.is_dir():
        path = path / "profile.json"
    if path.suffix == ".json":
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            found = None
        if isinstance(found, dict) and found.get("kind") == "profile":
            if found.get("schema") != SCHEMA:
                raise RefusedError(str(path), "is a report of another version", "make it again from its traces")
            return found
    return report(windows_of([path], []), progress)


def compared(eager: dict[str, Any], graph: dict[str, Any]) -> dict[str, Any]:
    """Two reports side by side, window by window: by name where the names agree, else in their order."""
    a, b = eager["windows"], graph["windows"]
    names = [row["name"] for row in a]
    by_name = {row["name"]: row for row in b}
    if set(names) == set(by_name):
        b = [by_name[name] for name in names]
    elif len(a) != len(b):
        what = f"{len(a)} windows on one side, {len(b)} on the other, and their names differ"
        raise RefusedError("profile compare", what, "compare reports of the same windows")
    pairs = []
    for one, other in zip(a, b, strict=True):
        fields = ("gpu_busy_ratio", "gpu_span_ns", "gpu_busy_ns", "kernels", "graph_kernels", "graph_kernel_share")
        fields += ("graph_launches", "launches_per_step", "ceiling")
        rows = {each["name"]: {} for each in [*one["nvtx"], *other["nvtx"]]}
        for key, report_side in (("eager", one), ("graph", other)):
            for each in report_side["nvtx"]:
                rows[each["name"]][key] = {k: each[k] for k in ("count", "sum_ns", "gpu_overlap_ns")}
        name = one["name"] if one["name"] == other["name"] else f"{one['name']} / {other['name']}"
        values = {field: {"eager": one[field], "graph": other[field]} for field in fields}
        pairs.append({"name": name, **values, "nvtx": [{"name": key, **sides} for key, sides in rows.items()]})
    return {"schema": SCHEMA, "kind": "profile comparison", "windows": pairs}


def verify_manifest(path: Path) -> tuple[int, list[Fault]]:
    """How many raw files a manifest lists, and which are no longer as recorded: missing, of another size, of another hash."""
    path = path / "manifest.json" if path.is_dir() else path
    try:
        manifest = json.loads(path.read_bytes())
        parts = [part for part in (manifest, manifest.get("traces")) if part is not None]
        listed = [entry for part in parts for entry in _entries(part)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        mend = "name a manifest.json of the evidence"
        raise RefusedError(str(path), "is not a manifest that can be read", mend) from None
    mend = "the files were not listed then; look at them by hand"
    unknown = [part["files"]["unknown"] for part in parts if isinstance(part["files"], dict)]
    faults = [Fault(str(path), f"does not know its files ({why})", mend) for why in unknown]
    for file, size, sha256 in listed:
        try:
            with file.open("rb") as content:
                found, digest = file.stat().st_size, hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            faults.append(
                Fault(
                    str(file),
                    f"cannot be read ({error.strerror})",
                    "look for a copy; without it the summary stands alone",
                )
            )
            continue
        if (found, digest) != (size, sha256):
            what = f"is not what was recorded ({found} bytes, SHA-256 {digest[:12]}; recorded {size}, {sha256[:12]})"
            faults.append(Fault(str(file), what, "it was changed since: do not rely on it"))
    return len(listed), faults


def _entries(part: dict[str, Any]) -> list[tuple[Path, int, str]]:
    """File, size and SHA-256 of each entry; where the list itself is unknown there is none."""
    if isinstance(part["files"], dict):
        return []
    directory = Path(part["directory"])
    return [(directory / entry["name"], entry["size_bytes"], entry["sha256"]) for entry in part["files"]]
