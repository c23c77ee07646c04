"""What offline and end-to-end tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gb10 import overlays
from gb10.node import Node
from gb10.site import Site

ROOT = Path(__file__).resolve().parent.parent
SITES = {"gb10": ROOT, "cpu": ROOT / "examples/cpu"}


@pytest.fixture(params=sorted(SITES))
def site(request: pytest.FixtureRequest) -> Site:
    """Both sites of the repository, one after the other."""
    return Site.load(SITES[request.param])


@pytest.fixture
def flatten(tmp_path: Path):
    """Real Compose, no engine: files to one document."""
    node = Node()
    project = overlays.project_for("contract", tmp_path)
    return lambda files: overlays.flatten(node, project, files)
