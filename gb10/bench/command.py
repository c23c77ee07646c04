"""`bench`, and the measuring of an experiment's arms: suites on what serves, with evidence. Called by the command line and experiment.py."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gb10 import files, launch, report, restore
from gb10.adoption import Adoption, adoption
from gb10.bench import compare, measure, records, runs
from gb10.bench.measure import Run
from gb10.bench.sides import Named
from gb10.bench.suite import Suite
from gb10.bench.verdict import Thresholds
from gb10.context import Context
from gb10.errors import RefusedError
from gb10.evidence import Evidence
from gb10.state import command_line


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: its requests, what was wrong, what was not exercised, and where the records are."""

    directory: Path
    lines: list[dict[str, Any]]
    wrong: list[str]
    not_exercised: list[str]


def bench(
    context: Context, name: str, *, rounds: int | None, beyond_verified: bool = False, stop_on_failure: bool = False
) -> Outcome:
    """Run a suite (and before it those that it needs) against the baseline that serves. Nothing is started or stopped.

    Raises `RefusedError` when the stored baseline does not serve.
    """
    chosen, _ = measure.suite_of(context, name)
    for each in [*chosen.needs, name] if not beyond_verified else []:
        measure.refuse_beyond_verified(context, each, "choose a shorter one, or say --beyond-verified")
    with context.state.lock(command_line()):
        baseline = restore.stored(context)
        container = launch.running(context, restore.target(context, baseline))
        if container is None:
            raise RefusedError("baseline", "is not running and healthy now", "run: make restore")
        evidence = Evidence(context, f"bench-{name}")
        evidence.ran([context.state.file_of(baseline)])
        evidence.container("baseline", container)
        outcome, verdict = None, "ended before its end"
        try:
            for each in [*chosen.needs, name]:
                with evidence.stage(f"measure {each}" if each == name else f"first {each}"):
                    outcome = one_arm(context, evidence, each, rounds if each == name else None, stop_on_failure)
                if outcome.wrong and each != name:
                    what = f"{each}, which comes first, has {len(outcome.wrong)} wrong answers ({outcome.wrong[0]})"
                    raise RefusedError(f"suite {name}", what, "find out why before you try longer ones")
            verdict = "measured, not all right" if outcome and outcome.wrong else "measured"
        finally:
            evidence.close(verdict)
    assert outcome is not None
    return outcome


def one_arm(context: Context, evidence: Evidence, name: str, rounds: int | None, stop_on_failure: bool) -> Outcome:
    """One suite on the baseline that serves: its run, and a report of the one arm."""
    chosen, digest = measure.suite_of(context, name)
    directory = evidence.directory / name
    run = Run.begin(context, directory, name, digest, rounds or chosen.rounds)
    container = evidence.record["baseline"]
    try:
        lines = run.arm("baseline", [], container, chosen, stop_on_failure=stop_on_failure)
    finally:
        write_report(directory, run.record, run.lines, None)
    return Outcome(directory, lines, wrong_of(lines), exercised(run, lines, chosen))


def exercised(run: Run, lines: list[dict[str, Any]], chosen: Suite) -> list[str]:
    arms = {line["arm"] for line in lines}
    block = next((run.record["arms"][arm]["block_size"] for arm in sorted(arms)), None)
    return measure.not_exercised(lines, chosen, block)


def wrong_of(lines: list[dict[str, Any]]) -> list[str]:
    """The wrong answers of the rounds that count, in words."""
    return [
        f"{line['arm']}, round {line['round']}, {line['case']}: {line['why']}"
        for line in lines
        if line["round"] > 0 and line["right"] is False
    ]


def compared(context: Context, run: Run, earlier: Path | None = None) -> tuple[dict[str, Any], Adoption | None]:
    """The two arms of a run against each other, written beside it with its report; and how to adopt it, when that is the verdict.

    `earlier`: a run whose baseline stands in.
    """
    rules = context.site.variables.verdict
    path = run.directory / "requests.jsonl"
    a_run = runs.read_run(earlier / "run.json") if earlier else run.record
    found = compare.compare(
        a_run,
        records.read(earlier / "requests.jsonl" if earlier else path),
        run.record,
        records.read(path),
        Thresholds(rules.metric, rules.case, rules.min_gain),
        a=Named(arm="baseline", source=str(earlier) if earlier else ""),
        b=Named(arm="experiment"),
    )
    files.write_json(run.directory / "comparison.json", found)
    adopting = adoption(context.site.directory, found, run.record, run.directory)
    write_report(run.directory, run.record, run.lines, found, adopting)
    return found, adopting


def write_report(
    directory: Path,
    run: dict[str, Any],
    lines: list[dict[str, Any]],
    comparison: dict[str, Any] | None,
    adopting: Adoption | None = None,
) -> None:
    """report.html and report.md of a run: run.json, the lines of requests.jsonl, comparison.json and profile.json where they are."""
    shown = None if adopting is None else asdict(adopting)
    path = directory / "profile.json"
    profile = json.loads(path.read_bytes()) if path.is_file() else None
    files.write(directory / "report.html", report.html(run, lines, comparison, shown, profile).encode())
    files.write(directory / "report.md", report.markdown(run, lines, comparison, shown, profile).encode())
