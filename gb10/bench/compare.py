"""Two arms of request records to comparison.json: numbers for each case, sentences, verdict. Called by the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gb10.bench import statistics
from gb10.bench.inputs import equal_inputs
from gb10.bench.records import PROFILER, Record
from gb10.bench.sentences import sentences
from gb10.bench.sides import UNNAMED, Count, Key, Named, Row, Run, Side, failed, row_of, side, truncated
from gb10.bench.verdict import DEFAULT, Thresholds, judge

SCHEMA = 1
METRICS = {
    "ttft_s": "lower",
    "ttft_content_s": "lower",
    "decode_tokens_per_s": "higher",
    "inter_token_p95_s": "lower",
    "duration_s": "lower",
    "group_tokens_per_s": "higher",
}
"""Every metric that is compared, and which way is better."""
NOT_COMPARABLE = "not comparable"


def compare(
    a_run: Run | None,
    a_records: Sequence[Record],
    b_run: Run | None,
    b_records: Sequence[Record],
    thresholds: Thresholds = DEFAULT,
    *,
    a: Named = UNNAMED,
    b: Named = UNNAMED,
) -> dict[str, Any]:
    """comparison.json (docs/schemas/comparison.schema.json). A is the baseline: ratios are B over A.

    Of a run with several arms, A is its arm `baseline` and B its arm `experiment`, unless `a` and `b` name others.
    Raises `RefusedError` when an arm is not there, a record is there twice, or the records are not those of the run.
    """
    left = side("A", "baseline", a_run, a_records, a)
    right = side("B", "experiment", b_run, b_records, b)
    same, differences = equal_inputs(left, right)
    rows = list(dict.fromkeys(row_of(r) for one in (left, right) for r in one.records if r.phase != "warm-up"))
    cases = [_case(row, left, right, same) for row in sorted(rows, key=lambda row: row[1] == "traced")]
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "suite": _suite(left, right),
        "a": _named(left),
        "b": _named(right),
        "inputs_equal": same,
        "input_differences": differences,
        "cases": cases,
        "totals": _counts(left.timed, right.timed),
        "sentences": sentences(left, right, cases, same, differences),
        "verdict": judge(left, right, cases, same, differences, thresholds),
    }


def _suite(a: Side, b: Side) -> str | None:
    names = [(one.run or {}).get("suite", {}).get("name") for one in (a, b)]
    return " / ".join(dict.fromkeys(name for name in names if name)) or None


def _named(one: Side) -> dict[str, Any]:
    return {"label": one.label, "source": one.source, "arm": one.arm, "requests_sha256": one.requests_sha256}


def _case(row: Row, a: Side, b: Side, same: bool | None) -> dict[str, Any]:
    case, phase, concurrency = row
    left, right = a.of(row), b.of(row)
    metrics = {} if phase == "traced" else _metrics(left, right, _unranked(a, b, same), a, b)
    return {
        "case": case,
        "phase": phase,
        "concurrency": concurrency,
        "metrics": metrics,
        **_counts(list(left.values()), list(right.values())),
        "max_completion_tokens": _each(left, right, lambda found: _largest(found, "completion_tokens")),
        "max_reasoning_tokens": _each(left, right, lambda found: _largest(found, "reasoning_tokens")),
        "hit_tokens": _each(left, right, lambda found: [r.hit_tokens for r in found]),
    }


def _each(a: Mapping[Key, Record], b: Mapping[Key, Record], of: Any) -> dict[str, Any]:
    return {"a": of(list(a.values())), "b": of(list(b.values()))}


def _largest(records: list[Record], field: str) -> int | None:
    return max((value for r in records if (value := getattr(r, field)) is not None), default=None)


def _counts(a: list[Record], b: list[Record]) -> dict[str, Any]:
    both = {"a": a, "b": b}
    return {
        "answers": {name: _answers(records) for name, records in both.items()},
        "truncated": {name: _known(Count.of(truncated(r) for r in records)) for name, records in both.items()},
        "failures": {name: _known(Count.of(failed(r) for r in records)) for name, records in both.items()},
    }


def _answers(records: list[Record]) -> dict[str, int]:
    found = Count.of(record.right for record in records)
    return {"right": found.yes, "wrong": found.no, "unknown": found.unknown, "total": found.total}


def _known(found: Count) -> int | None:
    """How many it is true of; None when it is unknown of every one."""
    return None if found.total and found.unknown == found.total else found.yes


def _unranked(a: Side, b: Side, same: bool | None) -> str | None:
    """Why no metric of these two can be ranked, whatever its numbers; None when they can."""
    if a.profiled != b.profiled:
        return f"{NOT_COMPARABLE}: {PROFILER} only in {a.name if a.profiled else b.name}"
    for one in (a, b):
        if one.diagnostic and one.diagnostic != PROFILER:
            return f"no ranking: {one.name} is a diagnostic run ({one.diagnostic})"
    return "no ranking: the inputs differ" if same is False else None


def _metrics(a: dict[Key, Record], b: dict[Key, Record], unranked: str | None, *sides: Side) -> dict[str, Any]:
    found = {}
    for name, better in METRICS.items():
        left, right = _values(a, name), _values(b, name)
        if left or right:
            used = [a[key] for key in left] + [b[key] for key in right]
            found[name] = _metric(name, better, left, right, used, unranked, sides[0].profiled and sides[1].profiled)
    return found


def _values(records: dict[Key, Record], name: str) -> dict[Key, float]:
    """The known values of requests that did not fail; of a group's throughput one value for each group."""
    if name != "group_tokens_per_s":
        good = {key: record for key, record in records.items() if not failed(record)}
    else:
        groups: dict[Any, list[Key]] = {}
        for key, record in records.items():
            groups.setdefault(record.group if record.group is not None else key[:-1], []).append(key)
        whole = [keys for keys in groups.values() if not any(failed(records[key]) for key in keys)]
        firsts = [min(keys, key=lambda key: (key[-1], key[-2])) for keys in whole]
        good = {key: records[key] for key in firsts}
    return {key: value for key, record in good.items() if (value := getattr(record, name)) is not None}


