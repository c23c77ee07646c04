"""Odd, damaged and hostile traces: one line and nothing left behind, or the right number, or unknown; never a wrong one."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gb10.cli import main
from gb10.errors import RefusedError
from gb10.profile import source, timeline, window
from gb10.profile.nsys import NsysTrace
from tests.conftest import ROOT
from tests.profile import made
from tests.profile.made import KERNEL, Mark, Rows, Work

TRACES = ROOT / "tests/data/traces"
SMALL = Rows(
    kernels=[Work(0, 10), Work(20, 30, graph=True)],
    marks=[Mark(0, 100, "step")],
    calls=[(0, 1, "cudaLaunchKernel_v7000"), (10, 20, "cudaGraphLaunch_v10000")],
)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["profile", *map(str, arguments)])


def refused(*arguments: str | Path) -> str:
    """The one line of a refusal."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("  ")]
    assert len(lines) == 1, result.stderr
    assert lines[0].count("; ") >= 1
    assert "--verbose" not in lines[0], "a refusal in words, not a defect"
    return lines[0]


def changed(path: Path, *statements: str, rows: Rows = SMALL) -> Path:
    made.export(rows, path)
    sql = sqlite3.connect(path)
    for statement in statements:
        sql.execute(statement)
    sql.commit()
    sql.close()
    return path


def read(path: Path) -> dict[str, Any]:
    result = run("report", path, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["windows"][0]


def torch(path: Path, *events: dict[str, Any], **more: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **more}))
    return path


def event(category: str = "kernel", name: str = "k", ts: Any = 1, dur: Any = 2, **arguments: Any) -> dict[str, Any]:
    known = {"device": 0, "correlation": 5}
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "ts": ts, "dur": dur, "args": known | arguments}


def same_when_scrubbed(path: Path) -> None:
    copy = path.parent / "scrubbed" / path.name
    result = run("scrub", path, copy)
    assert result.exit_code == 0, result.output
    assert run("report", copy, "--json").stdout == run("report", path, "--json").stdout


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (
            [f"alter table {KERNEL} rename to k", f"create view {KERNEL} as select * from k"],
            "as a view, not as a table",
        ),
        (
            [
                "create table k (id integer primary key, start, end) without rowid",
                f"insert into k select rowid, start, end from {KERNEL}",
                f"drop table {KERNEL}",
                f"alter table k rename to {KERNEL}",
            ],
            "as a table without row ids",
        ),
        ([f"alter table {KERNEL} drop column start"], f"has no column start in {KERNEL}"),
        (["alter table NVTX_EVENTS drop column eventType"], "has no column eventType in NVTX_EVENTS"),
        (["alter table CUPTI_ACTIVITY_KIND_RUNTIME drop column nameId"], "has no column nameId"),
        ([f"update {KERNEL} set start = null where rowid = 2"], "is missing or is not a whole number"),
        ([f"update {KERNEL} set start = 'abc' where rowid = 2"], "is damaged"),
        ([f"update {KERNEL} set start = cast(start as text)"], "is missing or is not a whole number"),
        ([f"update {KERNEL} set start = start + 0.5"], "is missing or is not a whole number"),
        ([f"update {KERNEL} set end = x'00ff' where rowid = 2"], "is damaged"),
        ([f"update {KERNEL} set shortName = 4611686018427387999"], "is missing or is not a whole number"),
        (["update NVTX_EVENTS set start = null"], "is missing or is not a whole number"),
    ],
)
def test_an_export_in_another_form_is_refused(statements: list[str], words: str, tmp_path: Path) -> None:
    assert words in refused("report", changed(tmp_path / "odd.sqlite", *statements), "--json")


def test_row_ids_far_apart_are_stepped_over(tmp_path: Path) -> None:
    path = changed(tmp_path / "t.sqlite", *(f"update {KERNEL} set rowid = {n} where rowid = 2" for n in [1 << 62]))
    assert read(path)["kernels"] == 2
    assert read(changed(tmp_path / "n.sqlite", f"update {KERNEL} set rowid = -7 where rowid = 1"))["kernels"] == 2


