"""No deploy of an image without its patches, no breakable graphs on a model without break points. On the test engine."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from gb10 import patches
from tests.conftest import ROOT
from tests.e2e.conftest import BASE, EngineImages, Sandbox, build_engine, hashes_of
from tests.e2e.states import by_hand

pytestmark = pytest.mark.docker

REFUSED = (
    "graph.adaptation: the patch manifest of images.graph lacks graph2, and the baseline's log has no line "
    "'Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1': breakable graphs on a model without break points corrupt its output; "
    "add the entry graph2 to patches.yaml of images.graph and run: make images; or set graph.breakable: false; "
    "if vLLM enables them for this model and the line was rotated away: make deploy-baseline FRESH=1"
)


def identity(box: Sandbox) -> tuple[str, str]:
    container = box.container()
    return container.id, container.started_at


def hashes_in(box: Sandbox, paths: list[str]) -> dict[str, str]:
    return hashes_of(["docker", "exec", box.container().id, "sha256sum"], paths)


def test_the_running_engine_is_the_patched_one_and_its_manifest_says_so(serving: Sandbox) -> None:
    version = httpx.get(f"http://127.0.0.1:{serving.port}/version").json()["version"]
    assert version == "0.0.0+gb10.test.engine.patched"
    manifest = patches.manifest_of(serving.node, serving.container().image_id)
    assert manifest is not None
    assert patches.shown_ids(manifest) == ["test-version"]
    assert patches.files_of(manifest) == ["/api.py"]
    hashes = hashes_in(serving, ["/api.py"])
    assert patches.problems(manifest, hashes) == []
    serving.node.client.containers.get(serving.container().id).exec_run(["sh", "-c", "echo '# edited' >> /api.py"])
    assert patches.problems(manifest, hashes_in(serving, ["/api.py"])) == [
        "/api.py does not have the bytes that the patch manifest says"
    ]


def test_the_graph_images_manifest_goes_on_from_its_source(sandbox: Sandbox, test_engine_images: EngineImages) -> None:
    manifest = patches.manifest_of(sandbox.node, test_engine_images["graph"])
    assert patches.shown_ids(manifest) == ["test-version", "test-adaptation"]
    assert patches.files_of(manifest) == ["/api.py", "/server.py"]
    assert patches.manifest_of(sandbox.node, BASE) is None


def test_an_image_without_a_manifest_is_not_deployed(sandbox: Sandbox) -> None:
    by_hand(["docker", "image", "tag", BASE, f"{sandbox.project}/engine:eager"])
    for words in (("deploy-baseline",), ("deploy-baseline", "--dry-run")):
        result = sandbox.gb10(*words)
        assert result.code == 2
        mend = "its image has no patch manifest, which should show test-version; run: make images"
        assert f"images.eager: {mend}" in result.err
    assert sandbox.node.containers(sandbox.project) == []


def test_an_image_whose_manifest_lacks_a_patch_is_not_deployed(sandbox: Sandbox) -> None:
    sandbox.change("build: tests/engine\n", "build: tests/engine_graph\n")
    sandbox.render()
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 2
    assert "images.eager: its patch manifest lacks test-adaptation; run: make images" in result.err


def test_an_image_that_was_built_from_another_text_of_a_patch_is_not_deployed(sandbox: Sandbox, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests/engine", tmp_path / "engine")
    patch = tmp_path / "engine/patches.yaml"
    patch.write_text(patch.read_text().replace(".patched", ".patched.before"))
    build_engine(sandbox.node, f"{sandbox.project}/engine:eager", {}, str(tmp_path / "engine"))
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 2
    what = "images.eager: its patch manifest shows another text of test-version than patches.yaml; run: make images"
    assert what in result.err


def test_a_graph_image_whose_manifest_lacks_a_patch_is_not_tried(
    serving: Sandbox, test_engine_images: EngineImages
) -> None:
    """The graph image of this site is the eager one again: it shows the patch, and lacks the adaptation."""
    before = identity(serving)
    by_hand(["docker", "image", "tag", test_engine_images["eager"], f"{serving.project}/engine:graph"])
    result = serving.gb10("try", "graph")
    assert result.code == 2
    assert "images.graph: its patch manifest lacks test-adaptation; run: make images" in result.err
    assert identity(serving) == before


def test_breakable_graphs_are_refused_without_the_models_adaptation(sandbox: Sandbox) -> None:
    sandbox.change("adaptation: null", "adaptation: graph2")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    before = identity(sandbox)
    for words in (("try", "graph"), ("try", "graph", "--dry-run"), ("try", "graph-profile")):
        result = sandbox.gb10(*words)
        assert result.code == 2
        expected = REFUSED
        for target in ("make images", "make deploy-baseline"):
            expected = expected.replace(target, f"{target} SITE={sandbox.site}")
        assert expected in result.err.splitlines()
    assert identity(sandbox) == before
    assert sandbox.state.lease() is None
    assert "graph.adaptation" not in sandbox.gb10("try", "profile", "--dry-run").err


def test_without_breakable_graphs_no_adaptation_is_needed(sandbox: Sandbox) -> None:
    sandbox.change("adaptation: null", "adaptation: graph2")
    sandbox.change("breakable: true", "breakable: false")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    assert sandbox.gb10("try", "graph").code == 0


def test_an_adaptation_in_the_manifest_lets_the_experiment_run(sandbox: Sandbox) -> None:
    sandbox.change("adaptation: null", "adaptation: test-adaptation")
    sandbox.render()
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "graph")
    assert result.code == 0, result.err
    assert "graph overlay: effective (log:" in result.err
    sandbox.assert_on_baseline()


def test_vllms_own_line_in_the_baselines_log_lets_the_experiment_run(sandbox: Sandbox) -> None:
    sandbox.change("adaptation: null", "adaptation: graph2")
    sandbox.faults('TEST_ENGINE_AUTO_BREAKABLE: "1"')
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "graph")
    assert result.code == 0, result.err
    sandbox.assert_on_baseline()


def test_make_images_builds_a_patched_image_that_can_be_deployed(sandbox: Sandbox) -> None:
    by_hand(["docker", "image", "rm", f"{sandbox.project}/engine:eager"])
    result = sandbox.gb10("images")
    assert result.code == 0, result.err
    image = sandbox.node.image(f"{sandbox.project}/engine:eager")
    assert sandbox.gb10("deploy-baseline").code == 0
    assert image is not None
    assert sandbox.container().image_id == image["Id"]


def test_a_patch_that_does_not_fit_fails_the_build_and_leaves_the_old_image(sandbox: Sandbox) -> None:
    """The adaptation on an image that has no /server.py."""
    before = sandbox.node.image_id(f"{sandbox.project}/engine:eager")
    sandbox.change("build: tests/engine\n", "build: tests/engine_graph\n")
    result = sandbox.gb10("images")
    assert result.code == 1
    what = "patches: test-adaptation: server.py: /server.py is not there; correct `file`, or remove the entry"
    assert f"{sandbox.project}/engine:eager: cannot be built ({what}); mend tests/engine_graph" in result.err
    assert sandbox.node.image_id(f"{sandbox.project}/engine:eager") == before
