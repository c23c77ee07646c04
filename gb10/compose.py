"""Where Compose v2 is and how its command lines look. Pure builders; node.py runs them."""

from __future__ import annotations

import importlib.util
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

PLUGIN_DIRECTORIES = (
    "~/.docker/cli-plugins",
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)
DEFAULT_ENGINE = "unix:///var/run/docker.sock"
KEPT_ENVIRONMENT = ("PATH", "HOME", "LANG", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and how long it may take."""

    argv: tuple[str, ...]
    timeout_s: float = 60.0

    def __str__(self) -> str:
        return shlex.join(self.argv)


def plugin() -> Path | None:
    """The Compose v2 program: a Docker CLI plugin by its absolute path (a wrong HOME hides it from `docker compose`), else the one in this Python environment."""
    for directory in PLUGIN_DIRECTORIES:
        path = Path(directory).expanduser() / "docker-compose"
        if os.access(path, os.X_OK):
            return path
    module = importlib.util.find_spec("compose")
    if module and module.origin:
        path = Path(module.origin).parent / "docker-compose"
        if os.access(path, os.X_OK):
            return path
    return None


def environment() -> dict[str, str]:
    """What Compose and Docker get to see: enough to find the engine, nothing that changes what is deployed.

    DOCKER_HOST is always set: a Docker context would send the commands to another engine than the SDK's reads.
    """
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    return {"DOCKER_HOST": DEFAULT_ENGINE} | kept


@dataclass(frozen=True)
class Project:
    """One Compose project as this repository runs it: explicit name, files and directory, no `.env`."""

    program: Path
    name: str
    directory: Path

    def command(self, files: list[Path], *words: str, timeout_s: float = 60.0) -> Command:
        """`docker-compose` with every input spelled out."""
        argv = [
            str(self.program),
            "--project-name",
            self.name,
            "--project-directory",
            str(self.directory),
            "--env-file",
            "/dev/null",
        ]
        for file in files:
            argv += ["--file", str(file)]
        return Command((*argv, *words), timeout_s)

    def version(self) -> Command:
        """Compose's own version."""
        return Command((str(self.program), "version", "--short"))

    @property
    def words(self) -> list[str]:
        """The words by which a Compose call of ours on this project is known among the processes."""
        return ["--project-name", self.name, "--project-directory", str(self.directory)]

    def config(self, files: list[Path]) -> Command:
        """Flatten the files to one document on stdout."""
        return self.command(files, "config", "--format", "json")

    def up(self, files: list[Path], timeout_s: float) -> Command:
        """Create and start; never build or pull, never wait (readiness is ours)."""
        return self.command(
            files, "up", "--detach", "--no-build", "--pull", "never", "--quiet-pull", timeout_s=timeout_s
        )
