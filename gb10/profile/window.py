"""One window of a trace in numbers: the JSON of docs/profile.md. Called by command.py with an open trace.

One pass over the activities, whatever their number; ids of processes and devices are never compared across processes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from gb10.profile import ranges
from gb10.profile.ranges import Named
from gb10.profile.spans import Array, Covered, Gaps, OutOfOrder, Rows, Union, merged
from gb10.profile.trace import KINDS, Batch, Trace, nothing_in

FAMILIES = Path(__file__).with_name("families.yaml")
OTHER = "other"
CALLS_SHOWN = 3
GRAPH_MODE = "recorded with --cuda-graph-trace=graph: replayed kernels have no rows"
NO_GRAPH_COLUMN = "the trace does not say which kernels came from graphs"
NO_ACTIVITY = "the trace holds no GPU activity"
FIGURES = (
    "kernels",
    "gpu_busy_ns",
    "gpu_span_ns",
    "gpu_busy_ratio",
    "graph_kernels",
    "graph_kernel_share",
    "graph_launches",
)
SMALL_IDS = 1 << 20
DEVICE_BITS = 24
T = TypeVar("T")


@dataclass
class Kernels:
    """Kernels in any order: how many, how many from graphs, and count and time of each name."""

    count: int = 0
    from_graphs: int = 0
    by_name: dict[int, list[int]] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        """Take a batch. (A double adds whole nanoseconds exactly below 2^53.)"""
        rows, name = batch.rows, batch.name
        if name is None or not len(rows):
            return
        self.count += len(rows)
        self.from_graphs += int(rows.graph.sum())
        small = int(name.min()) >= 0 and int(name.max()) < SMALL_IDS
        ids, codes = (None, name) if small else np.unique(name, return_inverse=True)
        counts = np.bincount(codes)
        sums = np.bincount(codes, weights=rows.end - rows.start)
        for code in np.flatnonzero(counts):
            entry = self.by_name.setdefault(int(code if ids is None else ids[code]), [0, 0])
            entry[0] += int(counts[code])
            entry[1] += int(sums[code])


@dataclass
class Activity:
    """What one pass over the activities leaves: counts, the union of all and of each device, its cover and its gaps."""

    kernels: Kernels
    counts: dict[str, int]
    union: Union
    devices: dict[int, Union]
    covered: Array
    gaps: list[tuple[int, int]]


def activity(trace: Trace, times: Array, gaps: int) -> Activity:
    """One pass: counts, unions, cover up to each of `times` (see `spans.Covered`), the longest `gaps` pauses."""
    return in_either_order(lambda ordered: _pass(trace, times, gaps, ordered))


def in_either_order(work: Callable[[bool], T]) -> T:
    """The work in the order of the tables; where rows come far out of order, again in order of start."""
    try:
        return work(False)
    except OutOfOrder:
        return work(True)


def _pass(trace: Trace, times: Array, gaps: int, ordered: bool) -> Activity:
    kernels, counts, union = Kernels(), dict.fromkeys(KINDS, 0), Union()
    devices: dict[int, Union] = {}
    covered, longest = Covered(times), Gaps(gaps)

    def counted(batch: Batch) -> None:
        counts[batch.kind] += len(batch.rows)
        kernels.add(batch)

    for rows in rows_of(trace, ordered, counted):
        earlier = copy.copy(union)
        complete = union.add(rows.start, rows.end)
        covered.add(*complete)
        longest.add(*complete)
        _by_device(devices, rows, earlier, union)
    complete = union.finish()
    covered.add(*complete)
    longest.add(*complete)
    for device in devices.values():
        if device is not union:
            device.finish()
    return Activity(kernels, counts, union, devices, covered.values(), longest.longest())


def rows_of(trace: Trace, ordered: bool, seen: Callable[[Batch], None]) -> Iterator[Rows]:
    """The activities of all tables in order of start; `seen` gets each batch as it is read."""

    def noted(stream: Iterator[Batch]) -> Iterator[Rows]:
        for batch in stream:
            seen(batch)
            yield batch.rows

    return merged([noted(stream) for stream in trace.streams(ordered=ordered)])


def _by_device(devices: dict[int, Union], rows: Rows, earlier: Union, union: Union) -> None:
    """The union of each device. As long as there is one, it is the union of all."""
    first, last = int(rows.device.min()), int(rows.device.max())
    if first == last and set(devices) <= {first}:
        devices[first] = union
        return
    for code, known in devices.items():
        if known is union:
            devices[code] = earlier
    for code in np.unique(rows.device):
        mine = rows.where(rows.device == code)
        devices.setdefault(int(code), Union()).add(mine.start, mine.end)


def read(trace: Trace, file: str, name: str, top: int) -> dict[str, Any]:
    """The numbers of one window; `file` and `name` are shown as given, `top` bounds the lists."""
    marked = trace.ranges()
    named = ranges.by_name(marked)
    edges = [np.concatenate((each.starts, each.ends)) for each in named]
    found = activity(trace, np.concatenate(edges) if edges else np.empty(0, np.int64), top)
    union, kernels = found.union, found.kernels
    seen = union.span_ns is not None
    if not seen and not len(marked.name):
        raise nothing_in(file)
    unknown = trace.unknown
    dispatched = ranges.dispatches(named)
    steps = ranges.steps(named, dispatched)
    if steps is None:
        unknown.add("steps", "the trace has neither execute_context nor dispatch ranges")
    launches = None
    if seen:
        launches = trace.graph_launches()
    for key in () if seen else FIGURES:
        unknown.add(key, NO_ACTIVITY)
    from_graphs, share = _share(trace, found)
    ratio = union.busy_ns / union.span_ns if union.span_ns else None
    last = max(value for value in (union.last, ranges.last_of(marked), 0) if value is not None)
    return {
        "name": name,
        "file": file,
        "format": trace.format,
        "capture": trace.capture(),
        "kernels": kernels.count if seen else None,
        "graph_kernels": from_graphs,
        "graph_kernel_share": share,
        "graph_launches": launches,
        "memcpys": found.counts["memcpy"] if seen else None,
        "memsets": found.counts["memset"] if seen else None,
        "gpu_busy_ns": union.busy_ns if seen else None,
        "gpu_span_ns": union.span_ns,
        "gpu_busy_ratio": rounded(ratio),
        "ceiling": rounded(1 / ratio, 4) if ratio else None,
        "devices": _devices(found.devices),
        "steps": steps,
        "launches_per_step": _per(launches, steps, "count"),
        "launches_per_scheduled_token": _per(launches, steps, "tokens"),
        "nvtx": _overlaps(named, found.covered, last, seen),
        "dispatches": dispatched,
        "padding_waste": rounded(ranges.padding_waste(dispatched)),
        "top_kernels": _top(_by_short_name(trace, kernels), top),
        "families": _families(_by_short_name(trace, kernels), kernels),
        "gaps": _gaps(trace, named, found),
        "diagnostics": trace.diagnostics(),
        "unknown": [{"field": key, "why": why} for key, why in unknown.fields.items()],
        "span": (union.first, union.last) if seen else (int(marked.start.min()), last),
    }


def rounded(value: float | None, digits: int = 6) -> float | None:
    """For a ratio in JSON."""
    return None if value is None else round(value, digits)


def _share(trace: Trace, found: Activity) -> tuple[int | None, float | None]:
    """Kernels from graphs, and their share of all; None where the recording cannot tell."""
    if found.union.span_ns is None:
        return None, None
    if trace.by_launch or not trace.knows_graphs:
        why = GRAPH_MODE if trace.by_launch else NO_GRAPH_COLUMN
        trace.unknown.add("graph_kernels", why)
        trace.unknown.add("graph_kernel_share", why)
        return None, None
    if not found.kernels.count:
        trace.unknown.add("graph_kernel_share", "the trace holds no kernels")
        return 0, None
    return found.kernels.from_graphs, rounded(found.kernels.from_graphs / found.kernels.count)


def _devices(devices: dict[int, Union]) -> list[dict[str, Any]]:
    """Busy and span of each process on each device. Processes are numbered: their ids are the machine's business."""
    processes = sorted({code >> DEVICE_BITS for code in devices})
    return [
        {
            "process": processes.index(code >> DEVICE_BITS) + 1,
            "device": code & ((1 << DEVICE_BITS) - 1),
            "gpu_busy_ns": union.busy_ns,
            "gpu_span_ns": union.span_ns,
        }
        for code, union in sorted(devices.items())
    ]


