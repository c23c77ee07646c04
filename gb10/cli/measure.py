"""Commands that ask and measure: smoke, bench, compare, report. Part of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gb10.adoption import adoption
from gb10.bench import command, compare, imports, records, runs, words
from gb10.bench.sides import Named
from gb10.bench.verdict import Thresholds
from gb10.cli.common import out, site_option
from gb10.context import Context
from gb10.engine import smoke
from gb10.errors import EXIT_FAILED, EXIT_OK, RefusedError
from gb10.restore import shown


@click.command("smoke")
@site_option
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def smoke_command(context: Context, as_json: bool) -> int:
    """The smoke cases of vars.yaml, asked of what serves now. Changes nothing.

    \b
    Example: python -m gb10 smoke --site examples/cpu
    """
    judged = smoke.run(context.site.url, context.site.variables, lambda j: None if as_json else out(shown(j)))
    if as_json:
        out(json.dumps([j.as_json() for j in judged], indent=2, ensure_ascii=False))
    return EXIT_OK if all(j.passed for j in judged) else EXIT_FAILED


@click.command("bench")
@site_option
@click.argument("suite")
@click.option("--rounds", type=click.IntRange(1, 1000), default=None, help="Rounds (default: the suite's own).")
@click.option("--stop-on-failure", is_flag=True, help="End at the first wrong answer.")
@click.option("--beyond-verified", is_flag=True, help="Allow a suite longer than the verified context.")
def bench_command(
    context: Context, suite: str, rounds: int | None, stop_on_failure: bool, beyond_verified: bool
) -> int:
    """A suite on the baseline that serves: every answer judged, every request timed and kept as evidence.

    \b
    Example: python -m gb10 bench prefix --site examples/cpu
    """
    found = command.bench(
        context, suite, rounds=rounds, beyond_verified=beyond_verified, stop_on_failure=stop_on_failure
    )
    counted = [line for line in found.lines if line["round"] > 0]
    out(f"{sum(line['right'] for line in counted)} of {len(counted)} right")
    for wrong in found.wrong:
        out(f"  wrong: {wrong}")
    for idle in found.not_exercised:
        out(f"  prefix reuse not exercised: {idle}")
    out(f"report: {found.directory / 'report.html'}")
    return EXIT_FAILED if found.wrong else EXIT_OK


@click.command("compare")
@site_option
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--a-arm", default=None, help="Arm of A (default: baseline, or its only one).")
@click.option("--b-arm", default=None, help="Arm of B (default: experiment, or its only one).")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def compare_command(context: Context, a: Path, b: Path, a_arm: str | None, b_arm: str | None, as_json: bool) -> int:
    """Two runs, or two arms of one, against each other: A is the baseline, ratios are B over A.

    A and B are evidence directories, files of request records (JSONL) or results of `vllm bench serve` (JSON).

    \b
    Example: python -m gb10 compare evidence/A evidence/B --site examples/cpu
    """
    if ".json" in (a.suffix, b.suffix):
        rows = imports.side_by_side(_column(a, "baseline", "A"), _column(b, "experiment", "B"))
        out(json.dumps(rows, indent=2) if as_json else "\n".join(words.side_by_side(rows)))
        return EXIT_OK
    rules = context.site.variables.verdict
    (a_run, a_records), (b_run, b_records) = _side(a, "baseline"), _side(b, "experiment")
    found = compare.compare(
        a_run,
        a_records,
        b_run,
        b_records,
        Thresholds(rules.metric, rules.case, rules.min_gain),
        a=Named(source=str(a), arm=a_arm),
        b=Named(source=str(b), arm=b_arm),
    )
    adopting = adoption(context.site.directory, found, b_run, b if b.is_dir() else None)
    shown = [*words.lines(found), *(adopting.lines() if adopting is not None else [])]
    out(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(shown))
    return EXIT_FAILED if found["verdict"]["decision"] == "reject" else EXIT_OK


def _side(path: Path, arm: str) -> tuple[dict[str, Any] | None, records.Records]:
    """A run's record and its requests, of whatever form."""
    if not path.is_dir():
        return None, _lines(path, arm)
    return runs.read_run(path / "run.json"), records.read(path / "requests.jsonl")


def _lines(path: Path, arm: str) -> records.Records:
    """Our own records, which say their schema, or the plain format."""
    try:
        with path.open("rb") as file:
            own = b'"schema"' in file.readline()
    except OSError as error:
        raise RefusedError(
            str(path), f"cannot be read ({error.strerror})", "name a file or a directory of a run"
        ) from None
    return records.read(path) if own else imports.plain(path, arm)


def _column(path: Path, arm: str, label: str) -> imports.Column:
    """One side of a view without verdict."""
    if path.suffix == ".json":
        return imports.vllm_bench(path)
    return imports.own_column(_side(path, arm)[1], label, str(path))


@click.command("report")
@site_option
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--experiment", default=None, help="The newest try of this experiment.")
def report_command(context: Context, run: Path | None, experiment: str | None) -> int:
    """Make the report of a run again from its records, and say where it is.

    \b
    Example: python -m gb10 report --experiment graph --site examples/cpu
    """
    directory = run or _newest(context, experiment)
    record, requests = runs.read_run(directory / "run.json"), directory / "requests.jsonl"
    records.read(requests)  # says in words what is wrong with them
    path = directory / "comparison.json"
    comparison = json.loads(path.read_text()) if path.is_file() else None
    whole, _, _ = requests.read_bytes().rpartition(b"\n")  # a torn last line, of a run that was killed, is left out
    adopting = adoption(context.site.directory, comparison, record, directory) if comparison else None
    command.write_report(directory, record, [json.loads(line) for line in whole.splitlines()], comparison, adopting)
    out(str(directory / "report.html"))
    return EXIT_OK


def _newest(context: Context, experiment: str | None) -> Path:
    pattern = f"*-try-{experiment}" if experiment else "*-try-*"
    found = [path.parent for path in sorted((context.site.directory / "evidence").glob(f"{pattern}*/run.json"))]
    if not found:
        what = f"no measured try of {experiment}" if experiment else "no measured try"
        raise RefusedError(str(context.site.directory / "evidence"), what, "run: make try-graph")
    return found[-1]
