"""Runs checks/ (Testinfra under pytest) and sorts the outcomes. Called by the command line and at the end of every deploy and try."""

from __future__ import annotations

import contextlib
import io
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from gb10.context import Context
from gb10.errors import RefusedError
from gb10.rendering import REPOSITORY

GROUPS = {
    "baseline": "on the baseline",
    "history": "history of this host",
    "repository": "repository",
}


@dataclass(frozen=True)
class Result:
    """One check: its sentence, its group, `passed`, `failed`, `unknown` or `acknowledged`, and what was found."""

    sentence: str
    group: str
    outcome: str
    message: str

    @property
    def finding(self) -> str:
        """The words by which a person acknowledges it."""
        return f"{self.sentence}: {self.message}"


@dataclass
class Report:
    """All results of one run."""

    results: list[Result] = field(default_factory=list)
    duration_s: float = 0.0
    broken: str = ""

    def failed(self, group: str | None = None) -> list[Result]:
        """The red ones, of one group or of all."""
        return [r for r in self.results if r.outcome == "failed" and group in (None, r.group)]

    def count(self, outcome: str) -> int:
        return sum(r.outcome == outcome for r in self.results)

    @property
    def off_baseline(self) -> list[str]:
        """Why this report does not prove that the node is on its baseline; empty when it does."""
        if self.broken:
            return [f"the checks could not be run ({self.broken.strip().splitlines()[-1]})"]
        return [result.finding for result in self.failed("baseline")]

    def as_json(self) -> dict[str, Any]:
        return {
            "duration_s": round(self.duration_s, 2),
            "broken": self.broken,
            "results": [asdict(r) for r in self.results],
        }


class _Collector:
    """A pytest plugin that turns reports into results."""

    def __init__(self) -> None:
        self.report = Report()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        outcome = yield
        report = outcome.get_result()
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            value = call.excinfo.value if call.excinfo else None
            message = str(getattr(value, "msg", None) or value or "").strip()
            state = {"skipped": "unknown"}.get(report.outcome, report.outcome)
            name = item.name.split("[")[0].removeprefix("test_").replace("_", " ")
            self.report.results.append(Result(name, _group(item), state, message))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.report.broken = str(report.longrepr)

    def pytest_internalerror(self, excrepr: Any) -> None:
        self.report.broken = str(excrepr)


def run(context: Context) -> Report:
    """Run every check against the node that this process is on."""
    _ = context.project  # without Compose or the docker command nothing can be read
    context.node.version()  # an engine that does not answer is "could not be read", not a row of red checks
    collector = _Collector()
    began = time.monotonic()
    words = [
        str(REPOSITORY / "checks"),
        "-c",
        str(REPOSITORY / "checks/pytest.ini"),
        "-p",
        "no:cacheprovider",
        "-p",
        "no:terminal",
        f"--site={context.site.directory}",
        f"--state={context.state.directory.parent}",
    ]
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with context.signals.deferred("running the checks"), quiet[0], quiet[1]:
        pytest.main(words, plugins=[collector])
    report = collector.report
    try:
        seen = context.state.acknowledged()
    except RefusedError as error:
        seen = set()
        report.results.append(Result("the acknowledgements can be read", "history", "unknown", str(error)))
    report.results = [
        replace(r, outcome="acknowledged")
        if r.outcome == "failed" and r.group != "baseline" and r.finding in seen
        else r
        for r in report.results
    ]
    report.duration_s = time.monotonic() - began
    if not report.results and not report.broken:
        report.broken = "no check ran"
    return report


def _group(item: pytest.Item) -> str:
    for group in GROUPS:
        if item.get_closest_marker(group):
            return group
    return "baseline"
