"""Back to the stored baseline: one algorithm for `restore`, a failed deploy and the end of every experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gb10 import launch, node, readiness
from gb10.context import Context
from gb10.engine import smoke
from gb10.engine.smoke import Judged
from gb10.errors import Gb10Error, NotOnBaselineError
from gb10.launch import Target
from gb10.node import Container
from gb10.recovery import recover
from gb10.state import Baseline

ATTEMPTS = 2


@dataclass(frozen=True)
class Restored:
    """The baseline's container, whether anything had to be done, and the judged smoke answers."""

    container: Container
    moved: bool
    smoke: list[Judged]


def stored(context: Context) -> Baseline:
    """The stored baseline. Raises `NotOnBaselineError` when there is none."""
    baseline = context.state.current()
    if baseline is None:
        raise NotOnBaselineError(
            str(context.state.directory), "no baseline was ever deployed here", "run: make deploy-baseline"
        )
    return baseline


def target(context: Context, baseline: Baseline) -> Target:
    """What the stored baseline looks like when it runs."""
    return launch.target_of(context, [context.state.file_of(baseline)], baseline.image_id)


def restore(context: Context, stage: Callable[[str], Any]) -> Restored:
    """Make the node run the stored bytes with the stored image, prove it, and close an open lease.

    Idempotent: a node that is there already is only proved (canary, smoke). The repository's files are not touched.
    Raises `NotOnBaselineError` when the node is not on a working baseline at the end.
    """
    baseline = context.state.current() or recover(context) or stored(context)
    wanted = target(context, baseline)
    _bring_back_image(context, baseline)
    moved = False
    container = launch.running(context, wanted)
    if container is not None and context.state.child() is None:
        try:
            with stage("ready"):
                readiness.prove_alive(context, container)
        except Gb10Error as error:
            context.progress.note(str(error))
            container = None
    else:
        container = None
    if container is None:
        moved = True
        container = _launch(context, wanted, stage)
    with stage("smoke"):
        judged = smoke.run(context.site.url, context.site.variables, lambda j: context.progress.note(shown(j)))
    failed = [j for j in judged if not j.passed]
    if failed:
        raise NotOnBaselineError(
            container.name,
            f"runs the baseline, but its answer to {failed[0].name} is wrong ({failed[0].why})",
            "look at its log, then: make restore",
        )
    context.state.close_lease()
    return Restored(container, moved, judged)


def shown(judged: Judged) -> str:
    """One smoke case as a line."""
    answer = " ".join(judged.answer.split())[:60]
    return (
        f"  {judged.name}: {'right' if judged.passed else 'WRONG, ' + judged.why} ({answer}) {judged.duration_s:.1f} s"
    )


def _bring_back_image(context: Context, baseline: Baseline) -> None:
    """The tag in the stored file means the stored image again, whatever was built or pruned since."""
    if context.node.image(baseline.image_id) is None:
        raise NotOnBaselineError(
            baseline.image_tag,
            f"its stored image {baseline.image_id[7:19]} is gone",
            "build it again (make images), then: make deploy-baseline",
        )
    for reference in (baseline.image_tag, baseline.stored_tag):
        if context.node.image_id(reference) != baseline.image_id:
            context.node.run(node.tag(baseline.image_id, reference))


def _launch(context: Context, wanted: Target, stage: Callable[[str], Any]) -> Container:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return launch.launch(context, wanted, stage)
        except NotOnBaselineError:
            raise
        except Gb10Error as error:
            if attempt == ATTEMPTS:
                raise NotOnBaselineError(
                    error.faults[0].where,
                    f"the baseline does not come up: {error.faults[0].what}",
                    "read the engine's last lines, mend, then: make restore",
                    tail=error.tail,
                ) from None
            context.progress.note(f"attempt {attempt} of {ATTEMPTS}: {error}")
    raise AssertionError("unreachable")
