"""The files: what is stored for the way back, and what the repository says is deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Deployed, fail

from gb10 import statefile
from gb10.errors import RefusedError
from gb10.files import sha256
from gb10.node import Container
from gb10.site import Site
from gb10.state import State

RESTORE = "run: make restore (it looks for a copy in the evidence)"
REWRITE = "run: make restore (it proves the node and writes it), or pull the commit that the node's owner made of it"


@pytest.mark.baseline
def test_a_baseline_is_stored_with_its_bytes_intact(host: Any, state: State, state_on_node: Path) -> None:
    try:
        record = state.read_record("current.json")
        if record is None:
            fail("a deployed baseline", f"none in {state_on_node}", "run: make deploy-baseline")
        file = host.file(str(state_on_node / "baselines" / str(record.get("key")) / "compose.yaml"))
        wanted, found = str(record.get("sha256"))[:12], sha256(file.content)[:12] if file.exists else "no file"
        if found != wanted:
            fail(f"SHA-256 {wanted}", found, RESTORE)
        state.current()
    except RefusedError as error:
        fault = error.faults[0]
        fail("a stored baseline that can be read", f"{Path(fault.where).name}: {fault.what}", RESTORE)


@pytest.mark.baseline
def test_no_experiment_holds_the_node(state: State) -> None:
    lease = state.lease()
    if lease is not None:
        found = f"experiment {lease.experiment} since {lease.since} (stage {lease.stage})"
        fail("no open lease", found, "run: make restore")


@pytest.mark.repository
def test_compose_yaml_has_the_stored_bytes(site: Site, deployed: Deployed) -> None:
    path, baseline = site.directory / "compose.yaml", deployed.baseline
    if not path.is_file():
        fail("the stored bytes", "no compose.yaml", "run: make render")
    found = sha256(path.read_bytes())
    if found != baseline.sha256:
        mend = "read `make diff`, then: make deploy-baseline (or git checkout)"
        wanted = f"the bytes deployed at {baseline.deployed_at} ({baseline.sha256[:12]})"
        fail(wanted, f"other bytes ({found[:12]})", mend)


@pytest.mark.repository
def test_every_rendered_file_fits_the_variables(site: Site) -> None:
    stale = site.stale()
    if stale:
        fail("files as rendered from vars.yaml", f"{', '.join(stale)} differs", "run: make render")


@pytest.mark.repository
def test_state_md_says_what_runs(site: Site, state: State, deployed: Deployed, container: Container) -> None:
    written = statefile.identity_in(site.directory / "STATE.md")
    if written is None:
        fail("a generated block in STATE.md", "none", REWRITE)
    lease = state.lease()
    now = statefile.identity(
        deployed.baseline, (container.id, container.started_at), lease.experiment if lease else None
    )
    stale = [f"{key} {written.get(key)}" for key, value in now.items() if written.get(key) != value]
    if stale:
        fail("a STATE.md of now", f"a stale one ({stale[0]})", REWRITE)
