"""Intervals in numpy: merged in order of start, their union, what it covers up to a time, its gaps. Called by window.py and ranges.py.

Everything is streamed: the memory is that of a few batches, for any number of intervals. Times are int64 nanoseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
"""A numpy array of int64, one dimension."""
LATEST = np.iinfo(np.int64).max


class OutOfOrder(Exception):
    """A row came more than a batch too late; read the table again in order of start."""


@dataclass(frozen=True)
class Rows:
    """Activities in the order of their table: start, end, device (process and device in one number), graph (0 or 1)."""

    start: Array
    end: Array
    device: Array
    graph: Array

    def __len__(self) -> int:
        return len(self.start)

    def where(self, chosen: Array) -> Rows:
        """The rows that a mask or an index chooses."""
        return Rows(self.start[chosen], self.end[chosen], self.device[chosen], self.graph[chosen])

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        """All rows of several parts."""
        if len(parts) == 1:
            return parts[0]
        columns = ("start", "end", "device", "graph")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))

    def in_order(self) -> Rows:
        """The same rows by start."""
        if len(self) < 2 or bool(np.all(self.start[1:] >= self.start[:-1])):
            return self
        return self.where(np.argsort(self.start, kind="stable"))


def merged(streams: list[Iterator[Rows]]) -> Iterator[Rows]:
    """Several tables as one sequence of batches in order of start.

    A batch is held back until the next of its table is there, so rows may be out of order within a batch's reach.
    Raises `OutOfOrder` for a row that comes later than that.
    """
    held: list[list[Rows]] = [[] for _ in streams]
    bound = [-LATEST] * len(streams)
    given = -LATEST
    while any(limit < LATEST for limit in bound):
        index = bound.index(min(bound))
        batch = next(streams[index], None)
        if batch is None:
            bound[index] = LATEST
        elif len(batch):
            lowest = int(batch.start.min())
            if lowest < given:
                raise OutOfOrder
            bound[index] = lowest
            held[index].append(batch)
        limit = min(bound)
        if limit <= given:
            continue
        ready: list[Rows] = []
        for position, parts in enumerate(held):
            left: list[Rows] = []
            for part in parts:
                early = part.start < limit
                if bool(early.all()):
                    ready.append(part)
                elif bool(early.any()):
                    ready.append(part.where(early))
                    left.append(part.where(~early))
                else:
                    left.append(part)
            held[position] = left
        if ready:
            given = limit
            yield Rows.joined(ready).in_order()


class Union:
    """The union of intervals that come in order of start. What touches is one interval."""

    def __init__(self) -> None:
        self.busy_ns = 0
        self.first: int | None = None
        self.last: int | None = None
        self._open: int | None = None

    @property
    def span_ns(self) -> int | None:
        """From the first start to the last end; None without any interval."""
        return None if self.first is None or self.last is None else self.last - self.first

    def add(self, start: Array, end: Array) -> tuple[Array, Array]:
        """Take a batch; returns the intervals of the union that are complete now, as starts and ends."""
        if not len(start):
            return start, start
        reach = np.maximum.accumulate(np.maximum(end, start))
        if self.first is None or self._open is None or self.last is None:
            self.first, self._open, self.last = int(start[0]), int(start[0]), int(start[0])
        reach = np.maximum(reach, self.last)
        before = np.concatenate(([self.last], reach[:-1]))
        new = np.flatnonzero(start > before)
        starts = np.concatenate(([self._open], start[new[:-1]])) if len(new) else start[:0]
        ends = before[new]
        if len(new):
            self._open = int(start[new[-1]])
        self.last = int(reach[-1])
        self.busy_ns += int((ends - starts).sum())
        return starts, ends

    def finish(self) -> tuple[Array, Array]:
        """The interval that was still open."""
        if self._open is None or self.last is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        starts, ends = np.array([self._open], np.int64), np.array([self.last], np.int64)
        self.busy_ns += self.last - self._open
        self._open = None
        return starts, ends


class Covered:
    """How much of the union lies before each of the given times: the measure of any range is a difference of two."""

    def __init__(self, times: Array):
        self._order = np.argsort(times, kind="stable")
        self._times = times[self._order]
        self._values = np.zeros(len(times), np.int64)
        self._done = 0
        self._total = 0

    def add(self, starts: Array, ends: Array) -> None:
        """Take complete intervals of the union, in order."""
        if not len(starts):
            return
        lengths = ends - starts
        before = self._total + np.cumsum(lengths) - lengths
        stop = int(np.searchsorted(self._times, ends[-1], "right"))
        times = self._times[self._done : stop]
        at = np.searchsorted(starts, times, "right") - 1
        inside = np.maximum(at, 0)
        values = before[inside] + np.minimum(times, ends[inside]) - starts[inside]
        self._values[self._done : stop] = np.where(at < 0, self._total, values)
        self._done = stop
        self._total += int(lengths.sum())

    def values(self) -> Array:
        """For each time as given: nanoseconds of the union before it."""
        self._values[self._done :] = self._total
        result = np.empty_like(self._values)
        result[self._order] = self._values
        return result


class Gaps:
    """The longest pauses between the intervals of the union."""

    def __init__(self, count: int):
        self._count = count
        self._longest: list[tuple[int, int]] = []
        self._last: int | None = None

    def add(self, starts: Array, ends: Array) -> None:
        """Take complete intervals of the union, in order."""
        if not len(starts):
            return
        previous = starts[0] if self._last is None else self._last
        before = np.concatenate(([previous], ends[:-1]))
        lengths = starts - before
        most = min(self._count, len(lengths))
        for index in np.argpartition(lengths, len(lengths) - most)[len(lengths) - most :]:
            if lengths[index] > 0:
                entry = (int(lengths[index]), -int(before[index]))
                if len(self._longest) < self._count:
                    heapq.heappush(self._longest, entry)
                else:
                    heapq.heappushpop(self._longest, entry)
        self._last = int(ends[-1])

    def longest(self) -> list[tuple[int, int]]:
        """Start and end of each, the longest first."""
        return [(-start, length - start) for length, start in sorted(self._longest, reverse=True)]


def union_of(start: Array, end: Array) -> tuple[Array, Array]:
    """The union of intervals in any order, as disjoint starts and ends."""
    order = np.argsort(start, kind="stable")
    union = Union()
    first, last = union.add(start[order], end[order]), union.finish()
    return np.concatenate((first[0], last[0])), np.concatenate((first[1], last[1]))
