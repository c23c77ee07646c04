"""What a trace says, computed the slow and obvious way: every stretch of time is asked whether anything covers it."""

from __future__ import annotations

from itertools import pairwise

from tests.profile.made import Rows, Work

Interval = tuple[int, int]


def measure(intervals: list[Interval], *, inside: list[Interval] | None = None) -> int:
    """Nanoseconds that at least one interval covers (and one of `inside`, when it is given)."""
    edges = sorted({edge for interval in [*intervals, *(inside or [])] for edge in interval})
    total = 0
    for left, right in pairwise(edges):
        covered = any(start <= left and right <= end for start, end in intervals)
        wanted = inside is None or any(start <= left and right <= end for start, end in inside)
        if covered and wanted:
            total += right - left
    return total


def pauses(intervals: list[Interval]) -> list[Interval]:
    """Stretches between the first start and the last end in which nothing ran, the longest first."""
    edges = sorted({edge for interval in intervals for edge in interval})
    found: list[Interval] = []
    for left, right in pairwise(edges):
        if any(start <= left and right <= end for start, end in intervals):
            continue
        at_left = any(start <= left <= end for start, end in intervals)
        if found and found[-1][1] == left and not at_left:
            found[-1] = (found[-1][0], right)
        else:
            found.append((left, right))
    return sorted(found, key=lambda pause: (pause[0] - pause[1], pause[0]))


def span(intervals: list[Interval]) -> int | None:
    """From the first start to the last end."""
    return max(end for _, end in intervals) - min(start for start, _ in intervals) if intervals else None


def last(rows: Rows) -> int:
    """The end of the window: the last time that anything names."""
    times = [edge for one in rows.work for edge in one.interval] + [0]
    times += [mark.start for mark in rows.marks] + [mark.end for mark in rows.marks if mark.end is not None]
    return max(times)


def ranges(rows: Rows) -> dict[str, list[Interval]]:
    """The intervals of each name; a mark is empty, a range without an end lasts to the end of the window."""
    found: dict[str, list[Interval]] = {}
    for mark in rows.marks:
        end = mark.start if mark.kind == 34 else last(rows) if mark.end is None or mark.end < mark.start else mark.end
        found.setdefault(mark.name, []).append((mark.start, end))
    return found


def devices(rows: Rows) -> dict[tuple[int, int], list[Interval]]:
    """The intervals of each process on each device: equal ids of two processes are two devices."""
    found: dict[tuple[int, int], list[Interval]] = {}
    for one in rows.work:
        found.setdefault((one.process, one.device), []).append(one.interval)
    return found


def by_name(kernels: list[Work]) -> dict[str, tuple[int, int]]:
    """Count and time of each kernel."""
    names = {one.name for one in kernels}
    return {
        name: (len(mine), sum(end - start for start, end in mine))
        for name in names
        for mine in [[one.interval for one in kernels if one.name == name]]
    }
