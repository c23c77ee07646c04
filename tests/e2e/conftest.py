"""Real containers: a site of this run's own, with its own project, port and state. Nothing else on the engine is touched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker.errors
import jsonschema
import pytest

from gb10 import buildinput, facts
from gb10.node import PROJECT_LABEL, Container, Node
from gb10.rendering import OUTPUTS
from gb10.state import State
from gb10.terminal import Terminal
from tests.conftest import ON_BASELINE, ROOT

PREFIX = "gb10test"
SCHEMA = ROOT / "docs/schemas/evidence.schema.json"
EVIDENCE = {"record.json", "recovery.json", "manifest.json", "checks.json", "checks.xml"} | {
    f"{name}.yaml" for name in ("compose", "graph", "profile")
}
EVIDENCE |= {"requests.jsonl", "run.json", "comparison.json", "report.html", "report.md", "profile.json", "profile.md"}
SCHEMAS = {"record.json": "evidence", "recovery.json": "evidence", "manifest.json": "evidence"}
SCHEMAS |= {"profile.json": "profile", "run.json": "run", "comparison.json": "comparison", "requests.jsonl": "request"}
"""Which schema of docs/schemas/ a file has to fit; of a .jsonl file each line."""
PLANTED = "hf_planted_secret_0123456789"
"""In the environment of every command of the tests; nothing that is printed or committed may hold it."""
TEST_ENGINE = "gb10-gitops/test-engine"
BASE = "gb10-gitops/base:bookworm"
EngineImages = dict[str, str]
"""Role -> tag of the test engine's images."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def remove_project(node: Node, project: str) -> None:
    """Remove a test project's containers, network and stored image tags, by its own label and name."""
    api = node.client.api
    for container in node.containers(project):
        api.remove_container(container.id, force=True, v=True)
    for network in api.networks(filters={"label": f"{PROJECT_LABEL}={project}"}):
        api.remove_network(network["Id"])
    for image in api.images():
        for tag in image.get("RepoTags") or []:
            if tag.startswith((f"gb10-stored/{project}:", f"{project}/")):
                api.remove_image(tag, force=True)


def remove_leftovers(node: Node) -> None:
    """Projects of earlier test runs whose process is gone (killed runs leave their engine running)."""
    projects = {c.raw["Config"]["Labels"][PROJECT_LABEL] for c in node.labelled(PROJECT_LABEL)}
    for project in projects:
        words = project.split("-")
        if words[0] == PREFIX and facts.process_start_ticks(int(words[1])) != int(words[2]):
            with contextlib.suppress(docker.errors.APIError):  # another worker removes it at the same time
                remove_project(node, project)


@dataclass
class Run:
    """One finished command."""

    code: int
    out: str
    err: str


