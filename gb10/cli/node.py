"""Commands about the node: doctor, images, deploy-baseline, try, restore, verify, acknowledge, status, diff. Part of the command line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from gb10 import deploy, doctor, experiment, images, launch, plan, preflight, status, verify
from gb10.bench import arms
from gb10.cli.common import counts, err, moved, out, show, site_option
from gb10.context import Context
from gb10.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED
from gb10.state import command_line

EXISTING = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("doctor")
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
        out(counts({status: sum(n.status == status for n in needs) for status in ("ok", "missing", "unknown")}))
    return EXIT_FAILED if any(need.status == "missing" for need in needs) else EXIT_OK


@click.command("images")
@site_option
def images_command(context: Context) -> int:
    """Build or pull the site's images and record their ids. A deploy never does either.

    \b
    Example: python -m gb10 images --site examples/cpu
    """
    for name, image_id in images.prepare(context).items():
        out(f"{name}: {context.site.variables.images[name].tag} {image_id[7:19]}")
    return EXIT_OK


@click.command("deploy-baseline")
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
        preflight.for_deploy(context, allow_dirty=allow_dirty)
        return EXIT_OK
    return moved(deploy.deploy_baseline(context, allow_dirty=allow_dirty, fresh=fresh))


@click.command("try")
@site_option
@click.argument("name", metavar="EXPERIMENT")
@click.option(
    "--hold",
    "hold_s",
    type=click.FloatRange(min=0, max=86400),
    default=0,
    metavar="SECONDS",
    help="Keep the experiment up for use, then restore; Ctrl-C restores early.",
)
@click.option(
    "--baseline-run",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIRECTORY",
    help="Compare with an earlier run of the same baseline instead of measuring it again.",
)
@click.option("--dry-run", is_flag=True, help="Print the commands and change nothing.")
def try_command(context: Context, name: str, hold_s: float, baseline_run: Path | None, dry_run: bool) -> int:
    """Try an experiment of vars.yaml on top of the baseline, then restore and verify, whatever happened.

    \b
    Example: python -m gb10 try graph --site examples/cpu
    """
    if dry_run:
        overlays = experiment.overlays_of(context, name)
        out(plan.for_experiment(context, overlays, measured=arms.is_measured(context, name) and baseline_run is None))
        preflight.for_experiment(context, overlays)
        arms.refuse(context, name, baseline_run)
        return EXIT_OK
    return moved(experiment.try_experiment(context, name, hold_s=hold_s, baseline_run=baseline_run))


@click.command("restore")
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
    moved(outcome)
    if context.signals.received:
        err(f"{context.signals.received} came meanwhile; the baseline is restored")
        return EXIT_INTERRUPTED
    return EXIT_OK


@click.command("verify")
@site_option
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.option("--host", default=None, metavar="ssh://[USER@]NAME[:PORT]", help="The node, seen from another machine.")
@click.option("--ssh-config", type=EXISTING, default=None, help="With --host: in the place of ~/.ssh/config.")
@click.option(
    "--report", type=click.Path(path_type=Path), default=None, help="Directory for checks.json and checks.xml (JUnit)."
)
def verify_command(
    context: Context, as_json: bool, host: str | None, ssh_config: Path | None, report: Path | None
) -> int:
    """Is the node what the repository says? Runs checks/ and changes nothing.

    With --host, --state names the root of the state directories on the node.

    \b
    Example: python -m gb10 verify --site examples/cpu
    """
    if host is not None:
        root = click.get_current_context().params["state_root"]
        found = verify.run_on(context, host, state_root=root, ssh_config=ssh_config, directory=report)
    else:
        kept = context.state.directory / "checks" if context.state.directory.is_dir() else None
        found = verify.run(context, report or kept)
    if found.broken:
        err(f"verify: the checks could not be run ({found.broken.splitlines()[-1]}); run: make doctor")
        return EXIT_REFUSED
    if as_json:
        out(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
    else:
        show(found, context.site.directory, everything=True)
    return EXIT_FAILED if found.failed() else EXIT_OK


@click.command("acknowledge")
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


@click.command("status")
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


@click.command("diff")
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
