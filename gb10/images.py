"""`images`: build or pull what a site needs and record ids. A deploy never does either. Called by the command line and setup."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors
import requests

from gb10 import buildinput
from gb10.buildinput import run
from gb10.context import Context
from gb10.errors import FailedError, RefusedError
from gb10.rendering import REPOSITORY
from gb10.state import now
from gb10.variables.model import Image

INPUTS_LABEL = "gb10.inputs"
STAGE_LABEL = "gb10.stage=build"
PULL_PROBE_S = 90
DEBOOTSTRAP_S = 900


def prepare(context: Context) -> dict[str, str]:
    """Make every image of the site local, sources first; returns name -> id. What is up to date is left alone."""
    images = context.site.variables.images
    ids: dict[str, str] = {}
    with context.state.lock("gb10 images"):
        for name in _in_order(images):
            image = images[name]
            with context.progress.stage(f"image {name}", image.tag):
                ids[name] = _build(context, name, image, ids) if image.build else _pull(context, image.tag)
        record = {
            name: {"tag": images[name].tag, "id": ids[name], "digests": _digests(context, ids[name]), "at": now()}
            for name in ids
        }
        context.state.write_record("images.json", record)
    return ids


def _in_order(images: dict[str, Image]) -> list[str]:
    """Names with every source before what is built from it."""
    ordered: list[str] = []

    def add(name: str) -> None:
        source = images[name].source
        if source in images and source not in ordered:
            add(str(source))
        if name not in ordered:
            ordered.append(name)

    for name in images:
        add(name)
    return ordered


def _digests(context: Context, image_id: str) -> list[str]:
    return list((context.node.image(image_id) or {}).get("RepoDigests") or [])


def _pull(context: Context, reference: str) -> str:
    """A pinned reference from its registry, unless it is local. Raises `FailedError`."""
    local = context.node.image_id(reference)
    if local:
        return local
    try:
        for event in context.node.client.api.pull(reference, stream=True, decode=True):
            if "error" in event:
                raise FailedError(
                    reference, f"cannot be pulled ({event['error']})", "check the network and the reference"
                )
            context.progress.waiting(f"{event.get('id', '')} {event.get('status', '')} {event.get('progress', '')}")
    except (docker.errors.APIError, requests.RequestException) as error:
        raise FailedError(
            reference, f"cannot be pulled ({str(error)[:120]})", "check the network, then: make images"
        ) from None
    image_id = context.node.image_id(reference)
    assert image_id is not None
    return image_id


def _source(context: Context, image: Image, ids: dict[str, str]) -> str:
    """The local id that an image is built from."""
    assert image.source is not None
    if image.source in ids:
        return ids[image.source]
    if image.debootstrap is None:
        return _pull(context, image.source)
    tag = f"gb10-gitops/{image.source.partition(':')[0]}:{image.debootstrap}"
    return (
        context.node.image_id(tag)
        or _pull_quickly(context, image.source, tag)
        or _debootstrap(context, image.debootstrap, tag)
    )


def _pull_quickly(context: Context, reference: str, tag: str) -> str | None:
    """The image from a registry, if one answers within a bound; tagged as ours."""
    context.progress.waiting(f"asking for {reference}")
    try:
        result = subprocess.run(
            ["docker", "pull", "--quiet", reference], capture_output=True, timeout=PULL_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if result.returncode != 0:
        return None
    context.node.client.api.tag(reference, *tag.rsplit(":", 1))
    return context.node.image_id(tag)


def _debootstrap(context: Context, release: str, tag: str) -> str:
    """A minimal Debian made on this machine and imported. Raises `RefusedError` when the tool or root is missing."""
    program = shutil.which("debootstrap") or shutil.which("debootstrap", path="/usr/sbin:/sbin")
    if program is None or os.geteuid() != 0:
        what = "debootstrap is not installed" if program is None else "debootstrap needs root"
        raise RefusedError(
            f"base image {tag}",
            f"no registry answers and {what}",
            "run: sudo apt-get install debootstrap, then: sudo make images",
        )
    context.progress.note(f"  no registry answers: making Debian {release} with debootstrap (about 30 s)")
    work = Path(tempfile.mkdtemp(prefix="debootstrap-", dir=_cache(context)))
    try:
        root = work / "root"
        run([program, "--variant=minbase", release, str(root)], DEBOOTSTRAP_S, "debootstrap", context.progress)
        archive = work / "root.tar"
        run(
            [
                "tar",
                "--numeric-owner",
                "--exclude=./var/cache/apt/archives/*.deb",
                "-C",
                str(root),
                "-cf",
                str(archive),
                ".",
            ],
            DEBOOTSTRAP_S,
            "tar",
            context.progress,
        )
        run(["docker", "import", str(archive), tag], DEBOOTSTRAP_S, "docker import", context.progress)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    image_id = context.node.image_id(tag)
    assert image_id is not None
    return image_id


def _build(context: Context, name: str, image: Image, ids: dict[str, str]) -> str:
    """`docker build` with the classic builder (no BuildKit needed), unless the local image has the same inputs."""
    assert image.build is not None
    directory = REPOSITORY / image.build
    if not (directory / "Dockerfile").is_file():
        raise RefusedError(f"images.{name}.build", f"{image.build} has no Dockerfile", "correct vars.yaml")
    source = _source(context, image, ids)
    inputs = buildinput.fingerprint(directory, source)
    local = context.node.image(image.tag)
    if local and ((local["Config"] or {}).get("Labels") or {}).get(INPUTS_LABEL) == inputs:
        return str(local["Id"])
    with buildinput.prepared(directory, _cache(context), context.progress) as context_directory:
        try:
            events = context.node.client.api.build(
                path=str(context_directory),
                tag=image.tag,
                rm=True,
                forcerm=True,
                network_mode="host",
                decode=True,
                buildargs={"BASE": source},
                labels={INPUTS_LABEL: inputs},
                timeout=3600,
            )
            _follow(context, image, events)
            context.node.client.api.prune_images(filters={"dangling": True, "label": STAGE_LABEL})
        except (docker.errors.APIError, requests.RequestException) as error:
            raise FailedError(
                image.tag, f"cannot be built ({str(error)[:160]})", "check the engine, then: make images"
            ) from None
    image_id = context.node.image_id(image.tag)
    assert image_id is not None
    return image_id


def _follow(context: Context, image: Image, events: Iterator[dict[str, Any]]) -> None:
    tail: list[str] = []
    step = ""
    for event in events:
        if "error" in event:
            patch = next((line for line in tail if line.startswith("patches: ")), None)
            raise FailedError(
                image.tag,
                f"cannot be built ({patch or event['error'].strip()})",
                f"mend {image.build}, then: make images",
                tail="\n".join(tail[-20:]),
            )
        text = event.get("stream", "").replace("\x1b[91m", "").replace("\x1b[0m", "")  # the builder's red for stderr
        for line in filter(None, map(str.strip, text.splitlines())):
            tail.append(line)
            step = line if line.startswith("Step ") else step
            context.progress.waiting(f"{step[:70]} | {line[-60:]}")


def _cache(context: Context) -> Path:
    """What can be made again: wheels and work directories, shared by the projects of this node."""
    path = context.state.directory.parent / "cache"
    path.mkdir(parents=True, exist_ok=True)
    return path
