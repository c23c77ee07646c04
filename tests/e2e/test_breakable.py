"""What gb10/patchgate.py looks for in a baseline's log, asked of the real vLLM 0.32 in the CPU image."""

from __future__ import annotations

import subprocess

import pytest

from gb10.patchgate import AUTO_ENABLED
from tests.conftest import ROOT

pytestmark = pytest.mark.docker

KNOWN, UNKNOWN = "Qwen4ExpForCausalLM", "LlamaForCausalLM"


def probe(architecture: str, *options: str) -> str:
    """The log and the answer for an eager engine of a model of that architecture."""
    program = (ROOT / "tests/e2e/breakable_probe.py").read_text()
    command = ["docker", "run", "--rm", "--network", "none", *options, "--entrypoint", "python3"]
    command += ["gb10-gitops/vllm-cpu:0.32.0", "-c", program, architecture]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_an_eager_engine_logs_the_line_for_a_model_that_vllm_knows() -> None:
    output = probe(KNOWN)
    assert AUTO_ENABLED in output
    assert "enabled: True" in output


def test_it_never_logs_it_when_the_variable_is_set_as_the_graph_overlay_sets_it() -> None:
    output = probe(KNOWN, "--env", "VLLM_USE_BREAKABLE_CUDAGRAPH=1")
    assert AUTO_ENABLED not in output
    assert "enabled: True" in output


def test_any_other_model_gets_breakable_graphs_only_when_asked_and_then_without_a_word() -> None:
    """The danger that the gate is for: vLLM does not object to a model without break points."""
    assert "enabled: False" in probe(UNKNOWN)
    output = probe(UNKNOWN, "--env", "VLLM_USE_BREAKABLE_CUDAGRAPH=1")
    assert "enabled: True" in output
    assert AUTO_ENABLED not in output
