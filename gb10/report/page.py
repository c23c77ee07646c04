"""What both forms of the report say, as text ready to be laid out by a template. Called by __init__.py."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gb10.report import cases, plots, requests
from gb10.report.environment import elsewhere, environment, events, raw
from gb10.report.words import count, figure, finite, gib, objects, plain, reason, say, seconds, table, unknown

Json = dict[str, Any]
DECISIONS = {
    "adopt": ("adopt", "✔", "Adopt"),
    "keep baseline": ("keep", "■", "Keep the baseline"),
    "reject": ("reject", "✘", "Reject"),
    "none": ("none", "?", "No verdict"),
}
"""Decision -> colour class, symbol and words."""
HOLDS = {True: ("yes", "✔", "holds"), False: ("no", "✘", "does not hold")}
OPEN = ("open", "?", "unknown")
SERIES = {
    "ttft": ("First token", "ttft_s", "s", False),
    "decode": ("Decode speed", "decode_tokens_per_s", "tokens/s", False),
    "hits": ("Prefix hits", "hit_tokens", "tokens", True),
}
"""Plots of requests: heading, metric, unit, and whether concurrent requests share one value."""


def page(run: Json, records: list[Json], comparison: Json | None) -> Json:
    """Everything the templates show, in the order they show it."""
    arms = arms_of(run, records, comparison)
    outcomes = cases.outcomes_compared(comparison) if comparison else []
    title = f"{say((run.get('suite') or {}).get('name'))} on {say(run.get('site'))}"
    return {
        "title": title,
        "started": say(run.get("started_at")),
        "styles": {arm: index % plots.MARKS for index, arm in enumerate(arms)},
        "verdict": verdict(comparison, arms),
        "limits": limits(run, records, comparison, arms),
        "answers": answers(records, comparison, arms),
        "wrong": requests.wrong_answers(records),
        "sides": cases.sides(comparison) if comparison else None,
        "outcomes": outcomes,
        "outcomes_alone": [] if comparison else [(arm, cases.outcomes_alone(records, arm)) for arm in arms],
        "truncated": requests.truncated(records),
        "failures": requests.failures(records),
        "cases": cases.compared(comparison) if comparison else cases.alone(records),
        "arms": arms,
        "figures": [request_figure(name, records, arms, run) for name in SERIES],
        "memory": memory(run, arms),
        "events": events(run),
        "no_events": unknown(reason(run.get("events")) if run.get("events") else "no event is recorded"),
        "environment": environment(run, arms),
        "raw": raw(run, comparison),
    }


def arms_of(run: Json, records: list[Json], comparison: Json | None) -> list[str]:
    """The arms, baseline first: as compared, then as run, then as recorded."""
    named = [plain((comparison.get(side) or {}).get("arm") or "") for side in "ab"] if comparison else []
    named += ["baseline"] if "baseline" in table(run.get("arms")) else []
    found = [*named, *table(run.get("arms")), *(requests.arm_of(record) for record in records)]
    return [arm for arm in dict.fromkeys(found) if arm]


def verdict(comparison: Json | None, arms: list[str]) -> Json:
    """Decision and rules. Without a comparison there is none, and the reason is said."""
    if comparison is None:
        why = "one arm only: there is nothing to compare it with" if len(arms) == 1 else "the arms were not compared"
        given: Json = {"decision": "none", "why": why, "rules": []}
    else:
        given = comparison.get("verdict") or {"decision": "none", "why": unknown(), "rules": []}
    decision = say(given.get("decision"))
    tone, symbol, words = DECISIONS.get(decision, ("none", "?", f"No verdict: {decision}"))
    rules = []
    for rule in objects(given.get("rules")):
        state, mark, said = HOLDS.get(rule.get("holds") if isinstance(rule.get("holds"), bool) else None, OPEN)
        text, numbers = say(rule.get("rule")), say(rule.get("numbers"))
        rules.append({"state": state, "symbol": mark, "holds": said, "rule": text, "numbers": numbers})
    return {"tone": tone, "symbol": symbol, "words": words, "why": say(given.get("why")), "rules": rules}


def limits(run: Json, records: list[Json], comparison: Json | None, arms: list[str]) -> list[str]:
    """What the numbers cannot say: the comparison's sentences, then what the run itself tells."""
    found = [plain(sentence) for sentence in (comparison or {}).get("sentences") or []]
    if comparison is not None and comparison.get("inputs_equal") is not True:
        differ = comparison.get("inputs_equal") is False
        found.append("The inputs differ between the arms." if differ else "Whether the inputs are equal is unknown.")
    found += [f"Inputs: {plain(one)}" for one in (comparison or {}).get("input_differences") or []]
    for name, given in elsewhere(run, comparison):
        found.append(
            f"{name}: its records are in {say(given.get('source'))}, not in this run; no dot or list here shows them."
        )
    if comparison is None and len(arms) == 1:
        found.append(f"Only the arm {arms[0]} was measured: no ratio, no ranking.")
    if comparison is None and run.get("partial"):
        found.append(f"The run is partial: {plain(run['partial'])}.")
    if comparison is None and run.get("diagnostic"):
        found.append(
            f"Measured with {plain(run['diagnostic'])}: no number here says how fast the engine is without it."
        )
    phases = [plain(record.get("phase") or "unknown phase") for record in records]
    others = [f"{phases.count(name)} {name}" for name in dict.fromkeys(phases) if name != "timed"]
    if others:
        said = f"{count(phases.count('timed'), 'timed request')}; {' and '.join(others)} are in no number."
        found.append(said)
    return found or ["None recorded."]


