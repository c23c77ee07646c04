"""`--dry-run`: the exact commands that would change the node, in order. Called by the command line; nothing is changed."""

from __future__ import annotations

from pathlib import Path

from gb10 import node
from gb10.arguments import marks_source
from gb10.compose import Command
from gb10.context import Context
from gb10.files import sha256
from gb10.launch import UP_TIMEOUT_S
from gb10.state import Baseline, baseline_key, stored_repository


def for_deploy(context: Context) -> str:
    """Commands of `deploy-baseline`."""
    tag = context.site.variables.images[context.site.variables.baseline_image].tag
    image_id = context.node.image_id(tag)
    key = baseline_key(sha256(context.baseline_file.read_bytes()), image_id or "not-local")
    stored = context.state.directory / "baselines" / key / "compose.yaml"
    lines = [f"# keep the bytes of {context.baseline_file} as {stored}"]
    commands = [node.tag(image_id or tag, f"{stored_repository(context.site.project)}:{key}"), *_clear(context)]
    return _text(context, lines + _commands([*commands, context.project.up([stored], UP_TIMEOUT_S)]))


def for_experiment(context: Context, overlays: list[str], *, measured: bool) -> str:
    """Commands of `try`: out and back; `measured`: the baseline is started anew first, and measured."""
    baseline, v = context.state.current(), context.site.variables
    stored = _file(context, baseline)
    copies = [context.state.directory / "trying" / f"{name}.yaml" for name in overlays]
    grace_s = v.profile.stop_grace_s if "profile" in overlays else v.container.stop_grace_s
    lines = [f"# write the lease {context.state.directory / 'lease.json'}, start the guard", "# out"]
    lines += _commands(_clear(context))
    if measured:
        again = [
            f"docker stop -t {v.container.stop_grace_s} {v.container.name}",
            f"docker rm --force {v.container.name}",
        ]
        lines += [*_commands([context.project.up([stored], UP_TIMEOUT_S)]), "# measure the baseline", *again]
    if "profile" in overlays:
        lines += [f"# copy the marks' program to {marks_source(v)}"] if v.profile.marks else []
        lines.append(f"# move traces that lie in {v.profile.output_dir} to a directory there")
    lines += _commands([context.project.up([stored, *copies], UP_TIMEOUT_S)])
    if "profile" in overlays:
        asked = f"the suite {v.measure.profile}, its traced requests" if v.measure.profile else "a canary"
        lines += [f"# smoke, {asked} in capture windows", "# the engine ends, and its profiler writes"]
    lines += ["# back", f"docker stop -t {grace_s} {v.container.name}", f"docker rm --force {v.container.name}"]
    return _text(context, [*lines, *_back(context, baseline, stored)])


def for_restore(context: Context) -> str:
    """Commands of `restore`, when the node is not on its baseline."""
    baseline = context.state.current()
    stored = _file(context, baseline)
    return _text(
        context,
        [
            "# only when the node is not on its baseline:",
            *_commands(_clear(context)),
            *_back(context, baseline, stored),
        ],
    )


def _back(context: Context, baseline: Baseline | None, stored: Path) -> list[str]:
    tags = [node.tag(baseline.image_id, baseline.image_tag)] if baseline else []
    return _commands([*tags, context.project.up([stored], UP_TIMEOUT_S)])


def _file(context: Context, baseline: Baseline | None) -> Path:
    return (
        context.state.file_of(baseline)
        if baseline
        else context.state.directory / "baselines" / "(none deployed yet)" / "compose.yaml"
    )


def _clear(context: Context) -> list[Command]:
    return [
        command for container in context.node.containers(context.site.project) for command in node.remove(container)
    ]


def _commands(commands: list[Command]) -> list[str]:
    return [str(command) for command in commands]


def _text(context: Context, lines: list[str]) -> str:
    return "\n".join(
        [
            *lines,
            f"# then: poll until ready, canary, look again, smoke, checks ({context.site.url})",
            "# dry run: nothing was changed",
        ]
    )
