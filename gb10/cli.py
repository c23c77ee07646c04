"""The command line, `python -m gb10`: the only module (with render.py) that prints or exits."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

import click

from gb10 import deploy, doctor, experiment, hostsetup, images, launch, plan, status, verify
from gb10.context import Context
from gb10.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_ON_BASELINE, EXIT_OK, EXIT_REFUSED, Gb10Error
from gb10.node import Node
from gb10.rendering import REPOSITORY
from gb10.signals import Interrupted, Signals
from gb10.site import Site
from gb10.state import State, command_line, default_root
from gb10.terminal import Terminal

CHANGE_THE_NODE = ("deploy_command", "try_command", "restore_command")
OUTCOMES = ("passed", "failed", "unknown", "acknowledged")
MAKE_TARGET = re.compile(r"\bmake (?:deploy-baseline|restore|render|images|diff|verify|doctor|acknowledge|status)\b")


def out(text: str = "") -> None:
    """A result, on stdout. A lost terminal does not break the command."""
    with contextlib.suppress(OSError):
        click.echo(text)


def err(text: str) -> None:
    """A refusal or a failure, on stderr."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def site_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--site`, `--state` and `--verbose`, one context, one place where errors become words and exit codes."""

    @click.option(
        "--site",
        "site_path",
        type=click.Path(path_type=Path),
        default=".",
        show_default=True,
        help="Directory with vars.yaml.",
    )
    @click.option(
        "--state",
        "state_root",
        type=click.Path(path_type=Path),
        default=None,
        help="Root of the state directories (default: $GB10_STATE, /var/lib/gb10 for root, else the user's).",
    )
    @click.option("--verbose", is_flag=True, help="Show a traceback with an error.")
    @wraps(function)
    def wrapper(site_path: Path, state_root: Path | None, verbose: bool, **options: Any) -> None:
        terminal = Terminal(sys.stderr)
        signals = Signals(terminal.note)
        try:
            with signals.installed():
                site = Site.load(site_path)
                for warning in site.warnings:
                    err(f"warning: {warning}")
                context = Context(site, Node(), State(state_root or default_root(), site.project), terminal, signals)
                code = function(context, **options)
        except Gb10Error as error:
            code = error.exit_code
            if verbose:
                err(traceback.format_exc())
            if error.tail:
                err("\n".join(f"  | {line}" for line in error.tail.splitlines()))
            for fault in error.faults:
                err(_for_site(str(fault), site_path))
        except Interrupted as error:
            err(
                f"{error}: ended; the node was not touched (images, downloads or set-up may be unfinished: run it again)"
            )
            code = EXIT_INTERRUPTED
        except Exception as error:  # a defect of ours, or a disk that is full or gone
            if verbose:
                err(traceback.format_exc())
            moving = function.__name__ in CHANGE_THE_NODE
            mend = "run: make status, then make restore" if moving else "run it again with --verbose"
            err(_for_site(f"{type(error).__name__}: {error}; {mend}", site_path))
            code = EXIT_NOT_ON_BASELINE if moving else EXIT_REFUSED
        sys.exit(code or EXIT_OK)

    return wrapper


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Deploy, try and restore one vLLM node from one variables file.

    \b
    Exit codes of commands that change the node: 0 done; 1 failed, the node is on the baseline that served before;
    2 refused, nothing was touched; 3 not on a working baseline, a person is needed; 130 interrupted, and restored.
    Of commands that only read: 0 all good, 1 something is red, 2 could not be read.

    \b
    Example: python -m gb10 try graph --site examples/cpu
    """


@main.command("doctor")
@site_option
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def doctor_command(context: Context, as_json: bool) -> int:
    """What this site needs on this node: ok, missing or unknown, with the mend.

    \b
    Example: python -m gb10 doctor --site examples/cpu
    """
    needs = doctor.examine(context)
    if as_json:
        out(json.dumps([asdict(need) for need in needs], indent=2))
    else:
        for need in needs:
            out(f"{need.status:8} {need.name}: {need.found}" + (f"; {need.mend}" if need.mend else ""))
        out(_counts({status: sum(n.status == status for n in needs) for status in ("ok", "missing", "unknown")}))
    return EXIT_FAILED if any(need.status == "missing" for need in needs) else EXIT_OK


@main.command("images")
@site_option
def images_command(context: Context) -> int:
    """Build or pull the site's images and record their ids. A deploy never does either.

    \b
    Example: python -m gb10 images --site examples/cpu
    """
    for name, image_id in images.prepare(context).items():
        out(f"{name}: {context.site.variables.images[name].tag} {image_id[7:19]}")
    return EXIT_OK


@main.command("deploy-baseline")
@site_option
@click.option(
    "--allow-dirty",
    is_flag=True,
    envvar="ALLOW_DIRTY",
    help="Deploy files that are not committed (recorded). Also ALLOW_DIRTY=1.",
)
@click.option("--fresh", is_flag=True, help="Start the engine anew even when it runs this baseline already.")
@click.option("--dry-run", is_flag=True, help="Print the commands and change nothing.")
def deploy_command(context: Context, allow_dirty: bool, fresh: bool, dry_run: bool) -> int:
    """Put the rendered baseline on the node, prove it, and go back to the last good one if it fails.

    \b
    Example: python -m gb10 deploy-baseline --site examples/cpu --dry-run
    """
    if dry_run:
        out(plan.for_deploy(context))
        return EXIT_OK
    return _moved(deploy.deploy_baseline(context, allow_dirty=allow_dirty, fresh=fresh))


@main.command("try")
@site_option
@click.argument("name", metavar="EXPERIMENT")
@click.option(
    "--hold",
    "hold_s",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="Keep the experiment up for use, then restore; Ctrl-C restores early.",
)
@click.option("--dry-run", is_flag=True, help="Print the commands and change nothing.")
def try_command(context: Context, name: str, hold_s: float, dry_run: bool) -> int:
    """Try an experiment of vars.yaml on top of the baseline, then restore and verify, whatever happened.

    \b
    Example: python -m gb10 try graph --site examples/cpu
    """
    if dry_run:
        out(plan.for_experiment(context, experiment.overlays_of(context, name)))
        return EXIT_OK
    return _moved(experiment.try_experiment(context, name, hold_s=hold_s))


@main.command("restore")
@site_option
@click.option("--dry-run", is_flag=True, help="Print the commands and change nothing.")
def restore_command(context: Context, dry_run: bool) -> int:
    """Back to the stored baseline, from any state. Safe to repeat.

    \b
    Example: python -m gb10 restore --site examples/cpu
    """
    if dry_run:
        out(plan.for_restore(context))
        return EXIT_OK
    with context.state.lock(command_line()), context.signals.shield("restoring the baseline"):
        outcome = deploy.recorded_restore(context)
    _moved(outcome)
    if context.signals.received:
        err(f"{context.signals.received} came meanwhile; the baseline is restored")
        return EXIT_INTERRUPTED
    return EXIT_OK


@main.command("verify")
@site_option
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def verify_command(context: Context, as_json: bool) -> int:
    """Is the node what the repository says? Runs checks/ and changes nothing.

    \b
    Example: python -m gb10 verify --site examples/cpu
    """
    report = verify.run(context)
    if report.broken:
        err(f"verify: the checks could not be run ({report.broken.splitlines()[-1]}); run: make doctor")
        return EXIT_REFUSED
    if as_json:
        out(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        _show(report, context.site.directory, everything=True)
    return EXIT_FAILED if report.failed() else EXIT_OK


@main.command("acknowledge")
@site_option
def acknowledge_command(context: Context) -> int:
    """A person has seen the history and repository findings: they are shown as acknowledged until they change. Recorded.

    \b
    Example: python -m gb10 acknowledge --site examples/cpu
    """
    with context.state.lock(command_line()):
        red = [result for result in verify.run(context).failed() if result.group != "baseline"]
        if red:
            context.state.acknowledge([result.finding for result in red])
    out("\n".join(f"acknowledged: {result.finding}" for result in red) or "there was nothing to acknowledge")
    return EXIT_OK


@main.command("status")
@site_option
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def status_command(context: Context, as_json: bool) -> int:
    """What runs now, since when, and what is stored.

    \b
    Example: python -m gb10 status --site examples/cpu
    """
    record = status.read(context)
    out(json.dumps(record, indent=2) if as_json else "\n".join(f"{key}: {value}" for key, value in record.items()))
    return EXIT_OK


@main.command("diff")
@site_option
@click.option("--experiment", "name", default=None, help="Compare with an experiment instead of the baseline.")
def diff_command(context: Context, name: str | None) -> int:
    """In what the running container differs from the rendered files, in words.

    \b
    Example: python -m gb10 diff --site examples/cpu
    """
    files = [context.baseline_file, *context.site.overlay_files(experiment.overlays_of(context, name) if name else [])]
    target = launch.target_of(context, files, "")
    image_id = context.node.image_id(target.service["image"]) or "(not local)"
    target = launch.target_of(context, files, image_id)
    containers = context.node.containers(context.site.project)
    if len(containers) != 1:
        out(f"container: expected one, found {', '.join(c.name for c in containers) or 'none'}")
        return EXIT_FAILED
    found = launch.differences(context, target, containers[0])
    out("\n".join(str(difference) for difference in found) or "no difference")
    return EXIT_FAILED if found else EXIT_OK


@main.command("set-up", hidden=True)
@site_option
@click.option("--only-refuse", is_flag=True, help="Only refuse a node that serves a site with a GPU; set nothing up.")
def setup_command(context: Context, only_refuse: bool) -> int:
    """Docker Engine, Compose v2 and the site's images on a fresh machine: for the demo and the tests.

    \b
    Example: python -m gb10 set-up --site examples/cpu
    """
    root = context.state.directory.parent
    if only_refuse:
        hostsetup.refuse_on_a_serving_node(context.node, root)
        return EXIT_OK
    hostsetup.prepare(context.node, context.progress, root)
    images.prepare(context)
    return EXIT_OK


@main.command("demo", hidden=True)
@site_option
def demo_command(context: Context) -> int:
    """The tour: set up, deploy the baseline, verify, try the graph experiment, come back, verify.

    \b
    Example: python -m gb10 demo --site examples/cpu
    """
    note = context.progress.note
    note("1/5 set-up: Docker, Compose, images")
    hostsetup.prepare(context.node, context.progress, context.state.directory.parent)
    images.prepare(context)
    note("\n2/5 deploy the baseline (make deploy-baseline)")
    _moved(deploy.deploy_baseline(context, allow_dirty=True))
    note("\n3/5 verify (make verify)")
    _show(verify.run(context), context.site.directory, everything=True)
    note("\n4/5 try the graph experiment, and come back (make try-graph)")
    outcome = experiment.try_experiment(context, "graph")
    _moved(outcome)
    note("\n5/5 verify again (make verify)")
    report = verify.run(context)
    _show(report, context.site.directory, everything=False)
    out(f"evidence: {outcome.evidence.directory}")
    out(
        f"state: {context.state.directory}; the baseline keeps serving at {context.site.url}; make demo-clean removes it"
    )
    return EXIT_FAILED if report.failed("baseline") else EXIT_OK


@main.command("demo-clean", hidden=True)
@site_option
def demo_clean_command(context: Context) -> int:
    """Remove what the demo made, and nothing else.

    \b
    Example: python -m gb10 demo-clean --site examples/cpu
    """
    if context.site.variables.node.gpu != "none":
        err("demo-clean: this site has a GPU; name the CPU site with --site examples/cpu")
        return EXIT_REFUSED
    tags = [image.tag for image in context.site.variables.images.values()]
    hostsetup.clean(context.node, context.progress, context.state.directory.parent, context.site.project, tags)
    out(f"left: evidence in {context.site.directory / 'evidence'} and the Python environment .venv")
    return EXIT_OK


def _for_site(text: str, site: Path) -> str:
    """Make targets in a mend, with the SITE they need: `make restore` alone would act on the repository's own site."""
    if site.resolve() == REPOSITORY:
        return text
    try:
        name = site.resolve().relative_to(REPOSITORY)
    except ValueError:
        name = site.resolve()
    return MAKE_TARGET.sub(rf"\g<0> SITE={name}", text)


def _moved(outcome: deploy.Outcome) -> int:
    """Show how a command that moved the node ended. History and repository findings never change its exit code."""
    _show(outcome.checks, outcome.evidence.context.site.directory, everything=False)
    out(f"{outcome.line}; evidence: {outcome.evidence.directory}")
    return EXIT_OK


def _show(report: verify.Report, site: Path, *, everything: bool) -> None:
    """Results by group, the three findings kept apart."""
    for group, title in verify.GROUPS.items():
        results = [r for r in report.results if r.group == group]
        shown = results if everything else [r for r in results if r.outcome != "passed"]
        out(f"{title}: {_counts({o: sum(r.outcome == o for r in results) for o in OUTCOMES})}")
        for result in shown:
            message = f": {_for_site(result.message, site)}" if result.message else ""
            out(f"  {result.outcome:7} {result.sentence}{message}")
    out(f"checked in {report.duration_s:.1f} s")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count or name != "acknowledged")
