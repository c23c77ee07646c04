"""Reads the JSON of the torch profiler (Kineto) as a stream, so that a large trace costs little memory. Opened by source.py.

Times there are decimal microseconds; they are turned into whole nanoseconds without a float in between.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from decimal import Decimal
from typing import IO, Any

import numpy as np

from gb10.errors import RefusedError
from gb10.profile.document import EVENTS, document, printable
from gb10.profile.spans import Rows
from gb10.profile.trace import DEVICE_MASK, Batch, Progress, Ranges, Unknown, is_graph_launch, nothing_in, public

KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
CALLS = ("cuda_runtime", "cuda_driver")
RANGE = "user_annotation"
CATEGORIES = {*KINDS, *CALLS, RANGE}
NO_CORRELATION = -1
HEADER = ("schemaVersion", "cupti_version")
LONGEST_US = 4 * 10**15
"""A century in microseconds: two of them still fit into an int64 of nanoseconds."""


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
        self._file = name
        self._missing = dict.fromkeys(KINDS.values(), 0)
        self._unrelated = 0
        seen = 0
        for key, value in document(file, name):
            if key != EVENTS:
                self._header |= dict(header(key, value))
                continue
            self._take(value)
            seen += 1
            if seen % 100_000 == 0:
                progress(f"{name}: {seen} events")
        if not seen:
            raise nothing_in(name)
        launched = np.frombuffer(self._launches, np.int64) if len(self._launches) else np.empty(0, np.int64)
        self._launched = np.unique(launched)
        self.knows_graphs = bool(self._calls[0]) and not self._unrelated
        for kind, missing in self._missing.items():
            if missing:
                self.unknown.add(f"{kind}.end", f"{missing} rows have no end and count as empty")

    def close(self) -> None:
        """Nothing is open."""

    def _take(self, event: dict[str, Any]) -> None:
        category = event.get("cat")
        if not isinstance(category, str) or category not in CATEGORIES:
            return
        if event.get("ph") in ("B", "E"):
            what = "tells begins and ends apart (ph B and E), which the torch profiler does not"
            raise RefusedError(self._file, what, "name the file that the torch profiler wrote")
        if event.get("ph") != "X":
            return
        arguments = arguments_of(event)
        try:
            begin = nanoseconds(event.get("ts"))
            length = -1 if event.get("dur") is None else nanoseconds(event["dur"])
        except ValueError:
            raise RefusedError(
                self._file, "holds an event whose time is not a number of microseconds", "record it again"
            ) from None
        end = begin + max(length, 0)
        if category in KINDS:
            self._missing[KINDS[category]] += length < 0
            if category == "kernel" and _whole(arguments.get("correlation"), NO_CORRELATION) == NO_CORRELATION:
                self._unrelated += 1
            device = arguments.get("device", event.get("pid"))
            values = (
                begin,
                end,
                self._name(str(event.get("name"))),
                _whole(device) & DEVICE_MASK,
                _whole(arguments.get("correlation"), NO_CORRELATION),
            )
            for column, value in zip(self._rows[KINDS[category]], values, strict=True):
                column.append(value)
        elif category == RANGE:
            end = end if length >= 0 else begin - 1  # lasts to the end of the window
            for column, value in zip(self._ranges, (self._name(str(event.get("name"))), begin, end), strict=True):
                column.append(value)
        elif category in CALLS:
            name = str(event.get("name"))
            for column, value in zip(self._calls, (self._name(name), begin, end), strict=True):
                column.append(value)
            if is_graph_launch(name):
                correlation = _whole(arguments.get("correlation"), NO_CORRELATION)
                self._launches.append(correlation)
                self._unrelated += correlation == NO_CORRELATION

    def _name(self, name: str) -> int:
        name = printable(name)
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
        gpus = [device["name"] for device in self._header.get("deviceProperties", ())]
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


def nanoseconds(microseconds: Any) -> int:
    """Whole nanoseconds of a JSON number of microseconds; half a nanosecond is rounded to the even one.

    Raises `ValueError` for anything else: a text, NaN, a number beyond a century."""
    if type(microseconds) not in (int, Decimal) or not -LONGEST_US <= microseconds <= LONGEST_US:
        raise ValueError
    return round(Decimal(microseconds) * 1000)


def header(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a report shows of the document's other keys: versions, and the names of the GPUs."""
    if key in HEADER and type(value) in (int, str):
        yield key, public(printable(value)) if isinstance(value, str) else value
    elif key == "deviceProperties" and isinstance(value, list):
        names = [each.get("name") for each in value if isinstance(each, dict)]
        yield key, [{"name": public(printable(name))} for name in names if isinstance(name, str) and name]


def arguments_of(event: dict[str, Any]) -> dict[str, Any]:
    """An event's arguments; none where they are no object."""
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _whole(value: Any, otherwise: int = 0) -> int:
    """An id that fits into an int64; JSON's true and false are none."""
    return value if type(value) is int and abs(value) < 1 << 62 else otherwise


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
