"""`try EXPERIMENT`: lease, switch, prove, and always back. Called by the command line; the stages are those of the design."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gb10 import effect, facts, files, launch, marks, preflight, restore, statefile
from gb10.bench import arms, measure
from gb10.context import Context
from gb10.deploy import Outcome, checked, described
from gb10.engine import smoke
from gb10.errors import FailedError, NotOnBaselineError, RefusedError, StoppedError
from gb10.evidence import Evidence
from gb10.guard import Guard
from gb10.node import Container
from gb10.signals import GuardTripped, Interrupted
from gb10.state import command_line, lease_for
from gb10.traces import Traces
from gb10.variables.yamlfile import near_miss
from gb10.verify import Report

SPARE_S = 600.0
MOST_HOLD_S = 86400.0


@dataclass
class Trial:
    """What is known of a running experiment; its end is read from here, however it ended."""

    failure: str = ""
    interrupted: bool = False
    tripped: bool = False
    tail: str = ""
    arms: arms.Arms | None = None
    traces: Traces | None = None


def overlays_of(context: Context, name: str) -> list[str]:
    """The overlays of an experiment. Raises `RefusedError` for an unknown name."""
    experiments = context.site.variables.experiments
    if name not in experiments:
        guess = near_miss(name, list(experiments))
        raise RefusedError(
            f"experiment {name}",
            "is not in vars.yaml",
            f"did you mean {guess}?" if guess else f"known: {', '.join(experiments)}",
        )
    return experiments[name]


def try_experiment(context: Context, name: str, *, hold_s: float = 0.0, baseline_run: Path | None = None) -> Outcome:
    """Try an experiment for as long as its proof (and `hold_s`) takes, then restore and verify, whatever happened.

    `baseline_run`: an earlier run whose baseline arm stands in for a new one.
    Raises `RefusedError` (nothing touched), `FailedError` (it failed; the baseline serves), `StoppedError`
    (interrupted; the baseline serves) or `NotOnBaselineError`.
    """
    overlays = overlays_of(context, name)
    if not 0 <= hold_s <= MOST_HOLD_S:
        raise RefusedError(
            "--hold", f"{hold_s:g} is not a number of seconds from 0 to {MOST_HOLD_S:g}", "write one, such as 600"
        )
    with context.state.lock(command_line()):
        with context.progress.stage("preflight"):
            preflight.for_experiment(context, overlays)
            arms.refuse(context, name, baseline_run)
        baseline, v = restore.stored(context), context.site.variables
        with preflight.nothing_touched_yet():
            evidence = Evidence(context, f"try-{name}")
            evidence.record |= {"experiment": name, "overlays": overlays}
            for container in context.node.containers(context.site.project):  # the one that preflight proved
                evidence.record["replaced_container"] = {"id": container.id, "started_at": container.started_at}
            paths = _stored_files(context, evidence, overlays)
            traces = Traces.begin(context, evidence, marks.place(v)) if "profile" in overlays else None
        lease = lease_for(name, overlays, "lease", _longest_s(context, name) + hold_s, baseline.key)
        guard = Guard(
            v.guard, context.signals, context.state.raw_directory() / f"{evidence.directory.name}-memory.jsonl"
        )
        trial = Trial(traces=traces)
        try:
            try:
                context.state.write_lease(lease)
                statefile.update(
                    context, evidence, runs=f"**the experiment {name}**, under a lease until {lease.deadline}"
                )
                guard.start()
                _trial(context, paths, evidence, hold_s, trial, baseline_run)
            except Exception as error:  # also a defect of ours: nothing keeps the node from its baseline
                trial.failure, trial.tail = described(error), getattr(error, "tail", "")
            _stop_profiled(context, evidence, trial)
            context.signals.hold()
        except Interrupted as error:
            trial.failure, trial.interrupted = described(error), True
            _stop_profiled(context, evidence, trial)
        except GuardTripped as error:
            launch.kill(context)
            trial.failure, trial.tripped = f"the guard ended it: {error}", True
        with context.signals.shield("restoring the baseline"):
            guard.stop()
            evidence.record["guard"] = guard.summary()
            report = _come_back(context, name, evidence, trial)
        _read_traces(context, evidence, trial)
        return _outcome(name, evidence, trial, report)


def _stored_files(context: Context, evidence: Evidence, overlays: list[str]) -> list[Path]:
    """The stored baseline and copies of the overlays in the state directory: what is tried cannot be edited meanwhile."""
    directory = context.state.directory / "trying"
    paths = [context.state.file_of(restore.stored(context))]
    for source in context.site.overlay_files(overlays):
        copy = directory / source.name
        files.write(copy, source.read_bytes(), 0o600)
        paths.append(copy)
    evidence.ran(paths)
    return paths


def _longest_s(context: Context, name: str) -> float:
    """How long an experiment may take at most: starts, and every request of its suites at its limit."""
    v = context.site.variables
    starts = len(v.measure.order) if arms.is_measured(context, name) else 1
    requests = sum(
        sum(case.repeat for case in measure.suite_of(context, suite)[0].cases) * times
        for suite, times in arms.suites_of(context, name)
    )
    ends_s = v.profile.stop_grace_s if "profile" in v.experiments[name] else 0
    return starts * v.limits.ready_s + requests * v.limits.request_s + ends_s + SPARE_S


def _trial(
    context: Context, paths: list[Path], evidence: Evidence, hold_s: float, trial: Trial, earlier: Path | None
) -> None:
    overlays, v = evidence.record["overlays"], context.site.variables
    image = v.images[v.image_of(overlays)].tag
    target = launch.target_of(context, paths, context.node.image_id(image) or "")
    name, traces = evidence.record["experiment"], trial.traces
    measured = arms.is_measured(context, name) or arms.is_profiled(context, name)

    def stage(stage_name: str) -> contextlib.AbstractContextManager[None]:
        return _stage(context, evidence, stage_name)

    both = trial.arms = arms.Arms.begin(context, evidence, earlier) if measured else None
    order = both.order if both is not None else ["experiment"]
    for position, arm in enumerate(order):
        first = arm not in order[:position]
        if arm == "baseline":
            _start(context, restore.target(context, restore.stored(context)), evidence, stage, arm, first)
        else:
            container = _start(context, target, evidence, stage, arm, first)
            if first:
                _first_experiment(context, container, overlays, evidence, trial, stage)
        if trial.failure:
            break
        if both is not None:
            with stage(arms.stage_name(arm, "measure", first)):
                own = arm == "experiment"
                opening = traces.open if traces is not None and own else lambda window: None
                both.measure(arm, overlays if own else [], opening)
        if hold_s > 0 and arm == "experiment" and "experiment" not in order[position + 1 :]:
            with stage("hold"):
                _hold(context, hold_s)
    if both is not None and not trial.failure:
        trial.failure = both.judge()


def _stage(context: Context, evidence: Evidence, name: str) -> contextlib.AbstractContextManager[None]:
    """A stage of the experiment, named in the lease, the output and the evidence."""
    lease = context.state.lease()
    if lease is not None:
        context.state.write_lease(replace(lease, stage=name))
    return evidence.stage(name)


def _stop_profiled(context: Context, evidence: Evidence, trial: Trial) -> None:
    """End a profiled engine within its grace period, however the trial ended: what its windows recorded is written then.

    A restore would kill an engine that is not healthy. What fails here is told; the restore removes the container in any case.
    """
    if trial.traces is None or not trial.traces.windows:
        return
    try:
        with _stage(context, evidence, "stop"):
            trial.traces.stop()
    except Exception as error:
        context.progress.note(f"  the profiled engine could not be stopped ({described(error)})")


def _start(
    context: Context,
    target: launch.Target,
    evidence: Evidence,
    stage: Callable[[str], contextlib.AbstractContextManager[None]],
    arm: str,
    first: bool,
) -> Container:
    """One arm's engine, freshly started. What is recorded of it is its first start."""
    container = launch.launch(context, target, lambda name: stage(arms.stage_name(arm, name, first)))
    if first:
        evidence.container(arms.CONTAINER[arm], container)
    return container


