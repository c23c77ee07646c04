"""Every check is shown red by breaking what it guards on a real container, and no other check turns red along."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gb10.node import Node
from tests.e2e.breakages import HERE, Breakage
from tests.e2e.conftest import EngineImages, Sandbox, deployed
from tests.e2e.test_checks_alone import CHILD, HOST
from tests.e2e.test_checks_on_a_node import ROWS

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def box(node: Node, test_engine_images: EngineImages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One baseline for all rows; each puts it back."""
    box = Sandbox(tmp_path_factory.mktemp("checks"), "checks", node, test_engine=test_engine_images)
    with deployed(box):
        yield box


def red(checks: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {sentence: message for sentence, (outcome, message) in checks.items() if outcome == "failed"}


@pytest.mark.parametrize("row", HERE, ids=lambda row: row.how.replace(" ", "-"))
def test_a_check_turns_red_when_its_subject_is_broken(
    row: Breakage, box: Sandbox, request: pytest.FixtureRequest
) -> None:
    assert not red(box.checks()), "green before"
    with row.broken(box):
        found = red(box.checks())
    cells = [row.check, row.how, found.get(row.check, "NOT RED"), ", ".join(sorted(set(found) - {row.check}))]
    request.node.user_properties.append(("breakage", cells))
    assert row.check in found, found
    assert row.says in found[row.check]
    assert "; " in found[row.check], "a red check says what to do"
    assert set(found) - {row.check} <= row.also, found


def test_every_check_has_a_row_in_one_of_the_tables(box: Sandbox) -> None:
    rows = {row.check for row in HERE} | {row[0] for row in ROWS} | {CHILD, HOST}
    assert set(box.checks()) == rows


def test_no_variable_of_the_shell_decides_which_checks_run(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = set(box.checks())
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k a_completion_comes_back")
    assert set(box.checks()) == everything


def test_the_report_is_written_as_json_and_as_junit(box: Sandbox, tmp_path: Path) -> None:
    path = box.site / "compose.yaml"
    before = path.read_bytes()
    path.write_bytes(before + b"# an edit\n")
    assert box.gb10("verify", "--report", str(tmp_path)).code == 1
    path.write_bytes(before)
    document = json.loads((tmp_path / "checks.json").read_text())
    suite = ElementTree.parse(tmp_path / "checks.xml").getroot()
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert failed == {r["sentence"] for r in document["results"] if r["outcome"] == "failed"}
    assert len(suite) == len(document["results"]) == int(suite.get("tests", 0))
    unknown = {case.get("name") for case in suite if case.find("skipped") is not None}
    assert unknown == {r["sentence"] for r in document["results"] if r["outcome"] == "unknown"}