def test_as_many_pauses_as_may_be_asked_for(tmp_path: Path) -> None:
    rows = Rows(kernels=[Work(n * 20, n * 20 + 10) for n in range(1200)], calls=[(0, 24000, "cudaLaunchKernel_v7000")])
    found = run("report", made.export(rows, tmp_path / "t.sqlite"), "--json", "--top", "1000")
    gaps = json.loads(found.stdout)["windows"][0]["gaps"]
    assert len(gaps) == 1000
    assert all(gap["calls"] == [{"name": "cudaLaunchKernel", "ns": 10}] for gap in gaps)


@pytest.mark.parametrize(
    ("rows", "statement"),
    [
        (
            Rows(kernels=[Work(0, 10), Work(20, 30, graph=True)], graphs=[Work(40, 90, process=2)]),
            "insert into META_DATA_CAPTURE values ('PROCESS_1:CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Graph')",
        ),
        (
            Rows(kernels=[Work(0, 10)], graphs=[Work(40, 90)], mode="Graph"),
            "insert into META_DATA_CAPTURE values ('PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Node')",
        ),
        (Rows(kernels=[Work(0, 10, graph=True)], graphs=[Work(40, 90)]), "select 1"),
    ],
)
def test_where_one_process_was_recorded_in_graph_mode_the_share_is_unknown(
    rows: Rows, statement: str, tmp_path: Path
) -> None:
    path = changed(tmp_path / "t.sqlite", statement, rows=rows)
    found = read(path)
    assert (found["graph_kernels"], found["graph_kernel_share"]) == (None, None)
    same_when_scrubbed(path)


@pytest.mark.parametrize("statement", ["delete from StringIds", "drop table StringIds"])
def test_calls_without_names_are_not_no_launches(statement: str, tmp_path: Path) -> None:
    found = read(changed(tmp_path / "t.sqlite", statement))
    assert found["graph_launches"] is None
    assert {"field": "graph_launches", "why": "2 API calls have no name"} in found["unknown"]


def test_ends_that_are_missing_are_counted_over_all_batches(tmp_path: Path) -> None:
    rows = Rows(kernels=[Work(n, None) for n in range(5)] + [Work(9, 12)])
    path = changed(tmp_path / "t.sqlite", f"insert into {KERNEL} (start, end) values (20, 15)", rows=rows)
    trace = NsysTrace(path, "t", lambda text: None, batch_rows=2)
    found = window.read(trace, "t", "t", 10)
    trace.close()
    assert {"field": "kernel.end", "why": "6 rows have no end and count as empty"} in found["unknown"]


def test_a_device_below_zero_does_not_mix_processes(tmp_path: Path) -> None:
    found = read(changed(tmp_path / "t.sqlite", f"update {KERNEL} set deviceId = -1 where rowid = 1"))
    assert {row["process"] for row in found["devices"]} == {1}


def test_text_that_is_no_utf8_is_shown_and_never_echoes_what_the_machine_ran(tmp_path: Path) -> None:
    bad = "cast(x'746f6b656e3d7365637265740aff' as text)"  # token=secret, a new line, and a byte that is no UTF-8
    path = changed(
        tmp_path / "t.sqlite",
        f"insert into META_DATA_CAPTURE values ('COMMAND_LINE', {bad})",
        f"insert into StringIds values (77, null), (78, {bad})",
        "update NVTX_EVENTS set text = cast(x'61ff62' as text) where eventType = 59",
    )
    result = run("report", path, "--json")
    assert result.exit_code == 0, result.output
    assert "a\N{REPLACEMENT CHARACTER}b" in result.stdout
    assert "secret" not in result.output
    same_when_scrubbed(path)
    assert b"secret" not in (tmp_path / "scrubbed/t.sqlite").read_bytes()


def test_names_of_threads_and_texts_in_columns_of_numbers_are_not_copied(tmp_path: Path) -> None:
    path = changed(
        tmp_path / "t.sqlite",
        "insert into NVTX_EVENTS values (1, null, 39, 'thread-of-the-owner', null, 1)",
        "insert into StringIds values (90, 'named-by-the-owner')",
        "insert into NVTX_EVENTS values (1, null, 33, null, 90, 1)",
        f"update {KERNEL} set streamId = '/home/owner'",
        "insert into META_DATA_CAPTURE values ('owner:CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Node')",
    )
    same_when_scrubbed(path)
    assert b"owner" not in (tmp_path / "scrubbed/t.sqlite").read_bytes()


def test_a_schema_with_control_characters_is_still_one_line(tmp_path: Path) -> None:
    made.export(SMALL, tmp_path / "t.sqlite", schema="4.0\n\x1b[31m /home/owner")
    line = refused("report", tmp_path / "t.sqlite")
    assert "\x1b" not in line
    assert "owner" not in line


