"""Rules on the profiler, its marks and its suite, as far as vars.yaml and the suite's file show them. Called by crosscheck.py.

That a mark's function is there is asked of the image: gb10/marks.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gb10.variables.finding import Finding
from gb10.variables.model import Variables


def profiler_is_complete(v: Variables, site: Path) -> Iterator[Finding]:
    if v.profile.tool == "nsys":
        for key in ("nsys_dir", "graph_trace"):
            if getattr(v.profile, key) is None:
                yield Finding(("profile", key), "is empty although profile.tool is nsys", "fill it in")
    else:
        for key in ("nsys_dir", "graph_trace"):
            if getattr(v.profile, key) is not None:
                yield Finding(("profile", key), "is set although profile.tool is torch", "make it null")


def marks_are_told_apart(v: Variables, site: Path) -> Iterator[Finding]:
    """One mark a function and one function a mark: else two ranges of the trace could not be told apart."""
    marks = v.profile.marks
    for index, mark in enumerate(marks):
        if mark.name in [other.name for other in marks[:index]]:
            yield Finding(
                ("profile", "marks", index, "name"), f"{mark.name} is used twice", "name each mark differently"
            )
        if mark.function in [other.function for other in marks[:index]]:
            yield Finding(("profile", "marks", index, "function"), f"{mark.function} is marked twice", "mark it once")
        for key, path in mark.show.items():
            if path == "arguments":
                yield Finding(
                    ("profile", "marks", index, "show", key), "names no argument", "write it as arguments.NAME"
                )


def traced_suite_fits(v: Variables, site: Path) -> Iterator[Finding]:
    """nsys ends with its last window (`--capture-range-end=repeat:N`): a window too few is lost, one too many is waited for."""
    name = v.measure.profile
    traced = None if name is None else _traced(site / "suites" / f"{name}.yaml")
    if traced == 0:
        yield Finding(
            ("measure", "profile"),
            f"{name} has no traced case, so nothing would be recorded",
            "add traced: true to a case",
        )
    elif traced is not None and v.profile.tool == "nsys" and traced != v.profile.windows:
        yield Finding(
            ("profile", "windows"),
            f"{v.profile.windows} is not the number of traced requests of suites/{name}.yaml, {traced}",
            f"write {traced}, or name another suite in measure.profile",
        )
    if name is None:
        if v.profile.tool == "nsys" and v.profile.windows != 1:
            what = f"{v.profile.windows} is not 1, the window around a canary (measure.profile is null)"
            yield Finding(("profile", "windows"), what, "write 1, or name a suite in measure.profile")
        return
    for index, experiment in enumerate(v.measure.experiments):
        if "profile" in v.experiments.get(experiment, []):
            yield Finding(
                ("measure", "experiments", index),
                f"{experiment} has the profile overlay: it is measured with measure.profile, and without a baseline arm",
                "leave it out, or make measure.profile null",
            )


def _traced(path: Path) -> int | None:
    """How many requests of a suite are traced; None for a file that is not there or not a suite (told elsewhere)."""
    try:
        cases: Any = yaml.safe_load(path.read_bytes())["cases"]
        return sum(int(case.get("repeat", 1)) for case in cases if case.get("traced") is True)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError):
        return None
