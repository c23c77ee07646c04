"""The measured arms of an experiment: the suite on each, then one against the other. Called by experiment.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gb10 import restore
from gb10.adoption import Adoption
from gb10.bench import command, measure, runs
from gb10.bench.measure import Run
from gb10.bench.suite import Suite
from gb10.context import Context
from gb10.errors import RefusedError
from gb10.evidence import Evidence

CONTAINER = {"baseline": "baseline_arm", "experiment": "experiment_container"}
"""Where an arm's container stands in record.json."""


@dataclass
class Arms:
    """One run with both arms, in the evidence of the experiment."""

    context: Context
    evidence: Evidence
    chosen: Suite
    run: Run
    earlier: Path | None
    alone: bool = False
    judged: bool = False
    adoption: Adoption | None = None

    @classmethod
    def begin(cls, context: Context, evidence: Evidence, earlier: Path | None) -> Arms:
        """Nothing is sent yet. `earlier`: a run whose baseline stands in for this one's.

        Under the profiler the experiment is the only arm: its timings are compared with those of another profiled run,
        by `make compare`, and give no verdict.
        """
        wanted = context.site.variables.measure
        alone = is_profiled(context, evidence.record["experiment"])
        name = str(wanted.profile if alone else wanted.suite)
        chosen, digest = measure.suite_of(context, name)
        run = Run.begin(context, evidence.directory, name, digest, chosen.rounds if alone else wanted.rounds)
        return cls(context, evidence, chosen, run, earlier, alone)

    @property
    def order(self) -> list[str]:
        """Which arm is started when: of measure.order, without the baseline where an earlier run stands for it."""
        names = {"A": "baseline", "B": "experiment"}
        order = [names[letter] for letter in self.context.site.variables.measure.order]
        return ["experiment"] if self.alone or self.earlier is not None else order

    def measure(self, name: str, overlays: list[str], opening: Callable[[str], None] = lambda window: None) -> None:
        """One arm on the engine that serves now. What was measured is kept, however it ends. `opening`: see `Run.arm`."""
        self.run.arm(name, overlays, self.evidence.record[CONTAINER[name]], self.chosen, opening=opening)

    def judge(self) -> str:
        """Compare the arms, tell the verdict, and return why the experiment failed: wrong answers in either arm, or ''."""
        if self.alone:
            return self._told()
        found, self.adoption = command.compared(self.context, self.run, self.earlier)
        self.judged = True
        verdict, note = found["verdict"], self.context.progress.note
        self.evidence.record["comparison"] = {"decision": verdict["decision"], "why": verdict["why"]}
        note(f"  verdict: {verdict['decision']} ({verdict['why']})")
        note(f"  report: {self.run.directory / 'report.html'}")
        return wrong_words(command.wrong_of(self.run.lines))

    def _told(self) -> str:
        """The end of an arm that stands alone: a report, and no verdict."""
        self.judged = True
        command.write_report(self.run.directory, self.run.record, self.run.lines, None)
        counted = [line for line in self.run.lines if line["round"] > 0]
        right, traced = sum(bool(line["right"]) for line in counted), sum(line["phase"] == "traced" for line in counted)
        note = self.context.progress.note
        note(
            f"  {self.run.record['suite']['name']}: {right} of {len(counted)} right, {traced} of them traced; no verdict under a profiler"
        )
        note(f"  report: {self.run.directory / 'report.html'}")
        return wrong_words(command.wrong_of(self.run.lines))

    def end(self, why: str, *, tripped: bool) -> None:
        """After the restore: a run that was not measured to its end says so, and the report has what came since. Never raises."""
        compared = self.judged and not self.alone
        if compared or not self.run.record["order"]:  # nothing was sent: there is no run to report
            return
        record = self.run.record
        try:
            if not self.judged:
                record["partial"] = record["partial"] or f"the experiment ended before its end ({why})"
                if tripped:
                    record["arms"][record["order"][-1]]["guard_tripped"] = why
                self.run.save()
            command.write_report(self.run.directory, record, self.run.lines, None)
        except Exception as error:
            self.context.progress.note(f"the unfinished run could not be reported ({type(error).__name__}: {error})")


def is_measured(context: Context, experiment: str) -> bool:
    """Are both arms of this experiment measured?"""
    wanted = context.site.variables.measure
    return experiment in wanted.experiments and wanted.suite is not None and not is_profiled(context, experiment)