def _first_experiment(
    context: Context,
    container: Container,
    overlays: list[str],
    evidence: Evidence,
    trial: Trial,
    stage: Callable[[str], contextlib.AbstractContextManager[None]],
) -> None:
    v = context.site.variables
    evidence.record["available_bytes"]["experiment_ready"] = facts.available_bytes().as_json()
    with stage("prove"):
        _prove(context, overlays, evidence, trial)
        if trial.traces is not None:
            trial.traces.ready(container)
            if v.measure.profile is None:
                trial.traces.canary()
        if v.measure.prove and evidence.record["experiment"] in v.measure.experiments and not trial.failure:
            trial.failure = arms.prove_suite(context, evidence, v.measure.prove, overlays)


def _prove(context: Context, overlays: list[str], evidence: Evidence, trial: Trial) -> None:
    judged = smoke.run(context.site.url, context.site.variables, lambda j: context.progress.note(restore.shown(j)))
    evidence.smoke(judged)
    wrong = [j for j in judged if not j.passed]
    if wrong:
        trial.failure = f"smoke: {wrong[0].name} is wrong ({wrong[0].why})"
    graphs = evidence.record["experiment_container"].get("graph_effective")
    if graphs is not None:
        evidence.record["graph_effective"] = graphs
        whose = "graph overlay" if "graph" in overlays else "graphs of the baseline"
        context.progress.note(f"  {whose}: {effect.said(graphs)}")


