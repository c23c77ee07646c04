"""`doctor`: everything this site needs on this node, each as ok, missing or unknown, with the mend.

It changes nothing that serves; the verdict of an image's flag parser is kept in the state directory.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gb10 import compose, facts, flags, marks, patches, patchgate
from gb10.context import Context
from gb10.errors import Gb10Error
from gb10.facts import GIB
from gb10.overlays import flatten, service_of
from gb10.site import commit_of


@dataclass(frozen=True)
class Need:
    """One need: `ok`, `missing` or `unknown`, what was found, and what to do."""

    name: str
    status: str
    found: str
    mend: str = ""


def examine(context: Context) -> list[Need]:
    """Every need in order. A need that cannot be looked at is unknown with the reason."""
    needs: list[Need] = []
    for look in LOOKS:
        try:
            needs += look(context)
        except Exception as error:
            needs.append(_unseen(look, error))
    return needs


def _unseen(look: Callable[[Context], Iterator[Need]], error: Exception) -> Need:
    """A need that could not be looked at. Without an engine it is the engine that is missing."""
    name = "docker engine" if look is _engine else look.__name__.strip("_").replace("_", " ")
    if isinstance(error, Gb10Error):
        return Need(name, "missing" if look is _engine else "unknown", error.faults[0].what, error.faults[0].mend)
    return Need(name, "unknown", f"{type(error).__name__}: {error}")


def _engine(context: Context) -> Iterator[Need]:
    version = context.node.version()
    yield Need("docker engine", "ok", f"{version['Version']}, API {version['ApiVersion']}")


def _compose(context: Context) -> Iterator[Need]:
    program = compose.plugin()
    if program is None:
        yield Need(
            "compose v2",
            "missing",
            "not found",
            "sudo apt-get install docker-compose-v2 (or docker-compose-plugin), or make setup",
        )
        return
    version = context.node.run(compose.Command((str(program), "version", "--short"))).strip()
    yield Need("compose v2", "ok", f"{version} ({program})")


def _gpu_runtime(context: Context) -> Iterator[Need]:
    if context.site.variables.node.gpu == "none":
        yield Need("gpu runtime", "ok", "not needed by this site")
        return
    info = context.node.info()
    runtimes = sorted(info.get("Runtimes") or {})
    devices = [d for d in info.get("DiscoveredDevices") or [] if "nvidia" in str(d)]
    if "nvidia" in runtimes or devices:
        yield Need("gpu runtime", "ok", f"runtimes {', '.join(runtimes)}")
    else:
        yield Need(
            "gpu runtime",
            "missing",
            f"runtimes {', '.join(runtimes)}",
            "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker",
        )


def _memory(context: Context) -> Iterator[Need]:
    wanted, total = context.site.variables.node.memory_gib, facts.total_bytes()
    if total.value is None:
        yield Need("memory", "unknown", total.why)
    elif total.value < wanted * GIB * 0.98:
        yield Need(
            "memory",
            "missing",
            f"{total.value / GIB:.1f} GiB, vars.yaml says {wanted:g}",
            "correct node.memory_gib, and the utilisation with it",
        )
    else:
        yield Need("memory", "ok", f"{total.value / GIB:.1f} GiB")


def _disk(context: Context) -> Iterator[Need]:
    floor = context.site.variables.checks.minimum_disk_gib
    for name, path in (
        ("disk, state", context.state.directory),
        ("disk, docker", Path(context.node.info()["DockerRootDir"])),
    ):
        free = facts.free_disk_bytes(path)
        if free.value is None:
            yield Need(name, "unknown", free.why)
        else:
            enough = free.value >= floor * GIB
            yield Need(
                name,
                "ok" if enough else "missing",
                f"{free.value / GIB:.1f} GiB free at {path}",
                "" if enough else f"free some: {floor:g} GiB are wanted",
            )


def _port(context: Context) -> Iterator[Need]:
    listen = context.site.variables.listen
    if any(c.running for c in context.node.containers(context.site.project)):
        yield Need("port", "ok", f"{listen.port} is published by this site's engine")
        return
    with socket.socket(socket.AF_INET6 if ":" in listen.address else socket.AF_INET) as probe:
        probe.settimeout(1)
        busy = probe.connect_ex((listen.address, listen.port)) == 0
    yield Need(
        "port",
        "missing" if busy else "ok",
        f"{listen.address}:{listen.port} is {'used by something else' if busy else 'free'}",
        f"find it with: ss -ltnp 'sport = :{listen.port}'" if busy else "",
    )


def _systemd(context: Context) -> Iterator[Need]:
    units = facts.failed_units()
    if units.value is None:
        yield Need("systemd", "unknown", units.why, "failed units stay unknown in the checks")
    elif units.value:
        yield Need(
            "systemd", "missing", f"failed: {', '.join(units.value)}", f"look at: systemctl status {units.value[0]}"
        )
    else:
        yield Need("systemd", "ok", "no failed units")


def _images(context: Context) -> Iterator[Need]:
    for name, image in context.site.variables.images.items():
        image_id = context.node.image_id(image.tag)
        yield Need(
            f"image {name}",
            "ok" if image_id else "missing",
            f"{image.tag} {image_id[7:19] if image_id else 'is not local'}",
            "" if image_id else "make images",
        )


def _patches(context: Context) -> Iterator[Need]:
    """Do the local images show what patches.yaml says, and is the model fit for breakable graphs?"""
    v = context.site.variables
    for role in ("eager", "graph"):
        if context.node.image_id(v.images[role].tag) is None:
            yield Need(f"patches, {role}", "unknown", "the image is not local", "make images")
            continue
        faults = list(patchgate.image_is_patched(context, role))
        yield from (Need(f"patches, {role}", "missing", fault.what, fault.mend) for fault in faults)
        if not faults:
            yield Need(f"patches, {role}", "ok", ", ".join(patches.expected(v, role)) or "none are asked for")
        if role == "graph":
            known = v.engine.graph is not None or bool(context.node.containers(context.site.project))
            found = {
                str(fault): fault for names in ([], ["graph"]) for fault in patchgate.model_is_adapted(context, names)
            }
            for fault in found.values():
                yield Need(fault.where, "missing" if known else "unknown", fault.what, fault.mend)


def _flags(context: Context) -> Iterator[Need]:
    """The verdict of the image's own parser on the baseline and on every experiment."""
    for name, overlays in {"baseline": [], **context.site.variables.experiments}.items():
        files = [context.baseline_file, *context.site.overlay_files(overlays)]
        service = service_of(flatten(context.node, context.project, files))
        image_id = context.node.image_id(service["image"])
        if image_id is None:
            yield Need(
                f"flags, {name}", "unknown", "the image is not local, so its parser has not judged them", "make images"
            )
            continue
        context.state.prepare()
        context.progress.waiting(f"flags of {name} through the image's parser")
        verdict = flags.judge(context, image_id, flags.words_of(service))
        status = {"accepted": "ok", "refused": "missing"}.get(verdict.outcome, "unknown")
        yield Need(
            f"flags, {name}",
            status,
            verdict.why or "accepted by the image's own parser",
            "mend vars.yaml" if status == "missing" else "",
        )


