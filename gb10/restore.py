"""Back to the stored baseline: one algorithm for `restore`, a failed deploy and the end of every experiment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gb10 import launch, node, readiness
from gb10.context import Context
from gb10.engine import smoke
from gb10.engine.smoke import Judged
from gb10.errors import FailedError, Gb10Error, NotOnBaselineError, RefusedError
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

    Idempotent: a node that is there already is only proved (canary, smoke). The files that were rendered are not
    touched. Raises `NotOnBaselineError`, whatever went wrong: then the node is not proved to be on its baseline.
    """
    try:
        return _restore(context, stage)
    except NotOnBaselineError:
        raise
    except Exception as error:
        fault = error.faults[0] if isinstance(error, Gb10Error) else None
        where, what = (fault.where, fault.what) if fault else ("restore", f"{type(error).__name__}: {error}")
        raise NotOnBaselineError(where, what, "mend it, then: make restore", tail=getattr(error, "tail", "")) from error


def _restore(context: Context, stage: Callable[[str], Any]) -> Restored:
    wanted_baseline = stored_or_recovered(context)
    wanted = target(context, wanted_baseline)
    if context.node.image(wanted_baseline.image_id) is None:
        gone = f"its stored image {wanted_baseline.image_id[7:19]} is gone"
        raise NotOnBaselineError(
            wanted_baseline.image_tag, gone, "build it again (make images), then: make deploy-baseline"
        )
    if context.node.image_id(wanted_baseline.stored_tag) != wanted_baseline.image_id:
        context.node.run(node.tag(wanted_baseline.image_id, wanted_baseline.stored_tag))
    container, judged = _proved_as_it_is(context, wanted, stage), None
    if container is not None:
        judged = _smoke(context, stage)
        if _wrong(judged):
            context.progress.note(f"the running baseline answers {_wrong(judged)}: starting it anew")
            container = None
    moved = container is None
    if container is None or judged is None:
        container = _launch(context, wanted_baseline, wanted, stage)
        judged = _smoke(context, stage)
    if wrong := _wrong(judged):
        raise NotOnBaselineError(
            container.name,
            f"runs the baseline, but answers {wrong}",
            "look at its log and its image: make diff, docker logs",
        )
    context.state.close_lease()
    return Restored(container, moved, judged)


def stored_or_recovered(context: Context) -> Baseline:
    """The stored baseline, or what evidence and image tags prove it was. Raises `NotOnBaselineError` when nothing does."""
    try:
        current = context.state.current()
    except RefusedError as error:
        context.progress.note(str(error))
        current = None
    return current or recover(context) or stored(context)


def _proved_as_it_is(context: Context, wanted: Target, stage: Callable[[str], Any]) -> Container | None:
    """The container when it is the baseline already and a completion comes back."""
    container = launch.running(context, wanted)
    if container is None or launch.orphans(context):
        return None
    try:
        with stage("ready"):
            readiness.prove_alive(context, container)
    except FailedError as error:
        context.progress.note(str(error))
        return None
    return container


def _smoke(context: Context, stage: Callable[[str], Any]) -> list[Judged]:
    with stage("smoke"):
        return smoke.run(context.site.url, context.site.variables, lambda judged: context.progress.note(shown(judged)))


def _wrong(judged: list[Judged]) -> str:
    return next((f"{j.name} wrongly ({j.why})" for j in judged if not j.passed), "")


def shown(judged: Judged) -> str:
    """One smoke case as a line."""
    answer = " ".join(judged.answer.split())[:60]
    return (
        f"  {judged.name}: {'right' if judged.passed else 'WRONG, ' + judged.why} ({answer}) {judged.duration_s:.1f} s"
    )


@contextlib.contextmanager
def _stored_image_under_its_tag(context: Context, baseline: Baseline):  # type: ignore[no-untyped-def]
    """While the stored file is started its tag means the stored image; an image built since gets the tag back afterwards."""
    newer = context.node.image_id(baseline.image_tag)
    if newer != baseline.image_id:
        context.node.run(node.tag(baseline.image_id, baseline.image_tag))
    try:
        yield
    finally:
        if newer is not None and newer != baseline.image_id:
            context.progress.note(
                f"{baseline.image_tag} means another image than the one deployed: make deploy-baseline would deploy that"
            )
            with contextlib.suppress(Gb10Error):
                context.node.run(node.tag(newer, baseline.image_tag))


def _launch(context: Context, baseline: Baseline, wanted: Target, stage: Callable[[str], Any]) -> Container:
    with _stored_image_under_its_tag(context, baseline):
        for attempt in range(1, ATTEMPTS):
            try:
                return launch.launch(context, wanted, stage)
            except FailedError as error:
                context.progress.note(f"attempt {attempt} of {ATTEMPTS}: {error}")
        return launch.launch(context, wanted, stage)
