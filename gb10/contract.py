"""What a flattened file must hold before it may run. One function a rule; called by every deploy and by the tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gb10.arguments import MARKS_DIR, MARKS_VARIABLE, PROFILES_DIR
from gb10.errors import Fault
from gb10.overlays import SERVICE
from gb10.variables import Variables

Document = dict[str, Any]
Broken = tuple[str, str]


@dataclass(frozen=True)
class Case:
    """A flattened file with what it is judged by: its overlays, the flattened baseline, and the variables."""

    flat: Document
    baseline: Document
    overlays: list[str]
    variables: Variables

    @property
    def service(self) -> dict[str, Any]:
        return self.flat["services"].get(SERVICE, {})

    @property
    def baseline_service(self) -> dict[str, Any]:
        return self.baseline["services"][SERVICE]


def violations(case: Case) -> list[Fault]:
    """Every broken rule, named."""
    where = " + ".join(["compose.yaml", *(f"overlays/{name}.yaml" for name in case.overlays)])
    return [Fault(f"{where}: {rule.__name__}", what, mend) for rule in RULES for what, mend in rule(case)]


def only_the_engine_service(case: Case) -> Iterator[Broken]:
    extra = sorted(set(case.flat["services"]) - {SERVICE})
    if extra or SERVICE not in case.flat["services"]:
        yield f"services are {', '.join(sorted(case.flat['services']))}", f"name the service {SERVICE} in every file"


def one_gpu_request_where_there_is_a_gpu(case: Case) -> Iterator[Broken]:
    requests = _gpu_requests(case.service)
    wanted = 1 if case.variables.node.gpu == "nvidia" else 0
    if len(requests) != wanted:
        yield f"{len(requests)} GPU requests, expected {wanted}", "leave the GPU request to the baseline: lists append"
    for request in requests:
        if request.get("count") != 1 and len(request.get("device_ids") or []) != 1:
            yield (
                "the GPU request is not for one GPU",
                "give it count: 1 (without a count, Docker 27.3 and later gives none)",
            )


def ports_are_the_baselines(case: Case) -> Iterator[Broken]:
    published, allowed = _ports(case.service), _ports(case.baseline_service)
    for port in sorted(published - allowed):
        yield f"publishes {port} beside the baseline's", "remove the port from the overlay"
    if len(case.service.get("ports", [])) > len(published):
        yield "publishes a port twice", "remove the port from the overlay"


def ports_stay_on_loopback(case: Case) -> Iterator[Broken]:
    if case.variables.listen.allow_beyond_loopback:
        return
    for port in case.service.get("ports", []):
        address = port.get("host_ip") or "all interfaces"
        if not (address.startswith("127.") or address == "::1"):
            yield (
                f"publishes {port.get('published')} on {address}",
                "bind it to 127.0.0.1, or set listen.allow_beyond_loopback",
            )


def read_only_mounts_stay_read_only(case: Case) -> Iterator[Broken]:
    mounts = case.service.get("volumes", [])
    for mount in mounts:
        mine = [other for other in case.baseline_service.get("volumes", []) if other["target"] == mount["target"]]
        if any(other.get("read_only") for other in mine) and not mount.get("read_only"):
            yield f"{mount['target']} became writable", "leave the mount to the baseline"
        if mount["target"] == MARKS_DIR and not mount.get("read_only"):
            yield (
                f"{MARKS_DIR} is writable: the engine could change what its next process runs",
                "render it again: make render",
            )
    targets = [mount["target"] for mount in mounts]
    for target in sorted({target for target in targets if targets.count(target) > 1}):
        yield f"{target} is mounted twice", "mount it once"


def no_blank_argument(case: Case) -> Iterator[Broken]:
    for key in ("entrypoint", "command"):
        words = case.service.get(key)
        if not words:
            yield f"{key} is empty", "render it again: make render"
        elif any(not word.strip() for word in words):
            yield f"{key} has a blank argument", "an unset variable became blank: write the value literally"


def environment_has_values(case: Case) -> Iterator[Broken]:
    for name, value in (case.service.get("environment") or {}).items():
        if value is None:
            yield f"environment {name} has no value: it would come from the shell", "write the value literally"


def image_is_declared_and_pinned(case: Case) -> Iterator[Broken]:
    reference = case.service.get("image", "")
    declared = [image for image in case.variables.images.values() if image.tag == reference]
    if not any(image.pinned for image in declared):
        yield (
            f"image {reference or '(none)'} is not a pinned image of vars.yaml",
            "name it under images, with a digest or a build",
        )
    if "build" in case.service:
        yield "the service has a build section: a deploy never builds", "build with `make images`"


def restart_policy_fits(case: Case) -> Iterator[Broken]:
    wanted = "no" if case.overlays else "unless-stopped"
    if case.service.get("restart") != wanted:
        yield f"restart is {case.service.get('restart')!r}, expected {wanted!r}", f'write restart: "{wanted}" (quoted)'


def health_check_is_there(case: Case) -> Iterator[Broken]:
    check = case.service.get("healthcheck") or {}
    if check.get("disable") or not check.get("test") or check["test"] == ["NONE"]:
        yield "there is no health check", "leave the health check to the baseline"
    if "start_interval" in check:
        yield "the health check has start_interval, which Docker 20.10 refuses", "leave it out"


def logs_are_rotated(case: Case) -> Iterator[Broken]:
    options = (case.service.get("logging") or {}).get("options") or {}
    if not options.get("max-size") or not options.get("max-file"):
        yield "the log is not rotated", "leave logging to the baseline"


def nothing_privileged(case: Case) -> Iterator[Broken]:
    service = case.service
    if service.get("privileged"):
        yield "the container is privileged", "remove privileged"
    for key in ("pid", "network_mode", "ipc", "userns_mode", "uts", "cgroup"):
        if service.get(key) == "host":
            yield f"{key} is the host's", f"remove {key}"
    extra = sorted(set(service.get("cap_add") or []) - {"SYS_PTRACE"})
    if extra:
        yield f"capabilities {', '.join(extra)} are added", "remove them; SYS_PTRACE is the only one allowed"
    if "ALL" not in (service.get("cap_drop") or []):
        yield "capabilities are not dropped", 'keep cap_drop: ["ALL"]'
    if (service.get("security_opt") or []) != ["no-new-privileges:true"]:
        yield "new privileges are possible", "keep security_opt to no-new-privileges:true alone"
    if service.get("devices") or service.get("device_cgroup_rules"):
        yield "a device of the host is given to it", "remove devices; the GPU comes by its request"
    for mount in service.get("volumes", []):
        source = str(mount.get("source", ""))
        if source == "/" or any(source == top or source.startswith(f"{top}/") for top in HOST_DIRECTORIES):
            yield f"{source} of the host is mounted", "remove the mount"


def profiler_only_in_its_overlay(case: Case) -> Iterator[Broken]:
    if "profile" in case.overlays:
        return
    words = [*(case.service.get("entrypoint") or []), *(case.service.get("command") or [])]
    for sign in ("nsys", "--profiler-config", "torch_profiler_dir"):
        if any(sign in word for word in words):
            yield f"{sign} is in the arguments", "keep the profiler in overlays/profile.yaml"
    targets = {mount["target"] for mount in case.service.get("volumes", [])}
    if targets & {PROFILES_DIR, MARKS_DIR} or any("nsight" in target for target in targets):
        yield "a profiler's directory is mounted", "keep the profiler in overlays/profile.yaml"
    for name, value in (case.service.get("environment") or {}).items():
        if name.startswith(("NSYS_", "VLLM_TORCH_PROFILER", MARKS_VARIABLE)) or MARKS_DIR in str(value):
            yield f"environment {name} belongs to a profiler", "keep the profiler in overlays/profile.yaml"


def graphs_are_captured_where_asked_for(case: Case) -> Iterator[Broken]:
    """By the graph overlay, or by a baseline with engine.graph; everything else is eager."""
    command = case.service.get("command") or []
    eager, asked = "--enforce-eager" in command, case.variables.graph_of(case.overlays)
    if asked is None and not eager:
        yield "--enforce-eager is missing", "render again: make render"
    if asked is not None and eager:
        by = "the graph overlay" if asked[0] == "graph" else asked[0]
        yield f"--enforce-eager is set with {by}: it clears the capture sizes", "render again: make render"
    if asked is not None and sum(word.startswith("--compilation-config=") for word in command) != 1:
        yield "--compilation-config is not there once", "render again: make render"


def _gpu_requests(service: dict[str, Any]) -> list[dict[str, Any]]:
    devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices") or []
    wanted = [device for device in devices if "gpu" in device.get("capabilities", [])]
    return wanted + [{"count": gpu.get("count", 0)} for gpu in service.get("gpus") or []]


def _ports(service: dict[str, Any]) -> set[str]:
    return {
        f"{p.get('host_ip', '*')}:{p.get('published')}->{p.get('target')}/{p.get('protocol')}"
        for p in service.get("ports", [])
    }


HOST_DIRECTORIES = ("/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/var/run", "/var/lib/docker", "/root/.ssh")

RULES = (
    only_the_engine_service,
    one_gpu_request_where_there_is_a_gpu,
    ports_are_the_baselines,
    ports_stay_on_loopback,
    read_only_mounts_stay_read_only,
    no_blank_argument,
    environment_has_values,
    image_is_declared_and_pinned,
    restart_policy_fits,
    health_check_is_there,
    logs_are_rotated,
    nothing_privileged,
    profiler_only_in_its_overlay,
    graphs_are_captured_where_asked_for,
)
