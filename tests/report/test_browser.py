"""The report in headless Chromium: it loads in silence, fits a phone, can be read in light and dark, and prints in light."""

from __future__ import annotations

from pathlib import Path

import pytest

from gb10 import report
from tests.report.chromium import console, measure, printed
from tests.report.samples import SAMPLES

pytestmark = pytest.mark.browser

LIGHT_INK, DARK_INK = ".1059 .1176 .1255 rg", ".9098 .9137 .902 rg"
VIEWS = [(name, *view) for name in sorted(SAMPLES) for view in ((390, True), (1200, False))]
VIEWS += [("reject", 390, False), ("reject", 1200, True)]
VERDICTS = {
    "adopt": "Adopt",
    "keep_baseline": "Keep the baseline",
    "reject": "Reject",
    "partial": "No verdict",
    "one_arm": "No verdict",
    "profiled": "No verdict",
    "everything_unknown": "No verdict",
    "hundred_cases": "Adopt",
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_page_loads_without_a_word_on_the_console(name: str, tmp_path: Path) -> None:
    assert console(report.html(*SAMPLES[name]()), tmp_path) == []


def test_the_console_is_really_read(tmp_path: Path) -> None:
    page = report.html(*SAMPLES["one_arm"]())
    assert console(page.replace("</body>", "<script>1</script></body>"), tmp_path), "the page's policy refuses scripts"


@pytest.mark.parametrize(("name", "width", "dark"), VIEWS)
def test_it_shows_everything_and_fits(name: str, width: int, dark: bool, tmp_path: Path) -> None:
    found = measure(report.html(*SAMPLES[name]()), tmp_path, width, dark=dark)
    assert found["window"] == width
    assert found["page"] <= width, "the page scrolls sideways"
    assert found["worst"]["ratio"] >= 4.5, found["worst"]
    assert (found["paper"] == "rgb(255, 255, 255)") is not dark
    assert VERDICTS[name] in found["words"][0]
    assert found["unlabelled"] == 0
    assert found["outside"] == 0, "a plot's text runs out of its picture"
    plots = {section for section, wide, high in found["plots"] if wide > 200 and high > 80}
    drawn = {"ttft", "decode", "memory", "hits"} | ({"profile"} if name == "profiled" else set())
    assert plots == (set() if name == "everything_unknown" else drawn)
    assert all(wide > 200 and high > 80 for _, wide, high in found["plots"])


def test_a_hostile_answer_runs_nothing_and_stays_in_its_box(tmp_path: Path) -> None:
    found = measure(report.html(*SAMPLES["reject"]()), tmp_path, 390, dark=False)
    assert found["title"].startswith("Reject")
    assert sum(words.startswith("Wrong: ") for words in found["words"]) == 2


def test_it_prints_in_light_with_the_tables_that_are_folded_on_the_screen(tmp_path: Path) -> None:
    page = report.html(*SAMPLES["adopt"]())
    sheets, drawn = printed(page, tmp_path, dark=True)
    folded, _ = printed(page.replace("details::details-content", "details::nothing"), tmp_path, dark=True)
    assert 3 <= folded < sheets <= 20
    assert LIGHT_INK in drawn
    assert DARK_INK not in drawn
