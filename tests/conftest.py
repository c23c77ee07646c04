"""What offline and end-to-end tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gb10 import overlays
from gb10.node import Node
from gb10.site import Site

ROOT = Path(__file__).resolve().parent.parent
ON_BASELINE = "on the baseline"
SITES = {"gb10": ROOT, "cpu": ROOT / "examples/cpu"}


@pytest.fixture(params=sorted(SITES))
def site(request: pytest.FixtureRequest) -> Site:
    """Both sites of the repository, one after the other."""
    return Site.load(SITES[request.param])


@pytest.fixture
def flatten(tmp_path: Path):
    """Real Compose, no engine: files to one document."""
    node = Node()
    project = overlays.project_for("contract", tmp_path)
    return lambda files: overlays.flatten(node, project, files)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print two tables: the starting states of a restore, and how each check was shown red."""
    states = _rows(terminalreporter, "starting state")
    _table(terminalreporter, "starting states: first restore, second restore, where the node was", states)
    if states:
        lost = sum(row[3] != ON_BASELINE for row in states)
        terminalreporter.write_line(f"{len(states)} starting states, {lost} not on the baseline")
    red = _rows(terminalreporter, "breakage")
    _table(terminalreporter, "checks shown red: check, how it was broken, its message, what else turned red", red)
    if red:
        terminalreporter.write_line(f"{len(red)} breakages of {len({row[0] for row in red})} checks")


def _rows(reporter: pytest.TerminalReporter, key: str) -> list[list[str]]:
    reports = [report for outcome in ("passed", "failed") for report in reporter.stats.get(outcome, [])]
    return sorted(value for report in reports for name, value in report.user_properties if name == key)


def _table(reporter: pytest.TerminalReporter, title: str, rows: list[list[str]]) -> None:
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    reporter.section(title)
    for row in rows:
        reporter.write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
