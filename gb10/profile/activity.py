"""One pass over the activities of a trace, whatever their number: counts, unions, cover and gaps. Called by window.py and timeline.py.

Ids of processes and devices are never compared across processes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from gb10.profile.spans import Array, Covered, Gaps, OutOfOrder, Rows, Union, merged
from gb10.profile.trace import KINDS, Batch, Trace

SMALL_IDS = 1 << 20
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
