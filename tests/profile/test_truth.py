"""Real recordings against counts that were computed independently (tests/data/traces/truth.json): equal, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gb10.profile import command
from tests.conftest import ROOT

TRACES = ROOT / "tests/data/traces"
TRUTH = json.loads((TRACES / "truth.json").read_text())
SCHEMA = json.loads((ROOT / "docs/schemas/profile.schema.json").read_text())
FIELDS = {
    "kernels": "kernels",
    "graph_kernels": "graph_kernels",
    "graph_share": "graph_kernel_share",
    "graph_launches": "graph_launches",
    "busy_ns": "gpu_busy_ns",
    "span_ns": "gpu_span_ns",
    "busy_ratio": "gpu_busy_ratio",
}


def read(*names: str, strips: bool = False) -> dict[str, Any]:
    windows = command.windows_of([TRACES / name for name in names], [])
    return command.report(windows, lambda text: None, strips=strips)


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_a_real_trace_has_the_counts_of_the_truth(name: str) -> None:
    truth, report = dict(TRUTH[name]), read(name)
    found = report["windows"][0]
    truth.pop("why", None)
    for key in [key for key in truth if key in FIELDS]:
        assert found[FIELDS[key]] == truth.pop(key), key
    ranges = {
        row["name"]: {"count": row["count"], "ns": row["sum_ns"], "overlap_ns": row["gpu_overlap_ns"]}
        for row in found["nvtx"]
    }
    wanted = truth.pop("nvtx", {})
    assert {key: ranges[key] for key in wanted} == wanted
    top = truth.pop("top", [])
    assert [[row["name"], row["sum_ns"]] for row in found["top_kernels"][: len(top)]] == top
    if "api" in truth:  # the eight most frequent calls
        launches = found["graph_launches"]
        assert truth.pop("api").get("cudaGraphLaunch", launches) == launches
    if "steps" in truth:
        assert found["steps"]["count"] == truth.pop("steps")
        layers = truth.pop("layers")
        assert found["launches_per_step"] == (layers if "graph" in name else 0), "a graph for each layer"
    assert truth == {}, "every count of the truth is compared"
    jsonschema.validate(report, SCHEMA)


@pytest.mark.parametrize("name", ["kineto-eager.json.gz", "kineto-graph.json.gz"])
def test_the_busy_time_of_a_torch_trace_is_that_of_its_events_counted_with_decimals(name: str) -> None:
    """`truth.json` has none for these two: the whole file, its times as exact decimals, swept in order of start."""
    document = json.loads(gzip.decompress((TRACES / name).read_bytes()), parse_float=Decimal)
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    work = sorted((e["ts"], e["ts"] + e["dur"]) for e in document["traceEvents"] if e.get("cat") in kinds)
    busy, reach = Decimal(0), work[0][0]
    for start, end in work:
        busy += max(Decimal(0), end - max(start, reach))
        reach = max(reach, end)
    found = read(name)["windows"][0]
    assert found["gpu_busy_ns"] == busy * 1000
    assert found["gpu_span_ns"] == (reach - work[0][0]) * 1000


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_every_field_that_is_unknown_has_its_reason(name: str) -> None:
    window = read(name)["windows"][0]
    reasons = {row["field"] for row in window["unknown"]}
    assert {key for key, value in window.items() if value is None} <= reasons


def test_a_report_with_timelines_fits_the_schema_and_its_bins_add_up_to_the_busy_time() -> None:
    report = read("vllm-graph-short.sqlite.gz", "replay-loop-graph-mode.sqlite.gz", "kineto-graph.json.gz", strips=True)
    jsonschema.validate(report, SCHEMA)
    for window in report["windows"]:
        line = window["timeline"]
        assert sum(line["busy"]) == window["gpu_busy_ns"]
        assert all(graph <= busy <= line["bin_ns"] + 1 for graph, busy in zip(line["graph"], line["busy"], strict=True))
        assert sum(line["graph"]) > 0, window["name"]


def test_a_share_that_the_recording_cannot_tell_is_unknown_with_its_reason() -> None:
    found = read("replay-loop-graph-mode.sqlite.gz")["windows"][0]
    assert found["graph_kernel_share"] is None
    assert {
        "field": "graph_kernel_share",
        "why": "recorded with --cuda-graph-trace=graph: replayed kernels have no rows",
    } in found["unknown"]
    assert found["graph_launches"] == 100, "the launches are in the trace all the same"


def test_the_short_answers_of_the_dense_model_launch_29_graphs_a_step_as_its_28_layers_say() -> None:
    found = read("vllm-graph-short.sqlite.gz")["windows"][0]
    assert found["steps"] == {"count": 48, "tokens": 51, "from": "execute_context ranges"}
    assert found["launches_per_step"] == 29.0


def test_dispatches_are_counted_by_tokens_and_mode_with_their_padding() -> None:
    found = read("replay-loop.sqlite.gz")["windows"][0]
    assert found["dispatches"] == [{"actual": 3, "padded": 4, "mode": "PIECEWISE", "count": 20}]
    assert found["padding_waste"] == 0.25
    assert found["launches_per_step"] == 5.0


def test_windows_are_added_up_and_an_unknown_one_makes_the_sum_unknown() -> None:
    total = read("replay-loop.sqlite.gz", "vllm-graph-short.sqlite.gz")["total"]
    assert total["kernels"] == 320 + 19757
    assert total["gpu_busy_ns"] == 35609028 + 83246180
    assert read("replay-loop.sqlite.gz", "replay-loop-graph-mode.sqlite.gz")["total"]["graph_kernel_share"] is None


def test_warnings_of_the_recorder_stand_beside_the_numbers_without_places_of_the_machine() -> None:
    found = read("vllm-graph-short.sqlite.gz")["windows"][0]["diagnostics"]
    assert {"severity": 2, "text": "Not all NVTX events might have been collected.", "count": 3} in found
    assert all(row["severity"] >= 2 and "/" not in row["text"] for row in found)


def test_the_trace_directory_names_the_licence_of_its_files() -> None:
    assert "licence" in (TRACES / "README.md").read_text()
    assert {path.name for path in TRACES.iterdir()} == {*TRUTH, "truth.json", "README.md"}, Path(TRACES)
