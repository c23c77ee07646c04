"""A window as a strip of equal bins: how long the GPU was busy in each, with and without graphs, and the longest ranges. Called by command.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from gb10.profile import ranges
from gb10.profile.activity import in_either_order, rows_of
from gb10.profile.spans import Covered, Union
from gb10.profile.trace import Trace

BINS = 350
RANGES = 4


def timeline(trace: Trace, span: tuple[int, int]) -> dict[str, Any]:
    """Nanoseconds of each bin in which the GPU was busy (`busy`), busy with graphs (`graph`), and each range was open.

    `span`: first start and last end of the GPU's activity; of the ranges where there is none.
    """
    first, last = span
    edges = first + np.linspace(0, last - first, BINS + 1).round().astype(np.int64)

    def covered(ordered: bool) -> tuple[list[int], list[int]]:
        unions = (Union(), Union())
        covers = (Covered(edges), Covered(edges))
        for rows in rows_of(trace, ordered, lambda batch: None):
            from_graphs = rows.where(rows.graph == 1)
            for part, union, cover in zip((rows, from_graphs), unions, covers, strict=True):
                cover.add(*union.add(part.start, part.end))
        for union, cover in zip(unions, covers, strict=True):
            cover.add(*union.finish())
        busy, graph = (np.diff(cover.values()).tolist() for cover in covers)
        return busy, graph

    busy, graph = in_either_order(covered)
    named = ranges.by_name(trace.ranges())
    longest = sorted(named, key=lambda each: -each.union_ns(last))[:RANGES]
    lanes = []
    for each in longest:
        cover = Covered(edges)
        cover.add(each.starts, np.minimum(each.ends, max(last, int(each.starts[-1]))))
        lanes.append({"name": each.name, "ns": np.diff(cover.values()).tolist()})
    return {"bin_ns": (last - first) / BINS, "busy": busy, "graph": graph, "ranges": lanes}
