"""Files that change, never end, or lie: traces, kept reports and manifests. One line, and nothing left behind or overwritten."""

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

from gb10.errors import RefusedError
from gb10.profile import source, timeline
from tests.conftest import ROOT
from tests.profile import made
from tests.profile.made import KERNEL, Mark, Rows, Work
from tests.profile.odd import SMALL, event, torch
from tests.profile.running import TRACES, refused, run


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
    result = run("verify-manifest", tmp_path, code=1)
    assert result.stdout == "0 of 1 files as recorded\n"
    assert result.stderr.startswith("/dev/zero: is not a file; ")


def test_what_a_manifest_does_not_know_is_not_counted_against_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    files = [
        {"name": "a", "size_bytes": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    ]
    document = {"directory": str(tmp_path), "files": files, "traces": {"files": {"unknown": "PermissionError"}}}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    result = run("verify-manifest", tmp_path, code=1)
    assert result.stdout == "1 of 1 files as recorded\n"


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
