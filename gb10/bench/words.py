"""A comparison as lines for a terminal; report.html has the pictures. Called by the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

UNITS = {"ttft_s": "s", "ttft_content_s": "s", "duration_s": "s", "inter_token_p95_s": "s"}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Verdict, rules, cases and sentences of a comparison.json."""
    verdict = found["verdict"]
    yield f"verdict: {verdict['decision']} ({verdict['why']})"
    for rule in verdict["rules"]:
        holds = {True: "holds", False: "does not hold", None: "unknown"}[rule["holds"]]
        yield f"  {holds:14} {rule['rule']}: {rule['numbers']}"
    for case in found["cases"]:
        answers = case["answers"]
        right = ", ".join(f"{side.upper()} {_right(answers[side])}" for side in ("a", "b"))
        yield f"{case['case']} ({case['phase']}, {case['concurrency'] or 1} at once): {right}"
        for name, metric in case["metrics"].items():
            yield f"  {_metric(name, metric)}"
    yield from found["sentences"]


def _right(answers: dict[str, int]) -> str:
    judged = answers["total"] - answers["unknown"]
    unknown = f" ({answers['unknown']} not judged)" if answers["unknown"] and judged else ""
    return f"{answers['right']} of {answers['total']} right{unknown}" if judged else f"{answers['total']} not judged"


def _metric(name: str, metric: dict[str, Any]) -> str:
    a, b = (_side(metric[side], UNITS.get(name, "tokens/s")) for side in ("a", "b"))
    if metric["ratio"] is None:
        return f"{name}: {a}, {b}; no ratio"
    low, high = metric["ratio_range"]
    interval = metric["interval"]
    bounds = f"95% interval {interval[0]:.3f} to {interval[1]:.3f}" if interval else metric["interval_why"]
    about = "about " if metric["approximate"] else ""
    ratio = f"{about}{metric['ratio']:.3f}x (n={metric['pairs']}, {low:.3f} to {high:.3f}; {bounds})"
    return f"{name}: {a}, {b}; {ratio}; {metric['ranking']}"


def _side(side: dict[str, Any], unit: str) -> str:
    return "unknown" if side["median"] is None else f"{side['median']:.4g} {unit}"


def side_by_side(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A view of two sources without a verdict."""
    for row in rows:
        yield ", ".join(f"{key}: {value}" for key, value in row.items())
