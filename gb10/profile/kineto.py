"""Reads the JSON of the torch profiler (Kineto) as a stream, so that a large trace costs little memory. Opened by source.py.

Times there are decimal microseconds; they are turned into whole nanoseconds without a float in between.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from decimal import Decimal
from typing import IO, Any

import numpy as np

from gb10.errors import RefusedError
from gb10.profile.spans import Rows
from gb10.profile.trace import Batch, Progress, Ranges, Unknown, is_graph_launch, nothing_in

CHUNK = 1 << 20
KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
CALLS = ("cuda_runtime", "cuda_driver")
RANGE = "user_annotation"
CATEGORIES = {*KINDS, *CALLS, RANGE}
NO_CORRELATION = -1
EVENTS = "traceEvents"


class KinetoTrace:
    """One trace, read once into arrays of numbers."""

    format = "kineto"
    by_launch = False

    def __init__(self, file: IO[str], name: str, progress: Progress):
        self.unknown = Unknown()
        self._names: dict[str, int] = {}
        self._texts: list[str] = []
        self._rows = {kind: [array("q") for _ in range(5)] for kind in KINDS.values()}
        self._ranges = [array("q") for _ in range(3)]
        self._calls = [array("q") for _ in range(3)]
        self._launches = array("q")
        self._header: dict[str, Any] = {}
        seen = 0
        for key, value in document(file, name):
            if key != EVENTS:
                self._header[key] = value
                continue
            self._take(value)
            seen += 1
            if seen % 100_000 == 0:
                progress(f"{name}: {seen} events")
        if not seen:
            raise nothing_in(name)
        launched = np.frombuffer(self._launches, np.int64) if len(self._launches) else np.empty(0, np.int64)
        self._launched = np.unique(launched)
        self.knows_graphs = True

    def close(self) -> None:
        """Nothing is open."""

    def _take(self, event: dict[str, Any]) -> None:
        category, start = event.get("cat"), event.get("ts")
        if event.get("ph") != "X" or start is None:
            return
        begin = nanoseconds(start)
        end = begin + nanoseconds(event.get("dur", 0))
        if category in KINDS:
            arguments = event.get("args") or {}
            device = arguments.get("device", event.get("pid"))
            values = (
                begin,
                end,
                self._name(str(event.get("name"))),
                _whole(device),
                _whole(arguments.get("correlation"), NO_CORRELATION),
            )
            for column, value in zip(self._rows[KINDS[category]], values, strict=True):
                column.append(value)
        elif category == RANGE:
            for column, value in zip(self._ranges, (self._name(str(event.get("name"))), begin, end), strict=True):
                column.append(value)
        elif category in CALLS:
            name = str(event.get("name"))
            for column, value in zip(self._calls, (self._name(name), begin, end), strict=True):
                column.append(value)
            if is_graph_launch(name):
                self._launches.append(_whole((event.get("args") or {}).get("correlation"), NO_CORRELATION))

    def _name(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = len(self._texts)
            self._texts.append(name)
        return self._names[name]

    def streams(self, *, ordered: bool) -> list[Iterator[Batch]]:
        return [self._activities(kind) for kind, columns in self._rows.items() if len(columns[0])]

    def _activities(self, kind: str) -> Iterator[Batch]:
        start, end, name, device, correlation = (np.frombuffer(column, np.int64) for column in self._rows[kind])
        graph = np.isin(correlation, self._launched[self._launched != NO_CORRELATION]).astype(np.int64)
        order = np.argsort(start, kind="stable")
        rows = Rows(start, end, device, graph).where(order)
        yield Batch(kind, rows, name[order] if kind == "kernel" else None)

    def short_name(self, name: int) -> str:
        return base_name(self._texts[name])

    def ranges(self) -> Ranges:
        name, start, end = (
            np.frombuffer(column, np.int64) if len(column) else np.empty(0, np.int64) for column in self._ranges
        )
        used, codes = np.unique(name, return_inverse=True)
        return Ranges([self._texts[code] for code in used], codes.reshape(-1), start, end, np.zeros(len(name), bool))

    def graph_launches(self) -> int | None:
        if not len(self._calls[0]):
            self.unknown.add("graph_launches", "the trace holds no API calls")
            return None
        return len(self._launches)

    def calls_during(self, gaps: list[tuple[int, int]]) -> list[dict[str, int]]:
        found: list[dict[str, int]] = []
        if not len(self._calls[0]):
            return [{} for _ in gaps]
        name, start, end = (np.frombuffer(column, np.int64) for column in self._calls)
        for begin, stop in gaps:
            inside = np.flatnonzero((start < stop) & (end > begin))
            calls: dict[str, int] = {}
            for index in inside:
                key = self._texts[name[index]]
                calls[key] = calls.get(key, 0) + int(min(end[index], stop) - max(start[index], begin))
            found.append(calls)
        return found

    def capture(self) -> dict[str, Any]:
        devices = self._header.get("deviceProperties") or []
        gpus = [str(device.get("name")) for device in devices if isinstance(device, dict) and device.get("name")]
        version = self._header.get("cupti_version")
        schema = self._header.get("schemaVersion")
        return {
            "tool": "PyTorch profiler (Kineto)",
            "version": None if version is None else f"CUPTI {version}",
            "schema": None if schema is None else str(schema),
            "graph_trace": "node" if self._rows["kernel"][0] else None,
            "gpus": gpus,
        }

    def diagnostics(self) -> list[dict[str, Any]]:
        return []


def document(file: IO[str], name: str) -> Iterator[tuple[str, Any]]:
    """Each event as `("traceEvents", event)`, every other key of the document as it stands. Bounded memory.

    Raises `RefusedError` where the text is no JSON or is cut off.
    """
    text = _Text(file, name)
    if text.next() == "[":  # the format's other form: the list of events alone
        text.take("[")
        yield from ((EVENTS, event) for event in text.items())
        return
    text.take("{")
    while text.next() != "}":
        key = text.value()
        text.take(":")
        if key == EVENTS and text.next() == "[":
            text.take("[")
            yield from ((EVENTS, event) for event in text.items())
        else:
            yield key, text.value()
        if text.next() == ",":
            text.take(",")
    text.take("}")


class _Text:
    """A window on the text, moved along by the standard library's own scanner."""

    def __init__(self, file: IO[str], name: str):
        self._file, self._trace, self._buffer, self._at = file, name, "", 0
        self._decoder = json.JSONDecoder(parse_float=Decimal)

    def _more(self) -> bool:
        chunk = self._file.read(CHUNK)
        self._buffer, self._at = self._buffer[self._at :] + chunk, 0
        return bool(chunk)

    def next(self) -> str:
        """The next character that is no space, not taken yet."""
        while True:
            while self._at < len(self._buffer):
                if not self._buffer[self._at].isspace():
                    return self._buffer[self._at]
                self._at += 1
            if not self._more():
                raise _cut_off(self._trace)

    def take(self, character: str) -> None:
        """The next character must be this one."""
        if self.next() != character:
            raise _no_trace(self._trace)
        self._at += 1

    def value(self) -> Any:
        """The next JSON value, whole."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError):
                if len(self._buffer) - self._at > 64 * CHUNK:
                    raise _no_trace(self._trace) from None
                if not self._more():
                    raise _cut_off(self._trace) from None
                continue
            if end < len(self._buffer):
                self._at = end
                return value
            if not self._more():  # a number at the very end of what was read could go on
                self._at = len(self._buffer)
                return value

    def items(self) -> Iterator[Any]:
        """The values of a list whose bracket was taken."""
        while self.next() != "]":
            item = self.value()
            if isinstance(item, dict):
                yield item
            if self.next() == ",":
                self.take(",")
            elif self.next() != "]":
                raise _no_trace(self._trace)
        self.take("]")


def _cut_off(name: str) -> RefusedError:
    return RefusedError(name, "ends in the middle", "copy it again, or record it again")


def _no_trace(name: str) -> RefusedError:
    return RefusedError(
        name,
        "is not JSON of the torch profiler",
        "name a trace: .sqlite of nsys export, or .json of the torch profiler",
    )


def nanoseconds(microseconds: Any) -> int:
    """Whole nanoseconds of a JSON number of microseconds; half a nanosecond is rounded to the even one."""
    return round(Decimal(microseconds) * 1000)


def _whole(value: Any, otherwise: int = 0) -> int:
    return value if isinstance(value, int) else otherwise


def base_name(name: str) -> str:
    """A kernel's base name: without return type, namespaces, template arguments and parameters."""
    depth, kept = 0, []
    for character in name.replace("(anonymous namespace)", "anonymous"):
        if character in "<(":
            if character == "(" and depth == 0 and kept:
                break
            depth += 1
        elif character in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(character)
    return "".join(kept).strip().split(" ")[-1].split("::")[-1] or name
