"""One side of a comparison: the records of one arm and what run.json knows of it. Used by compare, inputs, verdict, sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gb10.bench.records import CLOCK_COLLAPSE, PROFILER, Record, Records
from gb10.errors import Fault, RefusedError
from gb10.variables.yamlfile import near_miss

Run = Mapping[str, Any]
Key = tuple[str, str, int | None, int, int, int]
"""phase, case, concurrency, round, request, slot: what makes two requests a pair."""
Row = tuple[str, str, int | None]
"""case, phase, concurrency: one line of the comparison."""

NO_RUN = "there is no run.json"


@dataclass(frozen=True)
class Named:
    """How a side is chosen and called: its arm, its label (the arm's name by default), the path it came from."""

    arm: str | None = None
    label: str | None = None
    source: str | None = None


UNNAMED = Named()


@dataclass(frozen=True)
class Count:
    """How many requests something is true of, how many it is not, and of how many it is unknown."""

    yes: int
    no: int
    unknown: int

    @classmethod
    def of(cls, values: Iterable[bool | None]) -> Count:
        counted = Counter(values)
        return cls(counted[True], counted[False], counted[None])

    @property
    def total(self) -> int:
        return self.yes + self.no + self.unknown

    def __str__(self) -> str:
        if self.total and self.unknown == self.total:
            return f"unknown of all {self.total}"
        return f"{self.yes} of {self.total}" + (f" ({self.unknown} unknown)" if self.unknown else "")


@dataclass(frozen=True)
class Side:
    """`name`: A or B. `run` is None when the records came without one; everything about the run is unknown then."""

    name: str
    label: str
    source: str
    arm: str
    requests_sha256: str | None
    run: Run | None
    keyed: dict[Key, Record] = field(repr=False)
    torn: Fault | None = None

    @property
    def records(self) -> list[Record]:
        return list(self.keyed.values())

    @property
    def timed(self) -> list[Record]:
        return [record for record in self.keyed.values() if record.phase == "timed"]

    @property
    def facts(self) -> Mapping[str, Any] | None:
        """What run.json knows of the arm, or None."""
        found = (self.run or {}).get("arms", {}).get(self.arm)
        return found if isinstance(found, Mapping) else None

    def of(self, row: Row) -> dict[Key, Record]:
        """The records of one row, by key."""
        return {key: record for key, record in self.keyed.items() if row_of(record) == row}

    @property
    def profiled(self) -> bool:
        """Was a profiler attached, by the run's word or by a request's mark?"""
        return PROFILER in ((self.run or {}).get("diagnostic") or "") or any(PROFILER in marks(r) for r in self.timed)

    @property
    def diagnostic(self) -> str | None:
        """The diagnostic mode that the run or its requests name, or None."""
        return (self.run or {}).get("diagnostic") or (PROFILER if self.profiled else None)

    @property
    def partial(self) -> str | None:
        """Why not everything was measured, or None."""
        why = (self.run or {}).get("partial")
        return why or (f"{self.torn.where} {self.torn.what}" if self.torn else None)

    @property
    def collapsed(self) -> int:
        """Timed requests during which the clocks collapsed."""
        return sum(CLOCK_COLLAPSE in marks(record) for record in self.timed)


def side(name: str, usual_arm: str, run: Run | None, records: Sequence[Record], named: Named) -> Side:
    """The side `name` of a comparison. Raises `RefusedError` when the arm is unclear or two records are one request."""
    torn = records.torn if isinstance(records, Records) else None
    source = named.source or (records.source if isinstance(records, Records) else "")
    where = source or name
    arm = _arm(where, usual_arm, records, named.arm)
    digest = _digest(where, run, records)
    keyed = _keyed(where, [record for record in records if record.arm == arm])
    return Side(name, named.label or arm, source, arm, digest, run, keyed, torn)


def _arm(where: str, usual: str, records: Sequence[Record], wanted: str | None) -> str:
    found = list(dict.fromkeys(record.arm for record in records))
    if wanted is not None:
        if found and wanted not in found:
            guess = near_miss(wanted, found)
            mend = f"did you mean {guess}?" if guess else f"it has {', '.join(found)}"
            raise RefusedError(where, f"has no arm {wanted}", mend)
        return wanted
    if len(found) == 1:
        return found[0]
    if found and usual not in found:
        raise RefusedError(where, f"has the arms {', '.join(found)} and none is called {usual}", "name the arm to use")
    return usual


def _digest(where: str, run: Run | None, records: Sequence[Record]) -> str | None:
    named: str | None = ((run or {}).get("requests") or {}).get("sha256")
    found = records.sha256 if isinstance(records, Records) else None
    if named and found and named != found:
        what = "is not the file that run.json names (its SHA-256 differs)"
        raise RefusedError(where, what, "compare the files as the run left them")
    return found or named


def _keyed(where: str, records: Sequence[Record]) -> dict[Key, Record]:
    """Each record under its key. One without a running number gets it by its place among its like."""
    found: dict[Key, Record] = {}
    seen: Counter[tuple[Any, ...]] = Counter()
    for record in records:
        like = (record.phase, record.case, record.concurrency, record.round)
        number = record.request
        if number is None:
            number = seen[(*like, record.slot)]
            seen[(*like, record.slot)] += 1
        key = (*like, number, record.slot)
        if key in found:
            what = f"has two records of {record.case}, round {record.round}, request {number}, slot {record.slot}"
            raise RefusedError(where, what, "compare one run with one run: runs are never pooled")
        found[key] = record
    return found


def row_of(record: Record) -> Row:
    """The line of the comparison that a record belongs to."""
    return record.case, record.phase, record.concurrency


def marks(record: Record) -> list[str]:
    """The record's marks; none when they are unknown."""
    return record.marks or []


def truncated(record: Record) -> bool | None:
    """Did the answer end at its budget? From `truncated`, else from `finish_reason`; None when neither is known."""
    if record.truncated is None and record.finish_reason is not None:
        return record.finish_reason == "length"
    return record.truncated


def failed(record: Record) -> bool | None:
    """Did the request fail? None when the record says that it is unknown."""
    if record.failure is None and "failure" in (record.unknown or {}):
        return None
    return record.failure is not None


def judged_cases(*sides: Side) -> set[str]:
    """The cases that have an oracle: a timed request of either side names one or was judged."""
    return {r.case for one in sides for r in one.timed if r.expect is not None or r.right is not None}


def unjudged(one: Side, cases: set[str]) -> int:
    """Timed requests of judged cases that came back and have no judgement."""
    return sum(r.right is None and not failed(r) for r in one.timed if r.case in cases)
