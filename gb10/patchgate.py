"""Is an image patched as the repository says, and the model fit for breakable graphs? Causes to refuse; called by preflight.py."""

from __future__ import annotations

from collections.abc import Iterator

from gb10 import patches
from gb10.context import Context
from gb10.errors import Fault

AUTO_ENABLED = "Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1"
"""Logged by vLLM 0.29 to 0.32 (vllm/config/vllm.py) for models that it knows to have break points, also by an eager engine; never
when the variable is set already, as the graph overlay does: so only the baseline's log can hold it."""


def image_is_patched(context: Context, role: str) -> Iterator[Fault]:
    """The manifest of the local image of `role` shows every enabled entry of its patches.yaml and its sources'."""
    variables = context.site.variables
    expected = patches.expected(variables, role)
    if not expected:
        return
    where, mend = f"images.{role}", "run: make images"
    context.progress.waiting(f"reading the patch manifest of {where}")
    manifest = patches.manifest_of(context.node, context.node.image_id(variables.images[role].tag) or "")
    for what in patches.lacking(manifest, expected):
        yield Fault(where, what, mend)


def model_is_adapted(context: Context) -> Iterator[Fault]:
    """Breakable graphs only with break points: the site's adaptation is in the graph image, or vLLM enables them by itself."""
    variables = context.site.variables
    wanted = variables.graph.adaptation
    if not variables.graph.breakable or wanted is None:
        return
    manifest = patches.manifest_of(context.node, context.node.image_id(variables.images["graph"].tag) or "")
    if wanted in patches.shown_ids(manifest):
        return
    containers = context.node.containers(context.site.project)
    if any(AUTO_ENABLED in context.node.log(one.id).decode("utf-8", "replace") for one in containers):
        return
    yield Fault(
        "graph.adaptation",
        f"the patch manifest of images.graph lacks {wanted}, and the baseline's log has no line '{AUTO_ENABLED}': "
        "breakable graphs on a model without break points corrupt its output",
        f"add the entry {wanted} to patches.yaml of images.graph and run: make images; or set graph.breakable: false; "
        "if vLLM enables them for this model and the line was rotated away: make deploy-baseline FRESH=1",
    )
