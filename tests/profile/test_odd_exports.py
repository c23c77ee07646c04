"""Odd, damaged and hostile exports of Nsight Systems: one line, or the right number, or unknown; never a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gb10.profile import window
from gb10.profile.nsys import NsysTrace
from tests.profile import made
from tests.profile.made import KERNEL, Rows, Work
from tests.profile.odd import SMALL, changed, read, same_when_scrubbed
from tests.profile.running import refused, run


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
