"""Traces made by hand: rows in plain Python, written as an export of Nsight Systems or as JSON of the torch profiler."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
TABLES = {
    "memcpys": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graphs": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}


@dataclass(frozen=True)
class Work:
    """Something that the GPU did; `end` None: not recorded. `graph`: it came from a graph."""

    start: int
    end: int | None
    process: int = 1
    device: int = 0
    name: str = "kernel"
    graph: bool = False

    @property
    def interval(self) -> tuple[int, int]:
        return self.start, self.start if self.end is None else max(self.start, self.end)


@dataclass(frozen=True)
class Mark:
    """A range of the CPU: push/pop (59), start/end (60) or a mark (34). `end` None: not recorded."""

    start: int
    end: int | None
    name: str
    kind: int = 59


@dataclass
class Rows:
    """What a trace holds. A list that is empty makes no table, as in a real export."""

    kernels: list[Work] = field(default_factory=list)
    memcpys: list[Work] = field(default_factory=list)
    memsets: list[Work] = field(default_factory=list)
    graphs: list[Work] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    calls: list[tuple[int, int, str]] = field(default_factory=list)
    mode: str | None = "Node"
    texts_by_id: bool = False

    @property
    def work(self) -> list[Work]:
        return [*self.kernels, *self.memcpys, *self.memsets, *self.graphs]


def process_id(number: int) -> int:
    """As Nsight Systems writes it: the lower 24 bits are left for a thread."""
    return (0x1000 + number) << 24


def export(rows: Rows, path: Path, *, schema: str = "3.20.3") -> Path:
    """Write the rows as an SQLite export."""
    sql = sqlite3.connect(path)
    strings: dict[str, int] = {}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings) + 1)

    if rows.kernels:
        sql.execute(f"create table {KERNEL} (start, end, deviceId, streamId, globalPid, shortName, graphNodeId)")
        for one in rows.kernels:
            values = (
                one.start,
                one.end,
                one.device,
                7,
                process_id(one.process),
                string(one.name),
                5 if one.graph else None,
            )
            sql.execute(f"insert into {KERNEL} values (?, ?, ?, ?, ?, ?, ?)", values)
    for key, table in TABLES.items():
        if getattr(rows, key):
            sql.execute(f"create table {table} (start, end, deviceId, globalPid)")
            for one in getattr(rows, key):
                sql.execute(
                    f"insert into {table} values (?, ?, ?, ?)",
                    (one.start, one.end, one.device, process_id(one.process)),
                )
    if rows.marks:
        sql.execute("create table NVTX_EVENTS (start, end, eventType, text, textId, globalTid)")
        for mark in rows.marks:
            text, number = (None, string(mark.name)) if rows.texts_by_id else (mark.name, None)
            sql.execute(
                "insert into NVTX_EVENTS values (?, ?, ?, ?, ?, 1)", (mark.start, mark.end, mark.kind, text, number)
            )
        sql.execute("insert into NVTX_EVENTS values (-5, null, 75, 'a domain', null, 1)")
    if rows.calls:
        sql.execute("create table CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)")
        for start, end, name in rows.calls:
            sql.execute("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, 1, 1, ?)", (start, end, string(name)))
    sql.execute("create table StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    sql.executemany("insert into StringIds values (?, ?)", [(number, text) for text, number in strings.items()])
    sql.execute("create table META_DATA_EXPORT (name, value)")
    meta = {"EXPORT_SCHEMA_VERSION": schema, "EXPORT_SCHEMA_VERSION_MAJOR": schema.split(".")[0]}
    sql.executemany("insert into META_DATA_EXPORT values (?, ?)", list(meta.items()))
    if rows.mode is not None:
        sql.execute("create table META_DATA_CAPTURE (name, value)")
        sql.execute("insert into META_DATA_CAPTURE values ('PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE', ?)", (rows.mode,))
    sql.commit()
    sql.close()
    return path


def kineto(rows: Rows, path: Path) -> Path:
    """Write the rows as the torch profiler does: kernels of a graph carry the correlation of a graph launch."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python3"}}]

    def event(category: str, start: int, end: int, name: str, **arguments: int) -> None:
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        events.append({"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 1, **times, "args": arguments})

    for kinds, category in ((rows.kernels, "kernel"), (rows.memcpys, "gpu_memcpy"), (rows.memsets, "gpu_memset")):
        for one in kinds:
            event(category, *one.interval, one.name, device=one.device, correlation=77 if one.graph else 5)
    for mark in rows.marks:
        event("user_annotation", mark.start, mark.end or mark.start, mark.name)
    for start, end, name in rows.calls:
        event("cuda_runtime", start, end, name, correlation=77 if name.startswith("cudaGraphLaunch_") else 5)
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path
