"""What a reader of a comparison must know beside its numbers, in sentences. Called by compare.py."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gb10.bench.records import PROFILER
from gb10.bench.sides import NO_RUN, Side, failed, marks
from gb10.bench.statistics import LEAST_PAIRS, words
from gb10.bench.verdict import graph_effect


def sentences(a: Side, b: Side, cases: list[dict[str, Any]], same: bool | None, differences: list[str]) -> list[str]:
    """Everything that limits what the numbers mean; empty when nothing does."""
    found = _small(cases)
    found += _profiled(a, b)
    for one in (a, b):
        found += _of_run(one)
    found += _inputs(same, differences)
    found += _approximate(cases)
    for one in (a, b):
        found += _of_requests(one)
    return found + _where(a, b)


def _small(cases: list[dict[str, Any]]) -> list[str]:
    counts = {}
    for case in cases:
        if case["metrics"]:
            level = "" if case["concurrency"] in {None, 1} else f" at {case['concurrency']} streams"
            counts[case["case"] + level] = max(metric["pairs"] for metric in case["metrics"].values())
    few = [f"{name} n = {count}" for name, count in counts.items() if count < LEAST_PAIRS]
    if not few:
        return []
    return [
        f"Small sample ({', '.join(few)} pairs): below {LEAST_PAIRS} pairs no interval is given and nothing is ranked."
    ]


def _profiled(a: Side, b: Side) -> list[str]:
    if a.profiled and b.profiled:
        return ["Both ran with a profiler attached: the timings compare these two only, and give no verdict."]
    if a.profiled or b.profiled:
        name = a.name if a.profiled else b.name
        return [f"Only {name} ran with a profiler attached: its timings are not compared with the other's."]
    return []


def _of_run(one: Side) -> list[str]:
    found = []
    if one.partial:
        found.append(f"{one.name} is partial: {one.partial}.")
    if one.diagnostic and not one.profiled:
        found.append(f"{one.name} is a diagnostic run ({one.diagnostic}): it gives no verdict on performance.")
    holds, why = graph_effect(one)
    if one.run is None:
        found.append(f"Of {one.name} {NO_RUN}: its engine, guard and overlays are unknown.")
    elif holds is False:
        found.append(f"The graphs of {one.name} are asked for and did not take effect: its numbers are eager ones.")
    elif holds is None:
        found.append(f"Whether graphs of {one.name} took effect is {why}.")
    return found


def _inputs(same: bool | None, differences: list[str]) -> list[str]:
    if same is False:
        return [f"The inputs differ: {'; '.join(differences)}."]
    return (
        ["Whether the inputs are equal is unknown: not every record has a hash of its input."] if same is None else []
    )


def _approximate(cases: list[dict[str, Any]]) -> list[str]:
    found = [case["case"] for case in cases if any(metric["approximate"] for metric in case["metrics"].values())]
    if not found:
        return []
    named = ", ".join(dict.fromkeys(found))
    return [f"Decode speeds are approximate ({named}): speculative decoding, or several tokens in a chunk."]


def _of_requests(one: Side) -> list[str]:
    found = []
    failures = Counter(record.failure.kind for record in one.timed if record.failure)
    if failures:
        kinds = ", ".join(f"{kind} {count}" for kind, count in failures.items())
        found.append(
            f"{words(failures.total(), 'timed request')} of {one.name} failed ({kinds}): no time of theirs is in the numbers."
        )
    outside = [r for r in one.records if r.phase != "timed" and (failed(r) or r.right is False)]
    if outside:
        count = words(len(outside), "warm-up or traced request")
        found.append(f"{count} of {one.name} failed or got a wrong answer; none is in the numbers.")
    marked = Counter(mark for record in one.timed for mark in marks(record) if mark != PROFILER)
    for mark, count in marked.items():
        verb = "carries" if count == 1 else "carry"
        found.append(f'{words(count, "timed request")} of {one.name} {verb} the mark "{mark}".')
    return found


def _where(a: Side, b: Side) -> list[str]:
    if a.run is None or b.run is None:
        return []
    found = []
    hosts = [(one.run or {}).get("host") for one in (a, b)]
    if all(isinstance(host, str) for host in hosts) and hosts[0] != hosts[1]:
        found.append(f"A ran on {hosts[0]}, B on {hosts[1]}.")
    orders = [(one.run or {}).get("order") or [] for one in (a, b)]
    if (a.run is not b.run or a.arm != b.arm) and all(
        order.count(one.arm) == 1 for one, order in zip((a, b), orders, strict=True)
    ):
        found.append(
            "Each arm ran on one start of its engine: what changes from one start to the next is in no interval."
        )
    return found
