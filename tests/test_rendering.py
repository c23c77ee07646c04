"""Rendering: literal, deterministic, all or nothing, and it touches only what it declares."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gb10 import files, rendering
from gb10.site import Site
from gb10.variables.model import Engine
from tests.conftest import ROOT


def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "render.py"), *words], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_the_committed_files_of_both_sites_are_what_their_variables_render(site: Site) -> None:
    assert site.stale() == []


def test_the_same_variables_give_the_same_bytes_in_another_process_and_hash_seed(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "render.py", "--out", str(tmp_path / seed)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    for output in rendering.OUTPUTS:
        assert (tmp_path / "0" / output).read_bytes() == (tmp_path / "1" / output).read_bytes()


def test_every_rendered_file_says_on_its_first_line_what_made_it_and_holds_no_variable(site: Site) -> None:
    for data in site.rendered.values():
        assert data.startswith(b"# Rendered by render.py from vars.yaml")
        assert b"${" not in data


def test_overlays_hold_only_what_they_own(site: Site) -> None:
    graph = yaml.safe_load(site.rendered["overlays/graph.yaml"])["services"]["engine"]
    profile = yaml.safe_load(site.rendered["overlays/profile.yaml"])["services"]["engine"]
    assert set(graph) == {"image", "command", "environment", "restart"}
    assert set(profile) <= {
        "entrypoint",
        "environment",
        "volumes",
        "cap_add",
        "shm_size",
        "stop_grace_period",
        "restart",
    }
    assert graph["restart"] == profile["restart"] == "no"


def test_the_graph_overlay_never_carries_enforce_eager(site: Site) -> None:
    graph = yaml.safe_load(site.rendered["overlays/graph.yaml"])["services"]["engine"]["command"]
    eager = yaml.safe_load(site.rendered["compose.yaml"])["services"]["engine"]["command"]
    assert "--enforce-eager" in eager
    assert "--enforce-eager" not in graph
    assert [word for word in graph if not word.startswith("--compilation-config")] == [
        w for w in eager if w != "--enforce-eager"
    ]


def test_a_dollar_sign_reaches_the_engine_as_written(flatten, tmp_path: Path) -> None:
    site = Site.load(ROOT)
    engine = Engine(**{**site.variables.engine.model_dump(), "environment": {"PRICE": 'five $HOME ${X} "dollars"'}})
    rendered = rendering.render(site.variables.model_copy(update={"engine": engine}))
    (tmp_path / "compose.yaml").write_bytes(rendered["compose.yaml"])
    value = flatten([tmp_path / "compose.yaml"])["services"]["engine"]["environment"]["PRICE"]
    assert value.replace("$$", "$") == 'five $HOME ${X} "dollars"'


def test_check_exits_1_naming_the_file_and_the_mend(tmp_path: Path) -> None:
    assert run("--out", str(tmp_path)).returncode == 0
    assert run("--out", str(tmp_path), "--check").returncode == 0
    (tmp_path / "overlays/graph.yaml").write_text("services: {}\n")
    result = run("--out", str(tmp_path), "--check")
    assert result.returncode == 1
    assert (
        result.stderr
        == f"overlays/graph.yaml: differs from vars.yaml; run: python render.py --site {ROOT} --out {tmp_path}\n"
    )
    assert (tmp_path / "overlays/graph.yaml").read_text() == "services: {}\n"


def test_diff_shows_the_change_and_writes_nothing(tmp_path: Path) -> None:
    run("--out", str(tmp_path))
    path = tmp_path / "compose.yaml"
    path.write_text(path.read_text().replace("--max-num-seqs=4", "--max-num-seqs=64"))
    before = path.read_bytes()
    result = run("--out", str(tmp_path), "--diff")
    assert '-      - "--max-num-seqs=64"' in result.stdout
    assert '+      - "--max-num-seqs=4"' in result.stdout
    assert path.read_bytes() == before


def test_a_render_touches_only_its_declared_outputs(tmp_path: Path) -> None:
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays/mine.yaml").write_text("mine\n")
    run("--out", str(tmp_path))
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {*rendering.OUTPUTS, "overlays/mine.yaml"}
    assert (tmp_path / "overlays/mine.yaml").read_text() == "mine\n"


def test_a_render_that_cannot_write_its_last_file_leaves_every_old_file(tmp_path: Path) -> None:
    run("--out", str(tmp_path))
    old = {output: (tmp_path / output).read_bytes() for output in rendering.OUTPUTS}
    (tmp_path / "overlays/profile.yaml").unlink()
    (tmp_path / "blocker").write_text("")
    contents = {tmp_path / "compose.yaml": b"new", tmp_path / "blocker/profile.yaml": b"new"}
    with pytest.raises(OSError, match="blocker"):
        files.write_all(contents)
    assert (tmp_path / "compose.yaml").read_bytes() == old["compose.yaml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocker", "compose.yaml", "overlays"]


def test_invalid_variables_leave_every_old_file(tmp_path: Path) -> None:
    run("--out", str(tmp_path))
    old = (tmp_path / "compose.yaml").read_bytes()
    result = run("--vars", str(ROOT / "tests/data/invalid/unknown-key.yaml"), "--out", str(tmp_path))
    assert result.returncode == 2
    assert (tmp_path / "compose.yaml").read_bytes() == old
