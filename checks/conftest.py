"""What the checks share. They look at the node through Testinfra's `host`; run them with `make verify`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gb10 import overlays
from gb10.comparison import Expected, environment_of
from gb10.engine import probe
from gb10.node import PROJECT_LABEL, Container, Node
from gb10.site import Site
from gb10.state import Baseline, History, State

ENGINE_PORT = "8000"
COMPLETION_S = 30
"""Seconds for the completion: the same for every site, so that an edit of vars.yaml cannot turn a served baseline red."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--site", required=True, help="the site to check")
    parser.addoption("--state", required=True, help="root of the state directories (for another host: of their copy)")
    parser.addoption("--state-on-node", required=True, help="the project's state directory on the node itself")


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
    return State(Path(request.config.getoption("--state")), site.project)


@pytest.fixture(scope="session")
def state_on_node(request: pytest.FixtureRequest) -> Path:
    """The state directory's path on the node, which is not this machine when HOST names another."""
    return Path(request.config.getoption("--state-on-node"))


@dataclass(frozen=True)
class Deployed:
    """The stored baseline's record and its service, flattened by Compose."""

    baseline: Baseline
    service: dict[str, Any]

    @property
    def expected(self) -> Expected:
        return Expected.of(self.service, self.baseline.image_id)

    def argument(self, flag: str) -> str | None:
        """The value of `--flag=value` in the baseline's arguments."""
        values = [word.partition("=")[2] for word in self.expected.argv if word.startswith(f"{flag}=")]
        return values[-1] if values else None


@pytest.fixture(scope="session")
def deployed(state: State) -> Deployed:
    """Unknown, and not red everywhere, when the stored bytes are gone: one check says so."""
    try:
        current = state.current()
    except Exception as error:
        unknown(f"the stored baseline cannot be read ({error})")
    if current is None:
        unknown("no baseline is stored")
    project = overlays.project_for(state.project, state.directory)
    service = overlays.service_of(overlays.flatten(Node(), project, [state.file_of(current)]))
    return Deployed(current, service)


@pytest.fixture(scope="session")
def history(state: State) -> History:
    record = state.history()
    if record is None:
        unknown("nothing was deployed yet, so there is nothing to compare with")
    return record


@pytest.fixture(scope="module")
def containers(host: Any, site: Site) -> list[Container]:
    """Every container of the project, as docker inspect on the node shows it."""
    label = f"{PROJECT_LABEL}={site.project}"
    for _ in range(3):  # one of them may be removed between the two calls
        listed = host.run("timeout 30 docker ps --all --quiet --no-trunc --filter label=%s", label)
        ids = listed.stdout.split()
        if listed.rc == 0 and not ids:
            return []
        inspected = host.run("timeout 30 docker inspect " + " ".join(ids)) if ids else listed
        if inspected.rc == 0:
            return [Container.of(raw) for raw in json.loads(inspected.stdout)]
    unknown(f"docker does not say which containers there are (exit code {inspected.rc})")


@pytest.fixture(scope="module")
def container(containers: list[Container], site: Site) -> Container:
    """The engine's container: the one of its name when there are several."""
    named = [c for c in containers if c.name == site.variables.container.name] or containers
    if not named:
        unknown("there is no container")
    return named[0]


@pytest.fixture(scope="module")
def serving(container: Container) -> Container:
    """The container, for what only a running one can show."""
    if not container.running:
        unknown(f"the engine is not running ({container.status})")
    return container


@pytest.fixture(scope="module")
def image_environment(host: Any, container: Container) -> dict[str, str]:
    """The image's own environment, which docker inspect mixes into the container's."""
    result = host.run("timeout 30 docker image inspect %s", container.image_id)
    if result.rc != 0:
        unknown(f"its image cannot be inspected (exit code {result.rc})")
    return environment_of(json.loads(result.stdout)[0])


@pytest.fixture(scope="module")
def answers(host: Any, serving: Container, site: Site, deployed: Deployed) -> dict[str, Any]:
    """What the server answers inside its container, asked once for all checks: see gb10/engine/probe.py."""
    program = Path(probe.__file__).read_text()
    model = deployed.argument("--served-model-name") or site.variables.model.served_name
    command = "timeout 50 docker exec %s python3 -c %s %s %s %s"
    result = host.run(command, serving.id, program, ENGINE_PORT, model, str(COMPLETION_S))
    try:
        return dict(json.loads(result.stdout))
    except ValueError:
        reason = (result.stderr.strip().splitlines() or [f"exit code {result.rc}"])[-1]
        fail("a python3 in the container that can ask the engine", reason, "run: make restore")
