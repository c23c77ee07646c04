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
    """Print the table of starting states: how long the way back took, and where the node was in the end."""
    reports = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])]
    rows = [value for report in reports for name, value in report.user_properties if name == "starting state"]
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    terminalreporter.section("starting states: first restore, second restore, where the node was")
    for row in sorted(rows):
        terminalreporter.write_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    lost = sum(row[3] != ON_BASELINE for row in rows)
    terminalreporter.write_line(f"{len(rows)} starting states, {lost} not on the baseline")
