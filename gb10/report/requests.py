"""Request records as what the report shows of them: answers counted, wrong ones listed, a series of values per case and arm.

Called by page.py and plots.py. A record's line is its place in the list, which is its line in requests.jsonl.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gb10.report.words import NOT_RECORDED, clip, finite, plain, reason, say, unknown

Record = dict[str, Any]
Case = tuple[str, Any]


@dataclass(frozen=True)
class Dot:
    """One request's value, and where it stands in the records."""

    value: float
    line: int
    round: str


@dataclass
class Series:
    """One metric of one case in one arm: the values known, and why the others are not."""

    arm: str
    dots: list[Dot] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)

    @property
    def median(self) -> float | None:
        """The middle of the known values."""
        return median(dot.value for dot in self.dots) if self.dots else None

    @property
    def gaps(self) -> str:
        """What is not known, in words; empty when all is."""
        return "; ".join(f"{number} unknown ({why})" for why, number in self.unknown.items())


def timed(records: list[Record]) -> list[tuple[int, Record]]:
    """Line and record of each timed request: warm-up and traced ones are in no number."""
    return [(line, record) for line, record in enumerate(records, 1) if record.get("phase") == "timed"]


def case_of(record: Record) -> Case:
    """What requests must share to stand in one row: the case and how many are sent together."""
    return (plain(record.get("case") or "unknown case"), finite(record.get("concurrency")))


def case_label(case: Case) -> str:
    """A case as a heading."""
    name, concurrency = case
    together = finite(concurrency)
    return f"{name} ({together:.0f} at once)" if together and together > 1 else name


def arm_of(record: Record) -> str:
    """The arm's name."""
    return plain(record.get("arm") or "unknown arm")


def series(records: list[Record], name: str, *, once_a_group: bool = False) -> dict[Case, dict[str, Series]]:
    """The timed values of one metric by case and arm, in the order of the records.

    `once_a_group`: the value is that of a group of concurrent requests, which all its records repeat.
    """
    found: dict[Case, dict[str, Series]] = {}
    seen: set[tuple[str, Case, Any, Any]] = set()
    for line, record in timed(records):
        case, arm = case_of(record), arm_of(record)
        one = found.setdefault(case, {}).setdefault(arm, Series(arm))
        group = record.get("group")
        if once_a_group and group is not None:
            key = (arm, case, plain(record.get("round")), plain(group))
            if key in seen:
                continue
            seen.add(key)
        number = finite(record.get(name))
        if number is None:
            one.unknown[why_unknown(record, name)] += 1
        else:
            one.dots.append(Dot(number, line, say(record.get("round"))))
    return found


def why_unknown(record: Record, name: str) -> str:
    """Why a field of a record is not known."""
    reasons = record.get("unknown")
    if isinstance(reasons, dict) and reasons.get(name):
        return plain(reasons[name])
    failure = record.get("failure")
    if record.get(name) is None and isinstance(failure, dict):
        return f"the request failed: {plain(failure.get('kind') or NOT_RECORDED)}"
    return reason(record.get(name)) or "not a finite number"


def value_of(record: Record, name: str) -> str:
    """A field of a record in words."""
    if reason(record.get(name)) is not None:
        return unknown(why_unknown(record, name))
    return say(record.get(name))


def counts(records: list[Record], arm: str) -> dict[str, int]:
    """Right, wrong, not judged, truncated, failed and all of an arm's timed requests."""
    mine = [record for _, record in timed(records) if arm_of(record) == arm]
    right = sum(record.get("right") is True for record in mine)
    wrong = sum(record.get("right") is False for record in mine)
    return {
        "right": right,
        "wrong": wrong,
        "unknown": len(mine) - right - wrong,
        "total": len(mine),
        "truncated": sum(record.get("truncated") is True for record in mine),
        "truncated_unknown": sum(not isinstance(record.get("truncated"), bool) for record in mine),
        "failures": sum(bool(record.get("failure")) for record in mine),
        "failures_unknown": sum("failure" not in record for record in mine),
    }


def place(line: int, record: Record) -> dict[str, str]:
    """Where a request stands: its line, case, arm, round, place in its group, and whether it is in the numbers."""
    phase = plain(record.get("phase") or "unknown phase")
    return {
        "line": str(line),
        "case": case_label(case_of(record)),
        "arm": arm_of(record),
        "round": value_of(record, "round"),
        "request": value_of(record, "request"),
        "slot": value_of(record, "slot"),
        "phase": phase if phase == "timed" else f"{phase}, in no number",
    }


def wrong_answers(records: list[Record]) -> list[dict[str, str]]:
    """Each answer judged wrong, of any phase: input hash, expected rule, what came, why."""
    found = []
    for line, record in enumerate(records, 1):
        if record.get("right") is False:
            came, left = clip(_came(record))
            found.append(
                place(line, record)
                | {
                    "input": value_of(record, "input_sha256"),
                    "expect": value_of(record, "expect"),
                    "came": came,
                    "left": f"{left} more characters are in the record" if left else "",
                    "why": value_of(record, "why"),
                    "finish": value_of(record, "finish_reason"),
                    "tokens": value_of(record, "completion_tokens"),
                }
            )
    return found


def truncated(records: list[Record]) -> list[dict[str, str]]:
    """Each request cut off by its token budget, of any phase."""
    return [
        place(line, record)
        | {
            "finish": value_of(record, "finish_reason"),
            "tokens": value_of(record, "completion_tokens"),
            "reasoning": value_of(record, "reasoning_tokens"),
        }
        for line, record in enumerate(records, 1)
        if record.get("truncated") is True
    ]


def failures(records: list[Record]) -> list[dict[str, str]]:
    """Each request that failed, of any phase: which kind, and what was seen."""
    found = []
    for line, record in enumerate(records, 1):
        failure = record.get("failure")
        if failure:
            kind, what = (failure.get("kind"), failure.get("what")) if isinstance(failure, dict) else (None, failure)
            found.append(place(line, record) | {"kind": say(kind), "what": clip(say(what), 400)[0]})
    return found


def _came(record: Record) -> str:
    answer, calls = record.get("answer"), record.get("tool_calls")
    parts = [plain(answer)] if answer else []
    parts += [f"tool calls: {plain(calls)}"] if calls else []
    if parts:
        return "\n".join(parts)
    return "an empty answer" if answer == "" else unknown(why_unknown(record, "answer"))
