"""The engine's command line from the variables: one place for baseline, graph overlay, profiler and the parser check."""

from __future__ import annotations

import json
from typing import Any

from gb10.variables import Variables
from gb10.variables.model import Graph


def compact(value: Any) -> str:
    """`value` as JSON on one line, keys in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def engine_arguments(v: Variables, graph: Graph | None) -> list[str]:
    """Arguments after the entrypoint, one item each (`--name=value`). `graph`: the graphs to capture; None: run eager.

    `--enforce-eager` clears the capture sizes, so the two arms never share it (field-tested on vLLM 0.26 to 0.33).
    """
    e = v.engine
    arguments = [v.model.path] if e.entrypoint[-1] == "serve" else [f"--model={v.model.path}"]
    arguments += [
        f"--served-model-name={v.model.served_name}",
        f"--kv-cache-dtype={e.kv_cache_dtype}",
        f"--max-model-len={e.max_model_len}",
        f"--max-num-seqs={e.max_num_seqs}",
        f"--max-num-batched-tokens={e.max_num_batched_tokens}",
        "--enable-prefix-caching" if e.prefix_caching else "--no-enable-prefix-caching",
    ]
    if e.gpu_memory_utilization is not None:
        arguments.append(f"--gpu-memory-utilization={e.gpu_memory_utilization:g}")
    if e.speculative is not None:
        config = {"method": e.speculative.method, "num_speculative_tokens": e.speculative.tokens}
        arguments.append(f"--speculative-config={compact(config)}")
    if e.reasoning_parser is not None:
        arguments.append(f"--reasoning-parser={e.reasoning_parser}")
    if e.tool_call_parser is not None:
        arguments += ["--enable-auto-tool-choice", f"--tool-call-parser={e.tool_call_parser}"]
    arguments += e.extra_arguments
    if graph is not None:
        config = {"mode": 0, "cudagraph_mode": graph.mode, "cudagraph_capture_sizes": graph.capture_sizes}
        arguments.append(f"--compilation-config={compact(config)}")
    else:
        arguments.append("--enforce-eager")
    return arguments


def graph_environment(graph: Graph) -> dict[str, str]:
    """What the engine's environment has for these graphs. Always set: unset, vLLM decides for some models by itself."""
    return {BREAKABLE: "1" if graph.breakable else "0"}


def baseline_environment(v: Variables) -> dict[str, str]:
    """The environment of the baseline."""
    return v.engine.environment | (graph_environment(v.engine.graph) if v.engine.graph else {})


def profiler_entrypoint(v: Variables) -> list[str]:
    """The entrypoint under the profiler: the engine's own, wrapped (nsys) and told to accept start and stop requests."""
    if v.profile.tool == "torch":
        # with stacks a busy machine's longer window took the container past 6 GiB
        config = {"profiler": "torch", "torch_profiler_dir": PROFILES_DIR, "torch_profiler_with_stack": False}
        return [*v.engine.entrypoint, f"--profiler-config={compact(config)}"]
    return [
        f"{v.profile.nsys_dir}/bin/nsys",
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--trace-fork-before-exec=true",
        f"--cuda-graph-trace={v.profile.graph_trace}",
        "--capture-range=cudaProfilerApi",
        f"--capture-range-end=repeat:{v.profile.windows}",
        f"--output={PROFILES_DIR}/window",
        *v.engine.entrypoint,
        f"--profiler-config={compact({'profiler': 'cuda'})}",
    ]


def marks_environment(v: Variables) -> dict[str, str]:
    """What the marks need in the engine's environment: the program on Python's path, before what the baseline has there, and the marks."""
    if not v.profile.marks:
        return {}
    marks = [{"name": mark.name, "function": mark.function, "show": mark.show} for mark in v.profile.marks]
    further = v.engine.environment.get("PYTHONPATH")
    path = MARKS_DIR if further is None else f"{MARKS_DIR}:{further}"
    return {MARKS_VARIABLE: compact({"tool": v.profile.tool, "marks": marks}), "PYTHONPATH": path}


def marks_source(v: Variables) -> str:
    """The directory on the node that is mounted at MARKS_DIR: a copy beside the traces, see docs/decisions/profile.md."""
    return f"{v.profile.output_dir.rstrip('/')}.marks"


BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"
PROFILES_DIR = "/profiles"
"""Where traces are written inside the container."""
MARKS_DIR = "/opt/gb10-marks"
"""Where overlays/profile/ is inside the container."""
MARKS_VARIABLE = "GB10_MARKS"
"""What overlays/profile/gb10_marks.py reads."""
