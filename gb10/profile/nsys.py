"""Reads the SQLite export of Nsight Systems, schema 3: tables and columns are probed, batches come from ADBC. Opened by source.py.

Facts about the export: tables exist only when they have rows, columns differ by version, ids are per process.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gb10.errors import RefusedError
from gb10.profile.spans import Rows
from gb10.profile.trace import Batch, Progress, Ranges, Unknown, is_graph_launch

MAJOR = 3
BATCH_ROWS = 1 << 18
READERS = 2
TABLES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
PUSH_POP, START_END, MARK = 59, 60, 34
VERSION_SUFFIX = re.compile(r"(_ptsz|_ptds)?_v\d+$")
MODE = ":CUDA_GRAPH_TRACE_OPTIONS:MODE"
THREAD_BITS = 24
NOT_RECORDED = -(1 << 62)
WARNING = 2


class NsysTrace:
    """One export, read only."""

    format = "nsys-sqlite"

    def __init__(self, path: Path, name: str, progress: Progress, batch_rows: int = BATCH_ROWS):
        self.unknown = Unknown()
        self.path, self._name, self._progress, self._batch_rows = path, name, progress, batch_rows
        self._sql = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
        self._tables = {
            row[0] for row in self._sql.execute("select name from sqlite_master where type in ('table', 'view')")
        }
        if not {"StringIds", *TABLES.values(), NVTX, RUNTIME} & self._tables:
            raise RefusedError(
                name, "is a database, but not an export of Nsight Systems", "name the .sqlite that nsys export wrote"
            )
        self.exported = self._pairs("META_DATA_EXPORT")
        self.captured = self._pairs("META_DATA_CAPTURE")
        major = self.exported.get("EXPORT_SCHEMA_VERSION_MAJOR", str(MAJOR))
        if major != str(MAJOR):
            version = self.exported.get("EXPORT_SCHEMA_VERSION", major)
            mend = f"export it with a version of Nsight Systems that writes schema {MAJOR} (2025.3.2 does)"
            raise RefusedError(name, f"has the export schema {public(version)}, and this reads schema {MAJOR}", mend)
        self._strings: dict[int, str] = {}
        self.knows_graphs = "graphNodeId" in self.columns(TABLES["kernel"])

    def close(self) -> None:
        self._sql.close()

    @property
    def by_launch(self) -> bool:
        modes = {value.lower() for name, value in self.captured.items() if name.endswith(MODE)}
        return modes == {"graph"} or (not modes and TABLES["graph"] in self._tables)

    def streams(self, *, ordered: bool) -> list[Iterator[Batch]]:
        return [self._activities(kind, ordered) for kind, table in TABLES.items() if table in self._tables]

    def _activities(self, kind: str, ordered: bool) -> Iterator[Batch]:
        """Four integers a row, so that a row costs little: name and graph share one, process and device another."""
        table = TABLES[kind]
        columns = self.columns(table)
        process = f"(ifnull(globalPid, 0) & {-1 << THREAD_BITS})" if "globalPid" in columns else "0"
        device = f"{process} | ifnull(deviceId, 0)" if "deviceId" in columns else process
        named = "shortName" if kind == "kernel" and "shortName" in columns else "0"
        graph = "1" if kind == "graph" else "(graphNodeId is not null)" if "graphNodeId" in columns else "0"
        end = f"ifnull(end, {NOT_RECORDED})"
        select = f"select start, {end}, ifnull({named}, 0) * 2 + {graph}, {device}"
        batches = self._rows_of(f"{select} from {table} order by start") if ordered else self._batches(select, table)
        total = self._count(table)
        done = 0
        for start, end_ns, packed, device_code in batches:
            rows = Rows(start, np.where(end_ns < start, start, end_ns), device_code, packed & 1)
            missing = int((end_ns == NOT_RECORDED).sum())
            if missing:
                self.unknown.add(f"{kind}.end", f"{missing} rows have no end and count as empty")
            done += len(rows)
            self._progress(f"{self._name}: {kind}s, {done * 100 // max(total, 1)}%")
            yield Batch(kind, rows, packed >> 1 if kind == "kernel" else None)

    def _batches(self, select: str, table: str, rest: str = "") -> Iterator[list[Any]]:
        """The columns as arrays, so many row ids at a time in their order; two threads read while one is counted."""
        first, last = self._sql.execute(f"select min(rowid), max(rowid) from {table}").fetchone()
        begins = iter(range(first, last + 1, self._batch_rows) if first is not None else ())
        with ThreadPoolExecutor(READERS) as pool:
            waiting: deque[Future[list[list[Any]]]] = deque()
            try:
                while True:
                    for begin in islice(begins, READERS + 1 - len(waiting)):
                        part = f"rowid between {begin} and {begin + self._batch_rows - 1}"
                        waiting.append(pool.submit(self._fetched, f"{select} from {table} where {part} {rest}"))
                    if not waiting:
                        return
                    yield from waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _fetched(self, query: str) -> list[list[Any]]:
        return list(self._rows_of(query))

    def _rows_of(self, query: str) -> Iterator[list[Any]]:
        import adbc_driver_sqlite.dbapi as driver  # with Arrow, which a trace of the torch profiler does not need

        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(driver.connect(f"{self.path.absolute().as_uri()}?mode=ro"))
            cursor = stack.enter_context(connection.cursor())
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(self._batch_rows)})
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield [_plain(column) for column in batch.columns]

    def short_name(self, name: int) -> str:
        return self._string(name)

    def ranges(self) -> Ranges:
        columns = self.columns(NVTX)
        names: dict[str, int] = {}
        parts: list[tuple[Any, ...]] = []
        if {"start", "end", "eventType"} <= columns:
            text = "text" if "text" in columns else "null"
            text_id = "textId" if "textId" in columns else "null"
            select = f"select start, ifnull(end, {NOT_RECORDED}), eventType = {MARK}, ifnull({text_id}, 0), ifnull({text}, '')"
            ranges = f"and eventType in ({PUSH_POP}, {START_END}, {MARK})"
            for start, end, instant, text_id, texts in self._batches(select, NVTX, ranges):
                parts.append((self._named(names, text_id, texts), start, end, instant != 0))
        empty = np.empty(0, np.int64)
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)] or [empty, empty, empty, empty != 0]
        return Ranges(list(names), *joined)

    def _named(self, names: dict[str, int], text_ids: Any, texts: Any) -> Any:
        """The index in `names` of each row's name: its own text, else the registered string."""
        own = [text.as_py() for text in texts.dictionary]
        indices = np.asarray(texts.indices).astype(np.int64)
        pairs, inverse = np.unique(np.stack((indices, text_ids), axis=1), axis=0, return_inverse=True)
        codes = [names.setdefault(own[index] or self._string(int(text_id)), len(names)) for index, text_id in pairs]
        return np.array(codes, np.int64)[inverse.reshape(-1)]

    def graph_launches(self) -> int | None:
        if RUNTIME not in self._tables:
            self.unknown.add("graph_launches", "the trace holds no API calls")
            return None
        texts = self._sql.execute("select id, value from StringIds") if "StringIds" in self._tables else ()
        ids = [number for number, value in texts if is_graph_launch(value)]
        marks = ",".join("?" * len(ids))
        return int(self._sql.execute(f"select count(*) from {RUNTIME} where nameId in ({marks})", ids).fetchone()[0])

    def calls_during(self, gaps: list[tuple[int, int]]) -> list[dict[str, int]]:
        found: list[dict[str, int]] = [{} for _ in gaps]
        if RUNTIME not in self._tables or not gaps:
            return found
        inside = " or ".join("(start < ? and end > ?)" for _ in gaps)
        bounds = [bound for begin, end in gaps for bound in (end, begin)]
        for start, end, name in self._sql.execute(f"select start, end, nameId from {RUNTIME} where {inside}", bounds):
            for index, (gap_start, gap_end) in enumerate(gaps):
                overlap = min(end, gap_end) - max(start, gap_start)
                if overlap > 0:
                    call = VERSION_SUFFIX.sub("", self._string(name))
                    found[index][call] = found[index].get(call, 0) + overlap
        return found

    def capture(self) -> dict[str, Any]:
        modes = {value.lower() for name, value in self.captured.items() if name.endswith(MODE)}
        gpus = []
        if "name" in self.columns("TARGET_INFO_GPU"):
            gpus = [public(str(row[0])) for row in self._sql.execute("select name from TARGET_INFO_GPU order by id")]
        product, version = "EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION"
        return {
            "tool": public(self.exported[product]) if product in self.exported else None,
            "version": public(self.exported[version]) if version in self.exported else None,
            "schema": public(self.exported.get("EXPORT_SCHEMA_VERSION", "")) or None,
            "graph_trace": modes.pop() if modes in ({"node"}, {"graph"}) else None,
            "gpus": gpus,
        }

    def diagnostics(self) -> list[dict[str, Any]]:
        if not {"severity", "text"} <= self.columns("DIAGNOSTIC_EVENT"):
            return []
        counted: dict[tuple[int, str], int] = {}
        query = "select severity, text from DIAGNOSTIC_EVENT where severity >= ? order by rowid"
        for severity, text in self._sql.execute(query, (WARNING,)):
            key = (int(severity), public(str(text)))
            counted[key] = counted.get(key, 0) + 1
        return [{"severity": severity, "text": text, "count": count} for (severity, text), count in counted.items()]

    def _count(self, table: str) -> int:
        return self._sql.execute(f"select max(rowid) from {table}").fetchone()[0] or 0

    def columns(self, table: str) -> set[str]:
        """The columns of a table; none where it is not there."""
        return {row[1] for row in self._sql.execute(f"pragma table_info({table})")}

    def _pairs(self, table: str) -> dict[str, str]:
        if table not in self._tables:
            return {}
        return {str(name): str(value or "") for name, value in self._sql.execute(f"select name, value from {table}")}

    def _string(self, number: int) -> str:
        if number not in self._strings:
            query = "select value from StringIds where id = ?"
            row = self._sql.execute(query, (number,)).fetchone() if "StringIds" in self._tables else None
            self._strings[number] = str(row[0]) if row else f"string {number}"
        return self._strings[number]


def _plain(column: Any) -> Any:
    """A column as an array of int64; texts as Arrow's dictionary."""
    if str(column.type) in ("string", "large_string"):
        return column.dictionary_encode()
    return np.asarray(column).astype(np.int64, copy=False)


def public(text: str) -> str:
    """Text of the recorder without what may name the machine: words with a slash or an equals sign are left out."""
    words = text.replace("\t", " ").split(" ")
    return " ".join("[...]" if "/" in word or "=" in word or "\\" in word else word for word in words)
