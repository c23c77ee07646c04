"""The lists of a window: devices, ranges, kernels, families, gaps. Called by window.py; each row is one of docs/profile.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gb10.profile.activity import Activity
from gb10.profile.ranges import Named
from gb10.profile.spans import Array, Union
from gb10.profile.trace import DEVICE_BITS, DEVICE_MASK, Trace, Unknown

FAMILIES = Path(__file__).with_name("families.yaml")
OTHER = "other"
CALLS_SHOWN = 3
NAMES = 500
"""Names of ranges that are listed, those with the most time; a name with values can make one a step."""
LETTERS = 200
"""Of a range's name."""


def rounded(value: float | None, digits: int = 6) -> float | None:
    """For a ratio in JSON."""
    return None if value is None else round(value, digits)


def devices(found: dict[int, Union]) -> list[dict[str, Any]]:
    """Busy and span of each process on each device. Processes are numbered: their ids are the machine's business."""
    processes = sorted({code >> DEVICE_BITS for code in found})
    return [
        {
            "process": processes.index(code >> DEVICE_BITS) + 1,
            "device": code & DEVICE_MASK,
            "gpu_busy_ns": union.busy_ns,
            "gpu_span_ns": union.span_ns,
        }
        for code, union in sorted(found.items())
    ]


def overlaps(named: list[Named], covered: Array, last: int, unknown: Unknown, *, seen: bool) -> list[dict[str, Any]]:
    """Time of each name, and how much of its union the GPU was busy in (where it was `seen`); the longest `NAMES` first."""
    rows, at = [], 0
    for each in named:
        size = len(each.starts)
        inside = int((covered[at + size : at + 2 * size] - covered[at : at + size]).sum())
        at += 2 * size
        union_ns = each.union_ns(last)
        rows.append(
            {
                "name": each.name if len(each.name) <= LETTERS else f"{each.name[: LETTERS - 1]}…",
                "count": each.count,
                "sum_ns": each.sum_ns(last),
                "union_ns": union_ns,
                "gpu_overlap_ns": inside if seen else None,
                "rest_ns": union_ns - inside if seen else None,
                "not_ended": len(each.opened),
            }
        )
    rows.sort(key=lambda row: (-row["sum_ns"], row["name"]))
    if len(rows) > NAMES:
        unknown.add("nvtx", f"{len(rows) - NAMES} further names, each with less time, are not listed")
    return rows[:NAMES]


def by_short_name(trace: Trace, kernels: dict[int, list[int]]) -> dict[str, list[int]]:
    """Count and nanoseconds of each base name; several ids can have one."""
    names: dict[str, list[int]] = {}
    for number, (count, total) in kernels.items():
        entry = names.setdefault(trace.short_name(number), [0, 0])
        entry[0] += count
        entry[1] += total
    return names


def top(names: dict[str, list[int]], most: int) -> list[dict[str, Any]]:
    """Kernels by time."""
    rows = [{"name": name, "count": count, "sum_ns": total} for name, (count, total) in names.items()]
    return sorted(rows, key=lambda row: (-row["sum_ns"], row["name"]))[:most]


def families(names: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Time by family; the rules stand in families.yaml. `other` is what no word of them names."""
    rules = yaml.safe_load(FAMILIES.read_text())
    found: dict[str, list[int]] = {}
    for name, (count, total) in names.items():
        lower = name.lower()
        family = next((rule["family"] for rule in rules if any(word in lower for word in rule["words"])), OTHER)
        entry = found.setdefault(family, [0, 0])
        entry[0] += count
        entry[1] += total
    whole = sum(total for _, total in found.values())
    rows = [
        {"family": family, "count": count, "sum_ns": total, "share": rounded(total / whole if whole else None)}
        for family, (count, total) in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["sum_ns"], row["family"]))


def gaps(trace: Trace, named: list[Named], found: Activity) -> list[dict[str, Any]]:
    """The longest pauses of the GPU, counted from its first activity, and the CPU's ranges and API calls inside them."""
    rows = []
    starts, ends = (np.concatenate([getattr(each, side) for each in named] or [[]]) for side in ("starts", "ends"))
    first_of_name = np.cumsum([0, *(len(each.starts) for each in named[:-1])])
    for (start, end), calls in zip(found.gaps, trace.calls_during(found.gaps), strict=True):
        inside = {}
        if named:
            overlap = np.maximum(np.minimum(ends, end) - np.maximum(starts, start), 0)
            of_name = np.add.reduceat(overlap, first_of_name)
            inside = {named[index].name: int(of_name[index]) for index in np.flatnonzero(of_name)}
        at_ns = start - (found.union.first or 0)
        rows.append({"at_ns": at_ns, "length_ns": end - start, "ranges": _most(inside), "calls": _most(calls)})
    return rows


def _most(times: dict[str, int]) -> list[dict[str, Any]]:
    longest = sorted(((-ns, name) for name, ns in times.items() if ns > 0))[:CALLS_SHOWN]
    return [{"name": name, "ns": -ns} for ns, name in longest]
