"""Faults that only values together have. One function a rule; called by load.py when each value is valid by itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from gb10.variables import toolcalls
from gb10.variables.finding import Finding
from gb10.variables.model import Expect, Graph, Variables
from gb10.variables.owned import OWNED_FLAGS
from gb10.variables.profiling import marks_are_told_apart, profiler_is_complete, traced_suite_fits
from gb10.variables.yamlfile import KeyPath, near_miss

OVERLAYS = ("graph", "profile")


def findings(variables: Variables, site: Path) -> list[Finding]:
    """All findings of all rules, in the order of the file."""
    return [finding for rule in RULES for finding in rule(variables, site)]


def project_is_not_reserved(v: Variables, site: Path) -> Iterator[Finding]:
    if v.project == "cache":
        yield Finding(("project",), "cache is the name of the directory for wheels", "choose another name")


def environment_is_public_and_has_no_key_of_its_own(v: Variables, site: Path) -> Iterator[Finding]:
    for name in v.engine.environment:
        path: KeyPath = ("engine", "environment", name)
        if _names_a_secret(name):
            yield Finding(
                path,
                "looks like a secret, and the rendered file is committed",
                "keep secrets out of vars.yaml; a served model needs none",
            )
        if name == "VLLM_USE_BREAKABLE_CUDAGRAPH":
            key = "graph.breakable" if v.engine.graph is None else "engine.graph.breakable"
            yield Finding(path, "has a key of its own", f"set {key} instead")


def _names_a_secret(name: str) -> bool:
    return name.upper().replace("-", "_").endswith(("TOKEN", "SECRET", "PASSWORD", "API_KEY"))


def address_is_loopback(v: Variables, site: Path) -> Iterator[Finding]:
    try:
        address = ipaddress.ip_address(v.listen.address)
    except ValueError:
        yield Finding(("listen", "address"), f"{v.listen.address} is not an IP address", "write one such as 127.0.0.1")
        return
    if not address.is_loopback and not v.listen.allow_beyond_loopback:
        yield Finding(
            ("listen", "address"),
            f"{v.listen.address} is beyond loopback",
            "use 127.0.0.1, or set listen.allow_beyond_loopback: true",
        )


def images_are_pinned(v: Variables, site: Path) -> Iterator[Finding]:
    for required in ("eager", "graph"):
        if required not in v.images:
            yield Finding(("images",), f"has no image named {required}", f"add images.{required}")
    for name, image in v.images.items():
        if not image.pinned:
            yield Finding(
                ("images", name, "tag"),
                f"{image.tag} has neither a digest nor a local build",
                "pin it as name@sha256:..., or give images." + name + ".build",
            )
        if image.build is not None and image.source is None:
            yield Finding(
                ("images", name, "source"), "is empty although the image is built", "say what it is built from"
            )
        source = image.source
        if image.build is None or source is None or source in v.images or "@sha256:" in source or image.debootstrap:
            continue
        guess = near_miss(source, list(v.images)) if "/" not in source and ":" not in source else None
        yield Finding(
            ("images", name, "source"),
            f"{source} is neither an image of this file nor pinned by digest",
            f"did you mean {guess}?" if guess else "pin it as name@sha256:...",
        )


def images_have_an_order(v: Variables, site: Path) -> Iterator[Finding]:
    told: set[str] = set()
    for name in v.images:
        chain = [name]
        while (source := v.images[chain[-1]].source) in v.images and source not in chain:
            chain.append(str(source))
        if source in chain and not told.intersection(chain):
            told.update(chain)
            circle = " -> ".join([*chain[chain.index(str(source)) :], str(source)])
            yield Finding(("images", name, "source"), f"goes round in a circle ({circle})", "break it")


def memory_fits(v: Variables, site: Path) -> Iterator[Finding]:
    share = v.engine.gpu_memory_utilization
    path: KeyPath = ("engine", "gpu_memory_utilization")
    if share is None:
        if v.node.gpu == "nvidia":
            yield Finding(path, "is empty on a node with a GPU", "give a share such as 0.80")
        return
    needed = share * v.node.memory_gib + v.node.host_reserve_gib
    if needed > v.node.memory_gib:
        most = max(0.0, (v.node.memory_gib - v.node.host_reserve_gib) / v.node.memory_gib)
        yield Finding(
            path,
            f"{share:g} x {v.node.memory_gib:g} GiB + host_reserve_gib {v.node.host_reserve_gib:g} = {needed:.1f} GiB, "
            f"above node.memory_gib {v.node.memory_gib:g}",
            f"use at most {int(most * 100) / 100:.2f}, or reserve less",
        )


def context_is_verified(v: Variables, site: Path) -> Iterator[Finding]:
    verified, longest = v.engine.verified_context, v.engine.max_model_len
    path: KeyPath = ("engine", "verified_context")
    if verified.tokens > longest:
        yield Finding(
            (*path, "tokens"),
            f"{verified.tokens} is above engine.max_model_len {longest}",
            "lower it, or raise max_model_len",
        )
    elif verified.tokens < longest:
        yield Finding(
            (*path, "tokens"),
            f"{verified.tokens} is below engine.max_model_len {longest}: longer prompts are accepted but were never verified",
            "lower max_model_len, or verify and record a longer context",
            warning=True,
        )
    if not (site / verified.record).is_file():
        yield Finding(
            (*path, "record"), f"{verified.record} is not there", "name the page that records the verification"
        )


def sizes_can_be_captured(v: Variables, site: Path) -> Iterator[Finding]:
    if v.engine.graph is not None:
        yield from _sizes_can_be_captured(v, v.engine.graph, ("engine", "graph"))
    yield from _sizes_can_be_captured(v, v.graph, ("graph",))


def _sizes_can_be_captured(v: Variables, graph: Graph, section: KeyPath) -> Iterator[Finding]:
    sizes, step = graph.capture_sizes, v.engine.tokens_per_decode_step
    path: KeyPath = (*section, "capture_sizes")
    if any(later <= earlier for earlier, later in pairwise(sizes)):
        yield Finding(path, f"{sizes} does not increase", "sort the sizes and list each once")
        return
    above = [size for size in sizes if size > v.engine.max_num_batched_tokens]
    if above:
        yield Finding(
            path,
            f"{above} above engine.max_num_batched_tokens {v.engine.max_num_batched_tokens}: vLLM would drop them",
            "remove them, or raise max_num_batched_tokens",
        )
    uneven = [size for size in sizes if size % step]
    if uneven and graph.mode != "PIECEWISE":
        yield Finding(
            path,
            f"{uneven} not multiples of {step} (1 + engine.speculative.tokens), which mode {graph.mode} needs",
            f"use multiples of {step}, or mode PIECEWISE",
        )
    common = v.engine.max_num_seqs * step
    if sizes[-1] < common:
        yield Finding(
            path,
            f"the largest size {sizes[-1]} is below {common} (max_num_seqs {v.engine.max_num_seqs} x {step} tokens): fuller decode steps run eager",
            f"add {common}, or leave the long tail eager on purpose",
            warning=True,
        )


def experiments_name_overlays(v: Variables, site: Path) -> Iterator[Finding]:
    for name, overlays in v.experiments.items():
        path: KeyPath = ("experiments", name)
        for overlay in overlays:
            if overlay not in OVERLAYS:
                guess = near_miss(overlay, list(OVERLAYS))
                yield Finding(
                    path,
                    f"there is no overlay {overlay}",
                    f"did you mean {guess}?" if guess else f"known: {', '.join(OVERLAYS)}",
                )
        if len(set(overlays)) < len(overlays):
            yield Finding(path, f"[{', '.join(overlays)}] names an overlay twice", "list each once")


def health_waits_long_enough(v: Variables, site: Path) -> Iterator[Finding]:
    if v.limits.ready_s < v.health.start_period_s:
        yield Finding(
            ("limits", "ready_s"),
            f"{v.limits.ready_s:g} is below health.start_period_s {v.health.start_period_s}",
            "raise it: a start would be given up while its health is still not judged",
        )
    if v.health.timeout_s > v.health.interval_s:
        yield Finding(
            ("health", "timeout_s"),
            f"{v.health.timeout_s} is above health.interval_s {v.health.interval_s}",
            "lower it",
        )


def guard_has_two_floors(v: Variables, site: Path) -> Iterator[Finding]:
    stop, sustained = v.guard.stop_below_gib, v.guard.sustained_below_gib
    if stop > sustained:
        yield Finding(
            ("guard", "stop_below_gib"), f"{stop:g} is above guard.sustained_below_gib {sustained:g}", "lower it"
        )
    if sustained >= v.node.memory_gib:
        yield Finding(
            ("guard", "sustained_below_gib"),
            f"{sustained:g} is not below node.memory_gib {v.node.memory_gib:g}",
            "lower it",
        )


def paths_do_not_collide(v: Variables, site: Path) -> Iterator[Finding]:
    targets: dict[str, KeyPath] = {}
    named: list[tuple[KeyPath, str]] = [(("mounts", i, "container"), m.container) for i, m in enumerate(v.mounts)]
    named += [(("caches", i, "container"), c.container) for i, c in enumerate(v.caches)]
    if v.model.host_dir:
        targets[v.model.path.rstrip("/")] = ("model", "path")
    for path, target in named:
        key = target.rstrip("/")
        if key in targets:
            first = ".".join(str(part) for part in targets[key])
            yield Finding(path, f"{target} is mounted already by {first}", "use another path inside the container")
        targets[key] = path


def arguments_are_not_repeated(v: Variables, site: Path) -> Iterator[Finding]:
    for index, argument in enumerate(v.engine.extra_arguments):
        # vLLM's parser takes underscores for dashes, and --config.key for a part of a JSON argument
        flag = argument.split("=", 1)[0].split(".", 1)[0].replace("_", "-")
        key = OWNED_FLAGS.get(flag) or (OWNED_FLAGS["--compilation-config"] if flag.startswith(("-O", "-cc")) else None)
        if key:
            yield Finding(("engine", "extra_arguments", index), f"{flag} has a key of its own", f"set {key} instead")
        elif _names_a_secret(flag):
            yield Finding(
                ("engine", "extra_arguments", index),
                f"{flag} looks like a secret, and the rendered file is committed",
                "keep secrets out of vars.yaml; a served model needs none",
            )
        elif argument in v.engine.extra_arguments[:index]:
            yield Finding(("engine", "extra_arguments", index), f"{flag} is given twice", "keep one of the two")
        elif any(character.isspace() for character in argument.split("=", 1)[0]):
            yield Finding(
                ("engine", "extra_arguments", index), f'"{argument}" holds a space', "write one item as --name=value"
            )
        elif not argument.startswith("-"):
            yield Finding(
                ("engine", "extra_arguments", index),
                f'"{argument}" does not start with --',
                "write one item as --name=value",
            )


def measured_suites_are_there(v: Variables, site: Path) -> Iterator[Finding]:
    for key in ("prove", "suite", "profile"):
        name = getattr(v.measure, key)
        if name is not None and not (site / "suites" / f"{name}.yaml").is_file():
            known = sorted(path.stem for path in (site / "suites").glob("*.yaml"))
            guess = near_miss(name, known)
            mend = f"did you mean {guess}?" if guess else f"known: {', '.join(known) or 'none'}"
            yield Finding(("measure", key), f"there is no suites/{name}.yaml", mend)
    for index, name in enumerate(v.measure.experiments):
        if name not in v.experiments:
            yield Finding(("measure", "experiments", index), f"{name} is not in experiments", "name one of them")


def smoke_cases_are_judged(v: Variables, site: Path) -> Iterator[Finding]:
    names = [case.name for case in v.smoke]
    for index, case in enumerate(v.smoke):
        given = case.expect.given
        if len(given) != 1:
            yield Finding(
                ("smoke", index, "expect"),
                f"has {len(given)} conditions",
                f"give exactly one of {', '.join(Expect.model_fields)}",
            )
        yield from (Finding(*fault) for fault in toolcalls.faults(case.expect, ("smoke", index, "expect")))
        if case.name in names[:index]:
            yield Finding(("smoke", index, "name"), f"{case.name} is used twice", "name each case differently")


RULES = (
    project_is_not_reserved,
    address_is_loopback,
    images_are_pinned,
    images_have_an_order,
    paths_do_not_collide,
    context_is_verified,
    memory_fits,
    arguments_are_not_repeated,
    environment_is_public_and_has_no_key_of_its_own,
    sizes_can_be_captured,
    profiler_is_complete,
    marks_are_told_apart,
    experiments_name_overlays,
    health_waits_long_enough,
    guard_has_two_floors,
    measured_suites_are_there,
    traced_suite_fits,
    smoke_cases_are_judged,
)
