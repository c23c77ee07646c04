"""Marks before the engine starts: found in the source with near matches, rendered into the overlay, told from its log."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gb10 import marks, rendering, resolve_marks
from gb10.site import Site
from gb10.traces import Traces
from gb10.variables.model import Mark
from tests.conftest import ROOT

TABLE = """
raise AssertionError("looked into, never imported")
from __future__ import annotations
import asyncio
import functools
import numpy as np
from typing import TYPE_CHECKING
from numpy import unique
from .base import Reader, helper
from . import base
from engine import base as other
if TYPE_CHECKING:
    from numpy import sort
try:
    from _compiled import fast
except ImportError:
    def fast(ids): return ids
    def slow(ids): return ids
limit = 3
@triton.autotune(configs=[], key=[])
@triton.jit
def kernel(ids): return ids
class Table(Reader):
    size: int = 3
    def lookup(self, ids, *, chunk=4, **options):
        def inside(): yield 1
        return self.copy(np.unique(ids))
    async def fetch(self, ids): return ids
    def rows(self, ids): yield from ids
    @property
    def width(self): return 1
    @functools.cached_property
    def height(self): return 1
    if limit:
        def sometimes(self): return 1
class Odd(base.Reader, np.ndarray):
    pass
def gather(ids, out=None): return np.take(ids, out)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `engine` that must not be imported: each of its files raises when it is."""
    directory = tmp_path / "engine"
    (directory / "deep").mkdir(parents=True)
    stop = 'raise AssertionError("imported")\n'
    (directory / "__init__.py").write_text(stop)
    (directory / "deep/__init__.py").write_text(stop)
    (directory / "deep/placed.py").write_text("from ..table import gather\ndef here(): return 1\n")
    (directory / "table.py").write_text(TABLE)
    (directory / "starred.py").write_text("from .table import *\n")
    (directory / "broken.py").write_text("def f(:\n")
    (directory / "base.py").write_text(
        stop + "class Reader:\n    def copy(self, ids): return ids\ndef helper(a, b): return a\n"
    )
    (tmp_path / "numpy.py").write_text(stop + "def unique(ids, axis=None): return ids\n")
    (tmp_path / "_compiled.so").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def verdict(function: str, **show: str) -> tuple[str, str, str]:
    found = resolve_marks.judged({"function": function, "show": show})
    return found["outcome"], found["why"], found["mend"]


@pytest.mark.parametrize(
    "function",
    [
        "engine.table:gather",
        "engine.table:Table.lookup",
        "engine.table:Table.copy",
        "engine.table:Table.sometimes",
        "engine.table:unique",
        "engine.table:fast",
        "engine.table:helper",
        "engine.table:slow",
        "engine.deep.placed:here",
    ],
)
def test_what_is_there_is_found_and_nothing_imported(package: None, function: str) -> None:
    assert verdict(function) == ("found", "", "")
    assert not {name for name in sys.modules if name == "engine" or name.startswith("engine.")}


@pytest.mark.parametrize(
    ("function", "why", "mend"),
    [
        ("enginee.table:gather", "the image has no module enginee", "did you mean engine?"),
        ("engine.tabel:gather", "engine has no module tabel", "did you mean engine.table?"),
        ("engine.placed:here", "engine has no module placed", "did you mean engine.deep.placed?"),
        ("engine.xyzzy:here", "engine has no module xyzzy", "there are base, broken, deep, starred, table"),
        ("engine.table.more:f", "engine.table is a module and no package, so there is no engine.table.more", "name the module itself"),
        ("engine.table:gathr", "engine.table has no gathr", "did you mean gather?"),
        ("engine.table:lookup", "engine.table has no lookup", "did you mean Table.lookup?"),
        ("engine.table:sort", "engine.table has no sort", None),
        ("engine.table:Tabel.lookup", "engine.table has no Tabel", "did you mean Table.lookup?"),
        ("engine.table:Table.lokup", "Table of engine.table has no lokup", "did you mean Table.lookup?"),
        ("engine.table:np.unique", "np is another module (numpy): everyone's calls of unique would be in the range", "mark the function that calls it: Table.lookup"),
        ("engine.table:base.helper", "base is another module (engine.base): everyone's calls of helper would be in the range", "mark the function that calls it"),
        ("engine.table:other.helper", "other is another module (engine.base): everyone's calls of helper would be in the range", "mark the function that calls it"),
        ("engine.table:Reader.copy", "Reader is a class of another module", "write engine.base:Reader.copy"),
        ("engine.table:np", "np is a module", "mark a function: numpy:..."),
        ("engine.table:base", "base is a module", "mark a function: engine.base:..."),
        ("engine.table:Table", "Table is a class", "mark a method: there are height, lookup, rows, sometimes, width"),
        ("engine.table:Table.width", "width is a property", "mark a function that reads it"),
        ("engine.table:Table.height", "height is a property", "mark a function that reads it"),
        ("engine.table:Table.fetch", "fetch is async: its range would stay open while other work runs on the same thread", "mark a function that it calls"),
        ("engine.table:kernel", "kernel is a kernel: it is started through an index, and runs on the GPU", "mark the function that starts it"),
        ("engine.table:Table.rows", "rows is a generator: it returns before its work begins", "mark a function that it calls"),
        ("engine.table:Table.lookup.inside", "lookup is a function: what is defined inside it cannot be marked", "mark it itself"),
    ],
)  # fmt: skip
def test_what_is_not_there_or_cannot_have_a_range_is_refused_with_a_mend(
    package: None, function: str, why: str, mend: str | None
) -> None:
    found = verdict(function)
    assert found[:2] == ("refused", why)
    assert mend is None or found[2].startswith(mend)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("engine.table:limit", "limit is assigned there, not defined"),
        ("engine.table:Odd.absent", "Odd may inherit absent from np.ndarray, which cannot be looked into"),
        ("engine.starred:gather", "gather may come from engine.table, of which all is imported"),
        ("engine.broken:f", "SyntaxError: "),
        ("sys:exit", "sys has no Python source"),
    ],
)
def test_what_the_source_does_not_say_is_unknown_and_not_refused(package: None, function: str, why: str) -> None:
    outcome, found, _ = verdict(function)
    assert outcome == "unknown"
    assert found.startswith(why)


def test_an_argument_that_is_shown_must_be_one_of_the_function(package: None) -> None:
    good = {
        "ids": "arguments.ids.shape",
        "chunk": "arguments.chunk",
        "any": "arguments.options.x",
        "rows": "returned.0",
    }
    assert verdict("engine.table:Table.lookup", **good)[0] == "found"
    assert verdict("engine.table:unique", axis="arguments.axis")[0] == "found"
    found = resolve_marks.judged({"function": "engine.table:Table.lookup", "show": {"c": "arguments.chunks"}})
    assert (found["key"], found["why"]) == ("show.c", "lookup has no argument chunks")
    assert found["mend"] == "did you mean chunk?"
    assert verdict("engine.table:gather", x="arguments.zzz")[2] == "it has ids, out"
    assert verdict("engine.deep.placed:gather", x="arguments.zzz")[2] == "it has ids, out"


def test_the_log_tells_which_marks_were_applied() -> None:
    v = Site.load(ROOT / "examples/cpu").variables
    log = (
        "2026-11-30T11:12:13Z (EngineCore pid=89) gb10-marks: step wraps vllm.v1.worker.gpu_model_runner:X.y\n"
        "gb10-marks: sample not applied: Sampler has no forward\n"
        "gb10-marks: dispatch not applied: one process has another version\n(EngineCore) gb10-marks: dispatch wraps a:b\n"
    )
    found = {one["name"]: one["applied"] for one in marks.applied(v, log)}
    assert (found["step"], found["sample"], found["dispatch"]) == (True, False, True)
    assert "no line" in found["forward"]["unknown"]
    assert marks.why_not(log)["sample"] == "Sampler has no forward"


def overlay(**changes: Any) -> dict[str, Any]:
    """The CPU site's rendered profile overlay with changed variables: engine.environment, or keys of profile."""
    v = Site.load(ROOT / "examples/cpu").variables
    environment = changes.pop("environment", v.engine.environment)
    profile = v.profile.model_copy(update=changes)
    engine = v.engine.model_copy(update={"environment": environment})
    text = rendering.render(v.model_copy(update={"profile": profile, "engine": engine}))["overlays/profile.yaml"]
    return dict(yaml.safe_load(text)["services"]["engine"])


