"""The table per case: from comparison.json when two arms were compared, from the records of the one arm otherwise. Called by page.py."""

from __future__ import annotations

from typing import Any

from gb10.report.requests import Case, Record, arm_of, case_label, case_of, counts, series, timed
from gb10.report.words import METRICS, figure, finite, metric, objects, reason, say, span, table, unknown


def sides(comparison: dict[str, Any]) -> tuple[str, str]:
    """What the two sides of a comparison are called."""
    given = [comparison.get(side) or {} for side in "ab"]
    arms = [str(one.get("arm") or name) for one, name in zip(given, ("baseline", "experiment"), strict=True)]
    labels = [str(one.get("label") or arm) for one, arm in zip(given, arms, strict=True)]
    named = [arm if label == arm else f"{arm} ({label})" for arm, label in zip(arms, labels, strict=True)]
    return named[0], named[1]


def compared(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per case and phase of a comparison, each with a row per metric."""
    return [
        {
            "label": case_label((str(case.get("case") or "unknown case"), case.get("concurrency"))),
            "phase": _phase(case.get("phase")),
            "rows": [_row(name, table(values)) for name, values in _ordered(table(case.get("metrics")))],
        }
        for case in objects(comparison.get("cases"))
    ]


def alone(records: list[Record]) -> list[dict[str, Any]]:
    """The same for arms that were not compared: n, median and range of each, from the records."""
    found: dict[Case, list[dict[str, Any]]] = {case_of(record): [] for _, record in timed(records)}
    for name in METRICS:
        for case, by_arm in series(records, name, once_a_group=name == "group_tokens_per_s").items():
            cells = {arm: one for arm, one in by_arm.items() if one.dots}
            if not cells:
                continue
            found[case].append(
                {
                    "metric": metric(name),
                    "arms": {
                        arm: _cell(
                            len(one.dots),
                            one.median,
                            min(dot.value for dot in one.dots),
                            max(dot.value for dot in one.dots),
                        )
                        for arm, one in cells.items()
                    },
                }
            )
    return [{"label": case_label(case), "phase": "", "rows": rows} for case, rows in found.items()]


def outcomes_compared(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Per case of a comparison: right of total, truncated, failed and the largest outputs of each side."""
    found = []
    for case in objects(comparison.get("cases")):
        entry: dict[str, Any] = {
            "label": case_label((str(case.get("case") or "unknown case"), case.get("concurrency"))),
            "phase": _phase(case.get("phase")),
        }
        for side in "ab":
            answers = (case.get("answers") or {}).get(side)
            total = (answers or {}).get("total")
            entry[side] = {
                "answers": answers_of(answers),
                "truncated": of_total(_side(case, "truncated", side), total),
                "failures": of_total(_side(case, "failures", side), total),
                "output": say(_side(case, "max_completion_tokens", side)),
                "reasoning": say(_side(case, "max_reasoning_tokens", side)),
            }
        found.append(entry)
    return found


def outcomes_alone(records: list[Record], arm: str) -> list[dict[str, Any]]:
    """The same for one arm, from its records."""
    mine = [record for _, record in timed(records) if arm_of(record) == arm]
    found = []
    for case in dict.fromkeys(case_of(record) for record in mine):
        rows = [record for record in mine if case_of(record) == case]
        tally = counts(rows, arm)
        found.append(
            {
                "label": case_label(case),
                "phase": "",
                "a": {
                    "answers": answers_of(tally),
                    "truncated": tallied(tally, "truncated"),
                    "failures": tallied(tally, "failures"),
                    "output": _largest(rows, "completion_tokens"),
                    "reasoning": _largest(rows, "reasoning_tokens"),
                },
            }
        )
    return found


def answers_of(answers: Any) -> str:
    """`11 right of 12, 1 wrong`: what is not judged is said, not counted as either."""
    if not isinstance(answers, dict) or finite(answers.get("total")) is None:
        return unknown(reason(answers) or "not counted")
    if answers["total"] and answers.get("unknown") == answers["total"]:
        return unknown(f"none of {answers['total']} judged")
    text = f"{say(answers.get('right'))} right of {answers['total']}"
    text += f", {answers['wrong']} wrong" if answers.get("wrong") else ""
    return text + (f", {answers['unknown']} not judged" if answers.get("unknown") else "")


def of_total(number: Any, total: Any) -> str:
    """`0 of 12`."""
    return say(number) if finite(number) is None or finite(total) is None else f"{number} of {total}"


def tallied(tally: dict[str, int], name: str) -> str:
    """Truncated or failed of total; requests of which it is not recorded are said."""
    missing = tally[f"{name}_unknown"]
    if missing == tally["total"]:
        return unknown("not recorded of any request")
    return of_total(tally[name], tally["total"]) + (f", {missing} unknown" if missing else "")


def _row(name: str, values: dict[str, Any]) -> dict[str, Any]:
    interval, ratio_range = values.get("interval"), values.get("ratio_range")
    no_interval = f"none: {values.get('interval_why') or 'no reason recorded'}"
    ratio = values.get("ratio")
    return {
        "metric": metric(name) + (" (approximate)" if values.get("approximate") else ""),
        "better": {"higher": "higher is better", "lower": "lower is better"}.get(str(values.get("better")), ""),
        "a": _summary(values.get("a")),
        "b": _summary(values.get("b")),
        "ratio": unknown("no pairs") if ratio is None and not values.get("pairs") else figure(ratio),
        "pairs": say(values.get("pairs")),
        "range": span(*ratio_range) if _pair(ratio_range) else unknown("no pairs"),
        "interval": span(*interval) if _pair(interval) else no_interval,
        "ranking": say(values.get("ranking") or {"unknown": "none given"}),
    }


def _summary(values: Any) -> dict[str, str]:
    values = values or {}
    return _cell(values.get("n"), values.get("median"), values.get("min"), values.get("max"))


def _cell(n: Any, middle: Any, low: Any, high: Any) -> dict[str, str]:
    return {"n": say(n), "median": figure(middle), "range": span(low, high) if finite(low) is not None else ""}


def _ordered(metrics: dict[str, Any]) -> list[tuple[str, Any]]:
    order = list(METRICS)
    return sorted(metrics.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))


def _phase(phase: Any) -> str:
    return "" if phase in (None, "timed") else f"{phase}: never ranked"


def _pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _side(case: dict[str, Any], name: str, side: str) -> Any:
    values = case.get(name)
    return values.get(side) if isinstance(values, dict) else None


def _largest(rows: list[Record], name: str) -> str:
    known = [row[name] for row in rows if finite(row.get(name)) is not None]
    return figure(max(known)) if known else unknown("not recorded of any request")
