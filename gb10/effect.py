"""Did graphs take effect? What the engine's own log says; asked for is not effective. Used by evidence.py and bench/measure.py.

Log lines of vLLM 0.26 to 0.33, as listed in docs/how-it-works.md.
"""

from __future__ import annotations

import re
from typing import Any

from gb10.facts import Fact

CAPTURED = ("Breakable CUDA graph enabled", "Graph capturing finished")
DOWNGRADED = (
    "Overriding to NONE",
    "setting cudagraph_mode=NONE",
    "Cudagraph is disabled under eager mode",
    "Skipping CUDA graph capture",
)
NOT_EFFECTIVE = "applied, not effective"
ENGINE_MODE = re.compile(r"Initializing a V1 LLM engine.*'cudagraph_mode': <CUDAGraphMode\.(\w+)")


def asked_for(argv: list[str]) -> bool:
    """Do these arguments of an engine ask for graphs?"""
    return any(word.startswith("--compilation-config") for word in argv)


def recorded(log: str) -> dict[str, Any]:
    """`graph_effective` of a record: the value, and the line of the log that says so."""
    effective, line = graph_effective(log)
    return {"value": effective.as_json(), "log_line": line}


def said(record: dict[str, Any]) -> str:
    """Such a record in words, with the end of the log's line."""
    value, line = record["value"], record["log_line"]
    words = f"unknown ({value['unknown']})" if isinstance(value, dict) else "effective" if value else NOT_EFFECTIVE
    return words + (f" (log: {line[-140:]})" if line else "")


def graph_effective(log: str) -> tuple[Fact[bool], str]:
    """Whether graphs were captured, and the line that says so. A downgrade beats an earlier announcement.

    With breakable graphs asked for, vLLM 0.32 on the CPU falls back without a word: then only the mode in the engine's
    own line tells. (The line of non-default arguments repeats what was asked for, and proves nothing.)
    """
    lines = log.splitlines()
    for line in reversed(lines):
        if any(sign in line for sign in DOWNGRADED):
            return Fact(False), line.strip()
    for line in reversed(lines):
        mode = ENGINE_MODE.search(line)
        if mode and mode.group(1) == "NONE":
            return Fact(False), f"the engine started with cudagraph_mode {mode.group(1)}"
    for line in reversed(lines):
        if any(sign in line for sign in CAPTURED):
            return Fact(True), line.strip()
    return Fact(None, "the log has no line about graph capture"), ""
