"""Demo and tests keep away from a node that serves a site with a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gb10.node import Node
from tests.conftest import ROOT
from tests.e2e.conftest import PREFIX

pytestmark = pytest.mark.docker
ONLY_REFUSE = [sys.executable, "-m", "gb10", "set-up", "--only-refuse", "--site", "examples/cpu", "--state"]


def test_a_running_engine_of_a_gpu_site_is_found_by_its_label(node: Node, tmp_path: Path) -> None:
    command = [*ONLY_REFUSE, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0
    name = f"{PREFIX}-{os.getpid()}-serving"
    api = node.client.api
    container = api.create_container(
        "gb10-gitops/base:bookworm", ["sleep", "60"], name=name, labels={"gb10.gpu": "nvidia"}
    )
    try:
        api.start(container["Id"])
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        api.remove_container(container["Id"], force=True)
    assert result.returncode == 2
    assert f"{name}: a site with a GPU is serving on this node" in result.stderr


def test_a_deployed_gpu_site_is_found_in_the_state_directory(tmp_path: Path) -> None:
    stored = tmp_path / "gb10-qwen38/baselines/key"
    stored.mkdir(parents=True)
    (stored / "compose.yaml").write_bytes((ROOT / "compose.yaml").read_bytes())
    (tmp_path / "gb10-qwen38/current.json").write_text('{"key": "key"}')
    result = subprocess.run([*ONLY_REFUSE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "a site with a GPU is deployed on this node" in result.stderr
