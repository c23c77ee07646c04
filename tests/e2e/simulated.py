"""A simulated node: a container with systemd, an SSH server and the machine's Docker socket, for what a plain container has not.

Its first boot has the machine's boot id, so that a deploy made on the machine is this node's history too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from gb10 import compose, facts
from gb10.node import PROJECT_LABEL, Node
from tests.conftest import ROOT
from tests.e2e.states import wait_for

IMAGE = "gb10-gitops/test-node:bookworm"
CGROUPS = "/sys/fs/cgroup"


class SimulatedNode:
    """One running node; `directory` is mounted at the same path on both sides."""

    def __init__(self, node: Node, name: str, directory: Path, port: int):
        self.name, self.port, self.directory = name, port, directory
        self.key = directory / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True, timeout=30)
        self.ssh_config = directory / "ssh_config"
        known = directory / "known_hosts"
        self.ssh_config.write_text(
            f"IdentityFile {self.key}\nStrictHostKeyChecking accept-new\nUserKnownHostsFile {known}\n"
        )
        build(node)
        engine = compose.environment()["DOCKER_HOST"].removeprefix("unix://")
        program = shutil.which("docker")
        command = [
            "docker",
            "run",
            "--detach",
            "--name",
            name,
            "--label",
            f"{PROJECT_LABEL}={name}",
            "--network",
            "host",
        ]
        command += ["--cap-add", "SYS_ADMIN", "--cap-add", "SYSLOG", "--device", "/dev/kmsg", "--cgroupns=host"]
        command += ["--tmpfs", "/run", "--tmpfs", "/run/lock", "--volume", f"{CGROUPS}:{CGROUPS}:rw"]
        command += ["--volume", f"{engine}:/var/run/docker.sock", "--volume", f"{program}:/usr/local/bin/docker:ro"]
        command += ["--volume", f"{directory}:{directory}", "--env", f"SSH_PORT={port}"]
        command += ["--env", f"SSH_KEY={self.key.with_suffix('.pub').read_text().strip()}", IMAGE]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        self.wait()

    @property
    def url(self) -> str:
        return f"ssh://root@127.0.0.1:{self.port}"

    def run(self, script: str) -> str:
        """A shell script on the node, as root with a user session."""
        words = ["docker", "exec", "--env", "XDG_RUNTIME_DIR=/run/user/0", self.name, "sh", "-ec", script]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout

    def succeeds(self, script: str) -> bool:
        words = ["docker", "exec", "--env", "XDG_RUNTIME_DIR=/run/user/0", self.name, "sh", "-ec", script]
        return subprocess.run(words, check=False, capture_output=True, timeout=60).returncode == 0

    def wait(self) -> None:
        """Until systemd is up, with the user's manager and the SSH server."""
        wait_for(lambda: self.succeeds("systemctl is-system-running"), "systemd's start")
        wait_for(lambda: self.succeeds("systemctl --user is-system-running"), "the user manager's start")
        wait_for(lambda: self.succeeds("systemctl is-active ssh"), "the SSH server's start")

    def reboot(self) -> None:
        """A new boot id; /run and transient units are gone."""
        subprocess.run(["docker", "restart", self.name], check=True, capture_output=True, timeout=60)
        self.wait()


def build(node: Node) -> None:
    """The node's image, once for all."""
    events = node.client.api.build(
        path=str(ROOT / "tests/node"),
        tag=IMAGE,
        decode=True,
        rm=True,
        network_mode="host",
        buildargs={"BASE": "gb10-gitops/base:bookworm"},
    )
    errors = [event["error"] for event in events if "error" in event]
    assert not errors, errors


def name_for(purpose: str) -> str:
    """A project name that `remove_leftovers` knows when this run is killed."""
    return f"gb10test-{os.getpid()}-{facts.process_start_ticks(os.getpid())}-{purpose}"