def _hold(context: Context, hold_s: float) -> None:
    context.progress.note(f"  the experiment serves at {context.site.url} for {hold_s:g} s; Ctrl-C restores now")
    until = time.monotonic() + hold_s
    while (left := until - time.monotonic()) > 0:
        context.progress.waiting(f"holding, {left:.0f} s left")
        containers = context.node.containers(context.site.project)
        if len(containers) != 1 or not containers[0].running:
            raise FailedError("hold", "the experiment's engine ended", "read its log in the raw directory")
        time.sleep(min(1.0, left))


def _come_back(context: Context, name: str, evidence: Evidence, trial: Trial) -> Report:
    """restore, verify, record. Raises `NotOnBaselineError` when the node is not on its baseline afterwards."""
    where = f"experiment {name}"
    if trial.failure:
        context.progress.note(f"{where}: {trial.failure}")
        evidence.record["failure"] = {"cause": trial.failure}
    try:
        restored = restore.restore(context, lambda stage_name: evidence.stage(f"restore, {stage_name}"))
        evidence.container("baseline", restored.container)
        evidence.smoke(restored.smoke, "smoke_after_restore")
        if trial.traces is not None:
            lost = trial.traces.collect()
            if lost and not trial.failure:
                trial.failure = f"profile: {lost}"
                evidence.record["failure"] = {"cause": trial.failure}
                context.progress.note(f"{where}: {trial.failure}")
        if trial.arms is not None:
            trial.arms.end(trial.failure, tripped=trial.tripped)
        statefile.update(context, evidence)
        report = checked(context, evidence)
        evidence.recovered(restored, report, f"the end of experiment {name}")
        if report.off_baseline:
            raise NotOnBaselineError("checks", report.off_baseline[0], "mend it, then: make restore")
    except Exception as error:
        evidence.close("not on a baseline")
        statefile.update(context, evidence, runs=statefile.BROKEN)
        if isinstance(error, NotOnBaselineError):
            raise
        raise NotOnBaselineError(where, described(error), "make status, then: make restore") from error
    passed = "passed without effect" if _idle(evidence) else "passed"
    end = "interrupted" if trial.interrupted else "failed" if trial.failure else passed
    evidence.close(f"{end}, restored")
    statefile.update(context, evidence)
    return report


def _idle(evidence: Evidence) -> bool:
    """Were graphs asked for, and not in effect?"""
    return evidence.record.get("graph_effective", {}).get("value") is False


def _read_traces(context: Context, evidence: Evidence, trial: Trial) -> None:
    """The windows in numbers, for the evidence and the report. The node is back and proved: an interrupt ends only this."""
    if trial.traces is None:
        return
    try:
        with context.signals.interruptible(), context.progress.stage("reading the traces"):
            trial.traces.summarise()
            if trial.arms is not None:
                trial.arms.end(trial.failure, tripped=trial.tripped)
    except Interrupted:
        trial.traces.not_summarised("it was interrupted")
        context.progress.note("  read them later: make profile TRACES=...")


def _outcome(name: str, evidence: Evidence, trial: Trial, report: Report) -> Outcome:
    """How the experiment ended, or the error whose exit code says where the node is."""
    where = f"experiment {name}"
    mend = f"the baseline serves again; see {evidence.directory}"
    if trial.interrupted:
        raise StoppedError(where, trial.failure, mend)
    if trial.failure:
        raise FailedError(where, trial.failure, mend, tail=trial.tail)
    graphs = " (its graphs were not in effect)" if _idle(evidence) else ""
    adoption = trial.arms.adoption if trial.arms is not None else None
    further = list(adoption.lines()) if adoption is not None else []
    return Outcome(f"{where} passed{graphs}, and the baseline serves again", evidence, report, further)
