"""The measured arms of an experiment: the suite on each, then one against the other. Called by experiment.py."""

from __future__ import annotations

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
    judged: bool = False
    adoption: Adoption | None = None

    @classmethod
    def begin(cls, context: Context, evidence: Evidence, earlier: Path | None) -> Arms:
        """Nothing is sent yet. `earlier`: a run whose baseline stands in for this one's."""
        wanted = context.site.variables.measure
        chosen, digest = measure.suite_of(context, str(wanted.suite))
        run = Run.begin(context, evidence.directory, str(wanted.suite), digest, wanted.rounds)
        return cls(context, evidence, chosen, run, earlier)

    @property
    def order(self) -> list[str]:
        """Which arm is started when: of measure.order, without the baseline where an earlier run stands for it."""
        names = {"A": "baseline", "B": "experiment"}
        order = [names[letter] for letter in self.context.site.variables.measure.order]
        return order if self.earlier is None else ["experiment"]

    def measure(self, name: str, overlays: list[str]) -> None:
        """One arm on the engine that serves now. What was measured is kept, however it ends."""
        self.run.arm(name, overlays, self.evidence.record[CONTAINER[name]], self.chosen)

    def judge(self) -> str:
        """Compare the arms, tell the verdict, and return why the experiment failed: wrong answers in either arm, or ''."""
        found, self.adoption = command.compared(self.context, self.run, self.earlier)
        self.judged = True
        verdict, note = found["verdict"], self.context.progress.note
        self.evidence.record["comparison"] = {"decision": verdict["decision"], "why": verdict["why"]}
        note(f"  verdict: {verdict['decision']} ({verdict['why']})")
        note(f"  report: {self.run.directory / 'report.html'}")
        return wrong_words(command.wrong_of(self.run.lines))

    def abandon(self, why: str, *, tripped: bool) -> None:
        """When it was not measured to its end: say so in the run, and report what there is. Called after the restore; never raises."""
        if self.judged:
            return
        try:
            self.run.record["partial"] = self.run.record["partial"] or f"the experiment ended before its end ({why})"
            if tripped and self.run.record["order"]:
                self.run.record["arms"][self.run.record["order"][-1]]["guard_tripped"] = why
            self.run.save()
            command.write_report(self.run.directory, self.run.record, self.run.lines, None)
        except Exception as error:
            self.context.progress.note(f"the unfinished run could not be reported ({type(error).__name__}: {error})")


def is_measured(context: Context, experiment: str) -> bool:
    """Are the arms of this experiment measured?"""
    wanted = context.site.variables.measure
    return experiment in wanted.experiments and wanted.suite is not None


def refuse(context: Context, experiment: str, earlier: Path | None) -> None:
    """What of an experiment's measuring cannot work, before anything is touched. Raises `RefusedError` or `VariablesError`."""
    v = context.site.variables
    if earlier is not None and not is_measured(context, experiment):
        what = f"{experiment} is not measured, so no baseline is needed"
        raise RefusedError("--baseline-run", what, "add it to measure.experiments, or leave the option out")
    if experiment in v.measure.experiments:
        for name in filter(None, (v.measure.prove, v.measure.suite)):
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
