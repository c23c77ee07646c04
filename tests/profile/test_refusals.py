"""What is no trace, or not whole, is refused in one line that says what to do; odd but readable traces are read."""

from __future__ import annotations

import gzip
import os
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from gb10.cli import main
from gb10.profile import source, window
from tests.profile import made
from tests.profile.made import Mark, Rows, Work
from tests.profile.running import TRACES, refused

SMALL = Rows(kernels=[Work(0, 10), Work(20, 30)], calls=[(0, 1, "cudaLaunchKernel_v7000")])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "is not there; name a trace: .sqlite of nsys export" in refused("report", tmp_path / "none.sqlite")


def test_a_directory(tmp_path: Path) -> None:
    assert "is not a file; name a trace" in refused("report", tmp_path)


def test_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Hello, these are notes.\n")
    assert refused("report", tmp_path / "notes.txt").startswith(
        "notes.txt: is not JSON of the torch profiler; name a trace"
    )


def test_bytes_of_no_kind(tmp_path: Path) -> None:
    (tmp_path / "noise.bin").write_bytes(bytes(range(128, 256)) * 40)
    assert refused("report", tmp_path / "noise.bin").startswith("noise.bin: is neither SQLite nor JSON; name a trace")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_bytes(b"")
    assert refused("report", tmp_path / "empty.json").startswith("empty.json: ends in the middle; copy it again")


def test_json_that_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"a": [1, 2, 3]}')
    assert refused("report", tmp_path / "other.json").startswith(
        "other.json: holds neither GPU activity nor ranges; record it again"
    )