def test_names_given_with_new_lines_are_still_one_line(tmp_path: Path) -> None:
    path = made.export(SMALL, tmp_path / "t.sqlite")
    assert "two windows are named a" in refused("report", "--window", f"a\nb={path}", "--window", f"a\nb={path}")
    assert "is not there" in refused("report", tmp_path / "no\nfile\x1b[31m.sqlite")


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


def test_a_packed_trace_with_a_wrong_byte(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps({"traceEvents": [event()] * 50}).encode()))
    packed[30] ^= 255
    (tmp_path / "t.json.gz").write_bytes(packed)
    assert "is damaged or ends in the middle" in refused("report", tmp_path / "t.json.gz")


def test_json_shows_what_acts_unseen_in_a_name_as_an_escape(tmp_path: Path) -> None:
    name = "a\x9b31m\u202eb\x1b]0;é"
    text = run("report", made.export(Rows(kernels=[Work(0, 1, name=name)]), tmp_path / "t.sqlite"), "--json").stdout
    assert not {"\x9b", "\u202e", "\x1b"} & set(text)
    assert "é" in text
    assert json.loads(text)["windows"][0]["top_kernels"][0]["name"] == name


def test_a_strip_of_times_beyond_doubles_adds_up(tmp_path: Path) -> None:
    base = (1 << 60) + 1
    path = made.export(Rows(kernels=[Work(base, base + 333), Work(base + 500, base + 1001)]), tmp_path / "t.sqlite")
    with source.opened(path, lambda text: None) as trace:
        found = timeline.timeline(trace, (base, base + 1001))
    assert sum(found["busy"]) == 333 + 501


@pytest.mark.parametrize("again", [False, True])
def test_a_trace_that_changes_while_it_is_read_is_refused(again: bool, tmp_path: Path) -> None:
    path = made.export(SMALL, tmp_path / "t.sqlite")
    with pytest.raises(RefusedError, match="was changed while it was read"), source.opened(path, lambda text: None):
        if again:
            path.unlink()
            made.export(SMALL, path)
        else:
            changed_rows = sqlite3.connect(path)
            changed_rows.execute(f"insert into {KERNEL} (start, end) values (50, 60)")
            changed_rows.commit()
            changed_rows.close()


def test_many_names_and_many_pauses_are_read_in_one_go(tmp_path: Path) -> None:
    rows = Rows(
        kernels=[Work(n * 20, n * 20 + 10) for n in range(300)],
        marks=[Mark(n * 2, n * 2 + 15, f"range {n}") for n in range(3000)],
    )
    began = time.monotonic()
    gaps = json.loads(run("report", made.export(rows, tmp_path / "t.sqlite"), "--json", "--top", "1000").stdout)
    assert time.monotonic() - began < 20
    for gap in gaps["windows"][0]["gaps"]:
        start, end = gap["at_ns"], gap["at_ns"] + gap["length_ns"]
        wanted = [(min(end, m.end or 0) - max(start, m.start), m.name) for m in rows.marks]
        longest = sorted((-ns, name) for ns, name in wanted if ns > 0)[:3]
        assert gap["ranges"] == [{"name": name, "ns": -ns} for ns, name in longest]


def report_of(tmp_path: Path) -> dict[str, Any]:
    return json.loads(run("report", made.export(SMALL, tmp_path / "t.sqlite"), "--json").stdout)


@pytest.mark.parametrize(
    "change",
    [
        {"windows": None},
        {"windows": "x"},
        {"windows": [{"name": "a"}]},
        {"gpu_busy_ratio": "abc"},
        {"gpu_busy_ratio": float("nan")},
        {"gpu_busy_ns": 10**400},
        {"nvtx": None},
        {"nvtx": [{"name": "x"}]},
        {"name": ["x"]},
    ],
)
def test_a_report_that_was_changed_by_hand_is_refused_in_words(change: dict[str, Any], tmp_path: Path) -> None:
    kept = report_of(tmp_path)
    if "windows" in change:
        kept |= change
    else:
        kept["windows"][0] |= change
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    line = refused("compare", tmp_path / "kept.json", tmp_path / "t.sqlite")
    assert line.endswith("kept.json: is a report, but not as this program writes it; make it again from its traces")