def _marks(context: Context) -> Iterator[Need]:
    """Are the profiler's marked functions in the images that experiments run under the profiler?"""
    v = context.site.variables
    profiled = [overlays for overlays in v.experiments.values() if "profile" in overlays]
    for role in sorted({v.image_of(overlays) for overlays in profiled} if v.profile.marks else ()):
        image_id = context.node.image_id(v.images[role].tag)
        if image_id is None:
            yield Need(f"marks, {role}", "unknown", "the image is not local", "make images")
            continue
        context.state.prepare()
        faults = marks.refusals(context, role)
        for fault in faults:
            yield Need(
                f"marks, {role}", "missing", f"{fault.where}: {fault.what}", f"{fault.mend} (only try-profile needs it)"
            )
        unknown = [one for one in marks.judge(context, image_id) if one["outcome"] == "unknown"]
        if unknown and not faults:
            yield Need(
                f"marks, {role}",
                "unknown",
                unknown[0]["why"],
                "the engine's log says it: see the evidence of try-profile",
            )
        elif not faults:
            yield Need(f"marks, {role}", "ok", ", ".join(mark.name for mark in v.profile.marks))


def _directories(context: Context) -> Iterator[Need]:
    v = context.site.variables
    if v.model.host_dir:
        path = Path(v.model.host_dir)
        there = (path / "config.json").is_file()
        yield Need(
            "model",
            "ok" if there else "missing",
            f"{path} {'has a config.json' if there else 'has no config.json'}",
            "" if there else "download the model there, or correct model.host_dir",
        )
    for mount in v.mounts:
        there = Path(mount.host).exists()
        yield Need(
            "mount", "ok" if there else "missing", mount.host, "" if there else "create it, or correct vars.yaml"
        )
    if v.profile.nsys_dir:
        program = Path(v.profile.nsys_dir) / "bin/nsys"
        there = program.is_file()
        mend = "" if there else "install Nsight Systems, or correct profile.nsys_dir (only try-profile needs it)"
        yield Need("nsys", "ok" if there else "missing", str(program), mend)
    for cache in v.caches:
        path = Path(cache.host)
        if not path.is_dir():
            yield Need("cache", "missing", f"{path} is not there", f"sudo mkdir -p {path}")
        elif path.stat().st_uid != 0:
            yield Need(
                "cache",
                "missing",
                f"{path} belongs to uid {path.stat().st_uid}; the engine is root without DAC_OVERRIDE",
                f"sudo chown -R root: {path}",
            )
        else:
            yield Need("cache", "ok", f"{path} belongs to root")


def _clock(context: Context) -> Iterator[Need]:
    if not facts.has_systemd() or not shutil.which("timedatectl"):
        yield Need("clock", "unknown", "no timedatectl here", "records carry this machine's time: check it")
        return
    result = subprocess.run(
        ["timedatectl", "show", "--property=NTPSynchronized", "--value"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    synced = result.stdout.strip() == "yes"
    yield Need(
        "clock",
        "ok" if synced else "missing",
        "synchronised" if synced else "not synchronised",
        "" if synced else "sudo timedatectl set-ntp true",
    )


def _git(context: Context) -> Iterator[Need]:
    commit = commit_of(context.site)
    if commit.id == "unknown":
        yield Need(
            "git",
            "missing",
            "this is not a git checkout with a commit",
            "git init && git add . && git commit, so that a deploy names what it deployed",
        )
    elif commit.dirty:
        yield Need(
            "git", "missing", f"not committed: {', '.join(commit.dirty)}", "commit it, or deploy with ALLOW_DIRTY=1"
        )
    else:
        yield Need("git", "ok", f"commit {commit.id[:12]}, nothing to deploy is uncommitted")


LOOKS: tuple[Callable[[Context], Iterator[Need]], ...] = (
    _engine,
    _compose,
    _gpu_runtime,
    _memory,
    _disk,
    _port,
    _systemd,
    _images,
    _patches,
    _directories,
    _flags,
    _marks,
    _clock,
    _git,
)
