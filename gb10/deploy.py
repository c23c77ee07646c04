"""`deploy-baseline`: the site's baseline onto the node, or back to the last good one. Called by the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gb10 import effect, launch, node, preflight, restore, statefile, verify
from gb10.context import Context
from gb10.engine import smoke
from gb10.errors import FailedError, Gb10Error, NotOnBaselineError, RefusedError, StoppedError
from gb10.evidence import Evidence
from gb10.launch import Target
from gb10.recovery import recover
from gb10.signals import Interrupted
from gb10.site import commit_of
from gb10.state import Baseline, History, command_line, now


@dataclass(frozen=True)
class Outcome:
    """What a command that moved the node leaves: one line, the evidence directory, the checks, and what a person may do next."""

    line: str
    evidence: Evidence
    checks: verify.Report
    further: list[str] = field(default_factory=list)


def deploy_baseline(context: Context, *, allow_dirty: bool = False, fresh: bool = False) -> Outcome:
    """Deploy `compose.yaml`. A node that runs it already is only proved, unless `fresh` asks for a new start.

    Raises `RefusedError` (nothing touched), `FailedError` (the earlier baseline serves again), `NotOnBaselineError`
    (nothing to go back to, or it does not come up) or `StoppedError` (interrupted and restored).
    """
    with context.state.lock(command_line()):
        with context.progress.stage("preflight"):
            preflight.for_deploy(context, allow_dirty=allow_dirty)
        commit, previous = commit_of(context.site), _previous(context)
        history = context.state.history() if previous else None
        v = context.site.variables
        tag = v.images[v.baseline_image].tag
        image_id = context.node.image_id(tag) or ""
        changed = bool(commit.dirty or commit.unknown)
        with preflight.nothing_touched_yet():
            baseline = context.state.store(context.baseline_file.read_bytes(), tag, image_id, commit.id, changed)
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
            raise _go_back(context, previous, history, evidence, cause)


def _previous(context: Context) -> Baseline | None:
    """The baseline to go back to. Damaged stored bytes are recovered when that is possible, and else told and left out."""
    try:
        return context.state.current()
    except RefusedError as error:
        context.progress.note(str(error))
        return recover(context)


def _deploy(
    context: Context, target: Target, baseline: Baseline, previous: Baseline | None, evidence: Evidence, fresh: bool
) -> Outcome:
    restored = None
    if previous is not None and previous.key == baseline.key and not fresh and launch.running(context, target):
        restored = restore.restore(context, evidence.stage)
        container, judged = restored.container, restored.smoke
    else:
        container = launch.launch(context, target, evidence.stage)
        with evidence.stage("smoke"):
            v, note = context.site.variables, context.progress.note
            judged = smoke.run(context.site.url, v, lambda j: note(restore.shown(j)))
    evidence.container("baseline", container)
    graphs = _told_graphs(context, evidence)
    evidence.smoke(judged)
    wrong = [j for j in judged if not j.passed]
    if wrong:
        what = f"answers {wrong[0].name} wrongly ({wrong[0].why})"
        raise FailedError(container.name, what, "compare vars.yaml and image with the last good ones")
    if restored is None:
        context.state.promote(replace(baseline, deployed_at=now()), History.now())
        launch.keep_log(context, container)
    statefile.update(context, evidence)
    report = checked(context, evidence)
    if report.off_baseline:
        raise FailedError("checks", report.off_baseline[0], "run: make verify")
    verdict, line = "deployed", "the baseline is deployed"
    if restored is not None:
        evidence.recovered(restored, report, "make deploy-baseline, of what runs")
        verdict, line = "already deployed", "the baseline was running already and is proved"
        if restored.moved:
            verdict, line = "restored", "the baseline was running already, failed its proof and was started anew"
    evidence.close(verdict)
    statefile.update(context, evidence)
    return Outcome(line + graphs, evidence, report)


def _told_graphs(context: Context, evidence: Evidence) -> str:
    """Tell whether the graphs that the baseline asks for are in effect; returns what the last line has to add."""
    graphs = evidence.record["baseline"].get("graph_effective")
    if graphs is None:
        return ""
    context.progress.note(f"  graphs of the baseline: {effect.said(graphs)}")
    return " (its graphs are not in effect)" if graphs["value"] is False else ""


def _go_back(
    context: Context, previous: Baseline | None, history: History | None, evidence: Evidence, cause: BaseException
) -> Gb10Error:
    """Restore what served before and return the error to raise, whose exit code says where the node is."""
    interrupted = isinstance(cause, Interrupted)
    first, tail = described(cause), getattr(cause, "tail", "")
    context.progress.note(first if interrupted else f"failed: {first}")
    evidence.record["failure"] = {"cause": first}
    if previous is None:
        return _nothing_to_go_back_to(context, evidence, first, tail)
    try:
        if context.state.current() != previous:
            context.state.promote(previous, history or History(None, None, now()))
        restored = restore.restore(context, lambda stage_name: evidence.stage(f"restore, {stage_name}"))
    except Exception as error:  # a full disk too: the node is then not proved to be on its baseline
        evidence.close("failed, not on a baseline")
        statefile.update(context, evidence, runs=statefile.BROKEN)
        what = f"{first}; and going back failed: {described(error)}"
        mend = "mend it, then: make restore"
        return NotOnBaselineError("deploy-baseline", what, mend, tail=getattr(error, "tail", "") or tail)
    evidence.also_ran(context.state.file_of(previous))
    evidence.container("baseline", restored.container)
    evidence.smoke(restored.smoke)
    statefile.update(context, evidence)
    try:
        report = checked(context, evidence)
    except Exception as error:  # the restore is proved; that the checks could not be asked is a line in its record
        report = verify.Report(broken=described(error))
        evidence.record["checks"] = report.as_json()
    evidence.recovered(restored, report, "the deploy was interrupted" if interrupted else "the deploy failed")
    evidence.close("interrupted, restored" if interrupted else "failed, restored")
    statefile.update(context, evidence)
    kind = StoppedError if interrupted else FailedError
    mend = f"the baseline of {previous.deployed_at} serves again; see {evidence.directory}"
    return kind("deploy-baseline", first, mend, tail=tail)


def _nothing_to_go_back_to(context: Context, evidence: Evidence, first: str, tail: str) -> Gb10Error:
    """The first deploy failed: leave nothing running, and say so."""
    mend = "nothing is running now; mend it, then: make deploy-baseline"
    try:
        context.state.demote()
        launch.clear(context)
    except Exception as error:
        mend = f"its container could not be removed ({error}); look at docker ps, then: make deploy-baseline"
    evidence.close("failed, nothing is running")
    statefile.update(context, evidence, runs=statefile.NOTHING)
    return NotOnBaselineError("deploy-baseline", f"{first}; this was the first deploy", mend, tail=tail)


def recorded_restore(context: Context) -> Outcome:
    """`restore` with evidence, checks and STATE.md. Raises `NotOnBaselineError`; nothing is written when nothing was ever deployed."""
    _ = context.project
    restore.stored_or_recovered(context)
    evidence = Evidence(context, "restore")
    try:
        restored = restore.restore(context, evidence.stage)
        evidence.also_ran(context.state.file_of(restore.stored(context)))
        evidence.container("baseline", restored.container)
        graphs = _told_graphs(context, evidence)
        evidence.smoke(restored.smoke)
        statefile.update(context, evidence)
        report = checked(context, evidence)
        evidence.recovered(restored, report, "make restore")
        if report.off_baseline:
            raise NotOnBaselineError("checks", report.off_baseline[0], "mend it, then: make restore")
    except Exception as error:
        evidence.close("not on a baseline")
        statefile.update(context, evidence, runs=statefile.BROKEN)
        if isinstance(error, NotOnBaselineError):
            raise
        raise NotOnBaselineError("restore", described(error), "make status, then: make restore") from error
    evidence.close("restored" if restored.moved else "was on the baseline already")
    statefile.update(context, evidence)
    line = "the baseline is restored" if restored.moved else "the node was on its baseline already"
    return Outcome(line + graphs, evidence, report)


def checked(context: Context, evidence: Evidence) -> verify.Report:
    """The stage `verify`: every check, recorded, with its JUnit file beside the record."""
    with evidence.stage("verify"):
        report = verify.run(context, evidence.directory)
        evidence.record["checks"] = report.as_json()
    return report


def described(cause: BaseException) -> str:
    """An error or an interruption in words."""
    if isinstance(cause, Interrupted):
        return f"interrupted by {cause}"
    return str(cause) if isinstance(cause, Gb10Error) else f"{type(cause).__name__}: {cause}"
