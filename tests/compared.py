"""Made records through the comparison, every result held against its schema. Used by the tests of bench/compare.py and verdict.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema

from gb10.bench.compare import compare
from gb10.bench.records import Record
from gb10.bench.verdict import Thresholds
from tests.conftest import ROOT
from tests.made import arm, run

SCHEMAS = {path.name.split(".")[0]: json.loads(path.read_text()) for path in (ROOT / "docs/schemas").glob("*.json")}
Change = Callable[[Record], Record]


def held(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """`value`, written and read as JSON, when it holds against its schema."""
    again = json.loads(json.dumps(value, allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMAS[kind]).validate(again)
    return dict(again)


def compared(
    a: Change = lambda one: one,
    b: Change = lambda one: one,
    speeds: tuple[float, float] = (30.0, 33.0),
    pairs: int = 12,
    thresholds: Thresholds | None = None,
    **changes: Any,
) -> dict[str, Any]:
    one = held("run", run(**changes))
    records = arm("baseline", speeds[0], pairs, a) + arm("experiment", speeds[1], pairs, b)
    return held("comparison", compare(one, records, one, records, thresholds or Thresholds()))


def rule(found: dict[str, Any], number: int) -> tuple[bool | None, str]:
    one = found["verdict"]["rules"][number - 1]
    return one["holds"], one["numbers"]


def short(found: dict[str, Any], metric: str = "decode_tokens_per_s") -> dict[str, Any]:
    return dict(found["cases"][0]["metrics"][metric])
