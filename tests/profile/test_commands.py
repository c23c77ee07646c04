"""profile report, compare, plot and verify-manifest as a person meets them."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import click

from gb10 import report as reports
from gb10.profile import command
from tests.conftest import ROOT
from tests.profile.running import TRACES, run

EAGER, GRAPH = TRACES / "vllm-eager-short.sqlite.gz", TRACES / "vllm-graph-short.sqlite.gz"


def test_the_report_tells_the_story_of_a_window_in_words() -> None:
    text = run("report", "--window", f"short={GRAPH}").stdout
    assert "| short | 83.246 ms | 299.919 ms | 27.76% | 3.603x | 19757 | 16272 | 82.36% | 1392 |" in text
    assert "graph launches: 29.00 a step" in text
    assert "It is neither SM nor bandwidth utilisation." in text
    assert "a candidate that was not tried is not disproved by it" in text


def test_a_report_of_several_windows_ends_its_overview_with_the_total() -> None:
    rows = [line for line in run("report", EAGER, GRAPH).stdout.splitlines() if line.startswith("| in total")]
    assert len(rows) == 1
    assert "| 39514 | 16272 | 41.18% |" in rows[0]


def test_the_two_tables_of_a_comparison() -> None:
    text = run("compare", EAGER, GRAPH).stdout
    assert "| vllm-eager-short / vllm-graph-short | 7.11% | 27.76% | 0.00% | 82.36% | 0 | 29.00 |" in text
    assert "| union of GPU activity | 81.866 ms | 83.246 ms |" in text
    assert "| `execute_context_0(0)_generation_1(1)` | 1068.737 ms | 248.040 ms |" in text


def test_reports_that_were_kept_are_compared_like_the_traces_they_came_from(tmp_path: Path) -> None:
    for side, trace in (("eager", EAGER), ("graph", GRAPH)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "profile.json").write_text(run("report", "--window", f"short={trace}", "--json").stdout)
    kept = json.loads(run("compare", tmp_path / "eager", tmp_path / "graph", "--json").stdout)
    fresh = json.loads(run("compare", EAGER, GRAPH, "--json").stdout)
    assert kept["windows"][0]["name"] == "short"
    assert (
        kept["windows"][0]["gpu_busy_ratio"]
        == fresh["windows"][0]["gpu_busy_ratio"]
        == {"eager": 0.071054, "graph": 0.277562}
    )


def test_windows_of_two_sides_are_paired_by_name(tmp_path: Path) -> None:
    forward = run("report", "--window", f"a={EAGER}", "--window", f"b={GRAPH}", "--json").stdout
    backward = run("report", "--window", f"b={GRAPH}", "--window", f"a={EAGER}", "--json").stdout
    (tmp_path / "one.json").write_text(forward)
    (tmp_path / "two.json").write_text(backward)
    found = json.loads(run("compare", tmp_path / "one.json", tmp_path / "two.json", "--json").stdout)
    for window in found["windows"]:
        assert window["gpu_busy_ns"]["eager"] == window["gpu_busy_ns"]["graph"]


def test_sides_with_different_windows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text(run("report", EAGER, GRAPH, "--json").stdout)
    result = run("compare", EAGER, tmp_path / "two.json", code=2)
    assert result.stderr.startswith(
        "profile compare: 1 windows on one side, 2 on the other, and their names differ; compare"
    )


def test_a_report_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps({"schema": 0, "kind": "profile", "windows": []}))
    assert (
        "is a report of another version; make it again from its traces"
        in run("compare", tmp_path / "old.json", GRAPH, code=2).stderr
    )


def test_the_picture_has_a_strip_for_each_window_and_needs_nothing_else(tmp_path: Path) -> None:
    run("plot", "--window", f"eager={EAGER}", "--window", f"graph={GRAPH}", "--out", tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    root = ElementTree.fromstring(text)
    kinds = [element.get("class") for element in root.iter()]
    assert kinds.count("busy") == 2, "a lane of GPU activity for each window"
    assert kinds.count("graph") == 1, "only the graph window has kernels from graphs"
    assert kinds.count("gap") == 6
    assert not re.search(r"(href|src)=|url\(", text)


def test_names_in_a_trace_cannot_put_markup_into_a_report(tmp_path: Path) -> None:
    found = command.report(command.windows_of([GRAPH], []), lambda text: None, strips=True)
    hostile = "<script>alert(1)</script>|`x`"
    for row in (
        found["windows"][0]["nvtx"][0],
        found["windows"][0]["top_kernels"][0],
        found["windows"][0]["timeline"]["ranges"][0],
    ):
        row["name"] = hostile
    found["windows"][0]["diagnostics"][0]["text"] = hostile
    for text in (reports.profile_markdown(found), reports.profile_picture(found)):
        assert "<script" not in text


def manifest(directory: Path) -> Path:
    raw = directory / "raw"
    raw.mkdir()
    entries = []
    for name in ("window.1.sqlite", "window.2.sqlite"):
        (raw / name).write_bytes(name.encode() * 100)
        sha256 = hashlib.sha256((raw / name).read_bytes()).hexdigest()
        entries.append({"name": name, "size_bytes": (raw / name).stat().st_size, "sha256": sha256})
    (directory / "manifest.json").write_text(json.dumps({"kind": "manifest", "directory": str(raw), "files": entries}))
    return raw


def test_raw_files_as_recorded_are_green(tmp_path: Path) -> None:
    manifest(tmp_path)
    assert run("verify-manifest", tmp_path).stdout == "2 of 2 files as recorded\n"


def test_a_changed_and_a_missing_raw_file_are_named(tmp_path: Path) -> None:
    raw = manifest(tmp_path)
    (raw / "window.1.sqlite").write_bytes(b"another")
    (raw / "window.2.sqlite").unlink()
    result = run("verify-manifest", tmp_path / "manifest.json", code=1)
    assert result.stdout == "0 of 2 files as recorded\n"
    first, second = result.stderr.splitlines()
    assert first.startswith(f"{raw}/window.1.sqlite: is not what was recorded (7 bytes, SHA-256 ")
    assert second.startswith(f"{raw}/window.2.sqlite: cannot be read (No such file or directory); look for a copy")


def test_traces_of_an_experiment_are_checked_with_the_raw_files(tmp_path: Path) -> None:
    raw = manifest(tmp_path)
    document = json.loads((tmp_path / "manifest.json").read_text())
    document["traces"] = {"directory": str(raw), "files": [document["files"].pop()]}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    assert run("verify-manifest", tmp_path).stdout == "2 of 2 files as recorded\n"
    (raw / "window.2.sqlite").write_bytes(b"another")
    assert "window.2.sqlite: is not what was recorded" in run("verify-manifest", tmp_path, code=1).stderr


def test_a_manifest_that_does_not_know_its_files_is_not_green(tmp_path: Path) -> None:
    document = {"kind": "manifest", "directory": "/nowhere", "files": {"unknown": "PermissionError"}}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    assert (
        "does not know its files (PermissionError); the files were not listed"
        in run("verify-manifest", tmp_path, code=1).stderr
    )


def test_a_manifest_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "is not a manifest that can be read" in run("verify-manifest", tmp_path, code=2).stderr


def test_commands_about_the_node_do_not_need_the_packages_for_traces() -> None:
    code = "import sys, click; from gb10.cli import main; [main.get_command(click.Context(main), name) for name in main.list_commands(None)]; "
    code += "print(sorted({'numpy', 'pyarrow', 'adbc_driver_sqlite'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_without_the_packages_one_line_says_how_to_get_them(tmp_path: Path) -> None:
    """In a process whose packages are all of this environment's but numpy."""
    for entry in Path(click.__file__).parent.parent.iterdir():
        if not entry.name.startswith("numpy"):
            (tmp_path / entry.name).symlink_to(entry)
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]; from gb10.cli import main; "
    code += f"main(['profile', 'report', {str(GRAPH)!r}])"
    result = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(
        "profile: the packages for reading traces are not installed (numpy); run: make setup"
    )
