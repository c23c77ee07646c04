"""The report of a run: one self-contained HTML file, and the same in Markdown. Pure; called by the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gb10.report.page import page
from gb10.report.words import markdown_block, markdown_code, markdown_text, visible

TEMPLATES = Path(__file__).parent / "templates"


Json = dict[str, Any]


def html(run: Json, records: list[Json], comparison: Json | None, adoption: Json | None = None) -> str:
    """run.json, the lines of requests.jsonl in their order, and comparison.json (None: nothing was compared) as one HTML file.

    `adoption`: `words` and `diff` of how to adopt it, where that is the verdict.
    """
    environment = _environment(lambda value: value if isinstance(value, Markup) else visible(_text(value)))
    environment.autoescape = True
    style = Markup((TEMPLATES / "style.css").read_text())
    return environment.get_template("report.html.j2").render(
        **page(run, records, comparison), adoption=adoption, style=style
    )


def markdown(run: Json, records: list[Json], comparison: Json | None, adoption: Json | None = None) -> str:
    """The same in Markdown: tables in the place of plots, for git."""
    environment = _environment(lambda value: str(value) if isinstance(value, Markup) else markdown_text(_text(value)))
    environment.filters |= {"code": markdown_code, "block": markdown_block, "done": Markup}
    text = environment.get_template("report.md.j2").render(**page(run, records, comparison), adoption=adoption)
    return re.sub(r"\n{3,}", "\n\n", text)


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