class Sandbox:
    """A git checkout of one site with changed names and port, and the commands to drive it."""

    def __init__(self, directory: Path, name: str, node: Node, *, test_engine: EngineImages | None = None):
        pid = os.getpid()
        self.project = f"{PREFIX}-{pid}-{facts.process_start_ticks(pid)}-{name}"
        self.node = node
        self.site = directory / "site"
        self.state_root = directory / "state"
        self.port = free_port()
        self.prefix: list[str] = []
        self.site.mkdir(parents=True)
        self.state_root.mkdir()
        shutil.copy(ROOT / "examples/cpu/verified-context.md", self.site)
        shutil.copytree(ROOT / "examples/cpu/suites", self.site / "suites")
        text = (ROOT / "examples/cpu/vars.yaml").read_text()
        for old, new in (
            ("project: gb10-cpu\n", f"project: {self.project}\n"),
            ("port: 18000", f"port: {self.port}"),
            ("name: gb10-cpu-vllm", f"name: {self.project}"),
            ("  experiments: [graph]\n", "  experiments: []\n"),  # what is measured is measured in test_measure.py
            ("/var/lib/gb10/gb10-cpu/profiles", f"{self.state_root}/{self.project}/profiles"),
        ):
            assert old in text, old
            text = text.replace(old, new)
        if test_engine:
            text = self._with_test_engine(text, test_engine)
        (self.site / "vars.yaml").write_text(text)
        (self.site / ".gitignore").write_text("evidence/\nSTATE.md\n")
        self.git("init", "--quiet")
        self.git("config", "user.name", "test")
        self.git("config", "user.email", "test@localhost")
        self.render()

    def _with_test_engine(self, text: str, images: EngineImages) -> str:
        """The same site on the test engine, with short times, and images of this project's own tags. It has no vLLM to mark."""
        before, _, after = text.partition("  marks:\n")
        text = before + "  marks: []\n\n" + after[after.index("# Named lists of overlays") :]
        for old, new in (
            ("gb10-gitops/vllm-cpu:0.32.0", f"{self.project}/engine:eager"),
            ("gb10-gitops/vllm-cpu-graph:0.32.0", f"{self.project}/engine:graph"),
            ("build: images/cpu", "build: tests/engine"),
            ("build: images/graph", "build: tests/engine_graph"),
            ("entrypoint: [python3, -m, vllm.entrypoints.openai.api_server]", "entrypoint: [python3, /server.py]"),
            ("stop_grace_s: 10", "stop_grace_s: 3"),
            ("interval_s: 5", "interval_s: 1"),
            ("timeout_s: 5", "timeout_s: 1"),
            ("start_period_s: 300", "start_period_s: 12"),
            ("ready_s: 300", "ready_s: 25"),
            ("canary_s: 30", "canary_s: 4"),
            ("request_s: 60", "request_s: 5"),
            ("settle_s: 5", "settle_s: 1"),
        ):
            assert old in text, old
            text = text.replace(old, new)
        for role, tag in images.items():
            self.node.client.api.tag(tag, f"{self.project}/engine", role, force=True)
        return text

    def faults(self, *lines: str) -> None:
        """Faults of the test engine, as lines of engine.environment; rendered and committed."""
        self.change("  environment:\n", "  environment:\n" + "".join(f"    {line}  # a fault\n" for line in lines))
        self.render()

    @property
    def state(self) -> State:
        return State(self.state_root, self.project)

    def git(self, *words: str) -> str:
        result = subprocess.run(["git", "-C", str(self.site), *words], check=True, capture_output=True, text=True)
        return result.stdout

    def change(self, old: str, new: str) -> None:
        """Edit vars.yaml."""
        path = self.site / "vars.yaml"
        text = path.read_text()
        assert old in text, old
        path.write_text(text.replace(old, new, 1))

    def render(self, *, commit: bool = True) -> None:
        """`render.py` for this site, and a commit."""
        command = [sys.executable, str(ROOT / "render.py"), "--site", str(self.site)]
        subprocess.run(command, check=True, capture_output=True)
        if commit:
            self.git("add", "--all")
            self.git("commit", "--quiet", "--allow-empty", "--message", "change")

    def revert(self) -> None:
        """The site as in its first commit."""
        self.git("checkout", "--quiet", self.git("rev-list", "--max-parents=0", "HEAD").strip(), "--", ".")
        self.render()

    def argv(self, *words: str) -> list[str]:
        return [
            *self.prefix,
            sys.executable,
            "-m",
            "gb10",
            *words,
            "--site",
            str(self.site),
            *(["--state", str(self.state_root)] if "--state" not in words else []),
        ]

    def gb10(self, *words: str, timeout_s: float = 240) -> Run:
        """Run a command to its end."""
        result = subprocess.run(
            self.argv(*words),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=os.environ | {"HF_TOKEN": PLANTED},
        )
        assert PLANTED not in result.stdout + result.stderr
        return Run(result.returncode, result.stdout, result.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command, in a session of its own."""
        return subprocess.Popen(
            self.argv(*words),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def container(self) -> Container:
        """The project's only container."""
        containers = self.node.containers(self.project)
        assert len(containers) == 1, [c.name for c in containers]
        return containers[0]

    def evidence(self) -> dict[str, Any]:
        """The newest record."""
        paths = sorted((self.site / "evidence").glob("*/record.json"), key=lambda path: path.stat().st_mtime_ns)
        return dict(json.loads(paths[-1].read_text()))

    def assert_evidence_holds_nothing_else(self) -> None:
        """Every file that was left for committing fits its published schema, and the planted secret is in none."""
        for path in (self.site / "evidence").rglob("*"):
            if not path.is_file():
                continue
            assert PLANTED not in path.read_text(), path
            half_written = path.name.startswith(".")  # by a command that a test killed; .gitignore keeps it out
            assert half_written or path.name in EVIDENCE, path
            if path.name in SCHEMAS:
                schema = json.loads((ROOT / f"docs/schemas/{SCHEMAS[path.name]}.schema.json").read_text())
                validator = jsonschema.Draft202012Validator(schema)
                texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
                for text in texts:
                    found = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(text)))
                    assert found is None, f"{path}: {found.json_path}: {found.message}"
        state = self.site / "STATE.md"
        assert not state.exists() or PLANTED not in state.read_text()

    def checks(self) -> dict[str, tuple[str, str]]:
        """`gb10 verify`: sentence -> (outcome, message)."""
        report = json.loads(self.gb10("verify", "--json").out)
        return {r["sentence"]: (r["outcome"], r["message"]) for r in report["results"]}

    def assert_on_baseline(self) -> None:
        """Container, image, arguments and file are the stored baseline's, and nothing of an experiment is left."""
        checks = self.checks()
        red = {name: message for name, (outcome, message) in checks.items() if outcome == "failed"}
        assert not red, red
        assert self.state.lease() is None
        assert self.container().restart_policy == "unless-stopped"
        current = self.state.current()
        assert current is not None
        assert (self.site / "compose.yaml").read_bytes() == self.state.file_of(current).read_bytes()


