"""The only door to Docker: reads through the SDK, changes through command lines that can be shown first. Used by all that deploys or checks."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from gb10 import compose
from gb10.compose import Command
from gb10.errors import FailedError, RefusedError

PROJECT_LABEL = "com.docker.compose.project"


class EngineGoneError(FailedError):
    """The Docker engine stopped answering in the middle of a command."""


@contextlib.contextmanager
def _asking(node: Node) -> Iterator[None]:
    """Around every read: a lost engine becomes `EngineGoneError`, and the next read connects anew."""
    try:
        yield
    except docker.errors.NotFound:
        raise
    except (docker.errors.DockerException, requests.RequestException) as error:
        node.close()
        raise EngineGoneError(
            "docker", f"the engine does not answer ({_reason(error)})", "start it, then: make restore"
        ) from None


@dataclass(frozen=True)
class Container:
    """What `docker inspect` says of one container, by the names used here."""

    id: str
    name: str
    image_id: str
    image_tag: str
    status: str
    health: str
    exit_code: int
    restart_count: int
    started_at: str
    oom_killed: bool
    raw: dict[str, Any]

    @property
    def argv(self) -> list[str]:
        """Entrypoint + command: what runs as the container's first process."""
        config = self.raw["Config"]
        return [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]

    @property
    def restart_policy(self) -> str:
        return self.raw["HostConfig"]["RestartPolicy"]["Name"] or "no"

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def is_ready(self) -> bool:
        """Does its health check pass? An engine that is not ready is killed and not stopped: vLLM ignores SIGTERM while it loads."""
        return self.health == "healthy"

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Container:
        state = raw["State"]
        return cls(
            id=raw["Id"],
            name=raw["Name"].lstrip("/"),
            image_id=raw["Image"],
            image_tag=raw["Config"]["Image"],
            status=state["Status"],
            health=(state.get("Health") or {}).get("Status", "none"),
            exit_code=state["ExitCode"],
            restart_count=raw["RestartCount"],
            started_at=state["StartedAt"],
            oom_killed=bool(state.get("OOMKilled")),
            raw=raw,
        )


