"""Odd, damaged and hostile traces of the torch profiler: one line, or the right number, or unknown; never a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.profile.odd import event, read, same_when_scrubbed, torch
from tests.profile.running import refused, run


@pytest.mark.parametrize("value", ["5", "abc", True, float("nan"), float("inf"), 10**30, None])
def test_a_time_that_is_no_number_is_refused(value: Any, tmp_path: Path) -> None:
    assert "whose time is not a number" in refused("report", torch(tmp_path / "t.json", event(ts=value)))
    (tmp_path / "e.json").write_text(json.dumps({"traceEvents": [event()]}).replace('"ts": 1', '"ts": 1e9999999'))
    assert "whose time is not a number" in refused("report", tmp_path / "e.json")


@pytest.mark.parametrize("dur", [None, -5])
def test_an_event_of_unknown_length_says_so(dur: Any, tmp_path: Path) -> None:
    events = (event(dur=dur), event(ts=10), event("user_annotation", "r", ts=0, dur=dur))
    path = torch(tmp_path / "t.json", *events)
    found = read(path)
    assert {"field": "kernel.end", "why": "1 rows have no end and count as empty"} in found["unknown"]
    assert found["top_kernels"][0]["sum_ns"] == 2000
    assert (found["nvtx"][0]["sum_ns"], found["nvtx"][0]["not_ended"]) == (12000, 1)
    same_when_scrubbed(path)


@pytest.mark.parametrize(
    "events",
    [
        [event()],
        [event(correlation="7"), event("cuda_runtime", "cudaGraphLaunch", correlation="7")],
        [event(), event("cuda_runtime", "cudaGraphLaunch", correlation=None)],
    ],
)
def test_without_calls_or_correlations_no_share_is_guessed(events: list[dict[str, Any]], tmp_path: Path) -> None:
    path = torch(tmp_path / "t.json", *events)
    assert (read(path)["graph_kernels"], read(path)["graph_kernel_share"]) == (None, None)
    same_when_scrubbed(path)


@pytest.mark.parametrize(
    "odd",
    [event() | {"args": [1]}, event() | {"args": "x"}, event(device=1 << 70), event(device=-1), event(name="a\ud800b")],
)
def test_odd_arguments_and_names_are_read(odd: dict[str, Any], tmp_path: Path) -> None:
    path = torch(tmp_path / "t.json", odd, event("user_annotation", "a\ud800b"))
    assert read(path)["kernels"] == 1
    same_when_scrubbed(path)


def test_a_header_shows_versions_and_gpus_alone(tmp_path: Path) -> None:
    devices = [{"name": "GPU /home/owner"}, {"name": ["owner"]}, {"name": None}]
    path = torch(tmp_path / "t.json", event(), deviceProperties=devices, cupti_version=["owner"])
    document = json.loads(path.read_text()) | {"schemaVersion": {"a": "/home/owner"}}
    path.write_text(json.dumps(document))
    assert read(path)["capture"]["gpus"] == ["GPU [...]"]
    assert "owner" not in run("report", path, "--json").output
    same_when_scrubbed(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"traceEvents": [{"a": xx}, ' + "1, " * 99 + "1]}", "is not JSON"),
        ('{"traceEvents": [{"a": ' + "[" * 100_000, "is not JSON"),
        ('{[1]: 2, "traceEvents": []}', "is not JSON"),
        ('{"traceEvents": []}  \n{"traceEvents": []}', "is not JSON"),
        ('[{"ph": "M"}] []', "is not JSON"),
        ('{"traceEvents": [{"ph": "B", "cat": "user_annotation", "name": "r", "ts": 0}]}', "begins and ends"),
    ],
)
def test_json_that_is_wrong_in_the_middle(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    assert words in refused("report", tmp_path / "t.json")
