"""`gb10 profile` as a person runs it, and the one line of its refusals. Used by the tests of this directory."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from gb10.cli import main
from tests.conftest import ROOT

TRACES = ROOT / "tests/data/traces"


def run(*arguments: str | Path, code: int = 0) -> Result:
    """A command that ends with this code."""
    result = CliRunner().invoke(main, ["profile", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def refused(*arguments: str | Path) -> str:
    """The one line of a refusal: where, what and what to do, and nothing on stdout."""
    result = run(*arguments, code=2)
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("  ")]
    assert len(lines) == 1, result.stderr
    assert lines[0].count("; ") >= 1
    assert "--verbose" not in lines[0], "a refusal in words, not a defect"
    return lines[0]
