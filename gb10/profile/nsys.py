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
from gb10.profile.trace import DEVICE_MASK, Batch, Progress, Ranges, Unknown, is_graph_launch, public

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
NEEDED = dict.fromkeys(TABLES.values(), ("start", "end")) | {
    RUNTIME: ("start", "end", "nameId"),
    NVTX: ("start", "end", "eventType"),
}
"""Columns without which a table cannot be read."""
PUSH_POP, START_END, MARK = 59, 60, 34
RANGES = f"eventType in ({PUSH_POP}, {START_END}, {MARK})"
VERSION_SUFFIX = re.compile(r"(_ptsz|_ptds)?_v\d+$")
MODE = ":CUDA_GRAPH_TRACE_OPTIONS:MODE"
NOT_RECORDED = -(1 << 62)
WARNING = 2
GAPS_AT_ONCE = 100
LOCKED = ("locked", "busy")


class NsysTrace:
    """One export, read only."""

    format = "nsys-sqlite"

    def __init__(self, path: Path, name: str, progress: Progress, batch_rows: int = BATCH_ROWS):
        self.unknown = Unknown()
        self.path, self._name, self._progress, self._batch_rows = path, name, progress, batch_rows
        self._sql = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
        self._sql.text_factory = lambda text: text.decode(errors="replace")
        self._tables = {
            row[0] for row in self._sql.execute("select name from sqlite_master where type in ('table', 'view')")
        }
        if not {"StringIds", *TABLES.values(), NVTX, RUNTIME} & self._tables:
            raise RefusedError(
                name, "is a database, but not an export of Nsight Systems", "name the .sqlite that nsys export wrote"
            )
        self.exported = dict(self._pairs("META_DATA_EXPORT"))
        self.captured = self._pairs("META_DATA_CAPTURE")
        self._modes = {value.lower() for name, value in self.captured if name.endswith(MODE)}
        major = self.exported.get("EXPORT_SCHEMA_VERSION_MAJOR", str(MAJOR))
        if major != str(MAJOR):
            version = self.exported.get("EXPORT_SCHEMA_VERSION", major)
            mend = f"export it with a version of Nsight Systems that writes schema {MAJOR} (2025.3.2 does)"
            raise RefusedError(name, f"has the export schema {public(version)}, and this reads schema {MAJOR}", mend)
        self._strings: dict[int, str] = {}
        for table, needed in NEEDED.items():
            self._readable(table, needed)
        self.knows_graphs = "graphNodeId" in self.columns(TABLES["kernel"])

    def close(self) -> None:
        self._sql.close()

    @property
    def by_launch(self) -> bool:
        """Also where only some of the processes were: what their graphs ran has no rows."""
        return "graph" in self._modes or self._count(TABLES["graph"]) > 0

    def streams(self, *, ordered: bool) -> list[Iterator[Batch]]:
        return [self._activities(kind, ordered) for kind, table in TABLES.items() if table in self._tables]

    def _activities(self, kind: str, ordered: bool) -> Iterator[Batch]:
        """Four integers a row, so that a row costs little: name and graph share one, process and device another."""
        table = TABLES[kind]
        columns = self.columns(table)
        process = f"(ifnull(globalPid, 0) & {~DEVICE_MASK})" if "globalPid" in columns else "0"
        device = f"{process} | (ifnull(deviceId, 0) & {DEVICE_MASK})" if "deviceId" in columns else process
        named = "shortName" if kind == "kernel" and "shortName" in columns else "0"
        graph = "1" if kind == "graph" else "(graphNodeId is not null)" if "graphNodeId" in columns else "0"
        end = f"ifnull(end, {NOT_RECORDED})"
        select = f"select start, {end}, ifnull({named}, 0) * 2 + {graph}, {device}"
        batches = self._rows_of(f"{select} from {table} order by start") if ordered else self._batches(select, table)
        total = self._count(table)
        done = missing = 0
        for start, end_ns, packed, device_code in batches:
            rows = Rows(start, np.where(end_ns < start, start, end_ns), device_code, packed & 1)
            missing += int((end_ns < start).sum())
            done += len(rows)
            self._progress(f"{self._name}: {kind}s, {done * 100 // max(total, 1)}%")
            yield Batch(kind, rows, packed >> 1 if kind == "kernel" else None)
        if missing:
            self.unknown.add(f"{kind}.end", f"{missing} rows have no end and count as empty")

    def _batches(self, select: str, table: str, rest: str = "", *, text: bool = False) -> Iterator[list[Any]]:
        """The columns as arrays, so many row ids at a time in their order; two threads read while one is counted.

        `text`: the last column holds texts."""
        spans = self._row_ids(table)
        with ThreadPoolExecutor(READERS) as pool:
            waiting: deque[Future[list[list[Any]]]] = deque()
            try:
                while True:
                    for begin, end in islice(spans, READERS + 1 - len(waiting)):
                        query = f"{select} from {table} where rowid between {begin} and {end} {rest}"
                        waiting.append(pool.submit(self._fetched, query, text))
                    if not waiting:
                        return
                    yield from waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _row_ids(self, table: str) -> Iterator[tuple[int, int]]:
        """First and last row id of each batch; where none are in use, however many, nothing is read."""
        last = self._count(table)
        query = f"select min(rowid) from {table} where rowid >= ?"
        begin = self._sql.execute(f"select min(rowid) from {table}").fetchone()[0]
        while begin is not None:
            end = min(begin + self._batch_rows - 1, max(last, begin))
            yield begin, end
            begin = self._sql.execute(query, (end + 1,)).fetchone()[0] if end < last else None

    def _fetched(self, query: str, text: bool) -> list[list[Any]]:
        return list(self._rows_of(query, text=text))

    def _rows_of(self, query: str, *, text: bool = False) -> Iterator[list[Any]]:
        import adbc_driver_sqlite.dbapi as driver  # with Arrow, which a trace of the torch profiler does not need

        with contextlib.ExitStack() as stack:
            stack.enter_context(_in_sqlites_words(driver.Error))
            connection = stack.enter_context(driver.connect(f"{self.path.absolute().as_uri()}?mode=ro"))
            cursor = stack.enter_context(connection.cursor())
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(self._batch_rows)})
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    *numbers, last = batch.columns
                    yield [*map(_numbers, numbers), last.dictionary_encode() if text else _numbers(last)]

    def short_name(self, name: int) -> str:
        return self._string(name)

    def ranges(self) -> Ranges:
        columns = self.columns(NVTX)
        names: dict[str, int] = {}
        parts: list[tuple[Any, ...]] = []
        if columns:
            text = "text" if "text" in columns else "null"
            text_id = "textId" if "textId" in columns else "null"
            select = f"select start, ifnull(end, {NOT_RECORDED}), eventType = {MARK}, ifnull({text_id}, 0), cast(ifnull({text}, '') as text)"
            for start, end, instant, text_id, texts in self._batches(select, NVTX, f"and {RANGES}", text=True):
                parts.append((self._named(names, text_id, texts), start, end, instant != 0))
        empty = np.empty(0, np.int64)
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)] or [empty, empty, empty, empty != 0]
        return Ranges(list(names), *joined)

    def _named(self, names: dict[str, int], text_ids: Any, texts: Any) -> Any:
        """The index in `names` of each row's name: its own text, else the registered string."""
        own = [text.as_py().decode(errors="replace") for text in texts.dictionary.cast("binary")]
        indices = np.asarray(texts.indices).astype(np.int64)
        pairs, inverse = np.unique(np.stack((indices, text_ids), axis=1), axis=0, return_inverse=True)
        codes = [names.setdefault(own[index] or self._string(int(text_id)), len(names)) for index, text_id in pairs]
        return np.array(codes, np.int64)[inverse.reshape(-1)]

    def graph_launches(self) -> int | None:
        if RUNTIME not in self._tables:
            self.unknown.add("graph_launches", "the trace holds no API calls")
            return None
        texts = self._sql.execute("select id, value from StringIds") if "StringIds" in self._tables else ()
        ids = [number for number, value in texts if is_graph_launch(str(value))]
        known = "(select id from StringIds)" if "StringIds" in self._tables else "()"
        query = (
            f"select count(*), total(nameId in ({','.join('?' * len(ids))})), total(nameId in {known}) from {RUNTIME}"
        )
        calls, launches, named = self._sql.execute(query, ids).fetchone()
        if named < calls:
            self.unknown.add("graph_launches", f"{calls - int(named)} API calls have no name")
            return None
        return int(launches)

    def calls_during(self, gaps: list[tuple[int, int]]) -> list[dict[str, int]]:
        found: list[dict[str, int]] = [{} for _ in gaps]
        if RUNTIME not in self._tables or not gaps:
            return found
        if len(gaps) > GAPS_AT_ONCE:  # SQLite bounds the depth of a condition
            return self.calls_during(gaps[:GAPS_AT_ONCE]) + self.calls_during(gaps[GAPS_AT_ONCE:])
        inside = " or ".join("(start < ? and end > ?)" for _ in gaps)
        whole = "typeof(start) = 'integer' and typeof(end) = 'integer'"
        bounds = [bound for begin, end in gaps for bound in (end, begin)]
        query = f"select start, end, nameId from {RUNTIME} where ({inside}) and {whole}"
        for start, end, name in self._sql.execute(query, bounds):
            for index, (gap_start, gap_end) in enumerate(gaps):
                overlap = min(end, gap_end) - max(start, gap_start)
                if overlap > 0:
                    call = VERSION_SUFFIX.sub("", self._string(name))
                    found[index][call] = found[index].get(call, 0) + overlap
        return found

    def capture(self) -> dict[str, Any]:
        gpus = []
        if "name" in self.columns("TARGET_INFO_GPU"):
            gpus = [public(str(row[0])) for row in self._sql.execute("select name from TARGET_INFO_GPU order by id")]
        product, version = "EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION"
        return {
            "tool": public(self.exported[product]) if product in self.exported else None,
            "version": public(self.exported[version]) if version in self.exported else None,
            "schema": public(self.exported.get("EXPORT_SCHEMA_VERSION", "")) or None,
            "graph_trace": next(iter(self._modes)) if self._modes in ({"node"}, {"graph"}) else None,
            "gpus": gpus,
        }

    def diagnostics(self) -> list[dict[str, Any]]:
        if not {"severity", "text"} <= self.columns("DIAGNOSTIC_EVENT"):
            return []
        counted: dict[tuple[int, str], int] = {}
        query = "select severity, ifnull(text, '') from DIAGNOSTIC_EVENT where severity >= ? and typeof(severity) = 'integer' order by rowid"
        for severity, text in self._sql.execute(query, (WARNING,)):
            key = (int(severity), public(str(text)))
            counted[key] = counted.get(key, 0) + 1
        return [{"severity": severity, "text": text, "count": count} for (severity, text), count in counted.items()]

    def _readable(self, table: str, needed: tuple[str, ...]) -> None:
        """Refuse a table that is there in another form than nsys export writes."""
        if table not in self._tables:
            return
        mend = "export it again with nsys export --type sqlite"
        missing = [column for column in needed if column not in self.columns(table)]
        if missing:
            raise RefusedError(self._name, f"has no column {missing[0]} in {table}", mend)
        kind = self._sql.execute("select type from sqlite_master where name = ?", (table,)).fetchone()[0]
        try:
            self._sql.execute(f"select rowid from {table} limit 1")
        except sqlite3.OperationalError as error:
            if "no such column" not in str(error):
                raise
            kind = "table without row ids"
        if kind != "table":
            raise RefusedError(self._name, f"has {table} as a {kind}, not as a table", mend)

    def _count(self, table: str) -> int:
        if table not in self._tables:
            return 0
        return self._sql.execute(f"select max(rowid) from {table}").fetchone()[0] or 0

    def columns(self, table: str) -> set[str]:
        """The columns of a table; none where it is not there."""
        return {row[1] for row in self._sql.execute(f"pragma table_info({table})")}

    def _pairs(self, table: str) -> list[tuple[str, str]]:
        if not {"name", "value"} <= self.columns(table):
            return []
        return [(str(name), str(value or "")) for name, value in self._sql.execute(f"select name, value from {table}")]

    def _string(self, number: int) -> str:
        if number not in self._strings:
            query = "select value from StringIds where id = ?"
            row = self._sql.execute(query, (number,)).fetchone() if "StringIds" in self._tables else None
            self._strings[number] = str(row[0]) if row else f"string {number}"
        return self._strings[number]


def _numbers(column: Any) -> Any:
    """A column as an array of int64. Anything else in it (no value, a fraction, a text) would become a wrong number."""
    if str(column.type) != "int64" or column.null_count:
        raise sqlite3.DatabaseError("a time or an id is missing or is not a whole number")
    return np.asarray(column)


@contextlib.contextmanager
def _in_sqlites_words(kind: type[Exception]) -> Iterator[None]:
    """The driver's errors as those of the standard library: the reason alone, without the query."""
    try:
        yield
    except kind as error:
        reason = public((str(error).splitlines() or [""])[0])
        locked = any(word in reason for word in LOCKED)
        raise (sqlite3.OperationalError if locked else sqlite3.DatabaseError)(reason) from None
