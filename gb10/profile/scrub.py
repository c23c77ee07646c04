"""A copy of a trace that may be shown: only the tables, columns and texts that the report reads. Called by the command line.

An allow-list: what is not named here is not copied, whatever a later version of a recorder adds.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gb10 import files
from gb10.errors import RefusedError
from gb10.profile import kineto, nsys, source
from gb10.profile.nsys import NsysTrace
from gb10.profile.trace import Progress

TIMES = ("start", "end", "deviceId", "globalPid", "streamId", "correlationId", "graphNodeId")
COLUMNS = {
    nsys.TABLES["kernel"]: (*TIMES, "shortName"),
    nsys.TABLES["memcpy"]: (*TIMES, "bytes", "copyKind"),
    nsys.TABLES["memset"]: (*TIMES, "bytes"),
    nsys.TABLES["graph"]: TIMES,
    nsys.RUNTIME: ("start", "end", "globalTid", "correlationId", "nameId"),
    nsys.NVTX: ("start", "end", "eventType", "text", "textId", "globalTid"),
    "TARGET_INFO_GPU": ("id", "name"),
}
"""Ids of processes stay as they are: they tell processes apart, and name none."""
STRINGS = ((nsys.TABLES["kernel"], "shortName"), (nsys.RUNTIME, "nameId"), (nsys.NVTX, "textId"))
EXPORT = ["EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION", "EXPORT_SCHEMA_VERSION_MAJOR"]
EVENT = ("ph", "cat", "name")
ARGUMENTS = ("device", "stream", "correlation")
HEADER = ("schemaVersion", "cupti_version")


def scrub(trace: Path, target: Path, progress: Progress) -> None:
    """Write a scrubbed copy of `trace` to `target` (packed where its name ends in .gz). An existing file is refused."""
    if target.exists():
        raise RefusedError(str(target), "is there already", "name another file, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        source.opened(trace, progress) as opened,
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".scrub-") as room,
    ):
        made = Path(room) / "copy"
        if isinstance(opened, NsysTrace):
            _database(opened, made, progress)
        else:
            _events(trace, made)
        if target.suffix == ".gz":
            packed = made.with_suffix(".gz")
            with made.open("rb") as plain, packed.open("wb") as file, gzip.GzipFile("", "wb", 6, file, 0) as zipped:
                shutil.copyfileobj(plain, zipped)
            made = packed
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.rename(target)
    files.sync_directory(target.parent)


def _database(trace: NsysTrace, target: Path, progress: Progress) -> None:
    sql = sqlite3.connect(target)
    try:
        sql.execute("pragma journal_mode = off")
        sql.execute("attach ? as raw", (f"{trace.path.absolute().as_uri()}?mode=ro",))
        for table, allowed in COLUMNS.items():
            columns = [name for name in allowed if name in trace.columns(table)]
            if columns:
                progress(f"{table}")
                _copy(sql, table, columns)
        _strings(sql, trace)
        _texts(sql, trace)
        sql.commit()
    finally:
        sql.close()


def _copy(sql: sqlite3.Connection, table: str, columns: list[str]) -> None:
    kinds = ", ".join(f"{name} {'TEXT' if name in ('text', 'name') else 'INTEGER'}" for name in columns)
    sql.execute(f"create table {table} ({kinds})")
    names = ", ".join(columns)
    sql.execute(f"insert into {table} (rowid, {names}) select rowid, {names} from raw.{table} order by rowid")


def _strings(sql: sqlite3.Connection, trace: NsysTrace) -> None:
    """Only the strings that a kernel, a call or a range names."""
    if not trace.columns("StringIds"):
        return
    used = [f"select {column} from {table}" for table, column in STRINGS if column in trace.columns(table)]
    sql.execute("create table StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    sql.execute(f"insert into StringIds select id, value from raw.StringIds where id in ({' union '.join(used)})")


def _texts(sql: sqlite3.Connection, trace: NsysTrace) -> None:
    """What the recording says of itself, and its warnings, as the report shows them."""
    export = [(name, nsys.public(value)) for name, value in trace.exported.items() if name in EXPORT]
    capture = [(name, value) for name, value in trace.captured.items() if name.endswith(nsys.MODE)]
    for table, rows in (("META_DATA_EXPORT", export), ("META_DATA_CAPTURE", capture)):
        if rows:
            sql.execute(f"create table {table} (name TEXT, value TEXT)")
            sql.executemany(f"insert into {table} values (?, ?)", rows)
    warnings = trace.diagnostics()
    if warnings:
        sql.execute("create table DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)")
        for each in warnings:
            sql.executemany(
                "insert into DIAGNOSTIC_EVENT values (?, ?)", [(each["severity"], each["text"])] * each["count"]
            )
    if trace.columns("TARGET_INFO_GPU"):
        for number, name in sql.execute("select rowid, name from TARGET_INFO_GPU").fetchall():
            sql.execute("update TARGET_INFO_GPU set name = ? where rowid = ?", (nsys.public(str(name)), number))


def _events(trace: Path, target: Path) -> None:
    with source.text(trace) as file, target.open("w", encoding="utf-8") as copy:
        header: dict[str, Any] = {}
        copy.write('{"traceEvents": [')
        separator = "\n"
        for key, value in kineto.document(file, trace.name):
            if key != kineto.EVENTS:
                header |= dict(_header(key, value))
                continue
            kept = value.get("ph") == "X" and value.get("cat") in kineto.CATEGORIES and value.get("ts") is not None
            if kept:
                copy.write(separator + _event(value))
                separator = ",\n"
        copy.write("\n]")
        for key, value in header.items():
            copy.write(f",\n{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
        copy.write("}\n")


def _header(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if key in HEADER and isinstance(value, int | str):
        yield key, value
    elif key == "deviceProperties" and isinstance(value, list):
        yield key, [{"name": str(each.get("name"))} for each in value if isinstance(each, dict)]


def _event(event: dict[str, Any]) -> str:
    """One event as JSON; its times as they were written, digit for digit."""
    arguments = {
        name: value for name, value in (event.get("args") or {}).items() if name in ARGUMENTS and isinstance(value, int)
    }
    if "device" not in arguments and event["cat"] in kineto.KINDS and isinstance(event.get("pid"), int):
        arguments["device"] = event["pid"]
    kept = {name: str(event.get(name)) for name in EVENT} | {"args": arguments}
    times = f'"ts": {event["ts"]}, "dur": {event.get("dur", 0)}'
    return json.dumps(kept, ensure_ascii=False)[:-1] + f", {times}}}"