def _per(launches: int | None, steps: dict[str, Any] | None, key: str) -> float | None:
    return rounded(launches / steps[key], 4) if launches is not None and steps and steps[key] else None


def _overlaps(named: list[Named], covered: Array, last: int, seen: bool) -> list[dict[str, Any]]:
    """Time of each name, and how much of its union the GPU was busy in; the longest first."""
    rows, at = [], 0
    for each in named:
        size = len(each.starts)
        inside = int((covered[at + size : at + 2 * size] - covered[at : at + size]).sum())
        at += 2 * size
        union_ns = each.union_ns(last)
        rows.append(
            {
                "name": each.name,
                "count": each.count,
                "sum_ns": each.sum_ns(last),
                "union_ns": union_ns,
                "gpu_overlap_ns": inside if seen else None,
                "rest_ns": union_ns - inside if seen else None,
                "not_ended": len(each.opened),
            }
        )
    return sorted(rows, key=lambda row: (-row["sum_ns"], row["name"]))


def _by_short_name(trace: Trace, kernels: Kernels) -> dict[str, list[int]]:
    names: dict[str, list[int]] = {}
    for number, (count, total) in kernels.by_name.items():
        entry = names.setdefault(trace.short_name(number), [0, 0])
        entry[0] += count
        entry[1] += total
    return names


def _top(names: dict[str, list[int]], top: int) -> list[dict[str, Any]]:
    rows = [{"name": name, "count": count, "sum_ns": total} for name, (count, total) in names.items()]
    return sorted(rows, key=lambda row: (-row["sum_ns"], row["name"]))[:top]


def _families(names: dict[str, list[int]], kernels: Kernels) -> list[dict[str, Any]]:
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


def _gaps(trace: Trace, named: list[Named], found: Activity) -> list[dict[str, Any]]:
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
