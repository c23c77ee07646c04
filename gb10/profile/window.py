"""One window of a trace in numbers: the JSON of docs/profile.md. Called by command.py with an open trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from gb10.profile import ranges, tables
from gb10.profile.activity import Activity, activity
from gb10.profile.tables import rounded
from gb10.profile.trace import Trace, nothing_in

GRAPH_MODE = "recorded with --cuda-graph-trace=graph: replayed kernels have no rows"
NO_GRAPH_COLUMN = "the trace does not say which kernels came from graphs"
NO_ACTIVITY = "the trace holds no GPU activity"
REASONS = {
    "gpu_busy_ratio": "the activity has no length",
    "ceiling": "the activity has no length",
    "launches_per_step": "the launches or the steps are unknown",
    "launches_per_scheduled_token": "the launches or the steps are unknown",
    "padding_waste": "no dispatch range tells both numbers",
}
"""Why a field can be unknown although the GPU was active, where nothing nearer said it."""


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
    launches = trace.graph_launches() if seen else None
    from_graphs, share = _share(trace, found)
    names = tables.by_short_name(trace, kernels.by_name)
    ratio = union.busy_ns / union.span_ns if union.span_ns else None
    last = max(value for value in (union.last, ranges.last_of(marked), 0) if value is not None)
    row = {
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
        "devices": tables.devices(found.devices),
        "steps": steps,
        "launches_per_step": _per(launches, steps, "count"),
        "launches_per_scheduled_token": _per(launches, steps, "tokens"),
        "nvtx": tables.overlaps(named, found.covered, last, unknown, seen=seen),
        "dispatches": dispatched,
        "padding_waste": rounded(ranges.padding_waste(dispatched)),
        "top_kernels": tables.top(names, top),
        "families": tables.families(names),
        "gaps": tables.gaps(trace, named, found),
        "diagnostics": trace.diagnostics(),
    }
    for key in (key for key, value in row.items() if value is None):
        unknown.add(key, REASONS.get(key, NO_ACTIVITY) if seen or key == "padding_waste" else NO_ACTIVITY)
    row["unknown"] = [{"field": key, "why": why} for key, why in unknown.fields.items()]
    row["span"] = (union.first, union.last) if seen else (int(marked.start.min()), last)
    return row


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


def _per(launches: int | None, steps: dict[str, Any] | None, key: str) -> float | None:
    return rounded(launches / steps[key], 4) if launches is not None and steps and steps[key] else None
