"""Did graph capture take effect? Read from logs of real vLLM runs."""

from __future__ import annotations

import pytest

from gb10.effect import graph_effective
from tests.conftest import ROOT

LOGS = ROOT / "tests/data/logs"


@pytest.mark.parametrize(
    ("log", "effective", "sign"),
    [
        ("vllm-0.26-graph.log", True, "Graph capturing finished"),
        ("vllm-0.26-eager.log", False, "Cudagraph is disabled under eager mode"),
        ("vllm-0.32-cpu-graph-requested.log", False, "Overriding to NONE"),
    ],
)
def test_a_real_log_says_whether_graphs_were_captured(log: str, effective: bool, sign: str) -> None:
    fact, line = graph_effective((LOGS / log).read_text(errors="replace"))
    assert fact.value is effective
    assert sign in line


def test_a_log_without_a_line_about_capture_is_unknown_not_false() -> None:
    fact, line = graph_effective("INFO starting\nINFO ready\n")
    assert fact.value is None
    assert fact.why
    assert line == ""
