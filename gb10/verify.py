"""Runs checks/ (Testinfra under pytest) and sorts the outcomes. Called by the command line and at the end of every deploy and try."""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gb10 import files, remote
from gb10.context import Context
from gb10.errors import RefusedError
from gb10.rendering import REPOSITORY
from gb10.state import State

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
        if not any(result.group == "baseline" and result.outcome == "passed" for result in self.results):
            return ["no check of the baseline could be answered"]
        return [result.finding for result in self.failed("baseline")]

    def as_json(self) -> dict[str, Any]:
        return {
            "duration_s": round(self.duration_s, 2),
            "broken": self.broken,
            "results": [asdict(r) for r in self.results],
        }

    def as_junit(self) -> bytes:
        """JUnit XML: a group is a class name; unknown and acknowledged are skipped, with the reason."""
        count = {"tests": len(self.results), "failures": self.count("failed"), "errors": int(bool(self.broken))}
        suite = ElementTree.Element("testsuite", name="gb10 verify", **{k: str(v) for k, v in count.items()})
        suite.set("skipped", str(self.count("unknown") + self.count("acknowledged")))
        suite.set("time", f"{self.duration_s:.3f}")
        for result in self.results:
            case = ElementTree.SubElement(suite, "testcase", classname=result.group, name=result.sentence)
            if result.outcome == "failed":
                ElementTree.SubElement(case, "failure", message=_printable(result.message))
            elif result.outcome != "passed":
                ElementTree.SubElement(case, "skipped", message=_printable(f"{result.outcome}: {result.message}"))
        if self.broken:
            ElementTree.SubElement(suite, "system-err").text = _printable(self.broken)
        return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True) + b"\n"


class _Collector:
    """A pytest plugin that turns reports into results."""

    def __init__(self, acknowledged: set[str]) -> None:
        self.report = Report()
        self._acknowledged = acknowledged
        self.collected = 0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        outcome = yield
        report = outcome.get_result()
        if report.when == "teardown" or (report.when == "setup" and report.outcome == "passed"):
            return
        value = call.excinfo.value if call.excinfo else None
        state = {"skipped": "unknown"}.get(report.outcome, report.outcome)
        result = Result(_sentence(item), _group(item), state, _message(value))
        if state == "failed" and result.group != "baseline" and result.finding in self._acknowledged:
            result = replace(result, outcome="acknowledged")
        self.report.results.append(result)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = len(session.items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.report.broken = str(report.longrepr)

    def pytest_internalerror(self, excrepr: Any) -> None:
        self.report.broken = str(excrepr)


def run(context: Context, directory: Path | None = None) -> Report:
    """Run every check against the node that this process is on. `directory` gets checks.json and checks.xml (JUnit)."""
    _ = context.project  # without Compose or the docker command nothing can be read
    context.node.version()  # an engine that does not answer is "could not be read", not a row of red checks
    return _run(context, context.state, [], str(context.state.directory), directory)


def run_on(
    context: Context,
    url: str,
    *,
    state_root: Path | None = None,
    ssh_config: Path | None = None,
    directory: Path | None = None,
) -> Report:
    """Run every check against the node behind `url` (ssh://user@host), over one shared connection.

    The site's files are those of this clone; stored baseline, history and acknowledgements are the node's.
    """
    _ = context.project
    with remote.connected(url, context.site.project, state_root, ssh_config) as there:
        state = State(there.state_root, context.site.project)
        return _run(context, state, [f"--hosts={there.hosts}"], there.state_on_node, directory)


def _run(context: Context, state: State, words: list[str], state_on_node: str, directory: Path | None) -> Report:
    try:
        collector = _Collector(state.acknowledged())
    except RefusedError as error:
        collector = _Collector(set())
        collector.report.results.append(Result("the acknowledgements can be read", "history", "unknown", str(error)))
    before, began = len(collector.report.results), time.monotonic()
    words = [
        str(REPOSITORY / "checks"),
        *("-c", str(REPOSITORY / "checks/pytest.ini")),
        *("-p", "no:cacheprovider", "-p", "no:terminal"),
        f"--site={context.site.directory}",
        f"--state={state.directory.parent}",
        f"--state-on-node={state_on_node}",
        *words,
    ]
    said = io.StringIO()
    quiet = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
    with context.signals.deferred("running the checks"), quiet[0], quiet[1], _no_options_of_the_shell():
        code = int(pytest.main(words, plugins=[collector]))
    report = collector.report
    report.duration_s = time.monotonic() - began
    ran = len(report.results) - before
    if ran and not report.broken and (code not in (0, 1) or ran != collector.collected):
        report.broken = f"{ran} of {collector.collected} checks ended, and pytest with exit code {code}"
    if not ran and not report.broken:
        report.broken = f"no check ran: {(said.getvalue().strip().splitlines() or ['pytest gave no reason'])[-1]}"
    if directory:
        try:
            files.write_json(directory / "checks.json", report.as_json())
            files.write(directory / "checks.xml", report.as_junit())
        except OSError as error:
            context.progress.note(f"{directory}: the report could not be written ({error.strerror})")
    return report


def _printable(text: str) -> str:
    """Without what XML 1.0 cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


@contextlib.contextmanager
def _no_options_of_the_shell() -> Iterator[None]:
    """Which checks run is not for a variable of the shell to decide."""
    kept = {name: os.environ.pop(name) for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS") if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _message(value: BaseException | None) -> str:
    """A check's own words; of any other error only the kind: its text may hold an environment (docker inspect)."""
    if value is None:
        return ""
    if type(value).__name__ == "CheckFailed" or isinstance(value, pytest.skip.Exception):
        lines = str(getattr(value, "msg", None) or value).strip().splitlines()
        return lines[0] if lines else ""
    return f"the check itself could not be run ({type(value).__name__}); run it again, then: make doctor"


def _sentence(item: pytest.Item) -> str:
    """The check's name as words; a parameter takes the place of its name."""
    words = item.name.partition("[")[0].removeprefix("test_").split("_")
    values = getattr(getattr(item, "callspec", None), "params", {})
    return " ".join(str(values.get(word, word)) for word in words)


def _group(item: pytest.Item) -> str:
    for group in GROUPS:
        if item.get_closest_marker(group):
            return group
    return "baseline"