def _metric(
    name: str,
    better: str,
    a: dict[Key, float],
    b: dict[Key, float],
    used: list[Record],
    unranked: str | None,
    profiled: bool,
) -> dict[str, Any]:
    pairs = statistics.paired(a, b)
    first, second = statistics.summary(list(a.values())), statistics.summary(list(b.values()))
    ratios = [] if unranked and unranked.startswith(NOT_COMPARABLE) else statistics.ratios(pairs)
    bounds, why = statistics.interval(ratios)
    if unranked and not ratios:
        why = unranked
    return {
        "better": better,
        "a": first,
        "b": second,
        "pairs": len(pairs),
        "ratio": statistics.median(ratios) if ratios else None,
        "ratio_range": [min(ratios), max(ratios)] if ratios else None,
        "ratio_of_medians": second["median"] / first["median"] if ratios and first["median"] else None,
        "interval": list(bounds) if bounds else None,
        "interval_why": why,
        "approximate": name == "decode_tokens_per_s" and any(approximate(record) for record in used),
        "ranking": unranked or _ranking(better, bounds, why) + (f" ({PROFILER} in both)" if profiled else ""),
    }


def approximate(record: Record) -> bool:
    """Does this request's decode speed rest on chunks that held several tokens?"""
    return bool(record.decode_approximate) or bool(record.drafted_tokens)


def _ranking(better: str, bounds: tuple[float, float] | None, why: str) -> str:
    if bounds is None:
        return f"no ranking: {why}"
    low, high = bounds
    if low <= 1 <= high:
        return f"no ranking: the interval {low:.3f} to {high:.3f} contains 1"
    return "B is better" if (low > 1) == (better == "higher") else "A is better"
