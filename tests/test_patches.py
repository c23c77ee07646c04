"""patches.yaml and the program that applies it: each fixture states what comes out, or the exact lines of the refusal."""

from __future__ import annotations

import json
import py_compile
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gb10 import buildinput, patches
from gb10.errors import VariablesError
from gb10.files import sha256
from gb10.site import Site
from tests.conftest import ROOT
from tests.test_invalid_variables import expected_lines

APPLY = sorted((ROOT / "tests/data/patches/apply").glob("*.yaml"))
INVALID = sorted((ROOT / "tests/data/patches/invalid").glob("*.yaml"))
FOR_PEOPLE = {"why": "Because.", "link": "https://example.org/1", "fixed_by": []}


class Box:
    """A directory that stands for an image: packages in `root`, and where its manifest goes."""

    def __init__(self, directory: Path, files: dict[str, str]):
        self.directory, self.root, self.manifest = directory, directory / "root", directory / "manifest.json"
        self.write(files)

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def apply(self, entries: list[dict[str, Any]], **environment: str) -> subprocess.CompletedProcess[str]:
        """One image build's run of the program, with the entries read and turned into JSON as for a real one.

        With an environment the program looks for the package by itself, else it is told where.
        """
        source, build = self.directory / "patches.yaml", self.directory / "patches.json"
        source.write_text(json.dumps([{**FOR_PEOPLE, **entry} for entry in entries]))  # JSON is YAML too
        build.write_bytes(patches.for_build(source))
        command = [sys.executable, str(buildinput.PROGRAM), "--patches", str(build), "--manifest", str(self.manifest)]
        command += [] if environment else ["--root", str(self.root)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def contents(self) -> dict[str, bytes]:
        """All that an image would keep, by path."""
        paths = [*self.root.rglob("*"), self.manifest]
        return {str(path): path.read_bytes() for path in paths if path.is_file()}

    def hashes(self) -> dict[str, str]:
        return {path: sha256(data) for path, data in self.contents().items()}

    def read_manifest(self) -> dict[str, Any]:
        return dict(json.loads(self.manifest.read_text()))


@pytest.mark.parametrize("path", APPLY, ids=lambda path: path.stem)
def test_the_program_does_what_the_fixture_says(path: Path, tmp_path: Path) -> None:
    case = yaml.safe_load(path.read_text())
    box = Box(tmp_path, case["files"])
    found = box.hashes()
    if "base" in case:
        result = box.apply(case["base"])
        assert result.returncode == 0, result.stderr
    box.write(case.get("between", {}))
    before = box.contents()
    result = box.apply(case["entries"])
    if "faults" in case:
        assert result.returncode == 1
        assert result.stderr.splitlines() == [line.replace("{root}", str(box.root)) for line in case["faults"]]
        assert box.contents() == before, "a failed run changes nothing"
        return
    assert result.returncode == 0, result.stderr
    assert {name: (box.root / name).read_text() for name in case["after"]} == case["after"]
    manifest = box.read_manifest()
    outcomes = {e["id"]: [e["outcome"], e["seen_in"], e["count"]] for e in manifest["entries"]}
    assert outcomes == case["outcomes"]
    for file in manifest["files"]:
        assert file["sha256_before"] == found[file["path"]], "before is what the first image found"
        assert file["sha256_after"] == box.hashes()[file["path"]]
    texts = {entry["id"]: entry["entry"] for entry in manifest["entries"] if entry["outcome"] != "off"}
    assert patches.lacking(manifest, texts) == []
    assert patches.problems(manifest, box.hashes()) == []


def test_there_is_a_fixture_for_each_way_to_end() -> None:
    assert len(APPLY) >= 20
    assert len(INVALID) >= 15


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_an_invalid_file_is_refused_with_one_line_for_each_cause(path: Path) -> None:
    with pytest.raises(VariablesError) as refusal:
        patches.load(path)
    assert [str(fault) for fault in refusal.value.faults] == expected_lines(path)


ENTRY = {
    "id": "slot",
    "file": "pkg/core.py",
    "alternatives": [{"seen_in": "1.0", "find": "size = 1\n", "replace": "size = 2\n", "count": 1}],
}


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode), ids=lambda mode: mode.name)
def test_the_byte_code_that_runs_is_the_patched_one(mode: py_compile.PycInvalidationMode, tmp_path: Path) -> None:
    box = Box(tmp_path, {"pkg/__init__.py": "", "pkg/core.py": "size = 1\n"})
    for optimize in (0, 1):
        py_compile.compile(str(box.root / "pkg/core.py"), optimize=optimize, invalidation_mode=mode)
    assert box.apply([ENTRY]).returncode == 0
    for option in ([], ["-O"]):
        command = [sys.executable, *option, "-c", "import pkg.core; print(pkg.core.size)"]
        result = subprocess.run(command, cwd=box.root, capture_output=True, text=True, check=True)
        assert result.stdout == "2\n"


