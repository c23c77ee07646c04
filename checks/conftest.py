"""What the checks share. They look at the node through Testinfra's `host`; run them with `make verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gb10 import overlays
from gb10.comparison import Expected, environment_of
from gb10.node import PROJECT_LABEL, Container, Node
from gb10.site import Site
from gb10.state import Baseline, History, State, default_root


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--site", default=".", help="the site to check (default: this directory)")
    parser.addoption("--state", default=None, help="root of the state directories")


class CheckFailed(AssertionError):
    """Expected, found, mend: the one line of a red check."""


def fail(expected: str, found: str, mend: str) -> NoReturn:
    """Turn the check red with one line."""
    raise CheckFailed(f"expected {expected}, found {found}; {mend}")


def unknown(why: str) -> NoReturn:
    """The fact cannot be read here: neither green nor red."""
    pytest.skip(why)


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest) -> Site:
    return Site.load(Path(request.config.getoption("--site")))


@pytest.fixture(scope="session")
def state(request: pytest.FixtureRequest, site: Site) -> State:
    root = request.config.getoption("--state")
    return State(Path(root) if root else default_root(), site.project)


@pytest.fixture(scope="session")
def baseline(state: State) -> Baseline:
    current = state.current()
    if current is None:
        fail("a deployed baseline", f"none in {state.directory}", "run: make deploy-baseline")
    return current


@pytest.fixture(scope="session")
def history(state: State) -> History:
    record = state.history()
    if record is None:
        unknown("nothing was deployed yet, so there is nothing to compare with")
    return record


@pytest.fixture(scope="session")
def service(state: State, baseline: Baseline) -> dict[str, Any]:
    """The stored baseline's service, flattened by Compose."""
    project = overlays.project_for(state.project, state.directory)
    return overlays.service_of(overlays.flatten(Node(), project, [state.file_of(baseline)]))


@pytest.fixture(scope="module")
def containers(host: Any, site: Site) -> list[Container]:
    """Every container of the project, as docker inspect on the node shows it."""
    ids = host.check_output(
        "timeout 30 docker ps --all --quiet --no-trunc --filter label=%s", f"{PROJECT_LABEL}={site.project}"
    ).split()
    return (
        [Container.of(raw) for raw in json.loads(host.check_output("timeout 30 docker inspect " + " ".join(ids)))]
        if ids
        else []
    )


@pytest.fixture(scope="module")
def container(containers: list[Container]) -> Container:
    if len(containers) != 1:
        names = ", ".join(f"{c.name} ({c.status})" for c in containers) or "none"
        fail("one container", names, "run: make restore")
    return containers[0]


@pytest.fixture(scope="session")
def expected(service: dict[str, Any], baseline: Baseline) -> Expected:
    return Expected.of(service, baseline.image_id)


@pytest.fixture(scope="module")
def image_environment(host: Any, container: Container) -> dict[str, str]:
    """The image's own environment, which docker inspect mixes into the container's."""
    return environment_of(json.loads(host.check_output("timeout 30 docker image inspect %s", container.image_id))[0])
