"""Did the graph overlay take effect? What the engine's own log says; applied is not effective. Used by experiment.py.

Log lines of vLLM 0.26 to 0.33, as listed in docs/how-it-works.md.
"""

from __future__ import annotations

from gb10.facts import Fact

EFFECTIVE = ("Breakable CUDA graph enabled", "Graph capturing finished")
NOT_EFFECTIVE = (
    "Overriding to NONE",
    "setting cudagraph_mode=NONE",
    "Cudagraph is disabled under eager mode",
    "Skipping CUDA graph capture",
    "Enforce eager set",
)


def graph_effective(log: str) -> tuple[Fact[bool], str]:
    """Whether graphs were captured, and the line that says so. A downgrade beats an earlier announcement."""
    lines = log.splitlines()
    for signs, value in ((NOT_EFFECTIVE, False), (EFFECTIVE, True)):
        for line in reversed(lines):
            if any(sign in line for sign in signs):
                return Fact(value), line.strip()
    return Fact(None, "the log has no line about graph capture"), ""
