"""From a measured experiment to a baseline with graphs: the edit that is shown, deployed, proved and tried upon. On the test engine."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import Sandbox
from tests.e2e.states import by_hand

pytestmark = pytest.mark.docker

ADOPTED = "  graph: {mode: PIECEWISE, breakable: true, adaptation: null, capture_sizes: [1, 2, 4]}\n"
EFFECTIVE = "  graphs of the baseline: effective (log: "


def adopt(box: Sandbox, section: str = ADOPTED) -> None:
    """Graphs in the baseline, rendered and committed."""
    box.change("  graph: null\n", section)
    box.render()


def state_of(box: Sandbox) -> str:
    return (box.site / "STATE.md").read_text()


def test_the_edit_that_a_try_shows_deploys_a_baseline_with_the_measured_arguments(sandbox: Sandbox) -> None:
    """The eager engine waits 20 ms a token, the one with graphs does not: a gain that is adopted."""
    suite = (
        (ROOT / "tests/data/suite.yaml").read_text().replace("  - name: words\n", "  - name: words\n    repeat: 5\n")
    )
    (sandbox.site / "suites/small.yaml").write_text(suite)
    for old, new in (
        ("  experiments: []\n", "  experiments: [graph]\n"),
        ("  prove: prefix\n", "  prove: null\n"),
        ("  suite: retest\n", "  suite: small\n"),
        ("  case: short\n", "  case: words\n"),
    ):
        sandbox.change(old, new)
    sandbox.faults("TEST_ENGINE_ONLY_WITH: --enforce-eager", 'TEST_ENGINE_TOKEN_MS: "20"')
    assert sandbox.gb10("deploy-baseline").code == 0
    eager = sandbox.container()
    result = sandbox.gb10("try", "graph")
    assert result.code == 0, result.err
    assert "verdict: adopt (Every rule holds" in result.err
    _, words, diff = result.out.partition(
        f"to adopt it, edit vars.yaml as below; then: make render SITE={sandbox.site}, "
    )
    assert words, result.out
    directory = max((sandbox.site / "evidence").glob("*-try-graph"))
    assert "## To adopt it" in (directory / "report.md").read_text()
    edit = diff[diff.index("--- a/vars.yaml") :]
    assert edit in (directory / "report.md").read_text()
    subprocess.run(["git", "apply", "-"], cwd=sandbox.site, input=edit, text=True, check=True)
    sandbox.render()
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 0, result.err
    assert EFFECTIVE in result.err
    run = json.loads((directory / "run.json").read_text())
    assert sandbox.container().argv == run["arms"]["experiment"]["argv"] != eager.argv
    assert sandbox.container().image_id == run["arms"]["experiment"]["image_id"] != eager.image_id
    sandbox.assert_on_baseline()
    again = sandbox.gb10("compare", str(directory), str(directory))
    assert "vars.yaml has these graphs in engine.graph already; next: make render" in again.out


def test_a_baseline_with_graphs_is_proved_recorded_and_restored_like_any_other(sandbox: Sandbox) -> None:
    adopt(sandbox)
    dry = sandbox.gb10("deploy-baseline", "--dry-run")
    image_id = sandbox.node.image_id(f"{sandbox.project}/engine:graph")
    assert f" tag {image_id} gb10-stored/{sandbox.project}:" in dry.out
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 0, result.err
    assert EFFECTIVE in result.err
    record = sandbox.evidence()
    assert record["baseline"]["image_id"] == sandbox.container().image_id == image_id
    assert record["baseline"]["graph_effective"]["value"] is True
    assert set(record["baseline"]["patches"]) == {"test-version", "test-adaptation"}
    assert "| runs | the baseline (graphs, in effect), no overlay |" in state_of(sandbox)
    sandbox.assert_on_baseline()
    by_hand(["docker", "kill", sandbox.container().id])
    assert sandbox.gb10("restore").code == 0
    sandbox.assert_on_baseline()


def test_graphs_of_the_baseline_that_are_not_in_effect_are_told(sandbox: Sandbox) -> None:
    sandbox.faults('TEST_ENGINE_GRAPH_DOWNGRADED: "1"')
    adopt(sandbox)
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 0, result.err
    assert "graphs of the baseline: applied, not effective (log: " in result.err
    assert "the baseline is deployed (its graphs are not in effect); evidence:" in result.out
    assert "| runs | the baseline (graphs set, but not in effect), no overlay |" in state_of(sandbox)
    (sandbox.site / "suites/small.yaml").write_text((ROOT / "tests/data/suite.yaml").read_text())
    assert sandbox.gb10("bench", "small", "--rounds", "1").code == 0
    run = json.loads(max((sandbox.site / "evidence").glob("*-bench-small/small/run.json")).read_text())
    assert run["arms"]["baseline"]["graph_effective"] is False


def test_experiments_are_tried_on_top_of_a_baseline_with_graphs(sandbox: Sandbox) -> None:
    adopt(sandbox)
    sandbox.change("capture_sizes: [1, 2, 4]\n", "capture_sizes: [1, 2, 4, 8]\n")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    baseline = sandbox.container()
    for name, said in (("graph", "  graph overlay: effective"), ("profile", "  graphs of the baseline: effective")):
        result = sandbox.gb10("try", name)
        assert result.code == 0, result.err
        assert said in result.err
        record = sandbox.evidence()
        assert record["experiment_container"]["image_id"] == baseline.image_id
        sizes = "[1,2,4,8]" if name == "graph" else "[1,2,4]"
        assert any(f'"cudagraph_capture_sizes":{sizes}' in word for word in record["experiment_container"]["argv"])
        assert sandbox.container().argv == baseline.argv
        sandbox.assert_on_baseline()


def test_a_baseline_with_graphs_is_refused_without_its_image_its_patches_or_the_models_adaptation(
    sandbox: Sandbox, test_engine_images: dict[str, str]
) -> None:
    adopt(sandbox, ADOPTED.replace("adaptation: null", "adaptation: graph2"))
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 2
    assert (
        "engine.graph.adaptation: the patch manifest of images.graph lacks graph2: breakable graphs on a model without "
        "break points corrupt its output; add the entry graph2 to patches.yaml of images.graph and run: make images "
        f"SITE={sandbox.site}; or set engine.graph.breakable: false; if the log of an eager baseline says "
        "'Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1', this model needs none: set engine.graph.adaptation: null"
    ) in result.err.splitlines()
    needs = sandbox.gb10("doctor").out
    assert "missing  engine.graph.adaptation: the patch manifest of images.graph lacks graph2: breakable" in needs
    assert "ok       patches, graph: test-version, test-adaptation" in needs
    by_hand(["docker", "image", "tag", test_engine_images["eager"], f"{sandbox.project}/engine:graph"])
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 2
    assert "images.graph: its patch manifest lacks test-adaptation; run: make images" in result.err
    by_hand(["docker", "image", "rm", f"{sandbox.project}/engine:graph"])
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 2
    assert f"images.graph: {sandbox.project}/engine:graph is not on this node; run: make images" in result.err
    assert sandbox.node.containers(sandbox.project) == []


def test_the_check_of_patches_asks_for_those_of_the_graph_image(
    sandbox: Sandbox, test_engine_images: dict[str, str]
) -> None:
    """An image that has the eager role's patches only is red once the graph role asks for one more."""
    by_hand(["docker", "image", "tag", test_engine_images["eager"], f"{sandbox.project}/engine:graph"])
    adopt(sandbox)
    sandbox.change("build: tests/engine_graph\n", "build: tests/engine\n")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    sentence = "the image has the repositorys patches"
    assert sandbox.checks()[sentence][0] == "passed"
    rest = "    # As above: an image of this file.\n    source: eager\n"
    sandbox.change(f"    build: tests/engine\n{rest}", f"    build: tests/engine_graph\n{rest}")
    sandbox.render()
    outcome, message = sandbox.checks()[sentence]
    assert (outcome, "test-adaptation" in message) == ("failed", True), message


def test_marks_of_a_profiled_baseline_with_graphs_are_looked_for_in_the_graph_image(sandbox: Sandbox) -> None:
    adopt(sandbox)
    sandbox.change("  marks: []\n", "  marks: [{name: chat, function: 'api:Handler._chat', show: {}}]\n")
    sandbox.render()
    needs = sandbox.gb10("doctor").out
    assert "ok       marks, graph: chat" in needs
    assert "marks, eager" not in needs
