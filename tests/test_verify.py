"""The checks' report: what of an error is shown, and that JUnit readers can read it."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gb10.verify import Report, Result, _message
from tests.conftest import ROOT

SECRET = "hf_planted_secret"


def test_the_text_of_an_unforeseen_error_is_not_shown() -> None:
    """Testinfra's own assertions quote the whole output of a command, such as docker inspect with its environment."""
    error = AssertionError(f"Unexpected exit code 1 for CommandResult(_stdout=b'HF_TOKEN={SECRET}')")
    assert SECRET not in _message(error)
    assert "AssertionError" in _message(error)


def test_a_checks_own_words_and_the_reason_of_an_unknown_fact_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "checks"))
    sys.modules.pop("conftest", None)
    from conftest import CheckFailed

    assert (
        _message(CheckFailed("expected one, found two; run: make restore"))
        == "expected one, found two; run: make restore"
    )
    assert _message(pytest.skip.Exception("systemd is not running here")) == "systemd is not running here"


def test_junit_survives_control_characters(tmp_path: Path) -> None:
    report = Report([Result("a sentence", "baseline", "failed", "red \x1b[31mtext\x00 of a program")])
    case = ElementTree.fromstring(report.as_junit())[0]
    assert case[0].get("message") == "red ?[31mtext? of a program"


def test_a_report_without_one_answer_about_the_baseline_does_not_prove_it() -> None:
    unknown = Result("the engine is running", "baseline", "unknown", "docker does not say")
    other = Result("enough disk is free", "history", "passed", "")
    assert Report([unknown, other]).off_baseline == ["no check of the baseline could be answered"]
    assert Report([unknown, other, Result("health answers", "baseline", "passed", "")]).off_baseline == []