class Node:
    """One Docker engine, found through DOCKER_HOST or the default socket."""

    def __init__(self) -> None:
        self._client: docker.DockerClient | None = None

    @property
    def client(self) -> docker.DockerClient:
        """The SDK's client. Raises `RefusedError` when no engine answers."""
        if self._client is None:
            try:
                self._client = docker.from_env(version="auto", timeout=60)
            except (docker.errors.DockerException, requests.RequestException) as error:
                raise RefusedError(
                    "docker",
                    f"no engine answers at {compose.environment()['DOCKER_HOST']} ({_reason(error)})",
                    "start it (systemctl start docker), or run `make demo` for the CPU site",
                ) from None
        return self._client

    def close(self) -> None:
        """Drop the connection, for a caller that outlives the engine."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def containers(self, project: str) -> list[Container]:
        """All containers of a Compose project, running or not, newest first."""
        return self.labelled(f"{PROJECT_LABEL}={project}")

    def labelled(self, label: str) -> list[Container]:
        """All containers with `label` (`key` or `key=value`), running or not."""
        found = []
        with _asking(self):
            for item in self.client.api.containers(all=True, filters={"label": label}):
                with contextlib.suppress(docker.errors.NotFound):
                    found.append(Container.of(self.client.api.inspect_container(item["Id"])))
        return found

    def container(self, container_id: str) -> Container | None:
        """One container by id or name."""
        try:
            with _asking(self):
                return Container.of(self.client.api.inspect_container(container_id))
        except docker.errors.NotFound:
            return None

    def image(self, reference: str) -> dict[str, Any] | None:
        """`docker image inspect` of a local image, or None."""
        try:
            with _asking(self):
                return self.client.api.inspect_image(reference)
        except docker.errors.ImageNotFound:
            return None

    def image_id(self, reference: str) -> str | None:
        """The id of a local image, or None."""
        image = self.image(reference)
        return image["Id"] if image else None

    def log_tail(self, container_id: str, lines: int = 20) -> str:
        """The last lines of a container's log; carriage returns of progress bars become line ends."""
        try:
            raw = self.client.api.logs(container_id, tail=lines, stdout=True, stderr=True)
        except (docker.errors.APIError, requests.RequestException):
            return ""
        return raw.decode("utf-8", "replace").replace("\r", "\n").rstrip()

    def log(self, container_id: str) -> bytes:
        """The log of a container: its last 100,000 lines."""
        try:
            return self.client.api.logs(container_id, stdout=True, stderr=True, timestamps=True, tail=100_000)
        except (docker.errors.APIError, requests.RequestException):
            return b""

    def read_file(self, container_id: str, path: str) -> bytes | None:
        """A file's bytes out of a container, running or not; None when it is not there."""
        try:
            with _asking(self):
                stream, _ = self.client.api.get_archive(container_id, path)
                data = b"".join(stream)
        except docker.errors.NotFound:
            return None
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            member = tar.next()
            file = tar.extractfile(member) if member is not None and member.isfile() else None
            return file.read() if file else None

    def version(self) -> dict[str, Any]:
        """The engine's version record."""
        with _asking(self):
            return self.client.api.version()

    def tags(self, repository: str) -> dict[str, str]:
        """The local tags of a repository, each with its image id."""
        with _asking(self):
            images = self.client.api.images(name=repository)
        return {
            tag.rpartition(":")[2]: image["Id"]
            for image in images
            for tag in image.get("RepoTags") or []
            if tag.startswith(f"{repository}:")
        }

    def info(self) -> dict[str, Any]:
        """The engine's info record."""
        with _asking(self):
            return self.client.api.info()

    def run(self, command: Command) -> str:
        """Run a command in a session of its own with a scrubbed environment; returns its stdout.

        Raises `FailedError` with the program's last line when it fails or takes longer than `command.timeout_s`.
        """
        try:
            process = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=compose.environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise RefusedError(command.argv[0], f"cannot be run ({error.strerror})", "run `make doctor`") from None
        try:
            out, err = process.communicate(timeout=command.timeout_s)
        except subprocess.TimeoutExpired:
            end_group(process.pid)
            process.communicate()
            raise FailedError(
                Path(command.argv[0]).name, f"took longer than {command.timeout_s:g} s", f"try it by hand: {command}"
            ) from None
        except BaseException:
            end_group(process.pid)
            process.communicate()
            raise
        if process.returncode != 0:
            lines = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
            reason = lines[-1].strip() if lines else f"exit code {process.returncode}"
            raise FailedError(Path(command.argv[0]).name, reason, f"try it by hand: {command}")
        return out.decode("utf-8", "replace")


def remove(container: Container) -> list[Command]:
    """The commands that end a container: stop with its grace when it is ready, kill otherwise; then remove."""
    grace = int(container.raw["Config"].get("StopTimeout") or 10)
    commands = []
    if container.status == "paused":
        commands.append(Command(("docker", "unpause", container.id)))
    if container.status in {"running", "paused"} and container.is_ready:
        commands.append(Command(("docker", "stop", "-t", str(grace), container.id), grace + 30))
    commands.append(Command(("docker", "rm", "--force", container.id), 60))
    return commands


def kill(container: Container) -> Command:
    """SIGKILL for everything in a container."""
    return Command(("docker", "kill", container.id), 30)


def tag(image_id: str, reference: str) -> Command:
    """Point `reference` at a local image."""
    return Command(("docker", "image", "tag", image_id, reference))


def end_group(pid: int, grace_s: float = 3.0) -> None:
    """End a process group that we started: SIGTERM, a bounded wait, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return
            except ChildProcessError:
                try:
                    os.killpg(pid, 0)
                except ProcessLookupError:
                    return
            time.sleep(0.05)


def _reason(error: BaseException) -> str:
    text = str(error)
    for sign, words in (
        ("No such file", "its socket is not there"),
        ("Permission denied", "permission denied on its socket: use sudo, or join the docker group"),
        ("Connection refused", "connection refused"),
    ):
        if sign in text:
            return words
    return text.splitlines()[0][:120]
