"""Did both sides of a comparison get the same inputs? From hashes, token counts and the suite. Used by compare.py."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gb10.bench.records import Record
from gb10.bench.sides import Key, Side
from gb10.bench.statistics import words


def equal_inputs(a: Side, b: Side) -> tuple[bool | None, list[str]]:
    """True, False, or None when it is unknown; and the differences in sentences, one for each case and kind.

    Warm-up and traced requests count here: what was sent earlier decides what is in the prefix cache.
    """
    differences = _suites(a, b)
    for one, other in ((a, b), (b, a)):
        alone = Counter(key[1] for key in one.keyed if key not in other.keyed)
        differences += [f"{case}: {words(count, 'request')} only in {one.name}" for case, count in alone.items()]
    common = [key for key in a.keyed if key in b.keyed]
    differences += _differing(a, b, common, "input_sha256", "input")
    differences += _differing(a, b, common, "prompt_tokens_counted", "counted prompt length")
    differences += _differing(a, b, common, "prompt_tokens", "prompt length")
    if differences:
        return False, differences
    known = [a.keyed[key].input_sha256 is not None and b.keyed[key].input_sha256 is not None for key in common]
    return (True if common and all(known) else None), []


def _suites(a: Side, b: Side) -> list[str]:
    first, second = _suite(a), _suite(b)
    if first.get("name") and second.get("name") and first["name"] != second["name"]:
        return [f"A ran the suite {first['name']}, B {second['name']}"]
    if first.get("sha256") and second.get("sha256") and first["sha256"] != second["sha256"]:
        return [f"the suite {first.get('name', '')} was another text in B".replace("  ", " ")]
    return []


def _suite(side: Side) -> dict[str, Any]:
    return dict((side.run or {}).get("suite") or {})


def _differing(a: Side, b: Side, keys: list[Key], field: str, noun: str) -> list[str]:
    """A sentence for each case in which a field that both sides know differs."""
    compared: Counter[str] = Counter()
    differing: Counter[str] = Counter()
    first: dict[str, Record] = {}
    for key in keys:
        left, right = getattr(a.keyed[key], field), getattr(b.keyed[key], field)
        if left is None or right is None:
            continue
        case = key[1]
        compared[case] += 1
        if left != right:
            differing[case] += 1
            first.setdefault(case, a.keyed[key])
    return [
        f"{case}: {count} of {words(compared[case], noun)} differ, the first in round {first[case].round}"
        for case, count in differing.items()
    ]
