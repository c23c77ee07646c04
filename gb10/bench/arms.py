"""The measured arms of an experiment: the suite on each, then one against the other. Called by experiment.py."""

from __future__ import annotations

from dataclasses import dataclass

from gb10.bench import command, measure
from gb10.bench.measure import Run
from gb10.bench.suite import Suite
from gb10.context import Context
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

    @classmethod
    def begin(cls, context: Context, evidence: Evidence) -> Arms:
        """Nothing is sent yet."""
        wanted = context.site.variables.measure
        chosen, digest = measure.suite_of(context, str(wanted.suite))
        run = Run.begin(context, evidence.directory, str(wanted.suite), digest, wanted.rounds)
        return cls(context, evidence, chosen, run)

    def measure(self, name: str, overlays: list[str]) -> None:
        """One arm on the engine that serves now. What was measured is kept and reported, however it ends."""
        try:
            self.run.arm(name, overlays, self.evidence.record[CONTAINER[name]], self.chosen)
        except BaseException:
            command.write_report(self.run, None)
            raise

    def judge(self) -> str:
        """Compare the arms, tell the verdict, and return why the experiment failed: wrong answers in either arm, or ''."""
        found = command.compared(self.context, self.run)
        verdict, note = found["verdict"], self.context.progress.note
        self.evidence.record["comparison"] = {"decision": verdict["decision"], "why": verdict["why"]}
        note(f"  verdict: {verdict['decision']} ({verdict['why']})")
        note(f"  report: {self.run.directory / 'report.html'}")
        return wrong_words(command.wrong_of(self.run.lines))


def prove_suite(context: Context, evidence: Evidence, name: str, overlays: list[str]) -> str:
    """The suite of the prove stage on the experiment; returns why it failed, or ''."""
    chosen, digest = measure.suite_of(context, name)
    run = Run.begin(context, evidence.directory / name, name, digest, chosen.rounds)
    try:
        lines = run.arm("experiment", overlays, evidence.record["experiment_container"], chosen)
    finally:
        command.write_report(run, None)
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
