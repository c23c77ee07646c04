"""Is an image patched as the repository says, and the model fit for breakable graphs? Causes to refuse; called by preflight.py."""

from __future__ import annotations

from collections.abc import Iterator

from gb10 import patches
from gb10.context import Context
from gb10.errors import Fault

AUTO_ENABLED = "Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1"
"""Logged by vLLM 0.29 to 0.32 (vllm/config/vllm.py) for models that it knows to have break points, also by an eager engine; never
when the variable is set already, as the graph overlay and a baseline with graphs do: so only an eager baseline's log can hold it."""


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


def model_is_adapted(context: Context, overlays: list[str]) -> Iterator[Fault]:
    """Breakable graphs only with break points: the site's adaptation is in the graph image, or vLLM enables them by itself.

    Of the baseline with these overlays. Where the baseline itself has graphs its log cannot say what vLLM does by itself.
    """
    variables = context.site.variables
    where, graph = variables.graph_of(overlays) or ("", None)
    if graph is None or not graph.breakable or graph.adaptation is None:
        return
    wanted, eager = graph.adaptation, variables.engine.graph is None
    manifest = patches.manifest_of(context.node, context.node.image_id(variables.images["graph"].tag) or "")
    if wanted in patches.shown_ids(manifest):
        return
    containers = context.node.containers(context.site.project) if eager else []
    if any(AUTO_ENABLED in context.node.log(one.id).decode("utf-8", "replace") for one in containers):
        return
    no_line = f", and the baseline's log has no line '{AUTO_ENABLED}'" if eager else ""
    knows = (
        "if vLLM enables them for this model and the line was rotated away: make deploy-baseline FRESH=1"
        if eager
        else f"if the log of an eager baseline says '{AUTO_ENABLED}', this model needs none: set {where}.adaptation: null"
    )
    yield Fault(
        f"{where}.adaptation",
        f"the patch manifest of images.graph lacks {wanted}{no_line}: "
        "breakable graphs on a model without break points corrupt its output",
        f"add the entry {wanted} to patches.yaml of images.graph and run: make images; "
        f"or set {where}.breakable: false; {knows}",
    )
