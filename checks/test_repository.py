"""Repository: do its files say what is deployed? Red until mended; the stored bytes stay the truth for a restore."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import fail

from gb10.files import sha256
from gb10.site import Site
from gb10.state import Baseline, State


@pytest.mark.baseline
def test_the_stored_baseline_is_intact(host: Any, state: State, baseline: Baseline) -> None:
    found = host.file(str(state.file_of(baseline))).content
    if sha256(found) != baseline.sha256:
        fail(f"SHA-256 {baseline.sha256[:12]}", sha256(found)[:12], "run: make deploy-baseline")


@pytest.mark.repository
def test_compose_yaml_has_the_stored_bytes(site: Site, state: State, baseline: Baseline) -> None:
    path = site.directory / "compose.yaml"
    if not path.is_file():
        fail("the stored bytes", "no compose.yaml", "run: make render")
    found = sha256(path.read_bytes())
    if found != baseline.sha256:
        mend = "read `make diff`, then: make deploy-baseline (or git checkout)"
        fail(
            f"the bytes deployed at {baseline.deployed_at} ({baseline.sha256[:12]})",
            f"other bytes ({found[:12]})",
            mend,
        )


@pytest.mark.repository
def test_every_rendered_file_fits_the_variables(site: Site) -> None:
    stale = site.stale()
    if stale:
        fail("files as rendered from vars.yaml", f"{', '.join(stale)} differs", "run: make render")
