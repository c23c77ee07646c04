"""The fast reader against plain Python on made traces: overlapping streams, nested and crossing ranges, missing ends, disorder, graph mode."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gb10.profile import source, window
from gb10.profile.nsys import NsysTrace
from tests.profile import made, oracle
from tests.profile.made import Mark, Rows, Work

TIMES = st.integers(0, 60)
LENGTHS = st.integers(0, 15)
NAMES = st.sampled_from(["gemm", "attention", "norm"])


@st.composite
def works(draw: Any, *, ended: bool = True, graphs: bool = True) -> Work:
    start = draw(TIMES)
    end = start + draw(LENGTHS) if ended or draw(st.booleans()) else None
    process, device = draw(st.integers(1, 2)), draw(st.integers(0, 1))
    return Work(start, end, process, device, draw(NAMES), graphs and draw(st.booleans()))


@st.composite
def marks(draw: Any, *, ended: bool = False) -> Mark:
    start = draw(TIMES)
    end = start + draw(LENGTHS) if ended or draw(st.booleans()) else None
    kind = draw(st.sampled_from([59, 60])) if ended else draw(st.sampled_from([59, 60, 34]))
    return Mark(start, None if kind == 34 else end, draw(st.sampled_from(["wait", "gather", "step"])), kind)


CALLS = st.tuples(
    TIMES, LENGTHS, st.sampled_from(["cudaGraphLaunch_v10000", "cudaMemcpyAsync_v3020", "cudaGraphLaunchLike"])
)
TRACES = st.builds(
    Rows,
    kernels=st.lists(works(ended=False), max_size=12),
    memcpys=st.lists(works(), max_size=5),
    memsets=st.lists(works(), max_size=3),
    graphs=st.lists(works(), max_size=4),
    marks=st.lists(marks(), max_size=8),
    calls=st.lists(CALLS.map(lambda call: (call[0], call[0] + call[1], call[2])), max_size=6),
    mode=st.sampled_from(["Node", "Graph", None]),
    texts_by_id=st.booleans(),
)


def read(rows: Rows, batch_rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as room:
        trace = NsysTrace(made.export(rows, Path(room) / "trace.sqlite"), "trace", lambda text: None, batch_rows)
        try:
            return window.read(trace, "trace.sqlite", "made", 50)
        finally:
            trace.close()


def holds(found: dict[str, Any], rows: Rows) -> None:
    intervals = [one.interval for one in rows.work]
    assert found["gpu_busy_ns"] == (oracle.measure(intervals) if intervals else None)
    assert found["gpu_span_ns"] == oracle.span(intervals)
    assert found["kernels"] == (len(rows.kernels) if intervals else None)
    names = {row["name"]: (row["count"], row["sum_ns"]) for row in found["top_kernels"]}
    assert names == oracle.by_name(rows.kernels)
    assert sum(row["sum_ns"] for row in found["families"]) == sum(total for _, total in names.values())
    wanted = oracle.ranges(rows)
    assert {row["name"] for row in found["nvtx"]} == set(wanted)
    for row in found["nvtx"]:
        mine = wanted[row["name"]]
        assert row["count"] == len(mine)
        assert row["sum_ns"] == sum(end - start for start, end in mine)
        assert row["union_ns"] == oracle.measure(mine)
        assert row["gpu_overlap_ns"] == (oracle.measure(mine, inside=intervals) if intervals else None)
    gaps = oracle.pauses(intervals)
    first = min((start for start, _ in intervals), default=0)
    assert [(row["at_ns"], row["length_ns"]) for row in found["gaps"]] == [
        (start - first, end - start) for start, end in gaps
    ]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(TRACES, st.sampled_from([2, 5, 20]))
def test_an_export_of_nsight_systems_is_read_as_the_oracle_reads_it(rows: Rows, batch_rows: int) -> None:
    assume(rows.work or rows.marks)
    found = read(rows, batch_rows)
    holds(found, rows)
    per_device = sorted((oracle.measure(mine), oracle.span(mine)) for mine in oracle.devices(rows).values())
    assert sorted((row["gpu_busy_ns"], row["gpu_span_ns"]) for row in found["devices"]) == per_device
    by_launch = rows.mode == "Graph" or bool(rows.graphs)
    knows = bool(rows.kernels) and not by_launch
    assert found["graph_kernels"] == (sum(one.graph for one in rows.kernels) if knows else None)
    if rows.work and rows.calls:
        assert found["graph_launches"] == sum(name == "cudaGraphLaunch_v10000" for _, _, name in rows.calls)
    else:
        assert found["graph_launches"] is None, "what the trace cannot tell is not zero"
    for row in found["gaps"]:
        start = row["at_ns"] + min(one.start for one in rows.work)
        gap = (start, start + row["length_ns"])
        inside = {
            name: sum(max(0, min(gap[1], end) - max(gap[0], begin)) for begin, end, call in rows.calls if call == name)
            for name in {call for _, _, call in rows.calls}
        }
        calls = {name.split("_")[0]: ns for name, ns in inside.items() if ns}
        assert {call["name"]: call["ns"] for call in row["calls"]} == calls


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.builds(
        Rows,
        kernels=st.lists(works(), max_size=12),
        memcpys=st.lists(works(graphs=False), max_size=5),
        marks=st.lists(marks(ended=True), max_size=8),
        calls=st.lists(CALLS.map(lambda call: (call[0], call[0] + call[1], call[2])), min_size=1, max_size=6),
    )
)
def test_a_trace_of_the_torch_profiler_is_read_as_the_oracle_reads_it(rows: Rows) -> None:
    with (
        tempfile.TemporaryDirectory() as room,
        source.opened(made.kineto(rows, Path(room) / "t.json"), lambda text: None) as trace,
    ):
        assume(rows.work or rows.marks)
        found = window.read(trace, "t.json", "made", 50)
    holds(found, rows)
    launched = [name for _, _, name in rows.calls if name.startswith("cudaGraphLaunch_")]
    if rows.kernels:
        assert found["graph_kernels"] == (sum(one.graph for one in rows.kernels) if launched else 0)
