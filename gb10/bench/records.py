"""requests.jsonl: one record a request, as docs/schemas/request.schema.json has it; read strictly, written line by line."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from gb10.bench import lines
from gb10.errors import FailedError, Fault, RefusedError

SCHEMA = 1
PROFILER = "profiler attached"
CLOCK_COLLAPSE = "clock collapse"

Count = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(ge=0)]
Phase = Literal["warm-up", "timed", "traced"]
Kind = Literal[
    "error-event",
    "closed",
    "stalled",
    "timeout",
    "http",
    "no-usage",
    "not-utf-8",
    "not-json",
    "prompt-tokens-differ",
    "empty",
]
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, config=STRICT)
class Failure:
    """Why a request has no result: a kind with a name, and what was seen."""

    kind: Kind
    what: str


@dataclass(frozen=True, config=STRICT, kw_only=True)
class Record:
    """One request. None is unknown, never zero (`failure`: none happened, unless `unknown` names it)."""

    schema: Literal[1] = SCHEMA
    arm: str
    round: Count
    case: str
    slot: Count
    phase: Phase
    request: Count | None = None
    concurrency: Annotated[int, Field(ge=1)] | None = None
    group: str | None = None
    input_sha256: str | None = None
    prompt_tokens_counted: Count | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cached_tokens: Count | None = None
    sent_ns: Count | None = None
    first_token_ns: Count | None = None
    first_tokens: Count | None = None
    first_content_ns: Count | None = None
    last_token_ns: Count | None = None
    ended_ns: Count | None = None
    ttft_s: Number | None = None
    ttft_content_s: Number | None = None
    decode_tokens_per_s: Number | None = None
    decode_approximate: bool | None = None
    inter_token_p50_s: Number | None = None
    inter_token_p95_s: Number | None = None
    duration_s: Number | None = None
    chunks: Count | None = None
    group_tokens_per_s: Number | None = None
    finish_reason: str | None = None
    truncated: bool | None = None
    answer: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    expect: str | dict[str, Any] | None = None
    right: bool | None = None
    why: str | None = None
    failure: Failure | None = None
    hit_tokens: Count | None = None
    query_tokens: Count | None = None
    preemptions: Count | None = None
    drafted_tokens: Count | None = None
    accepted_tokens: Count | None = None
    marks: list[str] | None = None
    unknown: dict[str, str] | None = None


KEYS = [field.name for field in fields(Record)]
REQUIRED = ["schema", *(f.name for f in fields(Record) if f.default is MISSING)]
_ADAPTER: TypeAdapter[Record] = TypeAdapter(Record)


class Records(list[Record]):
    """The records of one file, with what its bytes add: their SHA-256, and the torn last line that was left out."""

    def __init__(self, records: Iterable[Record], source: str, sha256: str, torn: Fault | None = None):
        super().__init__(records)
        self.source, self.sha256, self.torn = source, sha256, torn


def read(path: Path) -> Records:
    """The records of `path`. A torn last line is in `torn`; any other bad line is one fault of a `RefusedError`."""
    found, records = lines.read(path), []
    for where, value in lines.gathered(found):
        try:
            records.append(parsed(where, value))
        except RefusedError as error:
            found.faults += error.faults
    lines.refuse(found)
    return Records(records, str(path), found.sha256, found.torn)


def parsed(where: str, value: dict[str, Any]) -> Record:
    """One line's object as a record. Raises `RefusedError` with one cause."""
    record: Record = lines.judged(where, value, _ADAPTER, KEYS, REQUIRED)
    for name in record.unknown or {}:
        if name not in KEYS:
            raise RefusedError(f"{where}: unknown.{name[:60]}", "is not a field of a record", "name a field that is")
    return record


def as_line(record: Record) -> bytes:
    """The record as one line of JSON with its newline; what is unknown is left out, half a surrogate pair becomes `?`."""
    known = {name: value for name, value in asdict(record).items() if value is not None}
    text = json.dumps(known, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


class Writer:
    """The one writer of a requests.jsonl, for every thread of its process: one record, one line, one write().

    A process that is killed can leave part of a line. The lock of the file keeps another writer from putting its line
    behind that part: it cuts the part off first, and counts it in `cut`.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.cut = path, 0
        self._lock = threading.Lock()
        self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, record: Record) -> None:
        """Append one line. Raises `FailedError` when it is not written whole; nothing of it is kept then."""
        line = as_line(record)
        with self._lock:
            if self._handle is None:
                raise FailedError(str(self.path), "is closed", "open a new writer")
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            try:
                self._append(self._handle, line)
            finally:
                fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _append(self, handle: int, line: bytes) -> None:
        size = os.fstat(handle).st_size
        end = _end_of_last_line(handle, size)
        if end < size:
            os.ftruncate(handle, end)
            self.cut += 1
        why = "the disk may be full"
        try:
            written = os.write(handle, line)
        except OSError as error:
            written, why = 0, error.strerror or str(error)
        if written != len(line):
            with contextlib.suppress(OSError):
                os.ftruncate(handle, end)
            what = f"{written} of {len(line)} bytes of a record were written ({why})"
            raise FailedError(str(self.path), what, "free space, then measure again")

    def close(self) -> None:
        """Sync to disk and close; a second close does nothing."""
        with self._lock:
            if self._handle is not None:
                handle, self._handle = self._handle, None
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end_of_last_line(handle: int, size: int, step: int = 65536) -> int:
    """The offset behind the last newline of a file of `size` bytes; 0 when it has none."""
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return size
    end = size
    while end > 0:
        start = max(0, end - step)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