def test_two_windows_of_one_name_are_not_paired_with_one(tmp_path: Path) -> None:
    kept = report_of(tmp_path)
    kept["windows"] *= 2
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    assert "2 windows on one side, 1 on the other" in refused("compare", tmp_path / "kept.json", tmp_path / "t.sqlite")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert "is not a file" in refused("compare", tmp_path / "pipe.json", tmp_path / "pipe.json")
    assert "is not a file" in refused("verify-manifest", tmp_path / "pipe.json")


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "/etc/hostname"},
        {"name": "../a"},
        {"name": "a\0b"},
        {"sha256": None},
        {"size_bytes": "1"},
    ],
)
def test_a_manifest_with_hostile_entries_is_refused(entry: dict[str, Any], tmp_path: Path) -> None:
    files = [{"name": "a", "size_bytes": 1, "sha256": "0" * 64} | entry]
    (tmp_path / "manifest.json").write_text(json.dumps({"directory": str(tmp_path), "files": files}))
    assert "is not a manifest that can be read" in refused("verify-manifest", tmp_path)


def test_a_device_in_a_manifest_is_not_read_for_ever(tmp_path: Path) -> None:
    files = [{"name": "zero", "size_bytes": 1, "sha256": "0" * 64}]
    (tmp_path / "manifest.json").write_text(json.dumps({"directory": "/dev", "files": files}))
    result = run("verify-manifest", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "0 of 1 files as recorded\n")
    assert result.stderr.startswith("/dev/zero: is not a file; ")


def test_what_a_manifest_does_not_know_is_not_counted_against_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    files = [
        {"name": "a", "size_bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    ]
    document = {"directory": str(tmp_path), "files": files, "traces": {"files": {"unknown": "PermissionError"}}}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    result = run("verify-manifest", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "1 of 1 files as recorded\n")


def test_a_copy_that_cannot_be_made_leaves_no_directories(tmp_path: Path) -> None:
    path = made.export(SMALL, tmp_path / "t.sqlite")
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(path.read_bytes()[:5000])
    assert "ends in the middle" in refused("scrub", cut, tmp_path / "new/deep/t.sqlite")
    torch(tmp_path / "t.json", event(ts="x"))
    assert "whose time" in refused("scrub", tmp_path / "t.json", tmp_path / "new/deep/t.json")
    assert not (tmp_path / "new").exists()
    assert "cannot be written (" in refused("scrub", path, path / "t.sqlite")


def test_a_link_that_leads_nowhere_is_not_replaced(tmp_path: Path) -> None:
    path = made.export(SMALL, tmp_path / "t.sqlite")
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "nowhere")
    assert "is there already" in refused("scrub", path, tmp_path / "link.sqlite")
    assert (tmp_path / "link.sqlite").is_symlink()


def test_a_file_that_came_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made.export(SMALL, tmp_path / "t.sqlite")
    monkeypatch.setattr(os, "fsync", lambda handle: (tmp_path / "out.sqlite").write_text("another's"))
    assert "is there already" in refused("scrub", path, tmp_path / "out.sqlite")
    assert (tmp_path / "out.sqlite").read_text() == "another's"


def test_a_picture_is_not_written_over_its_trace(tmp_path: Path) -> None:
    path = made.export(SMALL, tmp_path / "t.sqlite")
    before = path.read_bytes()
    assert "a trace itself" in refused("plot", path, "--out", path)
    assert path.read_bytes() == before
    assert "is a directory" in refused("plot", path, "--out", tmp_path)
    assert "cannot be written (" in refused("plot", path, "--out", path / "t.svg")


def test_a_program_that_is_ended_takes_away_what_it_unpacked(tmp_path: Path) -> None:
    """In a process of its own; it is ended as soon as its directory is there."""
    room = tmp_path / "tmp"
    room.mkdir()
    with gzip.open(tmp_path / "t.sqlite.gz", "wb", 1) as file:
        file.write(gzip.decompress((TRACES / "vllm-graph-short.sqlite.gz").read_bytes()))
        for _ in range(600):
            file.write(bytes(1 << 20))
    argv = [sys.executable, "-m", "gb10", "profile", "report", str(tmp_path / "t.sqlite.gz")]
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(room)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while not list(room.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (130, ""), err
        assert err.splitlines()[-1].startswith(f"{number.name}: ended")
        assert list(room.iterdir()) == []