def answers(records: list[Json], comparison: Json | None, arms: list[str]) -> list[Json]:
    """Per arm: right of total, truncated and failed, of timed requests; the comparison's own totals where there is one."""
    found = []
    if comparison is None:
        for arm in arms:
            tally = requests.counts(records, arm)
            cut, failed = cases.tallied(tally, "truncated"), cases.tallied(tally, "failures")
            found.append({"arm": arm, "answers": cases.answers_of(tally), "truncated": cut, "failures": failed})
        return found
    totals = comparison.get("totals") or {}
    for side, label in zip("ab", cases.sides(comparison), strict=True):
        given = (totals.get("answers") or {}).get(side)
        total = (given or {}).get("total") if isinstance(given, dict) else None
        cut, failed = ((totals.get(name) or {}).get(side) for name in ("truncated", "failures"))
        found.append(
            {
                "arm": label,
                "answers": cases.answers_of(given),
                "truncated": cases.of_total(cut, total),
                "failures": cases.of_total(failed, total),
            }
        )
    return found


def request_figure(identity: str, records: list[Json], arms: list[str], run: Json) -> Json:
    """One plot per case, and the same numbers as a table."""
    heading, metric, unit, shared = SERIES[identity]
    found = requests.series(records, metric, once_a_group=shared)
    strips, rows = [], []
    for index, (case, by_arm) in enumerate(found.items()):
        lanes = [(arms.index(arm), by_arm[arm]) for arm in arms if arm in by_arm]
        label = requests.case_label(case)
        known = any(one.dots for _, one in lanes)
        name = f"{heading}, {label}"
        if known:
            strips.append({"label": label, "svg": plots.strip(f"{identity}-{index}", name, unit, lanes)})
        for _, one in lanes:
            values = ", ".join(figure(dot.value) for dot in one.dots) + (
                f"; {one.gaps}" if one.gaps and one.dots else ""
            )
            middle = unknown("no value") if one.median is None else figure(one.median)
            rows.append(
                {"case": label, "arm": one.arm, "n": str(len(one.dots)), "median": middle, "values": values or one.gaps}
            )
    return {
        "id": identity,
        "heading": heading,
        "unit": unit,
        "strips": strips,
        "rows": rows,
        "notes": _figure_notes(identity, records, found, arms, run),
    }


def _figure_notes(identity: str, records: list[Json], found: Json, arms: list[str], run: Json) -> list[str]:
    notes = []
    if identity == "decode" and any(record.get("decode_approximate") for _, record in requests.timed(records)):
        notes.append("Approximate where a chunk holds several tokens or tokens are drafted.")
    if identity == "hits":
        for arm in arms:
            hits = [dot.value for by_arm in found.values() if arm in by_arm for dot in by_arm[arm].dots]
            notes.append(f"{arm}: {_block_words(hits, ((run.get('arms') or {}).get(arm) or {}).get('block_size'))}.")
    return notes


def _block_words(hits: list[float], block_size: Any) -> str:
    block = finite(block_size)
    if not hits:
        return "no hit count is known"
    if not any(hits):
        return "no request hit the prefix cache: prefix reuse was not exercised"
    if not block:
        why = reason(block_size)
        return f"block size {unknown(why)}, so whether the hits are multiples of it is unknown"
    odd = sorted({hit for hit in hits if hit % block})
    if not odd:
        return f"every hit is a multiple of the block size, {block:.0f} tokens"
    return f"not a multiple of the block size, {block:.0f} tokens: {', '.join(figure(hit) for hit in odd)}"


def memory(run: Json, arms: list[str]) -> Json:
    """Memory over time: two pictures of different width, the floors, and the lowest value after each event."""
    samples = plots.memory_samples(run)
    known = [(at, value) for at, value in samples if value is not None]
    marks = sorted(plots.timed_events(run))
    listed = objects(run.get("events"))
    edges = [(None, 0)] if known and (not marks or known[0][0] < marks[0][0]) else []
    edges += [(at, number) for at, number in marks]
    rows = []
    for (start, number), (stop, _) in pairwise([*edges, (None, 0)]):
        inside = [v for at, v in known if (start is None or at >= start) and (stop is None or at < stop)]
        what = "before the first event" if start is None else f"{number}: {say(listed[number - 1].get('what'))}"
        low = gib(min(inside)) if inside else unknown("no sample before the next event")
        rows.append({"from": seconds(start or 0.0), "what": what, "n": str(len(inside)), "lowest": low})
    return {
        "svgs": [(shape.name, plots.memory(run, arms, shape)) for shape in plots.SHAPES] if known else [],
        "floors": [(name, gib(value)) for name, value in plots.floors(run)],
        "lowest": gib(min(value for _, value in known)) if known else unknown("no sample"),
        "samples": str(len(known)),
        "missing": str(len(samples) - len(known)) if len(samples) > len(known) else "",
        "rows": rows,
        "none": unknown(reason(run.get("memory")) if run.get("memory") else "no memory sample is recorded"),
    }
