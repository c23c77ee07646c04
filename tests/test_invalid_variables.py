"""Every invalid variables file is refused with exactly the lines that its first comment expects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gb10.errors import VariablesError
from gb10.variables import load

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "tests/data/invalid").glob("*.yaml"))


def expected_lines(path: Path) -> list[str]:
    first = path.read_bytes().split(b"\n", 1)[0].decode()
    assert first.startswith("# expect: "), f"{path.name} does not say what it expects"
    return first.removeprefix("# expect: ").split(" || ")


def test_there_are_at_least_thirty_invalid_files() -> None:
    assert len(FILES) >= 30


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_file_is_refused_with_one_line_for_each_cause(path: Path) -> None:
    with pytest.raises(VariablesError) as refusal:
        load(path, ROOT)
    assert [str(fault) for fault in refusal.value.faults] == expected_lines(path)


def test_the_command_line_exits_2_with_the_same_lines_and_no_traceback() -> None:
    for name in ("several-causes", "yaml-tab", "not-utf-8", "empty-file"):
        path = ROOT / "tests/data/invalid" / f"{name}.yaml"
        command = [sys.executable, "render.py", "--vars", str(path), "--check"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert result.stderr.splitlines() == expected_lines(path)
        assert result.stdout == ""


def test_a_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(VariablesError) as refusal:
        load(ROOT / "tests/data/nowhere.yaml", ROOT)
    assert len(refusal.value.faults) == 1
    assert "cannot be read" in str(refusal.value)


def test_the_file_they_are_made_from_is_valid() -> None:
    assert load(ROOT / "tests/data/valid/compact.yaml", ROOT).warnings == []
