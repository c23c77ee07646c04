"""May the experiment become the baseline? Eight rules, each with its numbers in words. Called by compare.py; docs/metrics.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gb10.bench.sides import NO_RUN, Count, Side, failed, judged_cases, truncated, unjudged
from gb10.bench.statistics import words

METRIC, CASE, MIN_GAIN = "decode_tokens_per_s", "short", 1.03


@dataclass(frozen=True)
class Thresholds:
    """What a gain is: `metric` of `case` in the experiment is at least `min_gain` times as good as in the baseline."""

    metric: str = METRIC
    case: str = CASE
    min_gain: float = MIN_GAIN


DEFAULT = Thresholds()


@dataclass(frozen=True)
class Rule:
    """`holds` is None when it is unknown."""

    rule: str
    holds: bool | None
    numbers: str


def judge(
    a: Side,
    b: Side,
    cases: list[dict[str, Any]],
    same: bool | None,
    differences: list[str],
    thresholds: Thresholds,
) -> dict[str, Any]:
    """The `verdict` of comparison.json. `cases`: its cases; `same`: are the inputs equal?"""
    wrong, cut, broke, guarded = answers(a, b), truncation(a, b), failures(a, b), guard(a, b)
    whole = complete(a, b)
    gained = gain(a, b, cases, thresholds)
    rules = [wrong, cut, broke, guarded, effect(b), gained, inputs(same, differences), whole]
    decision, why = _decide(a, b, rules, whole, [wrong, cut, broke, guarded], gained)
    return {"decision": decision, "why": why, "rules": [vars(rule) for rule in rules]}


def _decide(a: Side, b: Side, rules: list[Rule], whole: Rule, must: list[Rule], gained: Rule) -> tuple[str, str]:
    broken = [rule for rule in must if rule.holds is False]
    also = f" What is known is against it: {_listed(broken)}." if broken else ""
    missing = _unknown_answers(a, b)
    reasons = [f"{_capital(missing)}: without answers there is no verdict."] if missing else []
    if not whole.holds:
        reasons.append(f"{_capital(whole.numbers)}.")
    if reasons:
        return "none", " ".join(reasons) + also
    if broken:
        return "reject", f"{_capital(_listed(broken))}."
    if all(rule.holds for rule in rules):
        return "adopt", f"Every rule holds: {gained.numbers}."
    open_rules = [rule for rule in rules if not rule.holds]
    return "keep baseline", f"{_capital(_listed(open_rules))}."


def _listed(rules: list[Rule]) -> str:
    return "; ".join(f"{'not' if rule.holds is False else 'unknown'}: {rule.rule} ({rule.numbers})" for rule in rules)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _unknown_answers(a: Side, b: Side) -> str:
    """Which answers were not judged, in words; empty when all were."""
    cases = judged_cases(a, b)
    if not cases:
        return "no answer was judged"
    missing = {one.name: unjudged(one, cases) for one in (a, b)}
    nothing = [one.name for one in (a, b) if not any(r.case in cases for r in one.timed)]
    parts = [f"{name} has no answers of the judged cases" for name in nothing]
    parts += [
        f"{words(count, 'answer')} of {name} {'was' if count == 1 else 'were'} not judged"
        for name, count in missing.items()
        if count
    ]
    return " and ".join(parts)


def answers(a: Side, b: Side) -> Rule:
    """Rule 1. A failed request is not a wrong answer: rule 3 counts it."""
    cases = judged_cases(a, b)
    first, second = (Count.of(_wrong(r) for r in one.timed if r.case in cases) for one in (a, b))
    holds: bool | None = second.yes <= first.yes
    if not cases or any(unjudged(one, cases) for one in (a, b)):
        holds = None
    numbers = f"wrong in B {second}, in A {first}" if cases else "no answer was judged"
    return Rule("no more wrong answers in B than in A", holds, numbers)


def _wrong(record: Any) -> bool | None:
    return None if record.right is None else not record.right


def truncation(a: Side, b: Side) -> Rule:
    """Rule 2, of B: a baseline that truncates is not the experiment's fault. Its number is shown."""
    counts = [Count.of(truncated(r) for r in one.timed if not failed(r)) for one in (a, b)]
    return Rule("no truncated answer in B", _none(counts[1]), f"truncated in B {counts[1]}, in A {counts[0]}")


def failures(a: Side, b: Side) -> Rule:
    """Rule 3, of B."""
    counts = [Count.of(failed(r) for r in one.timed) for one in (a, b)]
    kinds = sorted({r.failure.kind for r in b.timed if r.failure})
    named = f" ({', '.join(kinds)})" if kinds else ""
    return Rule("no failed request in B", _none(counts[1]), f"failed in B {counts[1]}{named}, in A {counts[0]}")


def _none(count: Count) -> bool | None:
    """Is it true of none? False when of one, unknown when it is not known of all, or when there is nothing."""
    if count.yes:
        return False
    return None if count.unknown or not count.total else True


