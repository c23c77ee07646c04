"""The marks' start-up program in the real image, with real torch and real vLLM modules; nothing is served.

The report of 2026-09-18: a wrapper without annotations ended the engine's first start, since torch could not infer a schema.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gb10 import marks
from gb10.site import Site
from tests.conftest import ROOT, SITES

pytestmark = pytest.mark.docker

IMAGE = "gb10-gitops/vllm-cpu:0.32.0"
OPERATORS = """
{future}
from typing import TYPE_CHECKING
import torch
from torch import Tensor
if TYPE_CHECKING:
    from nowhere import Nothing
def scaled(x: Tensor, factor: float = 2.0, flags: list[int] | None = None) -> Tensor:
    return x * factor
def summed(x: torch.Tensor, keep: bool = False) -> torch.Tensor:
    return x.sum()
def partly(x: torch.Tensor, other: "Nothing" = None) -> torch.Tensor:
    return x
"""
SCHEMA = "(Tensor x, float factor=2.0, SymInt[]? flags=None) -> Tensor"
INFER = """
import json, functools, operators, torch
from torch.library import infer_schema
found = {"marked": infer_schema(operators.scaled, mutates_args=())}
plain = getattr(operators.scaled, "__wrapped__")
def bare(function):
    def call(*args, **kwargs): return function(*args, **kwargs)
    return call
def only_wraps(function):
    @functools.wraps(function)
    def call(*args, **kwargs): return function(*args, **kwargs)
    return call
for kind in (bare, only_wraps):
    try: found[kind.__name__] = infer_schema(kind(plain), mutates_args=())
    except ValueError as error: found[kind.__name__] = f"ValueError: {error}"
library = torch.library.Library("gb10test", "FRAGMENT")
library.define("scaled" + infer_schema(operators.scaled, mutates_args=()))
library.impl("scaled", operators.scaled, "CPU")
found["called"] = torch.ops.gb10test.scaled(torch.ones(2), 3.0).tolist()
custom = torch.library.custom_op("gb10test::summed", operators.summed, mutates_args=())
found["custom"] = custom(torch.ones(2)).item()
print(json.dumps(found))
"""
TRACED = """
import json, torch
from torch.profiler import ProfilerActivity, profile
from vllm.v1.cudagraph_dispatcher import CUDAGraphMode, CudagraphDispatcher
import operators
dispatcher = CudagraphDispatcher.__new__(CudagraphDispatcher)
dispatcher.keys_initialized, dispatcher.cudagraph_mode = False, CUDAGraphMode.NONE
class Compilation: max_cudagraph_capture_size = None
dispatcher.compilation_config = Compilation()
with profile(activities=[ProfilerActivity.CPU]) as record:
    dispatcher.dispatch(num_tokens=3)
    operators.scaled(torch.ones(2, 3))
    try: operators.scaled(None)
    except TypeError: pass
record.export_chrome_trace("/tmp/trace.json")
events = json.load(open("/tmp/trace.json"))["traceEvents"]
ranges = [event for event in events if event.get("cat") == "user_annotation" and event["name"].partition(":")[0] in {"dispatch", "scaled"}]
ranges.sort(key=lambda event: event["ts"])
inside = [event["name"] for event in events if event.get("cat") == "cpu_op" and any(
    one["name"].startswith("scaled:x=2x3") and one["ts"] <= event["ts"] <= one["ts"] + one["dur"] for one in ranges)]