def test_without_marks_the_overlay_has_neither_mount_nor_variables() -> None:
    service = overlay(marks=[])
    assert "environment" not in service
    assert [mount["target"] for mount in service["volumes"]] == ["/profiles"]


def test_with_marks_the_program_is_mounted_read_only_from_beside_the_traces() -> None:
    mark = Mark(name="m", function="a:b", show={})
    service = overlay(marks=[mark], output_dir="/srv/traces/")
    mount = next(mount for mount in service["volumes"] if mount["target"] == "/opt/gb10-marks")
    assert (mount["source"], mount["read_only"]) == ("/srv/traces.marks", True)
    assert service["environment"] == {
        "GB10_MARKS": '{"tool":"torch","marks":[{"name":"m","function":"a:b","show":{}}]}',
        "PYTHONPATH": "/opt/gb10-marks",
    }


def test_the_baselines_own_python_path_stays_behind_the_marks() -> None:
    service = overlay(environment={"PYTHONPATH": "/srv/theirs:/srv/more"})
    assert service["environment"]["PYTHONPATH"] == "/opt/gb10-marks:/srv/theirs:/srv/more"


def test_the_program_is_copied_and_hashed_and_what_is_no_part_of_it_removed(tmp_path: Path) -> None:
    v = Site.load(ROOT / "examples/cpu").variables
    profile = v.profile.model_copy(update={"output_dir": f"{tmp_path}/profiles"})
    (tmp_path / "profiles.marks").mkdir()
    (tmp_path / "profiles.marks/os.py").write_text("would be imported in the place of Python's own")
    hashes = marks.place(v.model_copy(update={"profile": profile}))
    assert (
        sorted(path.name for path in (tmp_path / "profiles.marks").iterdir()) == sorted(hashes) == sorted(marks.FILES)
    )
    assert (tmp_path / "profiles.marks/gb10_marks.py").read_bytes() == (marks.PROGRAM / "gb10_marks.py").read_bytes()
    assert marks.place(v.model_copy(update={"profile": profile.model_copy(update={"marks": []})})) == {}


