"""Runs made in Python for the tests of the report: numbers like those of a real retest, and every way a run can fall short."""

from __future__ import annotations

import hashlib
from statistics import median
from typing import Any

from gb10.profile import command
from gb10.profile.command import Window
from tests.conftest import ROOT

Json = dict[str, Any]
Sample = tuple[Json, list[Json], Json | None]
GIB = 1024**3
ARMS = ("baseline", "experiment")
TRACES = ROOT / "tests/data/traces"
PROFILED = {
    "traced-short": "vllm-graph-short.sqlite",
    "traced-long": "vllm-eager-long-first.sqlite",
    "loop": "kineto-graph.json",
}
CASES = {  # name: (concurrency, requests a round, first token, decode speed, tokens, hits)
    "short": (1, 4, 0.278, 30.03, 214, 0),
    "code": (1, 1, 0.291, 29.6, 380, 0),
    "2 concurrent": (2, 1, 0.35, 22.1, 214, 0),
    "4 concurrent": (4, 1, 0.52, 17.4, 214, 0),
    "8K retrieval, first": (1, 1, 3.79, 28.8, 66, 0),
    "8K retrieval, repeat": (1, 1, 0.88, 28.9, 66, 6400),
    "32K retrieval, first": (1, 1, 15.42, 26.1, 71, 0),
    "32K retrieval, repeat": (1, 1, 1.37, 26.2, 71, 30400),
}
HOSTILE = (
    "<script>document.title='taken'</script> \u202eevil\u2066 \x00 \ud800 `|` ](http://example.invalid) " + "x" * 10_000
)


def records(arms: tuple[str, ...] = ARMS, gain: float = 1.045, cases: dict[str, Any] | None = None) -> list[Json]:
    """Warm-up and three rounds of each case in each arm, all right."""
    found = []
    for arm in arms:
        found.append(record(arm, "short", 0, 0, 0, phase="warm-up"))
        for number in (1, 2, 3):
            for case, (concurrency, times, *_) in (cases or CASES).items():
                found += [
                    record(arm, case, number, request, slot, gain=gain, cases=cases)
                    for request in range(times)
                    for slot in range(concurrency)
                ]
    return found


def record(
    arm: str,
    case: str,
    number: int,
    request: int,
    slot: int,
    gain: float = 1.0,
    phase: str = "timed",
    cases: dict[str, Any] | None = None,
) -> Json:
    concurrency, _, ttft, speed, tokens, hits = (cases or CASES)[case]
    wobble = 1 + 0.006 * (((number * 7 + request * 3 + slot * 5) % 9) - 4) / 4
    speed = speed * wobble * (gain if arm == "experiment" else 1.0)
    return {
        "schema": 1,
        "arm": arm,
        "round": number,
        "case": case,
        "slot": slot,
        "phase": phase,
        "request": request,
        "concurrency": concurrency,
        "group": f"{case}/{number}/{request}" if concurrency > 1 else None,
        "input_sha256": hashlib.sha256(f"{case}/{number}".encode()).hexdigest(),
        "prompt_tokens": 40,
        "completion_tokens": tokens,
        "reasoning_tokens": tokens // 2,
        "ttft_s": ttft * (2 - wobble) * 1.003,
        "decode_tokens_per_s": speed,
        "decode_approximate": True,
        "duration_s": ttft + tokens / speed,
        "group_tokens_per_s": speed * concurrency if concurrency > 1 else None,
        "finish_reason": "stop",
        "truncated": False,
        "answer": "42",
        "expect": "exact: 42",
        "right": True,
        "why": "equal",
        "failure": None,
        "hit_tokens": hits,
        "query_tokens": hits + 40,
    }


