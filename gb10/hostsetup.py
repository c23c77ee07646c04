"""Makes a fresh Debian or Ubuntu machine able to run the CPU site, and takes back what it made. Used by demo and tests only.

An engine that is there is never touched; a node that serves a site with a GPU is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from gb10 import compose, facts, files
from gb10.errors import FailedError, RefusedError
from gb10.node import Node
from gb10.state import SYSTEM_ROOT
from gb10.terminal import Progress

ENGINE_START_S = 60
APT_S = 900


def refuse_on_a_serving_node(node: Node, root: Path) -> None:
    """A node on which a site with a GPU is deployed is not a test bench. Raises `RefusedError`."""
    mend = "run it on another machine"
    for path in sorted({*root.glob("*/current.json"), *SYSTEM_ROOT.glob("*/current.json")}):
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            key = json.loads(path.read_text())["key"]
            if 'gb10.gpu: "nvidia"' in (path.parent / "baselines" / key / "compose.yaml").read_text():
                raise RefusedError(str(path.parent), "a site with a GPU is deployed on this node", mend)
    if engine_answers(node):
        serving = [c for c in node.labelled("gb10.gpu=nvidia") if c.running]
        if serving:
            raise RefusedError(serving[0].name, "a site with a GPU is serving on this node", mend)


def engine_answers(node: Node) -> bool:
    """Does a Docker engine answer?"""
    try:
        node.client.ping()
        return True
    except Exception:  # the SDK's own errors, or requests' when the socket dies in between
        node.close()
        return False


def prepare(node: Node, progress: Progress, root: Path) -> None:
    """Docker Engine and Compose v2, each step said before it is done. Raises `RefusedError` naming what to install."""
    refuse_on_a_serving_node(node, root)
    if engine_answers(node):
        progress.note(f"docker engine: {node.version()['Version']} answers, left as it is")
    else:
        _engine(node, progress, root)
    program = compose.plugin()
    if program is None:
        raise RefusedError(
            "compose v2",
            "not found",
            "sudo apt-get install docker-compose-v2 (or docker-compose-plugin), then run this again",
        )
    progress.note(f"compose v2: {program}")
    if node.image_id("gb10-gitops/base:bookworm") is None and not shutil.which(
        "debootstrap", path="/usr/sbin:/usr/bin:/sbin:/bin"
    ):
        _apt(
            ["debootstrap", "debian-archive-keyring"],
            progress,
            root,
            why="makes the base image when no registry answers",
        )


def prepare_tests(progress: Progress, root: Path) -> None:
    """What only the tests need: an SSH client and a browser. A test that misses one says what to install."""
    wanted = {"ssh": ("openssh-client", "make verify HOST=ssh://..."), "chromium": ("chromium", "opens the report")}
    for program, (package, why) in wanted.items():
        if shutil.which(program) is None and os.geteuid() == 0:
            with contextlib.suppress(FailedError):  # where only a snap has the browser, for one
                _apt([package], progress, root, why=f"{why}, which the tests do")


def _engine(node: Node, progress: Progress, root: Path) -> None:
    if os.environ.get("DOCKER_HOST"):
        raise RefusedError(
            "docker engine",
            f"none answers at DOCKER_HOST={os.environ['DOCKER_HOST']}",
            "start it, or unset DOCKER_HOST",
        )
    if os.geteuid() != 0:
        raise RefusedError("docker engine", "none answers, and starting one needs root", "run: sudo make demo")
    if not shutil.which("dockerd", path="/usr/sbin:/usr/bin:/usr/local/bin:/usr/local/sbin"):
        packages = ["docker.io"] + (["docker-cli"] if _apt_knows("docker-cli") else [])
        _apt(packages, progress, root, why="Docker Engine")
    if engine_answers(node):
        return
    if facts.has_systemd():
        progress.note("docker engine: systemctl start docker")
        subprocess.run(["systemctl", "start", "docker"], timeout=ENGINE_START_S, check=False, capture_output=True)
        _wait_for_engine(node, progress, None, root / "dockerd.log")
    else:
        _start_dockerd(node, progress, root)


def _start_dockerd(node: Node, progress: Progress, root: Path) -> None:
    log = root / "dockerd.log"
    root.mkdir(parents=True, exist_ok=True)
    progress.note(f"docker engine: no systemd here, starting dockerd (log: {log})")
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["dockerd"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    _note(root, "dockerd", {"pid": process.pid, "start_ticks": facts.process_start_ticks(process.pid)})
    _wait_for_engine(node, progress, process, log)


def _wait_for_engine(node: Node, progress: Progress, process: subprocess.Popen[bytes] | None, log: Path) -> None:
    began = time.monotonic()
    while not engine_answers(node):
        waited = time.monotonic() - began
        if waited > ENGINE_START_S or (process is not None and process.poll() is not None):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:]) if log.is_file() else ""
            raise FailedError(
                "docker engine",
                f"did not answer after {waited:.0f} s",
                "read its last lines; it needs root, cgroups and iptables",
                tail=tail,
            )
        progress.waiting(f"docker engine: {waited:.0f} s")
        time.sleep(0.3)
    progress.note(f"docker engine: {node.version()['Version']} answers")


def _apt_knows(package: str) -> bool:
    result = subprocess.run(["apt-cache", "show", package], capture_output=True, timeout=60, check=False)
    return result.returncode == 0 and bool(result.stdout)


def _apt(packages: list[str], progress: Progress, root: Path, *, why: str) -> None:
    words = " ".join(packages)
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise RefusedError("set-up", f"{words} is not installed ({why})", f"install it: sudo apt-get install {words}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages],
    ):
        progress.note(f"{why}: {' '.join(command)}")
        result = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=APT_S, check=False
        )
        if result.returncode != 0 and "install" in command:
            tail = (result.stdout + result.stderr).decode("utf-8", "replace").strip().splitlines()[-8:]
            raise FailedError(
                "apt-get",
                f"could not install {words}",
                f"try by hand: sudo apt-get install {words}",
                tail="\n".join(tail),
            )
    record = _record(root)
    _note(root, "packages", sorted({*record.get("packages", []), *packages}))


def clean(node: Node, progress: Progress, root: Path, project: str, image_tags: list[str]) -> None:
    """Remove what the demo made: its containers, network, images, state and the dockerd it started. Evidence and packages stay."""
    record = _record(root)
    if not engine_answers(node):
        raise RefusedError(
            "docker engine",
            "none answers: containers and images cannot be removed",
            "start it, or use sudo as for the demo",
        )
    api = node.client.api
    for container in node.containers(project):
        progress.note(f"removing container {container.name}")
        api.remove_container(container.id, force=True, v=True)
    for network in api.networks(filters={"label": f"com.docker.compose.project={project}"}):
        progress.note(f"removing network {network['Name']}")
        api.remove_network(network["Id"])
    tags = {tag for image in api.images() for tag in image.get("RepoTags") or []}
    ours = {t for t in tags if t.startswith((f"gb10-stored/{project}:", "gb10-gitops/debian:"))} | (
        tags & set(image_tags)
    )
    for tag in sorted(ours):
        progress.note(f"removing image {tag}")
        api.remove_image(tag, force=True)
    api.prune_images(filters={"dangling": True, "label": "gb10.inputs"})
    for path in (root / project, root / "cache"):
        if path.exists():
            progress.note(f"removing {path}")
            shutil.rmtree(path)
    _stop_dockerd(node, progress, record)
    if record.get("packages"):
        progress.note(
            f"left: packages {' '.join(record['packages'])} (sudo apt-get remove {' '.join(record['packages'])})"
        )
    for path in (root / "setup.json", root / "dockerd.log"):
        files.remove(path)


def _stop_dockerd(node: Node, progress: Progress, record: dict[str, Any]) -> None:
    dockerd = record.get("dockerd")
    if not dockerd or facts.process_start_ticks(dockerd["pid"]) != dockerd["start_ticks"]:
        return
    others = node.client.api.containers() if engine_answers(node) else []
    if others:
        progress.note(
            f"left: the dockerd that set-up started (pid {dockerd['pid']}): {len(others)} other containers run on it"
        )
        return
    progress.note(f"stopping the dockerd that set-up started (pid {dockerd['pid']})")
    os.kill(dockerd["pid"], signal.SIGTERM)
    deadline = time.monotonic() + 30
    while facts.process_start_ticks(dockerd["pid"]) == dockerd["start_ticks"] and time.monotonic() < deadline:
        time.sleep(0.1)


def _record(root: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((root / "setup.json").read_text()))
    except (OSError, ValueError):
        return {}


def _note(root: Path, key: str, value: Any) -> None:
    files.write_json(root / "setup.json", {**_record(root), key: value})