def is_profiled(context: Context, experiment: str) -> bool:
    """Is it an experiment under the profiler that is asked the suite of measure.profile?"""
    v = context.site.variables
    return "profile" in v.experiments[experiment] and v.measure.profile is not None


def suites_of(context: Context, experiment: str) -> list[tuple[str, int]]:
    """The suites that an experiment is asked after smoke, each with how often its rounds are sent (warm-up included)."""
    wanted = context.site.variables.measure
    if is_profiled(context, experiment):
        name = str(wanted.profile)
        return [(name, measure.suite_of(context, name)[0].rounds + 1)]
    if experiment not in wanted.experiments:
        return []
    return [(name, (wanted.rounds + 1) * len(wanted.order)) for name in (wanted.prove, wanted.suite) if name]


def refuse(context: Context, experiment: str, earlier: Path | None) -> None:
    """What of an experiment's measuring cannot work, before anything is touched. Raises `RefusedError` or `VariablesError`."""
    if earlier is not None and not is_measured(context, experiment):
        if is_profiled(context, experiment):
            what = f"{experiment} is measured under the profiler, without a baseline arm"
            raise RefusedError(
                "--baseline-run", what, "leave the option out; compare two profiled runs with: make compare"
            )
        what = f"{experiment} is not measured, so no baseline is needed"
        raise RefusedError("--baseline-run", what, "add it to measure.experiments, or leave the option out")
    for name, _ in suites_of(context, experiment):
        measure.refuse_beyond_verified(context, name, "name a shorter one in measure, in vars.yaml")
    if earlier is not None:
        _stands_in(context, earlier)


def _stands_in(context: Context, earlier: Path) -> None:
    """An earlier run can be the baseline arm only if it is the same image, arguments, suite and rounds, whole and undisturbed.

    (That the inputs' hashes are equal is a rule of the verdict: they are known only when both are measured.)
    """
    run, v = runs.read_run(earlier / "run.json"), context.site.variables
    wanted = restore.target(context, restore.stored(context)).expected
    digest = measure.suite_of(context, str(v.measure.suite))[1]
    arm = run["arms"].get("baseline")
    causes = []
    if arm is None:
        causes.append("it has no baseline arm")
    elif arm["image_id"] != wanted.image_id:
        causes.append("its image is not the stored baseline's")
    elif arm["argv"] != wanted.argv:
        causes.append("its arguments are not the stored baseline's")
    if run["suite"].get("sha256") != digest:
        causes.append(f"it ran another text of a suite ({run['suite'].get('name')})")
    if run["rounds"] != v.measure.rounds:
        causes.append(f"it has {run['rounds']} rounds, measure.rounds is {v.measure.rounds}")
    if run["partial"] or run["diagnostic"]:
        causes.append(f"it is {run['partial'] or run['diagnostic']}")
    if causes:
        what = f"cannot stand for the baseline: {'; '.join(causes)}"
        raise RefusedError(str(earlier), what, "leave the option out: the baseline is then measured")


def stage_name(arm: str, name: str, first: bool) -> str:
    """A stage of an arm as it is shown: the experiment's first has the plain name."""
    return ("" if arm == "experiment" else "baseline, ") + name + ("" if first else " again")


def prove_suite(context: Context, evidence: Evidence, name: str, overlays: list[str]) -> str:
    """The suite of the prove stage on the experiment; returns why it failed, or ''."""
    chosen, digest = measure.suite_of(context, name)
    run = Run.begin(context, evidence.directory / name, name, digest, chosen.rounds)
    try:
        lines = run.arm("experiment", overlays, evidence.record["experiment_container"], chosen)
    finally:
        command.write_report(run.directory, run.record, run.lines, None)
    idle = command.exercised(run, lines, chosen)
    right = sum(line["right"] for line in lines if line["round"] > 0)
    total = sum(line["round"] > 0 for line in lines)
    reuse = f"not exercised ({idle[0]})" if idle else "exercised"
    context.progress.note(f"  {name}: {right} of {total} right, prefix reuse {reuse}")
    evidence.record["prove"] = {"suite": name, "right": right, "total": total, "not_exercised": idle}
    return wrong_words(command.wrong_of(lines))


def wrong_words(wrong: list[str]) -> str:
    """Wrong answers as one cause."""
    if not wrong:
        return ""
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"wrong answer: {wrong[0]}{more}"
