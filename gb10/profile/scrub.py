"""A copy of a trace that may be shown: only the tables, columns and texts that the report reads. Called by the command line.

An allow-list: what is not named here is not copied, whatever a later version of a recorder adds.
"""

from __future__ import annotations

import contextlib
import errno
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
from gb10.profile.document import EVENTS, document
from gb10.profile.nsys import NsysTrace
from gb10.profile.trace import Progress, public
from gb10.signals import held

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
FULL = ("full", "readonly", "disk I/O", "unable to open")
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


def scrub(trace: Path, target: Path, progress: Progress) -> None:
    """Write a scrubbed copy of `trace` to `target` (packed where its name ends in .gz). An existing file is refused."""
    if target.exists() or target.is_symlink():
        raise _there(target)
    with source.opened(trace, progress) as opened, _room(target) as room:
        made = room / "copy"
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
        _placed(made, target)
        files.sync_directory(target.parent)


def _there(target: Path) -> RefusedError:
    return RefusedError(str(target), "is there already", "name another file, or remove it")


@contextlib.contextmanager
def _room(target: Path) -> Iterator[Path]:
    """A directory beside the target, gone at the end, as are the target's own directories where nothing came of it."""
    new = [directory for directory in target.parents if not directory.exists()]
    done = False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            with held():
                room = stack.enter_context(tempfile.TemporaryDirectory(dir=target.parent, prefix=".scrub-"))
            yield Path(room)
        done = True
    except (OSError, sqlite3.OperationalError) as error:
        if isinstance(error, gzip.BadGzipFile):
            raise
        if isinstance(error, sqlite3.OperationalError) and not any(word in str(error) for word in FULL):
            raise
        why = error.strerror or error if isinstance(error, OSError) else error
        mend = "name a file in a directory that has room and may be written to"
        raise RefusedError(str(target), f"cannot be written ({why})", mend) from None
    finally:
        for directory in () if done else new:
            with contextlib.suppress(OSError):
                directory.rmdir()


def _placed(made: Path, target: Path) -> None:
    """Give the copy its name; a file that came there meanwhile stays."""
    try:
        os.link(made, target)
    except FileExistsError:
        raise _there(target) from None
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if target.exists() or target.is_symlink():
            raise _there(target) from None
        made.rename(target)


def _database(trace: NsysTrace, target: Path, progress: Progress) -> None:
    sql = sqlite3.connect(target)
    sql.text_factory = lambda text: text.decode(errors="replace")
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
    values = ", ".join(f"cast({name} as {'TEXT' if name in ('text', 'name') else 'INTEGER'})" for name in columns)
    read = f"where {nsys.RANGES}" if table == nsys.NVTX else ""
    sql.execute(f"insert into {table} (rowid, {names}) select rowid, {values} from raw.{table} {read} order by rowid")


def _strings(sql: sqlite3.Connection, trace: NsysTrace) -> None:
    """Only the strings that a kernel, a call or a range names."""
    if not trace.columns("StringIds"):
        return
    used = [f"select {column} from main.{table}" for table, column in STRINGS if column in trace.columns(table)]
    sql.execute("create table StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    sql.execute(f"insert into StringIds select id, value from raw.StringIds where id in ({' union '.join(used)})")


def _texts(sql: sqlite3.Connection, trace: NsysTrace) -> None:
    """What the recording says of itself, and its warnings, as the report shows them."""
    export = [(name, public(value)) for name, value in trace.exported.items() if name in EXPORT]
    capture = [(f"PROCESS{nsys.MODE}", public(value)) for name, value in trace.captured if name.endswith(nsys.MODE)]
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
            sql.execute("update TARGET_INFO_GPU set name = ? where rowid = ?", (public(str(name)), number))


def _events(trace: Path, target: Path) -> None:
    with source.text(trace) as file, target.open("w", encoding="utf-8", errors="replace") as copy:
        header: dict[str, Any] = {}
        copy.write('{"traceEvents": [')
        separator = "\n"
        for key, value in document(file, trace.name):
            if key != EVENTS:
                header |= dict(kineto.header(key, value))
                continue
            category = value.get("cat")
            if value.get("ph") == "X" and isinstance(category, str) and category in kineto.CATEGORIES:
                copy.write(separator + _event(value))
                separator = ",\n"
        copy.write("\n]")
        for key, value in header.items():
            copy.write(f",\n{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
        copy.write("}\n")


def _event(event: dict[str, Any]) -> str:
    """One event as JSON; its times as they were written, digit for digit."""
    arguments = {
        name: value for name, value in kineto.arguments_of(event).items() if name in ARGUMENTS and type(value) is int
    }
    if "device" not in arguments and event["cat"] in kineto.KINDS and type(event.get("pid")) is int:
        arguments["device"] = event["pid"]
    kept = {name: str(event.get(name)) for name in EVENT} | {"args": arguments}
    times = f'"ts": {event["ts"]}' + ("" if event.get("dur") is None else f', "dur": {event["dur"]}')
    return json.dumps(kept, ensure_ascii=False)[:-1] + f", {times}}}"