def test_the_package_is_found_and_not_imported(tmp_path: Path) -> None:
    box = Box(tmp_path, {"pkg/__init__.py": "raise SystemExit('imported')\n", "pkg/core.py": "size = 1\n"})
    box.write({"pkg-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: the-pkg\nVersion: 1.2\n"})
    box.write({"pkg-1.2.dist-info/RECORD": "pkg/core.py,,\n"})
    (box.root / "pkg/core.py").chmod(0o640)
    result = box.apply([ENTRY], PYTHONPATH=str(box.root))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "slot: applied (1.0)\n"
    assert (box.root / "pkg/core.py").stat().st_mode & 0o777 == 0o640
    assert box.read_manifest()["packages"] == {"the-pkg": "1.2"}


def test_a_package_that_is_not_installed_is_one_line(tmp_path: Path) -> None:
    box = Box(tmp_path, {"pkg/core.py": "size = 1\n"})
    result = box.apply([{**ENTRY, "file": "no_such_package/core.py"}], PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    expected = f"patches: slot: no_such_package/core.py: no package no_such_package is installed for {sys.executable}"
    assert result.stderr == expected + "\n"


def test_problems_are_sentences(tmp_path: Path) -> None:
    box = Box(tmp_path, {"pkg/core.py": "size = 1\n", "pkg/more.py": "n = 1\n"})
    off = {"id": "off", "enabled": False, "file": "pkg/core.py", "append": "n = 1\n"}
    assert box.apply([ENTRY, off, {"id": "more", "file": "pkg/more.py", "append": "n = 2\n"}]).returncode == 0
    manifest, core, more = box.read_manifest(), str(box.root / "pkg/core.py"), str(box.root / "pkg/more.py")
    assert patches.files_of(manifest) == [core, more]
    texts = {entry["id"]: entry["entry"] for entry in manifest["entries"]}
    assert patches.problems(manifest, box.hashes()) == []
    assert patches.lacking(manifest, {name: texts[name] for name in ("slot", "more")}) == []
    assert patches.lacking(manifest, {"slot": "another", "off": texts["off"], "graph2": "x"}) == [
        "its patch manifest lacks off, graph2",
        "its patch manifest shows another text of slot than patches.yaml",
    ]
    assert patches.problems(manifest, {core: sha256(b"size = 1\n")}) == [
        f"{core} does not have the bytes that the patch manifest says, its text before the patches",
        f"{more} is in the patch manifest and not in the container",
    ]
    assert patches.lacking(None, {"slot": "x"}) == ["its image has no patch manifest, which should show slot"]
    assert patches.lacking(None, {}) == []
    assert patches.lacking({**manifest, "schema": 2}, {}) == ["its patch manifest has schema 2, this version reads 1"]


def test_every_patches_file_of_the_repository_is_valid_and_the_cpu_has_the_gb10s() -> None:
    found = sorted((ROOT / "images").glob("*/patches.yaml"))
    assert [path.parent.name for path in found] == ["cpu", "eager", "graph"]
    entries = {path.parent.name: patches.load(path) for path in found}
    assert (ROOT / "images/cpu/patches.yaml").is_symlink()
    assert entries["cpu"] == entries["eager"]
    assert entries["graph"] == []
    enabled = [entry.id for entry in entries["eager"] if entry.enabled]
    assert enabled == ["mamba-worker-slot", "mamba-scheduler-split"]


def test_both_images_of_both_sites_are_expected_to_show_the_two_mamba_fixes(site: Site) -> None:
    for role in ("eager", "graph"):
        assert list(patches.expected(site.variables, role)) == ["mamba-worker-slot", "mamba-scheduler-split"]


def test_a_change_of_patches_or_program_is_another_build_and_a_comment_is_not(tmp_path: Path) -> None:
    directory = tmp_path / "image"
    directory.mkdir()
    text = "- {id: one, why: Because., link: 'https://example.org/1', file: pkg/a.py, append: x, fixed_by: []}\n"
    (directory / "Dockerfile").write_text("FROM scratch\n")
    without = buildinput.fingerprint(directory, "sha256:1")
    (directory / "patches.yaml").write_text(text)
    first = buildinput.fingerprint(directory, "sha256:1")
    (directory / "patches.yaml").write_text("# a comment\n" + text.replace("Because", "In other words"))
    assert buildinput.fingerprint(directory, "sha256:1") == first != without
    (directory / "patches.yaml").write_text(text.replace("append: x", "append: y"))
    assert buildinput.fingerprint(directory, "sha256:1") != first
    assert buildinput.fingerprint(directory, "sha256:2") != buildinput.fingerprint(directory, "sha256:1")
