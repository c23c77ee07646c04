"""What the report says, in words: each verdict, what is unknown, what is hostile; the same in HTML and in Markdown."""

from __future__ import annotations

import copy
import math
import re
from html.parser import HTMLParser

import pytest

from gb10 import report
from gb10.report.axes import jitter, ticks
from gb10.report.page import page
from gb10.report.words import figure, markdown_code, markdown_text, say, visible
from tests.report.samples import GIB, HOSTILE, SAMPLES, adopt, everything_unknown, one_arm, reject


class Text(HTMLParser):
    """The words of a page, and the names of its elements."""

    def __init__(self, page: str):
        super().__init__()
        self.words, self.names, self.open = "", [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += f"{data} "


def both(name: str) -> list[str]:
    """The words of the HTML and of the Markdown, with single spaces."""
    sample = SAMPLES[name]()
    return [" ".join(text.split()) for text in (Text(report.html(*sample)).words, report.markdown(*sample))]


SAID = {
    "adopt": [
        "Adopt",
        "every rule holds",
        "1.045, interval 1.044 to 1.046, 12 pairs",
        "45 right of 45",
        "Small sample",
    ],
    "keep_baseline": ["Keep the baseline", "does not hold", "applied, not effective", "every hit is a multiple"],
    "reject": [
        "Reject",
        "2 wrong",
        "1 not judged",
        "1 of 45",
        "stalled",
        "no byte for 30 s",
        "expected 42, found none",
    ],
    "partial": ["No verdict", "the run is partial", "no: interrupted in round 2 of the experiment"],
    "one_arm": ["No verdict", "one arm only", "No rule was judged", "45 right of 45", "no ratio"],
    "everything_unknown": ["No verdict", "unknown (none of 1 judged)", "unknown (no memory sample is recorded)"],
    "hundred_cases": ["Adopt", "case 099"],
    "profiled": [
        "Window traced-short",
        "83.246 ms",
        "82.36%",
        "29.00 a step",
        "neither SM nor bandwidth utilisation",
        "Padding: 25.00% of the dispatched tokens",
    ],
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_it_says_what_happened(name: str) -> None:
    for text in both(name):
        for words in SAID[name]:
            assert words in text, words


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_sections_come_in_their_order(name: str) -> None:
    titles = [
        "Limits",
        "Answers",
        "Truncated and failed",
        "Cases",
        "First token",
        "Decode speed",
        "Memory",
        "Prefix hits",
    ]
    titles += [*(["Profile"] if name == "profiled" else []), "Events", "Environment", "Records"]
    sample = SAMPLES[name]()
    assert re.findall(r"<h2>(.*?)</h2>", report.html(*sample)) == titles
    assert [title.partition(",")[0] for title in re.findall(r"^## (.*)$", report.markdown(*sample), re.M)] == titles


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_page_needs_nothing_but_itself(name: str) -> None:
    page = report.html(*SAMPLES[name]())
    assert not re.search(r"<(script|img|iframe|object|embed|form|base)\b", page)
    assert not re.search(r"@import|url\(|src=", page.split("</style>")[0])
    assert re.findall(r"<link [^>]*>", page) == ['<link rel="icon" href="data:,">']
    assert set(re.findall(r'href="([^"]*)"', page)) <= {"data:,", "./requests.jsonl"}
    assert '<html lang="en">' in page
    page.encode("utf-8")


def test_the_same_run_gives_the_same_bytes() -> None:
    assert report.html(*reject()) == report.html(*reject())
    assert report.markdown(*reject()) == report.markdown(*reject())


def test_every_text_of_a_run_may_be_hostile() -> None:
    run, records, comparison = adopt()
    attack = '"><script>x</script>\u202e\x00\ud800|`**[a](http://e.invalid)\n# h'

    def poison(value: object) -> object:
        if isinstance(value, str):
            return value if value in {"baseline", "experiment", "timed", "adopt"} else value + attack
        if isinstance(value, list):
            return [poison(one) for one in value]
        return {key: poison(one) for key, one in value.items()} if isinstance(value, dict) else value

    sample = [poison(run), [poison(one) for one in records], poison(comparison)]
    page, text = report.html(*sample), report.markdown(*sample)
    assert "script" not in Text(page).names
    for one in (page, text):
        assert not {"\u202e", "\x00", "\ud800"} & set(one)
    outside = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert "<" not in outside
    assert "http://" not in outside
    assert not re.search(r"^# h", text, re.M)
    tables = [line for line in text.splitlines() if line.startswith("| short")]
    assert {line.count("|") for line in tables} == {8, 6}


def test_a_wrong_answer_is_listed_with_all_that_is_needed_to_judge_it() -> None:
    run, records, comparison = reject()
    page = Text(report.html(run, records, comparison)).words
    line = next(number for number, one in enumerate(records, 1) if one["answer"] == HOSTILE)
    assert f"line {line}" in page
    assert records[line - 1]["input_sha256"] in page
    assert "number: 42" in page
    assert "⟨U+202E⟩evil⟨U+2066⟩ ⟨U+0000⟩ ⟨U+D800⟩" in page
    assert "<script>document.title='taken'</script>" in page
    assert "more characters are in the record" in page


def test_unknown_is_never_a_zero_or_a_blank() -> None:
    page = report.html(*everything_unknown())
    assert not re.search(r"<(td|dd|th)[^>]*>\s*</\1>", page)
    assert not re.search(r"\| +\|", report.markdown(*everything_unknown()))
    assert "median 0" not in page
    assert Text(page).words.count("unknown (not recorded)") > 15


def test_lists_that_could_not_be_read_are_unknown_with_their_reason() -> None:
    run, records, _ = one_arm()
    run |= {"events": {"unknown": "the file is torn"}, "memory": {"unknown": "no /proc here"}}
    for text in (report.html(run, records, None), report.markdown(run, records, None)):
        assert "unknown (the file is torn)" in text
        assert "unknown (no /proc here)" in text


def test_a_reason_recorded_is_shown() -> None:
    run, records, _ = one_arm()
    run["arms"]["baseline"]["block_size"] = {"unknown": "the log does not say"}
    records[1] |= {"ttft_s": None, "unknown": {"ttft_s": "several tokens in the first chunk"}}
    for text in (report.html(run, records, None), report.markdown(run, records, None)):
        assert "unknown (the log does not say)" in text
        assert "1 unknown (several tokens in the first chunk)" in text


def test_what_is_no_number_is_not_drawn() -> None:
    run, records, _ = one_arm()
    for record, value in zip(records[1:5], (math.nan, math.inf, "fast", 10**400), strict=True):
        record["decode_tokens_per_s"] = value
    page = report.html(run, records, None)
    assert "4 unknown (not a finite number)" in page
    assert "nan" not in "".join(re.findall(r"<svg.*?</svg>", page, re.S))


def test_warm_up_is_in_no_number() -> None:
    run, records, _ = one_arm()
    records[0] |= {"ttft_s": 999.0, "right": False}
    page = Text(report.html(run, records, None)).words
    assert "999" not in page
    assert "45 right of 45" in page
    assert "warm-up, in no number" in page


def test_hits_that_are_no_multiple_of_a_block_are_named() -> None:
    run, records, comparison = adopt()
    next(one for one in records if one["hit_tokens"])["hit_tokens"] = 6401
    assert "not a multiple of the block size, 1600 tokens: 6401" in report.markdown(run, records, comparison)
    cold = [one | {"hit_tokens": 0} for one in records]
    assert "prefix reuse was not exercised" in report.markdown(run, cold, comparison)


def test_requests_sent_together_have_one_count_of_hits() -> None:
    page = report.html(*one_arm())
    picture = re.search(r"Prefix hits, 4 concurrent \(4 at once\)</title>.*?</svg>", page, re.S)
    assert picture
    assert "n 3" in picture[0]


def test_records_of_another_run_are_said_to_be_elsewhere() -> None:
    run, records, comparison = adopt()
    comparison["a"] |= {"requests_sha256": "e" * 64, "source": "evidence/earlier"}
    page = Text(report.html(run, [one for one in records if one["arm"] == "experiment"], comparison)).words
    assert "baseline: its records are in evidence/earlier, not in this run" in page
    assert "e" * 64 in page


def test_a_link_stays_beside_the_report() -> None:
    run, records, _ = one_arm()
    run["requests"]["file"] = "javascript:alert(1)"
    assert 'href="./javascript%3Aalert%281%29"' in report.html(run, records, None)


def test_an_unknown_memory_sample_breaks_the_line() -> None:
    run, records, comparison = adopt()
    run["memory"][40]["available_bytes"] = None
    page = report.html(run, records, comparison)
    assert page.count('<path class="memory"') == 4  # two pieces, in two widths
    assert "271 samples, 1 unknown" in page


def test_every_picture_has_a_name_and_a_description() -> None:
    for picture in re.findall(r"<svg.*?</svg>", report.html(*adopt()), re.S):
        assert re.match(
            r'<svg [^>]*role="img"[^>]*><title id=[^>]*>[^<]+</title><desc id=[^>]*>[^<]+</desc>|<svg ', picture
        )
        names = re.search(r'aria-labelledby="(\S+)" aria-describedby="(\S+)"', picture)
        assert names
        assert all(f'id="{name}"' in picture for name in names.groups())


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        (0, [0, 1]),
        (0.278, [0, 0.1, 0.2, 0.3]),
        (31.4, [0, 10, 20, 30, 40]),
        (15.4, [0, 5, 10, 15, 20]),
        (100, [0, 20, 40, 60, 80, 100]),
    ],
)
def test_ticks_are_round(top: float, expected: list[float]) -> None:
    assert ticks(top) == pytest.approx(expected)


