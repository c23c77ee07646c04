"""Request records of other origin: a plain JSONL format, and the result of `vllm bench serve` for a view beside our own.

Called by the command line. What a foreign record does not say is unknown, with the reason in `unknown`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from gb10.bench import lines, statistics
from gb10.bench.records import STRICT, Record, Records
from gb10.bench.sides import failed
from gb10.errors import RefusedError

WARM, TRACE = "warm", "trace-"
ABSENT = "not in the imported record"
MISSING = ("answer", "right", "finish_reason", "truncated", "failure", "input_sha256")
COUNTERS = {
    "hit_tokens": "prefix_cache_hits_total",
    "query_tokens": "prefix_cache_queries_total",
    "preemptions": "num_preemptions_total",
    "drafted_tokens": "spec_decode_num_draft_tokens_total",
    "accepted_tokens": "spec_decode_num_accepted_tokens_total",
}

Number = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Plain:
    """One line of the plain format. `metrics`: the server's counters after the request, since its start."""

    label: str
    ttft_s: Number | None = None
    decode_tok_s: Number | None = None
    total_s: Number | None = None
    prompt: Count | None = None
    completion: Count | None = None
    metrics: dict[str, Number] | None = None


_PLAIN: TypeAdapter[Plain] = TypeAdapter(Plain)
_PLAIN_KEYS = [field.name for field in fields(Plain)]


def plain(path: Path, arm: str) -> Records:
    """Records of a file whose lines are `label`, `ttft_s`, `decode_tok_s`, `total_s`, `prompt`, `completion`, `metrics`.

    The label `warm` is a warm-up, `trace-CASE` a traced request, any other a timed one; the n-th line with a label is
    its round n. Raises `RefusedError`, one fault a bad line.
    """
    found, records = lines.read(path), []
    rounds: Counter[str] = Counter()
    before: Mapping[str, float] | None = None
    for where, value in lines.gathered(found):
        try:
            entry: Plain = lines.judged(where, value, _PLAIN, _PLAIN_KEYS, ["label"])
        except RefusedError as error:
            found.faults += error.faults
            continue
        rounds[entry.label] += 1
        records.append(_record(entry, arm, rounds[entry.label], before))
        before = entry.metrics
    lines.refuse(found)
    return Records(records, str(path), found.sha256, found.torn)


def _record(entry: Plain, arm: str, number: int, before: Mapping[str, float] | None) -> Record:
    warm = entry.label == WARM
    traced = entry.label.startswith(TRACE)
    growth = {field: _growth(name, before, entry.metrics) for field, name in COUNTERS.items()}
    unknown = dict.fromkeys(MISSING, ABSENT) | {field: why for field, (_, why) in growth.items() if why}
    drafted = growth["drafted_tokens"][0]
    return Record(
        arm=arm,
        round=0 if warm else number,
        case=entry.label.removeprefix(TRACE),
        slot=0,
        phase="warm-up" if warm else "traced" if traced else "timed",
        request=number - 1 if warm else 0,
        prompt_tokens=entry.prompt,
        completion_tokens=entry.completion,
        ttft_s=entry.ttft_s,
        decode_tokens_per_s=entry.decode_tok_s,
        decode_approximate=None if drafted is None else drafted > 0,
        duration_s=entry.total_s,
        unknown=unknown,
        **{field: grown for field, (grown, _) in growth.items()},
    )


def _growth(name: str, before: Mapping[str, float] | None, after: Mapping[str, float] | None) -> tuple[int | None, str]:
    """By how much a counter grew over a request, or None and why that is unknown."""
    if after is None or name not in after:
        return None, ABSENT
    if before is None or name not in before:
        return None, "the counter before the request is not in the file"
    if after[name] < before[name]:
        return None, "the counter fell: the server was started anew"
    return round(after[name] - before[name]), ""


@dataclass(frozen=True)
class Column:
    """One column of a side-by-side view. `values`: metric -> number; `unknown`: metric -> why there is none."""

    label: str
    source: str
    requests: int | None
    failed: int | None
    values: dict[str, float]
    unknown: dict[str, str]


METRICS = ("ttft_s", "decode_tokens_per_s", "inter_token_p95_s", "duration_s", "group_tokens_per_s")
"""Medians over the requests, but `group_tokens_per_s`: of a `vllm bench serve` run, all output tokens over its duration."""


