"""`deploy-baseline`: the site's baseline onto the node, or back to the last good one. Called by cli.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gb10 import facts, launch, node, preflight, restore, statefile, verify
from gb10.context import Context
from gb10.engine import smoke
from gb10.errors import FailedError, Gb10Error, NotOnBaselineError, StoppedError
from gb10.evidence import Evidence
from gb10.launch import Target
from gb10.signals import Interrupted
from gb10.site import commit_of
from gb10.state import Baseline, History, command_line, now


@dataclass(frozen=True)
class Outcome:
    """What a command that moved the node leaves: one line, the evidence directory, and the checks."""

    line: str
    evidence: Evidence
    checks: verify.Report


def deploy_baseline(context: Context, *, allow_dirty: bool = False, fresh: bool = False) -> Outcome:
    """Deploy `compose.yaml`. A node that runs it already is only proved, unless `fresh` asks for a new start.

    Raises `RefusedError` (nothing touched), `FailedError` (the earlier baseline serves again), `NotOnBaselineError`
    (nothing to go back to, or it does not come up) or `StoppedError` (interrupted and restored).
    """
    with context.state.lock(command_line()):
        with context.progress.stage("preflight"):
            preflight.for_deploy(context, allow_dirty=allow_dirty)
        commit, previous = commit_of(context.site), context.state.current()
        tag = context.site.variables.images["eager"].tag
        image_id = context.node.image_id(tag) or ""
        baseline = context.state.store(context.baseline_file.read_bytes(), tag, image_id, commit.id, bool(commit.dirty))
        context.node.run(node.tag(image_id, baseline.stored_tag))
        target = launch.target_of(context, [context.state.file_of(baseline)], image_id)
        evidence = Evidence(context, "deploy-baseline")
        evidence.ran([context.state.file_of(baseline)])
        cause: BaseException
        try:
            try:
                return _deploy(context, target, baseline, previous, evidence, fresh)
            except Exception as error:
                cause = error
            context.signals.hold()
        except Interrupted as error:
            cause = error
        with context.signals.shield("going back to the last good baseline"):
            raise _go_back(context, previous, evidence, cause)


def _deploy(
    context: Context, target: Target, baseline: Baseline, previous: Baseline | None, evidence: Evidence, fresh: bool
) -> Outcome:
    same = previous is not None and previous.key == baseline.key and not fresh
    if same and launch.running(context, target):
        restored = restore.restore(context, evidence.stage)
        container, judged = restored.container, restored.smoke
    else:
        container = launch.launch(context, target, evidence.stage)
        with evidence.stage("smoke"):
            judged = smoke.run(
                context.site.url, context.site.variables, lambda j: context.progress.note(restore.shown(j))
            )
        same = False
    evidence.container("baseline", container)
    evidence.record["smoke"] = [j.as_json() for j in judged]
    wrong = [j for j in judged if not j.passed]
    if wrong:
        raise FailedError(
            container.name,
            f"answers {wrong[0].name} wrongly ({wrong[0].why})",
            "compare vars.yaml and image with the last good ones",
        )
    if not same:
        history = History(facts.boot_id().value, facts.oom_kill_count().value, now())
        context.state.promote(replace(baseline, deployed_at=now()), history)
    with evidence.stage("verify"):
        report = verify.run(context)
        evidence.record["checks"] = report.as_json()
    evidence.close("deployed" if not same else "already deployed")
    statefile.update(context, evidence)
    return Outcome(
        "the baseline was running already and is proved" if same else "the baseline is deployed", evidence, report
    )


def _go_back(context: Context, previous: Baseline | None, evidence: Evidence, cause: BaseException) -> Gb10Error:
    """Restore what served before and return the error to raise, whose exit code says where the node is."""
    interrupted = isinstance(cause, Interrupted)
    first = (
        f"interrupted by {cause}"
        if interrupted
        else str(cause)
        if isinstance(cause, Gb10Error)
        else f"{type(cause).__name__}: {cause}"
    )
    tail = cause.tail if isinstance(cause, Gb10Error) else ""
    context.progress.note(f"failed: {first}" if not interrupted else first)
    evidence.record["failure"] = {"cause": first, "engine_log_tail": tail}
    if previous is None:
        launch.clear(context)
        evidence.close("failed, nothing is running")
        return NotOnBaselineError(
            "deploy-baseline",
            f"{first}; this was the first deploy",
            "nothing is running now; mend it, then: make deploy-baseline",
            tail=tail,
        )
    try:
        restored = restore.restore(context, lambda stage_name: evidence.stage(f"restore, {stage_name}"))
    except Gb10Error as error:
        evidence.close("failed, not on a baseline")
        return NotOnBaselineError(
            "deploy-baseline", f"{first}; and going back failed: {error}", "run: make restore", tail=error.tail or tail
        )
    evidence.container("baseline", restored.container)
    evidence.record["smoke"] = [j.as_json() for j in restored.smoke]
    evidence.close("interrupted, restored" if interrupted else "failed, restored")
    statefile.update(context, evidence)
    kind = StoppedError if interrupted else FailedError
    return kind(
        "deploy-baseline",
        first,
        f"the baseline of {previous.deployed_at} serves again; see {evidence.directory}",
        tail=tail,
    )