def test_dots_are_spread_and_always_the_same() -> None:
    places = [jitter(index) for index in range(12)]
    assert places == [jitter(index) for index in range(12)]
    assert min(places) >= -0.5
    assert max(places) < 0.5
    assert min(abs(a - b) for a in places for b in places if a is not b) > 0.03


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (30.032, "30.03"),
        (0.2784, "0.2784"),
        (15.416, "15.42"),
        (24000, "24000"),
        (0.0, "0"),
        (1e300, "1.000e+300"),
        (math.nan, "unknown (not a finite number)"),
        (None, "unknown (not recorded)"),
        ({"unknown": "N/A"}, "unknown (N/A)"),
    ],
)
def test_numbers_as_words(value: object, words: str) -> None:
    assert figure(value) == words


def test_facts_as_words() -> None:
    assert say([]) == "none"
    assert say("") == "empty"
    assert say(True) == "yes"
    assert say("unknown") == "unknown (no reason recorded)"
    assert GIB == 2**30


def test_markdown_shows_text_as_itself() -> None:
    assert markdown_text("a|b <i> www.x http://y\n- z") == "a&#124;b &lt;i&gt; www&#46;x http:&#47;&#47;y ⏎ - z"
    assert markdown_text("1. x") == "1\\. x"
    assert markdown_text("30.03") == "30.03"
    assert markdown_code("a `` b") == "``` a `` b ```"
    assert visible("a\u200bb") == "a⟨U+200B⟩b"