def run(arms: tuple[str, ...] = ARMS) -> Json:
    """A whole run: memory falls while an engine loads and comes back after it."""
    events, samples, at = [], [], 0.0
    for arm in arms:
        for what, took in (("switch", 20), ("ready", 210), ("prove", 30), ("measure", 420)):
            events.append({"at_s": at, "arm": arm, "what": f"stage: {what}"})
            for step in range(0, took, 5):
                level = {
                    "switch": 100,
                    "ready": 100 - 82 * step / took,
                    "prove": 18,
                    "measure": 17.5 - 1.5 * step / took,
                }
                samples.append({"at_s": at + step, "available_bytes": int(level[what] * GIB)})
            at += took
    events.append({"at_s": at, "arm": None, "what": "stage: restore"})
    return {
        "schema": 1,
        "kind": "run",
        "site": "gb10",
        "commit": "8a058d9c0ffee",
        "host": "spark-1",
        "started_at": "2026-09-17T20:10:00+08:00",
        "ended_at": "2026-09-17T20:33:00+08:00",
        "suite": {"name": "retest-2048", "sha256": "5" * 64},
        "rounds": 3,
        "order": list(arms),
        "partial": None,
        "diagnostic": None,
        "arms": {arm: _arm(arm) for arm in arms},
        "requests": {"file": "requests.jsonl", "sha256": "a1" * 32},
        "events": events,
        "memory": samples,
        "floors": {"stop_below_bytes": GIB, "sustained_below_bytes": 2 * GIB},
    }


def comparison(found: list[Json], decision: str, why: str, broken: dict[int, str] | None = None) -> Json:
    """What the comparison would say of these records; `broken`: rule number -> its numbers."""
    cases = []
    for case in dict.fromkeys(one["case"] for one in found):
        sides = [[r for r in found if r["case"] == case and r["arm"] == a and r["phase"] == "timed"] for a in ARMS]
        metrics = {
            name: _metric(name, [[r[name] for r in s if r.get(name) is not None] for s in sides])
            for name in ("ttft_s", "decode_tokens_per_s", "group_tokens_per_s")
            if all(any(r.get(name) is not None for r in s) for s in sides)
        }
        entry: Json = {"case": case, "phase": "timed", "concurrency": sides[0][0]["concurrency"], "metrics": metrics}
        cases.append(entry | {key: dict(zip("ab", map(tell, sides), strict=True)) for key, tell in TALLIES.items()})
    rules = [
        ("no more wrong answers than the baseline arm", "0 against 0"),
        ("no truncation", "0 of 72"),
        ("no failure", "0 of 72"),
        ("no guard trip and no OOM kill in either arm", "0 trips, oom_kill 25 to 25"),
        ("the overlay took effect", "graph in effect"),
        ("gain of at least 1.03, its interval above 1", "1.045, interval 1.044 to 1.046, 12 pairs"),
        ("inputs equal between arms", "36 of 36 hashes equal"),
        ("nothing partial or diagnostic", "complete"),
    ]
    return {
        "schema": 1,
        "kind": "comparison",
        "suite": "retest-2048",
        "a": {"label": "baseline", "source": "evidence/x", "arm": "baseline", "requests_sha256": "a1" * 32},
        "b": {"label": "graph", "source": "evidence/x", "arm": "experiment", "requests_sha256": "a1" * 32},
        "inputs_equal": True,
        "input_differences": [],
        "cases": cases,
        "totals": {
            key: {
                side: tell([r for r in found if r["arm"] == arm and r["phase"] == "timed"])
                for side, arm in zip("ab", ARMS, strict=True)
            }
            for key, tell in TALLIES.items()
            if key in {"answers", "truncated", "failures"}
        },
        "sentences": ["Small sample: 3 rounds; this is no test of long-run stability."],
        "verdict": {
            "decision": decision,
            "why": why,
            "rules": [
                {"rule": rule, "holds": number not in (broken or {}), "numbers": (broken or {}).get(number, numbers)}
                for number, (rule, numbers) in enumerate(rules, 1)
            ],
        },
    }


TALLIES = {
    "answers": lambda rows: {
        "right": sum(r["right"] is True for r in rows),
        "wrong": sum(r["right"] is False for r in rows),
        "unknown": sum(r["right"] is None for r in rows),
        "total": len(rows),
    },
    "truncated": lambda rows: sum(bool(r["truncated"]) for r in rows),
    "failures": lambda rows: sum(bool(r["failure"]) for r in rows),
    "max_completion_tokens": lambda rows: max(r["completion_tokens"] or 0 for r in rows),
    "max_reasoning_tokens": lambda rows: max(r["reasoning_tokens"] or 0 for r in rows),
    "hit_tokens": lambda rows: [r["hit_tokens"] for r in rows],
}