def traces(tool: str, *windows: tuple[str, set[str]]) -> Traces:
    profile = SimpleNamespace(tool=tool)
    context: Any = SimpleNamespace(site=SimpleNamespace(variables=SimpleNamespace(profile=profile)))
    evidence: Any = None
    return Traces(context, evidence, list(windows))


def test_a_torch_trace_belongs_to_the_window_that_was_open_when_it_came() -> None:
    a, b, c = "rank0.1.pt.trace.json.gz", "front.2.pt.trace.json.gz", "rank0.3.pt.trace.json"
    found = traces("torch", ("first", set()), ("second", {a, b, "out.txt"}))._assigned({a, b, c, "out.txt"})
    assert found == [("first", {a, b}), ("second", {c})]
    found = traces("torch", ("first", set()), ("second", set()), ("third", {a}))._assigned({a, b})
    assert found == [("first", set()), ("second", {a}), ("third", {b})]


def test_an_nsys_report_belongs_to_the_window_of_its_number() -> None:
    names = {f"window.{number}.nsys-rep" for number in (1, 10, 2, 3)} | {"window.2.sqlite", "window.4.qdstrm"}
    windows = [(f"w{number}", set()) for number in range(1, 5)]
    found = dict(traces("nsys", *windows)._assigned(names))
    assert found == {
        "w1": {"window.1.nsys-rep"},
        "w2": {"window.2.nsys-rep"},
        "w3": {"window.3.nsys-rep"},
        "w4": set(),
    }
    assert traces("nsys", ("canary", set()))._assigned({"window.nsys-rep"}) == [("canary", {"window.nsys-rep"})]