def own_column(records: Sequence[Record], label: str, source: str = "") -> Column:
    """Our own timed records of one load as a column: medians over the requests that did not fail."""
    timed = [record for record in records if record.phase == "timed"]
    values, unknown = {}, {}
    for name in METRICS:
        known = [value for r in timed if not failed(r) and (value := getattr(r, name)) is not None]
        if known:
            values[name] = statistics.median(known)
        else:
            unknown[name] = "no timed request has it"
    return Column(label, source, len(timed), sum(bool(failed(r)) for r in timed), values, unknown)


def vllm_bench(path: Path) -> Column:
    """The result file of `vllm bench serve` (--save-result, with or without --save-detailed) as a column.

    With the detailed lists, medians are taken here over the requests without an error; otherwise its own medians are
    used. Its first token is its first chunk with `choices`, even an empty one: its `ttft_s` can be below ours.
    Raises `RefusedError` when the file is not such a result.
    """
    document = _result(path)
    values: dict[str, float] = {}
    unknown: dict[str, str] = {}
    try:
        detailed = _detailed(document)
    except TypeError:
        what = "has lists of requests that do not hold numbers"
        raise RefusedError(str(path), what, "name the file that --save-result wrote") from None
    for name, find in _FROM_RESULT.items():
        value = detailed.get(name)
        value = find(document) if value is None else value
        if value is None:
            unknown[name] = "not in the result file"
        else:
            values[name] = value
    label = str(document.get("label") or document.get("model_id") or path.stem)
    broken = document.get("failed")
    return Column(label, str(path), document["completed"], broken if isinstance(broken, int) else None, values, unknown)


def _result(path: Path) -> dict[str, Any]:
    mend = "name the file that --save-result wrote"
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise RefusedError(str(path), f"cannot be read ({error.strerror or error})", mend) from None
    except ValueError as error:
        what = "holds several results (--append-result)" if "Extra data" in str(error) else "is not JSON"
        raise RefusedError(str(path), what, mend) from None
    if not isinstance(document, dict) or not isinstance(document.get("completed"), int) or "duration" not in document:
        raise RefusedError(str(path), "is not a result of vllm bench serve (no completed, no duration)", mend)
    return document


def _number(document: Mapping[str, Any], key: str) -> float | None:
    value = document.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None  # type: ignore[arg-type]


def _seconds(key: str) -> Callable[[Mapping[str, Any]], float | None]:
    def find(document: Mapping[str, Any]) -> float | None:
        value = _number(document, key)
        return None if value is None or not document["completed"] else value / 1000

    return find


def _speed(document: Mapping[str, Any]) -> float | None:
    value = _number(document, "median_tpot_ms")
    return 1000 / value if value else None


_FROM_RESULT: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "ttft_s": _seconds("median_ttft_ms"),
    "decode_tokens_per_s": _speed,
    "inter_token_p95_s": _seconds("p95_itl_ms"),
    "duration_s": _seconds("median_e2el_ms"),
    "group_tokens_per_s": lambda document: _number(document, "output_throughput"),
}


def _detailed(document: Mapping[str, Any]) -> dict[str, float]:
    """Medians from the lists with one item a request, where they are there and equally long."""
    names = ("ttfts", "output_lens", "itls", "errors")
    columns = [document.get(name) for name in names]
    if not all(isinstance(column, list) for column in columns) or len({len(column or []) for column in columns}) != 1:
        return {}
    rows = [row for row in zip(*columns, strict=True) if not row[3]]  # type: ignore[arg-type]
    values = {
        "ttft_s": [ttft for ttft, *_ in rows],
        "decode_tokens_per_s": [(n - 1) / sum(gaps) for _, n, gaps, _ in rows if n > 1 and sum(gaps) > 0],
        "duration_s": [ttft + sum(gaps) for ttft, _, gaps, _ in rows],
    }
    return {name: statistics.median(found) for name, found in values.items() if found}


def side_by_side(a: Column, b: Column) -> list[dict[str, Any]]:
    """One row a metric: `metric`, `a`, `b`, `ratio` (b over a, None where one is unknown), `why` (what is unknown)."""
    rows = []
    for name in METRICS:
        first, second = a.values.get(name), b.values.get(name)
        why = "; ".join(f"{one.label}: {one.unknown[name]}" for one in (a, b) if name in one.unknown)
        ratio = second / first if first and second is not None else None
        rows.append({"metric": name, "a": first, "b": second, "ratio": ratio, "why": why})
    return rows
