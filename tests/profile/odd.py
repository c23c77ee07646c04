"""Traces that are odd in one thing: a small export changed by SQL, events of the torch profiler by hand. Used by the tests of odd traces."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.profile import made
from tests.profile.made import Mark, Rows, Work
from tests.profile.running import run

SMALL = Rows(
    kernels=[Work(0, 10), Work(20, 30, graph=True)],
    marks=[Mark(0, 100, "step")],
    calls=[(0, 1, "cudaLaunchKernel_v7000"), (10, 20, "cudaGraphLaunch_v10000")],
)


def changed(path: Path, *statements: str, rows: Rows = SMALL) -> Path:
    made.export(rows, path)
    sql = sqlite3.connect(path)
    for statement in statements:
        sql.execute(statement)
    sql.commit()
    sql.close()
    return path


def read(path: Path) -> dict[str, Any]:
    result = run("report", path, "--json")
    return json.loads(result.stdout)["windows"][0]


def torch(path: Path, *events: dict[str, Any], **more: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **more}))
    return path


def event(category: str = "kernel", name: str = "k", ts: Any = 1, dur: Any = 2, **arguments: Any) -> dict[str, Any]:
    known = {"device": 0, "correlation": 5}
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "ts": ts, "dur": dur, "args": known | arguments}


def same_when_scrubbed(path: Path) -> None:
    copy = path.parent / "scrubbed" / path.name
    run("scrub", path, copy)
    assert run("report", copy, "--json").stdout == run("report", path, "--json").stdout
