"""What a run ran on: events, environment of each arm, and the files its numbers come from. Called by page.py."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import quote

from gb10.report import cases
from gb10.report.words import gib, objects, plain, reason, say, seconds, table, unknown, visible

Json = dict[str, Any]


def events(run: Json) -> list[Json]:
    """Each event: number, seconds since the start, arm, what."""
    return [
        {
            "number": str(number),
            "at": seconds(one.get("at_s")),
            "arm": say(one["arm"]) if one.get("arm") else "no arm",
            "what": say(one.get("what")),
        }
        for number, one in enumerate(objects(run.get("events")), 1)
    ]


def environment(run: Json, arms: list[str]) -> Json:
    """Of the run: commit, host, times, suite, order. Of each arm: image, argv, whether its graph took effect, guard, OOM, memory."""
    suite = table(run.get("suite"))
    facts = [
        ("Commit", say(run.get("commit"))),
        ("Host", say(run.get("host"))),
        ("Started", say(run.get("started_at"))),
        ("Ended", say(run.get("ended_at"))),
        ("Suite", say(suite.get("name"))),
        ("SHA-256 of the suite", say(suite.get("sha256"))),
        ("Rounds", say(run.get("rounds"))),
        ("Order of arms", ", then ".join(map(plain, run["order"])) if run.get("order") else unknown()),
        ("Complete", _absence(run, "partial", "yes", "no: ")),
        ("Diagnostic mode", _absence(run, "diagnostic", "none", "")),
    ]
    names = (
        *("Overlays", "Image", "Container started", "Block size", "Graph", "Guard tripped"),
        *("OOM kills of the host", "Lowest available memory", "Arguments"),
    )
    columns = [_arm_facts(table(run.get("arms")).get(arm)) for arm in arms]
    lines = [(name, [column[name] for column in columns]) for name in names]
    return {"facts": facts, "arms": [row for row in lines if row[0] != "Arguments"], "argv": dict(lines)["Arguments"]}


def _arm_facts(arm: Json | None) -> dict[str, str]:
    arm = arm or {}
    oom, argv = arm.get("oom_kill"), arm.get("argv")
    return {
        "Overlays": say(arm.get("overlays")),
        "Image": say(arm.get("image_id")),
        "Container started": say(arm.get("container_started_at")),
        "Block size": say(arm.get("block_size"), "tokens"),
        "Graph": _graph(arm),
        "Guard tripped": _absence(arm, "guard_tripped", "no", "yes: "),
        "OOM kills of the host": say(oom)
        if not isinstance(oom, dict) or "unknown" in oom
        else f"{say(oom.get('before'))} before, {say(oom.get('after'))} after",
        "Lowest available memory": gib(arm.get("lowest_available_bytes")),
        "Arguments": shlex.join(map(plain, argv)) if isinstance(argv, list) else say(argv),
    }


def _graph(arm: Json) -> str:
    if "graph_effective" not in arm:
        return unknown()
    effective = arm["graph_effective"]
    if effective is None:
        return "none asked for"
    if isinstance(effective, bool):
        return "in effect" if effective else "applied, not effective"
    return say(effective)


def _absence(facts: Json, key: str, absent: str, prefix: str) -> str:
    """A fact that is null when nothing happened: a missing key is unknown, not nothing."""
    if key not in facts:
        return unknown()
    value = facts[key]
    if value is None or value is False:
        return absent
    why = reason(value)
    return unknown(why) if why else f"{prefix}{plain(value)}"


def raw(run: Json, comparison: Json | None) -> list[Json]:
    """The files of records by SHA-256. Only a file that lies beside the report is a link."""
    own = table(run.get("requests"))
    name, digest = own.get("file"), own.get("sha256")
    link = f"./{quote(visible(name))}" if isinstance(name, str) and name else ""
    found = [{"what": "records of this run", "file": say(name), "link": link, "sha256": say(digest)}]
    for name, given in elsewhere(run, comparison):
        what = f"records of {name}, from another run"
        digest = say(given.get("requests_sha256"))
        found.append({"what": what, "file": say(given.get("source")), "link": "", "sha256": digest})
    return found


def elsewhere(run: Json, comparison: Json | None) -> list[tuple[str, Json]]:
    """The sides of a comparison whose records are not this run's, by name."""
    if comparison is None:
        return []
    digest = table(run.get("requests")).get("sha256")
    named = zip(cases.sides(comparison), (comparison.get(side) or {} for side in "ab"), strict=True)
    return [(name, given) for name, given in named if not digest or given.get("requests_sha256") != digest]
