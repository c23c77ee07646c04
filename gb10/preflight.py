"""What must hold before the node is touched. Every cause at once, nothing changed; called by deploy.py and experiment.py."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from gb10 import contract, facts, flags, launch, marks, patchgate, readiness, restore
from gb10.comparison import ports_of
from gb10.context import Context
from gb10.errors import FailedError, Fault, NotOnBaselineError, RefusedError
from gb10.facts import GIB
from gb10.overlays import flatten, service_of
from gb10.site import commit_of

LEAST_DISK_BYTES = 100 * 1024**2


def for_deploy(context: Context, *, allow_dirty: bool) -> None:
    """Refuse a deploy that could not be traced or could not work. Raises `RefusedError`."""
    faults = list(_tree_is_clean(context, allow_dirty))
    faults += _files_are_rendered(context) or _contract_holds(context, [])
    role = context.site.variables.baseline_image
    faults += _images_are_local(context, [role])
    faults += _mounts_exist(context, [])
    faults += _port_is_free(context)
    faults += _disk_has_room(context)
    faults += _no_lease(context)
    if not faults:
        faults += patchgate.image_is_patched(context, role)
        faults += patchgate.model_is_adapted(context, [])
        faults += _flags_are_accepted(context, [])
    _raise(faults)


def for_experiment(context: Context, overlays: list[str]) -> None:
    """The way back is proved before the way out: baseline stored, local, healthy now; no open lease. Raises `RefusedError`."""
    faults = list(_no_lease(context))
    faults += _baseline_is_serving(context)
    faults += _files_are_rendered(context) or _contract_holds(context, overlays)
    v = context.site.variables
    role = v.image_of(overlays)
    faults += _images_are_local(context, sorted({v.baseline_image, role}))
    faults += _mounts_exist(context, overlays)
    faults += _memory_is_above_floors(context)
    faults += _disk_has_room(context)
    if not faults:
        faults += patchgate.image_is_patched(context, role)
        faults += patchgate.model_is_adapted(context, overlays)
        faults += marks.refusals(context, role) if "profile" in overlays else []
        faults += _flags_are_accepted(context, overlays)
    _raise(faults)


@contextlib.contextmanager
def nothing_touched_yet() -> Iterator[None]:
    """Around the writes that come before the first change: a full or lost disk is a refusal."""
    try:
        yield
    except OSError as error:
        raise RefusedError(
            str(error.filename or "disk"),
            f"cannot be written ({error.strerror})",
            "make room or mend it, and try again",
        ) from None


def _raise(faults: list[Fault]) -> None:
    if faults:
        raise RefusedError.of(faults)


def _files_are_rendered(context: Context) -> list[Fault]:
    return [
        Fault(name, "differs from vars.yaml", "run: make render, and read the diff") for name in context.site.stale()
    ]


def _tree_is_clean(context: Context, allow_dirty: bool) -> Iterator[Fault]:
    if allow_dirty:
        return
    commit = commit_of(context.site)
    if commit.unknown:
        yield Fault(
            str(context.site.directory),
            commit.unknown,
            "make it a git checkout with a commit, or set ALLOW_DIRTY=1 (recorded)",
        )
    for name in commit.dirty:
        yield Fault(name, "is not committed", "commit it, or set ALLOW_DIRTY=1 (recorded in the evidence)")


def _contract_holds(context: Context, overlays: list[str]) -> list[Fault]:
    baseline = flatten(context.node, context.project, [context.baseline_file])
    files = [context.baseline_file, *context.site.overlay_files(overlays)]
    flat = flatten(context.node, context.project, files) if overlays else baseline
    return contract.violations(contract.Case(flat, baseline, overlays, context.site.variables))


def _images_are_local(context: Context, names: list[str]) -> Iterator[Fault]:
    for name in names:
        reference = context.site.variables.images[name].tag
        if context.node.image_id(reference) is None:
            yield Fault(f"images.{name}", f"{reference} is not on this node", "run: make images")


def _mounts_exist(context: Context, overlays: list[str]) -> Iterator[Fault]:
    v = context.site.variables
    wanted = [("model.host_dir", v.model.host_dir)] if v.model.host_dir else []
    wanted += [(f"mounts[{i}].host", mount.host) for i, mount in enumerate(v.mounts)]
    wanted += [(f"caches[{i}].host", cache.host) for i, cache in enumerate(v.caches)]
    if "profile" in overlays and v.profile.nsys_dir:
        wanted.append(("profile.nsys_dir", v.profile.nsys_dir))
    if "profile" in overlays:
        output = Path(v.profile.output_dir)
        if output.is_relative_to(context.state.directory.parent):
            output.mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted.append(("profile.output_dir", v.profile.output_dir))
    for key, path in wanted:
        if not Path(path).exists():
            mend = f"sudo mkdir -p {path}" if key.startswith(("caches", "profile.output")) else "put it there"
            yield Fault(key, f"{path} is not on this node", f"{mend}, or correct vars.yaml")


def _port_is_free(context: Context) -> Iterator[Fault]:
    listen, ours = context.site.variables.listen, context.node.containers(context.site.project)
    other = context.node.container(context.site.variables.container.name)
    if other is not None and other.id not in {c.id for c in ours}:
        yield Fault(
            "container.name",
            f"{other.name} is the name of a container that is not this project's",
            f"choose another, or: docker rm -f {other.name}",
        )
    if any(f"{listen.address}:{listen.port} -> 8000" in ports_of(c) for c in ours):
        return
    with socket.socket(socket.AF_INET6 if ":" in listen.address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen.address, listen.port))
        except OSError as error:
            yield Fault(
                "listen.port",
                f"{listen.address}:{listen.port} cannot be bound ({error.strerror})",
                f"find its user with: ss -ltnp 'sport = :{listen.port}'",
            )


def _no_lease(context: Context) -> Iterator[Fault]:
    lease = context.state.lease()
    if lease is not None:
        yield Fault(
            "lease",
            f"experiment {lease.experiment} holds the node since {lease.since} (stage {lease.stage})",
            "run: make restore",
        )


def _baseline_is_serving(context: Context) -> Iterator[Fault]:
    try:
        baseline = restore.stored(context)
    except NotOnBaselineError as error:
        yield error.faults[0]
        return
    if context.node.image(baseline.image_id) is None:
        yield Fault(
            "baseline",
            f"its image {baseline.image_tag} is not local any more",
            "run: make images, then make deploy-baseline",
        )
        return
    if context.baseline_file.read_bytes() != context.state.file_of(baseline).read_bytes():
        yield Fault(
            "compose.yaml",
            "is not the baseline that is deployed",
            "run: make deploy-baseline first, or go back to the deployed commit",
        )
        return
    container = launch.running(context, restore.target(context, baseline))
    if container is None:
        yield Fault("baseline", "is not running and healthy now", "run: make restore")
        return
    try:
        readiness.prove_alive(context, container)
    except FailedError as error:
        yield Fault("baseline", error.faults[0].what, "run: make restore")


def _memory_is_above_floors(context: Context) -> Iterator[Fault]:
    fact, floor = facts.available_bytes(), context.site.variables.guard.sustained_below_gib
    if fact.value is None:
        yield Fault(
            "guard",
            f"available memory is unknown ({fact.why}): nothing could watch it",
            "run it where /proc/meminfo can be read",
        )
        return
    available = fact.value
    if available < floor * GIB:
        yield Fault(
            "guard.sustained_below_gib",
            f"the node has {available / GIB:.2f} GiB available, under the floor {floor:g} already",
            "free memory first, or lower the floor",
        )


def _disk_has_room(context: Context) -> Iterator[Fault]:
    """Enough for records and logs. The floor of `make verify` (checks.minimum_disk_gib) is another, higher one."""
    for path in (context.state.directory, Path(context.node.info()["DockerRootDir"])):
        free = facts.free_disk_bytes(path)
        if free.value is not None and free.value < LEAST_DISK_BYTES:
            yield Fault(
                str(path), f"only {free.value / 1024**2:.0f} MiB are free", f"make room: df -h {path}, docker system df"
            )


def _flags_are_accepted(context: Context, overlays: list[str]) -> Iterator[Fault]:
    files = [context.baseline_file, *context.site.overlay_files(overlays)]
    service = service_of(flatten(context.node, context.project, files))
    image_id = context.node.image_id(service["image"])
    assert image_id is not None
    arguments = flags.words_of(service)
    context.progress.waiting("asking the image's own parser about the flags")
    verdict = flags.judge(context, image_id, arguments)
    if verdict.outcome == "refused":
        yield Fault(
            "engine flags", f"the engine's parser refuses them: {verdict.why}", "mend vars.yaml, then: make render"
        )
    elif verdict.outcome == "unknown":
        context.progress.note(f"engine flags: unknown ({verdict.why})")