def _metric(name: str, sides: list[list[float]]) -> Json:
    ratios = [b / a for a, b in zip(*sides, strict=False)]
    enough = len(ratios) >= 10
    faster = enough and min(ratios) > 1
    return {
        "better": "lower" if name == "ttft_s" else "higher",
        **{
            side: {"n": len(v), "median": median(v), "min": min(v), "max": max(v)}
            for side, v in zip("ab", sides, strict=True)
        },
        "pairs": len(ratios),
        "ratio": median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "interval": [min(ratios), max(ratios)] if enough else None,
        "interval_why": "" if enough else f"{len(ratios)} pairs, ten are needed",
        "approximate": name == "decode_tokens_per_s",
        "ranking": "experiment is faster" if faster else "no ranking",
    }


def _arm(name: str) -> Json:
    graph = name == "experiment"
    return {
        "overlays": ["graph"] if graph else [],
        "image_id": "sha256:" + ("b2" if graph else "c3") * 32,
        "argv": ["vllm", "serve", "/model", "--max-model-len", "131072", *([] if graph else ["--enforce-eager"])],
        "container_started_at": "2026-09-17T12:10:20Z",
        "block_size": 1600,
        "graph_effective": True if graph else None,
        "guard_tripped": None,
        "oom_kill": {"before": 25, "after": 25},
        "lowest_available_bytes": int(15.748 * GIB),
    }


def adopt() -> Sample:
    found = records()
    return run(), found, comparison(found, "adopt", "every rule holds")


def keep_baseline() -> Sample:
    whole, found = run(), records(gain=1.0)
    whole["arms"]["experiment"]["graph_effective"] = False
    numbers = {5: "the log has no capture: applied, not effective", 6: "1.000, interval 0.998 to 1.002, 12 pairs"}
    return whole, found, comparison(found, "keep baseline", "the graph overlay was not effective", numbers)


def reject() -> Sample:
    whole, found = run(), records()
    mine = [one for one in found if one["arm"] == "experiment" and one["phase"] == "timed"]
    hostile, cut, failed = mine[0], mine[9], mine[3]
    hostile |= {"right": False, "answer": HOSTILE, "why": "expected 42, found none", "expect": "number: 42"}
    cut |= {"truncated": True, "finish_reason": "length", "completion_tokens": 2048, "right": False, "answer": ""}
    cut["why"] = "finish_reason is length, stop is required"
    failed |= {"failure": {"kind": "stalled", "what": "no byte for 30 s"}, "right": None, "answer": None}
    failed |= {"decode_tokens_per_s": None, "duration_s": None, "finish_reason": None, "completion_tokens": None}
    whole["events"].append({"at_s": 1100.0, "arm": "experiment", "what": "one stream stalled <b>now</b>"})
    numbers = {1: "2 against 0", 2: "1 of 51", 3: "1 of 51"}
    return whole, found, comparison(found, "reject", "wrong answers, truncation and a failure", numbers)


def partial() -> Sample:
    whole, found = run(), records()[:70]
    whole["partial"] = "interrupted in round 2 of the experiment"
    return whole, found, comparison(found, "none", "the run is partial", {8: "interrupted in round 2"})


def one_arm() -> Sample:
    return run(("baseline",)), records(("baseline",)), None


def everything_unknown() -> Sample:
    bare = [{"schema": 1, "arm": "baseline", "round": 1, "case": "short", "slot": 0, "phase": "timed"}]
    return {"schema": 1, "kind": "run"}, bare, None


def hundred_cases() -> Sample:
    many = {f"case {number:03}": (1, 1, 0.1 + number / 50, 30.0, 64, 0) for number in range(100)}
    found = records(cases={"short": CASES["short"], **many})
    return run(), found, comparison(found, "adopt", "every rule holds")


def profiled() -> tuple[Json, list[Json], None, None, Json]:
    """One arm under the profiler: windows of a real GPU with and without graphs, and one of the CPU alone."""
    windows = [Window(name, TRACES / f"{trace}.gz") for name, trace in PROFILED.items()]
    profile = command.report(windows, lambda text: None, strips=True)
    alone = profile["windows"][0] | {"name": "no GPU", "gpu_span_ns": None, "gpu_busy_ns": None, "gpu_busy_ratio": None}
    profile["windows"].append(alone)
    return *one_arm(), None, profile


SAMPLES = {
    sample.__name__: sample
    for sample in (adopt, keep_baseline, reject, partial, one_arm, everything_unknown, hundred_cases, profiled)
}
