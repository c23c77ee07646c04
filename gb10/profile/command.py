"""Traces into a report, two reports side by side, and a check of kept files. Called by the command line and summary.py."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gb10.errors import Fault, RefusedError
from gb10.profile import source, tables, timeline, window
from gb10.profile.document import EVENTS, document, printable
from gb10.profile.trace import Progress

SCHEMA = 1
ENDING = re.compile(r"(\.pt\.trace)?\.(sqlite|json|nsys-rep)(\.gz)?$")
TOP = 10
COMPARED = (
    "gpu_busy_ratio",
    "gpu_span_ns",
    "gpu_busy_ns",
    "kernels",
    "graph_kernels",
    "graph_kernel_share",
    "graph_launches",
    "launches_per_step",
    "ceiling",
)
MOST = 1 << 63
OF_A_RANGE = ("count", "sum_ns", "gpu_overlap_ns")
SUMS = ("kernels", "graph_kernels", "graph_launches", "memcpys", "memsets", "gpu_busy_ns", "gpu_span_ns")


@dataclass(frozen=True)
class Window:
    """A trace file and the name of what it shows."""

    name: str
    path: Path


def windows_of(traces: list[Path], named: list[str]) -> list[Window]:
    """Traces under their own names, then `NAME=FILE` pairs. Raises `RefusedError` for none, or a name given twice."""
    windows = [Window(printable(ENDING.sub("", path.name)), path) for path in traces]
    for text in named:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise RefusedError(
                "--window", f"{text} is not NAME=FILE", "write one such as --window short=window.1.sqlite"
            )
        windows.append(Window(printable(name), Path(path)))
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
                row = window.read(trace, printable(each.path.name), each.name, top)
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
    if path.suffix == ".json" and path.is_file() and _is_report(path):
        mend = "make it again from its traces"
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            raise RefusedError(str(path), "is a report that cannot be read to its end", mend) from None
        if found.get("schema") != SCHEMA:
            raise RefusedError(str(path), "is a report of another version", mend)
        if not _whole(found.get("windows")):
            raise RefusedError(str(path), "is a report, but not as this program writes it", mend)
        return found
    return report(windows_of([path], []), progress)


def _is_report(path: Path) -> bool:
    """Told by what stands before the first event, so that a large trace is not read twice, nor into memory."""
    try:
        with path.open(encoding="utf-8") as file:
            for key, value in document(file, path.name):
                if key in ("kind", EVENTS):
                    return value == "profile"
    except (OSError, UnicodeDecodeError, RefusedError):
        return False
    return False


def _whole(windows: Any) -> bool:
    """Has every window what a comparison needs: names, and numbers or null?"""

    def numbers(row: dict[str, Any], keys: tuple[str, ...]) -> bool:
        known = [row[key] for key in keys if key in row]
        whole = all(value is None or (type(value) in (int, float) and abs(value) < MOST) for value in known)
        return whole and len(known) == len(keys)

    def ranges(rows: Any) -> bool:
        return isinstance(rows, list) and all(
            isinstance(row, dict)
            and isinstance(row.get("name"), str)
            and numbers(row, OF_A_RANGE)
            and row["sum_ns"] is not None
            for row in rows
        )

    return isinstance(windows, list) and all(
        isinstance(row, dict)
        and isinstance(row.get("name"), str)
        and numbers(row, COMPARED)
        and ranges(row.get("nvtx"))
        for row in windows
    )


def compared(eager: dict[str, Any], graph: dict[str, Any]) -> dict[str, Any]:
    """Two reports side by side, window by window: by name where the names agree, else in their order."""
    a, b = eager["windows"], graph["windows"]
    names = [row["name"] for row in a]
    by_name = {row["name"]: row for row in b}
    if len(a) == len(b) == len(by_name) and set(names) == set(by_name):
        b = [by_name[name] for name in names]
    elif len(a) != len(b):
        what = f"{len(a)} windows on one side, {len(b)} on the other, and their names differ"
        raise RefusedError("profile compare", what, "compare reports of the same windows")
    pairs = []
    for one, other in zip(a, b, strict=True):
        rows = {each["name"]: {} for each in [*one["nvtx"], *other["nvtx"]]}
        for key, report_side in (("eager", one), ("graph", other)):
            for each in report_side["nvtx"]:
                rows[each["name"]][key] = {k: each[k] for k in OF_A_RANGE}
        name = one["name"] if one["name"] == other["name"] else f"{one['name']} / {other['name']}"
        values = {field: {"eager": one[field], "graph": other[field]} for field in COMPARED}
        pairs.append({"name": name, **values, "nvtx": [{"name": key, **sides} for key, sides in rows.items()]})
    return {"schema": SCHEMA, "kind": "profile comparison", "windows": pairs}


def verify_manifest(path: Path) -> tuple[int, int, list[Fault]]:
    """How many raw files a manifest lists, how many are as recorded, and what is wrong: missing, of another size, of another hash."""
    path = path / "manifest.json" if path.is_dir() else path
    mend = "name a manifest.json of the evidence"
    if path.exists() and not path.is_file():
        raise RefusedError(str(path), "is not a file", mend)
    try:
        manifest = json.loads(path.read_bytes())
        parts = [part for part in (manifest, manifest.get("traces")) if part is not None]
        listed = [entry for part in parts for entry in _entries(part)]
        unknown = [str(part["files"]["unknown"]) for part in parts if isinstance(part["files"], dict)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RefusedError(str(path), "is not a manifest that can be read", mend) from None
    mend = "the files were not listed then; look at them by hand"
    faults = [Fault(str(path), f"does not know its files ({why})", mend) for why in unknown]
    wrong = [fault for entry in listed if (fault := _changed(*entry))]
    return len(listed), len(listed) - len(wrong), faults + wrong


def _changed(file: Path, size: int, sha256: str) -> Fault | None:
    """What is wrong with a file that was recorded with this size and hash."""
    mend = "look for a copy; without it the summary stands alone"
    try:
        if file.exists() and not file.is_file():  # a pipe or a device would be read for ever
            return Fault(str(file), "is not a file", mend)
        with file.open("rb") as content:
            found, digest = file.stat().st_size, hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        return Fault(str(file), f"cannot be read ({error.strerror})", mend)
    if (found, digest) == (size, sha256):
        return None
    what = f"is not what was recorded ({found} bytes, SHA-256 {digest[:12]}; recorded {size}, {sha256[:12]})"
    return Fault(str(file), what, "it was changed since: do not rely on it")


def _entries(part: dict[str, Any]) -> list[tuple[Path, int, str]]:
    """File, size and SHA-256 of each entry; where the list itself is unknown there is none. Raises `ValueError` for a name that leaves the directory."""
    if isinstance(part["files"], dict):
        return []
    directory = Path(part["directory"])
    found = [(entry["name"], entry["size_bytes"], entry["sha256"]) for entry in part["files"]]
    for name, size, sha256 in found:
        inside = not Path(name).is_absolute() and ".." not in Path(name).parts and "\0" not in name
        if not inside or not isinstance(size, int) or not isinstance(sha256, str):
            raise ValueError(name)
    return [(directory / name, size, sha256) for name, size, sha256 in found]