def hashes_of(prefix: list[str], paths: list[str]) -> dict[str, str]:
    """SHA-256 of files in a container or image, by path; a missing one is absent. `prefix` ends in what runs sha256sum."""
    result = subprocess.run([*prefix, *paths], capture_output=True, text=True, timeout=60, check=False)
    return {path: digest for digest, path in (line.split(maxsplit=1) for line in result.stdout.splitlines())}


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    node = Node()
    remove_leftovers(node)
    yield node
    node.close()


@pytest.fixture(scope="session", autouse=True)
def end_cleanly() -> Iterator[None]:
    """SIGTERM ends the run like Ctrl-C does, so that fixtures remove what they made."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def test_engine_images(node: Node) -> EngineImages:
    """The test engine's two images."""
    return build_engines(node)


def build_engines(node: Node) -> EngineImages:
    """Both images, the graph one built from the other. Tags name what went in: another checkout has other ones."""
    images, source = {}, BASE
    for role, directory in (("eager", "tests/engine"), ("graph", "tests/engine_graph")):
        inputs = buildinput.fingerprint(ROOT / directory, node.image_id(source) or source)
        images[role] = f"{TEST_ENGINE}:{role}-{inputs[:12]}"
        build_engine(node, images[role], {"gb10.test-engine.role": role}, directory, source)
        source = images[role]
    return images


def build_engine(
    node: Node, tag: str, labels: dict[str, str], directory: str = "tests/engine", source: str = BASE
) -> None:
    """The test engine's image under a tag, prepared as `make images` does it; other labels make another id."""
    silent = Terminal(open(os.devnull, "w"))  # noqa: SIM115, PTH123
    with (
        tempfile.TemporaryDirectory() as cache,
        buildinput.prepared(ROOT / directory, Path(cache), silent) as prepared,
    ):
        events = list(
            node.client.api.build(
                path=str(prepared), tag=tag, decode=True, rm=True, buildargs={"BASE": source}, labels=labels
            )
        )
    errors = [event["error"] for event in events if "error" in event]
    assert not errors, "".join(event.get("stream", "") for event in events[-20:])


@contextlib.contextmanager
def removed_afterwards(box: Sandbox) -> Iterator[None]:
    """What it left for committing is looked at, and what it has on the engine removed."""
    try:
        yield
        box.assert_evidence_holds_nothing_else()
    finally:
        remove_project(box.node, box.project)


@contextlib.contextmanager
def deployed(box: Sandbox) -> Iterator[None]:
    """Its baseline serves."""
    with removed_afterwards(box):
        result = box.gb10("deploy-baseline")
        assert result.code == 0, result.err
        yield


@pytest.fixture
def sandbox(
    node: Node, test_engine_images: EngineImages, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Sandbox]:
    """A site of its own on the test engine; nothing is deployed yet."""
    SANDBOXES.append(None)
    box = Sandbox(tmp_path, f"s{len(SANDBOXES)}", node, test_engine=test_engine_images)
    with removed_afterwards(box):
        yield box


@pytest.fixture
def serving(sandbox: Sandbox) -> Sandbox:
    """A sandbox whose baseline is deployed."""
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 0, result.err
    return sandbox


SANDBOXES: list[None] = []


@pytest.fixture(scope="session")
def vllm(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """The CPU site with real vLLM, its baseline deployed once for all tests that only need it to serve."""
    box = Sandbox(tmp_path_factory.mktemp("vllm"), "vllm", node)
    with deployed(box):
        yield box


__all__ = ["ON_BASELINE", "OUTPUTS", "Run", "Sandbox"]
