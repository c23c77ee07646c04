"""The Docker engine itself restarts or dies in the middle: on an engine of the test's own, never the machine's."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gb10.node import Node
from tests.e2e.conftest import EngineImages, Sandbox
from tests.e2e.states import wait_for

pytestmark = pytest.mark.docker


HOLD_A_NETWORK = """
import fcntl, signal, socket, struct
lo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(lo, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
print("up", flush=True)
signal.pause()
"""


class PrivateEngine:
    """A dockerd with its own socket, data, containerd and network namespace (in the machine's own it would take docker0 down)."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.socket = directory / "docker.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.network = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-c", HOLD_A_NETWORK], stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.network.stdout is not None
        assert self.network.stdout.readline() == b"up\n"

    @property
    def inside(self) -> list[str]:
        """The start of a command line that runs in the engine's network."""
        return ["nsenter", f"--net=/proc/{self.network.pid}/ns/net", "--"]

    def start(self) -> None:
        log = (self.directory / "dockerd.log").open("ab")
        command = [*self.inside, "dockerd", "-H", f"unix://{self.socket}", "--data-root", str(self.directory / "data")]
        command += ["--exec-root", str(self.directory / "exec"), "--pidfile", str(self.directory / "dockerd.pid")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        wait_for(self.answers, "the private engine's start", 60)

    def answers(self) -> bool:
        node = Node()
        try:
            node.version()
            return True
        except Exception:
            return False
        finally:
            node.close()

    def stop(self, number: signal.Signals) -> None:
        """End dockerd, and wait until its containerd is gone too: a new one started earlier would wait for it."""
        assert self.process is not None
        containerd = self.directory / "exec/containerd/containerd.pid"
        pid = int(containerd.read_text()) if containerd.is_file() else 0
        self.process.send_signal(number)
        self.process.wait(timeout=60)
        wait_for(lambda: not pid or not Path(f"/proc/{pid}").exists(), "the end of containerd", 60)


@pytest.fixture
def private_engine(test_engine_images: EngineImages, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateEngine]:
    directory = Path(tempfile.mkdtemp(prefix="gb10e"))  # short: a socket's path has a limit
    saved = directory / "images.tar"
    with saved.open("wb") as archive:
        subprocess.run(["docker", "save", *test_engine_images.values()], stdout=archive, check=True, timeout=120)
    engine = PrivateEngine(directory)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
    engine.start()
    try:
        with saved.open("rb") as archive:
            subprocess.run(["docker", "load"], stdin=archive, check=True, capture_output=True, timeout=120)
        saved.unlink()
        yield engine
    finally:
        with contextlib.suppress(Exception):
            node = Node()
            for item in node.client.api.containers(all=True):
                node.client.api.remove_container(item["Id"], force=True)
        with contextlib.suppress(Exception):
            engine.stop(signal.SIGTERM)
        engine.network.kill()
        engine.network.wait(timeout=10)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(directory) in line]
        for mount in sorted(mounts, reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def box(private_engine: PrivateEngine, test_engine_images: EngineImages, tmp_path: Path) -> Sandbox:
    sandbox = Sandbox(tmp_path, "private", Node(), test_engine=test_engine_images)
    sandbox.prefix = private_engine.inside
    result = sandbox.gb10("deploy-baseline")
    assert result.code == 0, result.err
    return sandbox


def test_an_engine_that_restarts_while_a_restore_waits_is_waited_for(
    box: Sandbox, private_engine: PrivateEngine
) -> None:
    subprocess.run(["docker", "rm", "--force", box.container().id], check=True, capture_output=True)
    process = box.start("restore")
    wait_for(lambda: any(c.health == "starting" for c in box.node.containers(box.project)), "the start")
    private_engine.stop(signal.SIGTERM)
    time.sleep(1)
    private_engine.start()
    _, err = process.communicate(timeout=120)
    if process.returncode != 0:
        assert process.returncode == 3, err
        assert box.gb10("restore").code == 0
    box.assert_on_baseline()


def test_an_engine_that_was_killed_leaves_nothing_running_and_a_restore_brings_it_back(
    box: Sandbox, private_engine: PrivateEngine
) -> None:
    private_engine.stop(signal.SIGKILL)
    result = box.gb10("restore")
    assert result.code == 3, result.err
    assert "no engine answers" in result.err
    private_engine.start()
    result = box.gb10("restore")
    assert result.code == 0, result.err
    box.assert_on_baseline()