def paths(value: object, limit: int = 2) -> list[tuple[object, ...]]:
    """Every place in a document, of lists only the first few."""
    if isinstance(value, dict):
        return [(key, *rest) for key, one in value.items() for rest in [(), *paths(one)]]
    if isinstance(value, list):
        return [(index, *rest) for index, one in enumerate(value[:limit]) for rest in [(), *paths(one)]]
    return []


@pytest.mark.parametrize("which", [0, 1, 2], ids=["run", "records", "comparison"])
def test_any_one_fact_may_be_missing_null_or_unknown(which: int) -> None:
    run, records, comparison = adopt()
    whole = [run | {"memory": run["memory"][:3]}, records[:20:5], comparison | {"cases": comparison["cases"][:1]}]
    for path in paths(whole[which]):
        if isinstance(path[-1], int):
            continue
        for change in ("gone", None, {"unknown": "N/A"}):
            sample = copy.deepcopy(whole)
            place = sample[which]
            for step in path[:-1]:
                place = place[step]
            if change == "gone":
                del place[path[-1]]
            else:
                place[path[-1]] = change
            try:
                page(*sample)  # what fails, fails here: the templates only lay texts out
                if change is None:
                    report.html(*sample)
            except Exception as error:
                pytest.fail(f"{path} {change}: {error!r}")
