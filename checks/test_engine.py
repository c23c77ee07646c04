"""The engine: does it answer, under the baseline's name, with its context, and do its own parsers accept its flags?"""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import COMPLETION_S, Deployed, fail, unknown

from gb10 import flags
from gb10.node import Container
from gb10.state import State

RESTORE = "run: make restore"
METRICS = ("vllm:iteration_tokens_total", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:num_preemptions")


@pytest.mark.baseline
def test_health_answers(answers: dict[str, Any]) -> None:
    status, why = answers["health"]
    if status != 200:
        fail("200 from GET /health", str(status or why), "look at `docker logs`, then: make restore")


@pytest.mark.baseline
def test_the_published_port_leads_to_the_engine(host: Any, serving: Container, deployed: Deployed) -> None:
    """From the node, as a client comes: the answers above are asked inside the container."""
    for port in deployed.service.get("ports", []):
        address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(port.get("host_ip", "0.0.0.0"), port.get("host_ip"))
        ask = f"exec 3<>/dev/tcp/{address}/{port['published']} && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3"
        result = host.run("timeout 10 bash -c %s", ask)
        status = result.stdout.split()[1:2]
        if status and status != ["200"]:
            fail(f"200 from GET /health at {address}:{port['published']}", status[0], RESTORE)
        if not status:
            said = [line.rpartition(": ")[2] for line in result.stderr.strip().splitlines()] or [
                "no answer within 10 s"
            ]
            fail(f"an HTTP answer at {address}:{port['published']}", said[-1], RESTORE)


@pytest.mark.baseline
def test_the_served_name_is_the_baselines(answers: dict[str, Any], deployed: Deployed) -> None:
    wanted, found = deployed.argument("--served-model-name"), _model(answers)["id"]
    if found != wanted:
        fail(f"model {wanted}", str(found), RESTORE)


@pytest.mark.baseline
def test_the_context_is_the_baselines(answers: dict[str, Any], deployed: Deployed) -> None:
    wanted, found = deployed.argument("--max-model-len"), _model(answers).get("max_model_len")
    if str(found) != wanted:
        fail(f"a context of {wanted} tokens", str(found), RESTORE)


@pytest.mark.baseline
def test_a_completion_comes_back(answers: dict[str, Any]) -> None:
    status, text = answers["completion"]
    if status == 0:
        before, after = answers["iterations"]
        if before is not None and after is not None and after > before:
            unknown(f"the engine is busy: {after - before:.0f} steps while no answer came ({text})")
        fail(f"a completion within {COMPLETION_S} s", text, RESTORE)
    try:
        reason = json.loads(text)["choices"][0]["finish_reason"]
    except (ValueError, KeyError, IndexError, TypeError):
        fail("a completion", f"HTTP {status}", "look at `docker logs`, then: make restore")
    if reason not in {"stop", "length"}:
        fail("a finished completion", f"finish_reason {reason}", RESTORE)


@pytest.mark.baseline
def test_the_metrics_answer(answers: dict[str, Any]) -> None:
    if answers["metrics_status"] != 200:
        fail("200 from GET /metrics", str(answers["metrics_status"] or "no answer"), RESTORE)


@pytest.mark.repository
def test_the_metrics_that_are_measured_are_there(answers: dict[str, Any]) -> None:
    """Proof of life, prefix reuse and benchmarks are read from them; another engine version may name them in another way."""
    if answers["metrics_status"] != 200:
        unknown("GET /metrics gave none")
    missing = [name for name in METRICS if not any(found.startswith(name) for found in answers["metrics"])]
    if missing:
        fail(f"{missing[0]} in GET /metrics", "not there", "use an engine version that has it")


@pytest.mark.baseline
def test_no_profiler_can_be_started(answers: dict[str, Any]) -> None:
    """Asked with GET, which starts nothing: the engine answers 404 without a profiler, and 405 with one."""
    status, why = answers["start_profile"]
    if status == 0:
        unknown(f"/start_profile got no answer ({why})")
    if status != 404:
        fail("404 from /start_profile", str(status), RESTORE)


@pytest.mark.repository
def test_the_engines_own_parser_accepts_the_flags(state: State, deployed: Deployed) -> None:
    verdict = flags.known(state, deployed.baseline.image_id, flags.words_of(deployed.service))
    if verdict.outcome == "unknown":
        unknown(verdict.why)
    if verdict.outcome != "accepted":
        fail("flags that the image's parser accepts", verdict.why, "mend vars.yaml, then: make render")


def _model(answers: dict[str, Any]) -> dict[str, Any]:
    status, text = answers["models"]
    try:
        return dict(json.loads(text)["data"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        if status:
            fail("a model from GET /v1/models", f"HTTP {status}", RESTORE)
        unknown(f"GET /v1/models got no answer ({text})")
