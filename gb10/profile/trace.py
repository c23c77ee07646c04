"""What a reader of one format gives: tables of activities, ranges of the CPU, and what the recording says of itself. Filled by nsys.py and kineto.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from gb10.errors import RefusedError
from gb10.profile.spans import Array, Rows

KINDS = ("kernel", "memcpy", "memset", "graph")
DEVICE_BITS = 24
"""A device's code: its process above these bits, its number in them (Nsight keeps them free for threads)."""
DEVICE_MASK = (1 << DEVICE_BITS) - 1
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Batch:
    """Rows of one kind. `name`: ids of kernels' names (None for the other kinds)."""

    kind: str
    rows: Rows
    name: Array | None = None


@dataclass(frozen=True)
class Ranges:
    """Ranges that the CPU marked: NVTX, or record_function. `name` indexes `names`; an `end` below 0 was not recorded."""

    names: list[str]
    name: Array
    start: Array
    end: Array
    instant: Array


@dataclass
class Unknown:
    """Fields that could not be read, each with its reason."""

    fields: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, why: str) -> None:
        self.fields.setdefault(name, why)


class Trace(Protocol):
    """One trace, open. Each method may be called more than once; ids are those of the trace."""

    format: str
    unknown: Unknown

    def streams(self, *, ordered: bool) -> list[Iterator[Batch]]:
        """One iterator a table of activities. `ordered`: by start, which costs a sort."""

    def short_name(self, name: int) -> str:
        """A kernel's base name."""

    def ranges(self) -> Ranges:
        """All ranges and marks of the CPU."""

    def graph_launches(self) -> int | None:
        """Calls that launched a graph; None with a reason in `unknown`."""

    def calls_during(self, gaps: list[tuple[int, int]]) -> list[dict[str, int]]:
        """For each gap: API calls by name, with their nanoseconds inside it."""

    def capture(self) -> dict[str, Any]:
        """What the recording says of itself: tool, version, schema, graph_trace, gpus. Nothing of the machine."""

    def diagnostics(self) -> list[dict[str, Any]]:
        """The recorder's warnings and errors (severity 2 and up): severity, text, count."""

    @property
    def by_launch(self) -> bool:
        """Recorded in graph mode: a replay is one row, and its kernels have none."""

    @property
    def knows_graphs(self) -> bool:
        """Does a kernel's row say whether it came from a graph?"""


_LAUNCH = re.compile(r"^(cudaGraphLaunch|cuGraphLaunch)(_|$)")


def is_graph_launch(call: str) -> bool:
    """Does this API call launch a graph? Nsight Systems puts a version behind the name."""
    return bool(_LAUNCH.match(call))


def public(text: str) -> str:
    """Text of the recorder on one line, without what may name the machine: words with a slash or an equals sign are left out."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return " ".join("[...]" if "/" in word or "=" in word or "\\" in word else word for word in shown.split(" "))


def nothing_in(name: str) -> RefusedError:
    """For a trace that tells nothing."""
    mend = "record it again, with work inside the window"
    return RefusedError(name, "holds neither GPU activity nor ranges", mend)