def test_a_trace_without_any_event(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert refused("report", tmp_path / "none.json").startswith(
        "none.json: holds neither GPU activity nor ranges; record it again"
    )


def test_an_export_without_any_event(tmp_path: Path) -> None:
    made.export(Rows(), tmp_path / "none.sqlite")
    assert refused("report", tmp_path / "none.sqlite").startswith(
        "none.sqlite: holds neither GPU activity nor ranges; record it again"
    )


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_an_export_that_was_cut_off(tmp_path: Path, share: float) -> None:
    whole = gzip.decompress((TRACES / "replay-loop.sqlite.gz").read_bytes())
    (tmp_path / "cut.sqlite").write_bytes(whole[: int(len(whole) * share)])
    assert refused("report", tmp_path / "cut.sqlite").startswith("cut.sqlite: ends in the middle (")


@pytest.mark.parametrize("name", ["replay-loop.sqlite.gz", "kineto-graph.json.gz"])
def test_a_packed_trace_that_was_cut_off(tmp_path: Path, name: str) -> None:
    whole = (TRACES / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    assert "ends in the middle" in refused("report", tmp_path / name)


def test_json_that_was_cut_off(tmp_path: Path) -> None:
    whole = gzip.decompress((TRACES / "kineto-graph.json.gz").read_bytes())
    (tmp_path / "cut.json").write_bytes(whole[: len(whole) // 2])
    assert refused("report", tmp_path / "cut.json").startswith("cut.json: ends in the middle; copy it again")


def test_an_export_with_damage_inside(tmp_path: Path) -> None:
    whole = bytearray(gzip.decompress((TRACES / "replay-loop.sqlite.gz").read_bytes()))
    whole[4096:60000] = os.urandom(60000 - 4096)
    (tmp_path / "bad.sqlite").write_bytes(whole)
    assert refused("report", tmp_path / "bad.sqlite").startswith("bad.sqlite: ")


def test_a_database_of_another_kind(tmp_path: Path) -> None:
    sql = sqlite3.connect(tmp_path / "other.sqlite")
    sql.execute("create table people (name)")
    sql.commit()
    sql.close()
    line = refused("report", tmp_path / "other.sqlite")
    assert (
        line
        == "other.sqlite: is a database, but not an export of Nsight Systems; name the .sqlite that nsys export wrote"
    )


def test_an_export_of_another_major_schema(tmp_path: Path) -> None:
    made.export(SMALL, tmp_path / "new.sqlite", schema="4.1.0")
    line = refused("report", tmp_path / "new.sqlite")
    assert line.startswith("new.sqlite: has the export schema 4.1.0, and this reads schema 3; export it with")


def test_an_export_that_another_program_is_writing(tmp_path: Path) -> None:
    path = made.export(SMALL, tmp_path / "busy.sqlite")
    writer = sqlite3.connect(path)
    writer.execute("begin exclusive")
    try:
        assert refused("report", path).startswith("busy.sqlite: is locked: another program writes it; wait for its end")
    finally:
        writer.close()


def test_a_report_of_nsight_systems_where_there_is_no_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "window.1.nsys-rep").write_bytes(b"QDSTREAM")
    monkeypatch.setenv("PATH", str(tmp_path))
    line = refused("report", tmp_path / "window.1.nsys-rep")
    assert line.endswith("run where it is: nsys export --type sqlite --output window.1.sqlite window.1.nsys-rep")


def a_program(directory: Path, script: str) -> None:
    (directory / "nsys").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "nsys").chmod(0o755)


def test_a_report_of_nsight_systems_is_exported_where_nsys_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for nsys (none can be had here) that copies what a real one exported; it is called as the real one is."""
    made.export(SMALL, tmp_path / "exported.sqlite")
    (tmp_path / "window.1.nsys-rep").write_bytes(b"QDSTREAM")
    a_program(
        tmp_path,
        f'[ "$1 $2 $3" = "export --type sqlite" ] && cp {tmp_path}/exported.sqlite "$7" && [ "$8" = "{tmp_path}/window.1.nsys-rep" ]',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    result = CliRunner().invoke(main, ["profile", "report", str(tmp_path / "window.1.nsys-rep"), "--json"])
    assert result.exit_code == 0, result.stderr
    assert '"kernels": 2' in result.stdout


def test_an_export_that_nsys_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "window.1.nsys-rep").write_bytes(b"QDSTREAM")
    a_program(tmp_path, "echo 'the report is corrupt' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "nsys export failed (the report is corrupt); run: nsys export" in refused(
        "report", tmp_path / "window.1.nsys-rep"
    )


def test_every_bad_file_has_its_line_and_nothing_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.txt").write_text("no trace")
    good = made.export(SMALL, tmp_path / "good.sqlite")
    result = CliRunner().invoke(main, ["profile", "report", *map(str, (tmp_path / "a.json", good, tmp_path / "b.txt"))])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["a.json", "b.txt"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "profile: no trace is given"),
        (["--window", "short"], "--window: short is not NAME=FILE"),
        (["--window", "=file"], "--window: =file is not NAME=FILE"),
        (["a.sqlite", "other/a.sqlite"], "profile: two windows are named a; name them: --window NAME=FILE"),
    ],
)
def test_windows_that_cannot_be_told_apart(arguments: list[str], line: str) -> None:
    result = CliRunner().invoke(main, ["profile", "report", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(line)


def read(path: Path) -> dict:
    with source.opened(path, lambda text: None) as trace:
        return window.read(trace, path.name, "made", 10)


def test_an_export_without_a_graph_column_does_not_guess_a_share(tmp_path: Path) -> None:
    path = made.export(SMALL, tmp_path / "old.sqlite")
    sql = sqlite3.connect(path)
    sql.execute(f"alter table {made.KERNEL} drop column graphNodeId")
    sql.commit()
    sql.close()
    found = read(path)
    assert (found["kernels"], found["graph_kernels"], found["graph_kernel_share"]) == (2, None, None)
    assert {"field": "graph_kernels", "why": "the trace does not say which kernels came from graphs"} in found[
        "unknown"
    ]


def test_an_export_without_calls_does_not_say_that_nothing_was_launched(tmp_path: Path) -> None:
    found = read(made.export(Rows(kernels=[Work(0, 5)]), tmp_path / "t.sqlite"))
    assert found["graph_launches"] is None
    assert {"field": "graph_launches", "why": "the trace holds no API calls"} in found["unknown"]


def test_a_trace_of_the_cpu_alone_has_no_figures_of_a_gpu(tmp_path: Path) -> None:
    found = read(made.export(Rows(marks=[Mark(0, 100, "step"), Mark(10, None, "open")]), tmp_path / "t.sqlite"))
    assert {
        found[key] for key in ("kernels", "gpu_busy_ns", "gpu_span_ns", "gpu_busy_ratio", "ceiling", "graph_launches")
    } == {None}
    assert {key for key, value in found.items() if value is None} == {row["field"] for row in found["unknown"]}
    rows = {row["name"]: row for row in found["nvtx"]}
    assert rows["step"]["sum_ns"] == 100
    assert rows["step"]["gpu_overlap_ns"] is None
    assert (rows["open"]["sum_ns"], rows["open"]["not_ended"]) == (90, 1), (
        "a range without an end lasts to the last time known"
    )


def test_rows_in_any_order_give_the_same_report(tmp_path: Path) -> None:
    kernels = [Work(n * 10, n * 10 + 7, name=f"k{n % 3}") for n in range(3000)]
    ordered = read(made.export(Rows(kernels=kernels), tmp_path / "a.sqlite"))
    backwards = read(made.export(Rows(kernels=kernels[::-1]), tmp_path / "b.sqlite"))
    assert {**ordered, "file": ""} == {**backwards, "file": ""}


def test_a_name_with_a_version_of_the_call_is_still_a_launch(tmp_path: Path) -> None:
    calls = [
        (0, 1, "cudaGraphLaunch_v10000"),
        (1, 2, "cuGraphLaunch"),
        (2, 3, "cudaGraphLaunch_ptsz_v11000"),
        (3, 4, "cudaGraphLaunchSomethingElse"),
    ]
    assert read(made.export(Rows(kernels=[Work(0, 5)], calls=calls), tmp_path / "t.sqlite"))["graph_launches"] == 3


def test_dispatches_of_several_dispatchers_are_counted_together_and_what_is_missing_stays_unknown(
    tmp_path: Path,
) -> None:
    names = [
        "dispatch",
        "dispatch:actual=3,padded=4,mode=FULL",
        "dispatch-v2:actual=3,padded=4,mode=FULL",
        "dispatch:actual=?,mode=NONE",
    ]
    found = read(made.export(Rows(marks=[Mark(n, n, name) for n, name in enumerate(names)]), tmp_path / "t.sqlite"))
    assert found["dispatches"] == [
        {"actual": 3, "padded": 4, "mode": "FULL", "count": 2},
        {"actual": None, "padded": None, "mode": "NONE", "count": 1},
    ]
    assert found["padding_waste"] is None
    assert found["steps"] is None


def test_activity_without_length_has_no_ratio_and_says_why(tmp_path: Path) -> None:
    found = read(made.export(Rows(kernels=[Work(5, 5)], calls=[(0, 1, "cudaLaunchKernel")]), tmp_path / "t.sqlite"))
    assert (found["gpu_busy_ns"], found["gpu_span_ns"], found["gpu_busy_ratio"]) == (0, 0, None)
    reasons = {row["field"]: row["why"] for row in found["unknown"]}
    assert reasons["gpu_busy_ratio"] == reasons["ceiling"] == "the activity has no length"


def test_names_beyond_the_list_are_told_and_long_ones_cut(tmp_path: Path) -> None:
    marks = [Mark(n * 10, n * 10 + n % 9, f"range {n}") for n in range(600)] + [Mark(0, 99, "x" * 999)]
    found = read(made.export(Rows(marks=marks), tmp_path / "t.sqlite"))
    assert len(found["nvtx"]) == 500
    assert max(len(row["name"]) for row in found["nvtx"]) == 200
    assert {"field": "nvtx", "why": "101 further names, each with less time, are not listed"} in found["unknown"]
