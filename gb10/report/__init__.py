"""The report of a run: one self-contained HTML file, and the same in Markdown. Pure; called by the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gb10.report import profile as sections
from gb10.report.page import page
from gb10.report.words import markdown_block, markdown_cell, markdown_code, markdown_text, visible

Json = dict[str, Any]
TEMPLATES = Path(__file__).parent / "templates"


def html(
    run: Json,
    records: list[Json],
    comparison: Json | None,
    adoption: Json | None = None,
    profile: Json | None = None,
) -> str:
    """run.json, the lines of requests.jsonl in their order, comparison.json and profile.json (None: not made) as one HTML file.

    `adoption`: `words` and `diff` of how to adopt it, where that is the verdict.
    """
    environment = _environment(lambda value: value if isinstance(value, Markup) else visible(_text(value)))
    environment.autoescape = True
    style = Markup((TEMPLATES / "style.css").read_text())
    content = _content(run, records, comparison, adoption, profile)
    return environment.get_template("report.html.j2").render(**content, style=style)


def markdown(
    run: Json,
    records: list[Json],
    comparison: Json | None,
    adoption: Json | None = None,
    profile: Json | None = None,
) -> str:
    """The same in Markdown: tables in the place of plots, for git."""
    return _markdown("report.md.j2", _content(run, records, comparison, adoption, profile))


def _content(
    run: Json, records: list[Json], comparison: Json | None, adoption: Json | None, profile: Json | None
) -> Json:
    profiled = sections.profile(profile) if profile else None
    return page(run, records, comparison) | {"adoption": adoption, "profile": profiled}


def profile_markdown(report: Json) -> str:
    """The report of a profile, or of two side by side, in Markdown (docs/profile.md)."""
    if report["kind"] == "profile":
        return _markdown("profile.md.j2", {"profile": sections.profile(report), "comparison": None})
    return _markdown("profile.md.j2", {"profile": None, "comparison": sections.compared(report)})


def profile_picture(report: Json) -> str:
    """The timelines of a profile's windows as one SVG file."""
    return str(sections.picture(report)) + "\n"


def _markdown(template: str, context: Json) -> str:
    environment = _environment(lambda value: str(value) if isinstance(value, Markup) else markdown_text(_text(value)))
    environment.filters |= {"code": markdown_code, "cell": markdown_cell, "block": markdown_block, "done": Markup}
    text = environment.get_template(template).render(**context)
    return re.sub(r"\n{3,}", "\n\n", text).lstrip("\n")


def _environment(finalize: Any) -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=finalize,
    )


def _text(value: Any) -> Any:
    """What a template prints must be a value: None would be a blank in the report."""
    if value is None:
        raise TypeError("a template printed None")
    return value