def guard(a: Side, b: Side) -> Rule:
    """Rule 4, of both arms."""
    found = [_guard(one) for one in (a, b)]
    states = [state for state, _ in found]
    holds = False if False in states else None if None in states else True
    return Rule("no guard trip and no OOM kill in either arm", holds, "; ".join(text for _, text in found))


def _guard(one: Side) -> tuple[bool | None, str]:
    facts = one.facts
    if facts is None:
        return None, f"{one.name}: unknown, {_no_facts(one)}"
    tripped, kills = facts.get("guard_tripped", {"unknown": "not recorded"}), facts.get("oom_kill") or {}
    before, after = kills.get("before"), kills.get("after")
    if isinstance(tripped, str):
        return False, f"{one.name}: the guard ended it ({tripped})"
    known = isinstance(before, int) and isinstance(after, int)
    if known and after != before:
        return False, f"{one.name}: oom_kill went from {before} to {after}"
    if tripped is not None:
        return None, f"{one.name}: whether the guard tripped is unknown"
    if not known:
        return None, f"{one.name}: the oom_kill counter is unknown"
    return True, f"{one.name}: no trip, oom_kill {before} before and {after} after"


def _no_facts(one: Side) -> str:
    return NO_RUN if one.run is None else f"run.json has no arm {one.arm}"


def graph_effect(one: Side) -> tuple[bool | None, str]:
    """Did the graphs of a side take effect? True also where none are asked for; None when it is unknown; and words."""
    facts = one.facts
    if facts is None:
        return None, f"unknown, {_no_facts(one)}"
    found = facts.get("graph_effective")
    if found is True:
        return True, "they took effect"
    if found is False:
        return False, "they are asked for and did not take effect"
    if found is None and "graph" not in (facts.get("overlays") or []):
        return True, "it asks for none"
    why = found.get("unknown", "no reason given") if isinstance(found, dict) else "not recorded"
    return None, f"unknown: {why}"


def effect(b: Side) -> Rule:
    """Rule 5."""
    holds, numbers = graph_effect(b)
    return Rule("the graphs of B took effect", holds, numbers)


def gain(a: Side, b: Side, cases: list[dict[str, Any]], thresholds: Thresholds) -> Rule:
    """Rule 6. Of a metric that is better when lower, the gain is A over B."""
    metric, case = thresholds.metric, thresholds.case
    rule = f"{metric} of {case} is at least {thresholds.min_gain:g} times as good in B, with its interval above 1"
    rows = [row for row in cases if row["case"] == case and row["phase"] == "timed"]
    if len(rows) != 1:
        many = f"{case} was measured at {len(rows)} concurrencies, and the rule means one"
        return Rule(rule, None, many if rows else f"{case} was not measured")
    found = rows[0]["metrics"].get(metric)
    if found is None or found["ratio"] is None:
        return Rule(rule, None, f"there is no ratio of {metric}" + (f": {found['ranking']}" if found else ""))
    low_is_good = found["better"] == "lower"
    ratio, bounds = found["ratio"], found["interval"]
    if low_is_good and (ratio <= 0 or (bounds and bounds[0] <= 0)):
        return Rule(rule, None, f"{metric} of B is zero in a pair: there is no gain to speak of")
    gained = 1 / ratio if low_is_good else ratio
    numbers = f"gain {gained:.3f} in {found['pairs']} pairs"
    if bounds is None:
        return Rule(rule, False, f"{numbers}, no interval ({found['interval_why']})")
    low, high = (1 / bounds[1], 1 / bounds[0]) if low_is_good else bounds
    numbers += f", interval {low:.3f} to {high:.3f}"
    if collapsed := [f"{words(one.collapsed, 'timed request')} of {one.name}" for one in (a, b) if one.collapsed]:
        return Rule(rule, None, f"{numbers}; but the clocks collapsed in {' and '.join(collapsed)}: measure again")
    return Rule(rule, gained >= thresholds.min_gain and low > 1, numbers)


def inputs(same: bool | None, differences: list[str]) -> Rule:
    """Rule 7."""
    texts = {True: "every input has the same SHA-256", None: "not every input has a known SHA-256"}
    return Rule("both arms got the same inputs", same, texts.get(same, "; ".join(differences)))


def complete(a: Side, b: Side) -> Rule:
    """Rule 8: without it there is no decision at all."""
    rule, sides = "nothing is partial, nothing is diagnostic", (a, b)
    parts = [f"{one.name} is partial ({one.partial})" for one in sides if one.partial]
    parts += [f"{one.name} is a diagnostic run ({one.diagnostic})" for one in sides if one.diagnostic]
    if parts:
        return Rule(rule, False, "; ".join(dict.fromkeys(parts)))
    unknown = [
        f"whether {one.name} was measured to its end is unknown ({_no_facts(one)})"
        for one in sides
        if one.facts is None
    ]
    if unknown:
        return Rule(rule, None, "; ".join(unknown))
    return Rule(rule, True, "both arms were measured to the end, in no diagnostic mode")
