"""What the ranges of the CPU tell: time by name, its overlap with the GPU, dispatches with their padding, scheduled steps. Called by window.py.

Names with values are `dispatch:actual=3,padded=4,mode=PIECEWISE` (our marks; also `dispatch-v2:...`) and `execute_context_1(4)_generation_2(6)` (vLLM's own).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gb10.profile.spans import LATEST, Array, union_of
from gb10.profile.trace import Ranges

DISPATCH = re.compile(r"dispatch[\w.-]*:(.*)")
EXECUTE = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)$")


@dataclass
class Named:
    """The ranges of one name: their union as `starts` and `ends`. A range whose end was not recorded lasts to the end."""

    name: str
    count: int
    closed_ns: int
    opened: Array
    starts: Array
    ends: Array

    def sum_ns(self, last_ns: int) -> int:
        """All lengths added up; `last_ns` is the end of the window."""
        return self.closed_ns + int(np.maximum(last_ns - self.opened, 0).sum())

    def union_ns(self, last_ns: int) -> int:
        """The time in which at least one of them was open."""
        return (
            int((np.minimum(self.ends, max(last_ns, 0)) - self.starts).sum())
            if len(self.opened)
            else int((self.ends - self.starts).sum())
        )


def by_name(ranges: Ranges) -> list[Named]:
    """One entry a name, in the order of the names."""
    order = np.lexsort((ranges.start, ranges.name))
    name, start, end, instant = (column[order] for column in (ranges.name, ranges.start, ranges.end, ranges.instant))
    opened = (end < start) & ~instant
    end = np.where(instant, start, np.where(opened, LATEST, end))
    found = []
    for part in np.split(np.arange(len(name)), np.flatnonzero(np.diff(name)) + 1):
        if len(part):
            starts, ends = union_of(start[part], end[part])
            closed = part[~opened[part]]
            lengths = int((end[closed] - start[closed]).sum())
            found.append(
                Named(ranges.names[name[part[0]]], len(part), lengths, start[part[opened[part]]], starts, ends)
            )
    return found


def last_of(ranges: Ranges) -> int | None:
    """The last time that any range names."""
    known = np.concatenate((ranges.start, ranges.end[ranges.end >= ranges.start]))
    return int(known.max()) if len(known) else None


def dispatches(named: list[Named]) -> list[dict[str, Any]]:
    """Dispatches by (actual tokens, padded tokens, mode), the most frequent first. A value that is not there is None."""
    counted: dict[tuple[int | None, int | None, str | None], int] = {}
    for each in named:
        shown = DISPATCH.match(each.name)
        if shown:
            pairs = dict(part.partition("=")[::2] for part in shown[1].split(","))
            key = (_number(pairs.get("actual")), _number(pairs.get("padded")), pairs.get("mode"))
            counted[key] = counted.get(key, 0) + each.count
    rows = [
        {"actual": actual, "padded": padded, "mode": mode, "count": count}
        for (actual, padded, mode), count in counted.items()
    ]
    return sorted(rows, key=lambda row: (-row["count"], str(row["mode"]), row["actual"] or 0))


def padding_waste(rows: list[dict[str, Any]]) -> float | None:
    """Share of the padded tokens that no request asked for, over all dispatches; None where a number is missing."""
    sizes = [(row["actual"], row["padded"], row["count"]) for row in rows]
    if not sizes or any(actual is None or padded is None for actual, padded, _ in sizes):
        return None
    total = sum(padded * count for _, padded, count in sizes)
    return (total - sum(actual * count for actual, _, count in sizes)) / total if total else None


def steps(named: list[Named], rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Scheduled steps and their tokens: vLLM's own ranges where it made them, else the dispatches. None for neither.

    A step of vLLM without a token (it waits for a transfer) is not counted.
    """
    count, tokens = 0, 0
    for each in named:
        shape = EXECUTE.match(each.name)
        if shape and int(shape[2]) + int(shape[4]):
            count += each.count
            tokens += each.count * (int(shape[2]) + int(shape[4]))
    if count:
        return {"count": count, "tokens": tokens, "from": "execute_context ranges"}
    if rows and all(row["actual"] is not None for row in rows):
        tokens = sum(row["actual"] * row["count"] for row in rows)
        return {"count": sum(row["count"] for row in rows), "tokens": tokens, "from": "dispatch ranges"}
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