print(json.dumps([[event["name"] for event in ranges], inside]))
"""


def mark(name: str, function: str, **show: str) -> dict[str, Any]:
    return {"name": name, "function": function, "show": show}


def inside(
    tmp_path: Path, text: str, named: list[dict[str, Any]], tool: str = "torch", future: str = ""
) -> tuple[Any, str]:
    """Run Python in the image with the program mounted as profile.yaml does it; its last line as JSON, and its stderr."""
    operators = OPERATORS.replace("{future}", future)
    (tmp_path / "operators.py").write_text(operators.replace('"Nothing"', "Nothing") if future else operators)
    variables = {"GB10_MARKS": json.dumps({"tool": tool, "marks": named}), "PYTHONPATH": "/opt/gb10-marks:/work"}
    words = ["docker", "run", "--rm", "--network", "none", "--cap-drop", "ALL"]
    words += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    words += ["--volume", f"{ROOT}/overlays/profile:/opt/gb10-marks:ro", "--volume", f"{tmp_path}:/work:ro"]
    words += ["--entrypoint", "python3", IMAGE, "-c", text]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1]), result.stderr


def test_torch_infers_the_schema_of_a_marked_function_and_not_of_a_bare_wrapper(tmp_path: Path) -> None:
    named = [mark("scaled", "operators:scaled", x="arguments.x.shape"), mark("summed", "operators:summed")]
    found, err = inside(tmp_path, INFER, named)
    assert found["marked"] == SCHEMA
    assert (found["called"], found["custom"]) == ([3.0, 3.0], 2.0)
    assert "We do not support positional-only args, varargs, or varkwargs" in found["bare"], (
        "how the first attempt ended"
    )
    assert "gb10-marks: scaled wraps operators:scaled" in err


def test_annotations_that_are_text_are_inferred_too_where_a_common_wrapper_fails(tmp_path: Path) -> None:
    named = [mark("scaled", "operators:scaled"), mark("summed", "operators:summed")]
    found, _ = inside(tmp_path, INFER, named, future="from __future__ import annotations")
    assert found["marked"] == SCHEMA
    assert (found["called"], found["custom"]) == ([3.0, 3.0], 2.0)
    assert "Unsupported type annotation Tensor. It is not a type." in found["only_wraps"]


def test_one_annotation_for_type_checkers_does_not_spoil_the_others(tmp_path: Path) -> None:
    text = "import operators, json; print(json.dumps({k: str(v) for k, v in operators.partly.__annotations__.items()}))"
    future = "from __future__ import annotations"
    found, _ = inside(tmp_path, text, [mark("partly", "operators:partly")], future=future)
    assert found == {"x": "<class 'torch.Tensor'>", "other": "Nothing", "return": "<class 'torch.Tensor'>"}


def test_ranges_of_the_real_dispatcher_stand_in_a_torch_trace_under_their_names(tmp_path: Path) -> None:
    named = [
        mark(
            "dispatch",
            "vllm.v1.cudagraph_dispatcher:CudagraphDispatcher.dispatch",
            actual="arguments.num_tokens",
            padded="returned.1.num_tokens",
            mode="returned.0",
        ),
        mark("scaled", "operators:scaled", x="arguments.x.shape", factor="arguments.factor"),
    ]
    (names, within), err = inside(tmp_path, TRACED, named)
    assert names == ["dispatch", "dispatch:actual=3,padded=3,mode=NONE", "scaled:x=2x3,factor=2", "scaled:x=?,factor=2"]
    assert "aten::mul" in within, "the range is around the call"
    assert "gb10-marks: dispatch wraps vllm.v1.cudagraph_dispatcher:CudagraphDispatcher.dispatch" in err


def test_both_sites_dispatchers_are_found_and_the_guessed_names_are_told_to_be_none(tmp_path: Path) -> None:
    """vLLM's Python files are the same in this image as in its wheel for a GPU; the owner's PLE code is in neither."""
    asked = [mark for path in SITES.values() for mark in Site.load(path).variables.profile.marks]
    words = json.dumps([{"function": mark.function, "show": mark.show} for mark in asked])
    docker = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", IMAGE]
    result = subprocess.run(
        [*docker, "-c", marks.SCRIPT.read_text(), words], capture_output=True, text=True, check=True
    )
    found = {mark.function: verdict for mark, verdict in zip(asked, json.loads(result.stdout), strict=True)}
    for function, verdict in found.items():
        if "qwen38_ple" in function:
            assert (verdict["outcome"], verdict["why"]) == (
                "refused",
                "vllm.model_executor.models has no module qwen38_ple",
            )
        else:
            assert verdict["outcome"] == "found", (function, verdict)


def test_without_a_gpu_nvtx_has_no_ranges_and_the_functions_still_answer(tmp_path: Path) -> None:
    text = "import operators, torch; print(operators.summed(torch.ones(2)).item(), operators.summed(torch.ones(3)).item(), sep='\\n')"
    answer, err = inside(tmp_path, text, [mark("summed", "operators:summed")], tool="nsys")
    assert answer == 3.0
    assert err.count("gb10-marks: summed is called without its range: RuntimeError: NVTX functions not installed") == 1


def test_the_images_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    text = "import sitecustomize, json; print(json.dumps(sitecustomize.__file__))"
    assert inside(tmp_path, text, [])[0] == "/usr/lib/python3.11/sitecustomize.py"
