"""Set-up, tour and clean-up on the CPU site: `make demo`, `make test` and `make demo-clean`."""

from __future__ import annotations

import click

from gb10 import deploy, experiment, hostsetup, images, verify
from gb10.cli.common import err, moved, out, show, site_option
from gb10.context import Context
from gb10.errors import EXIT_FAILED, EXIT_OK, EXIT_REFUSED


@click.command("set-up", hidden=True)
@site_option
@click.option("--only-refuse", is_flag=True, help="Only refuse a node that serves a site with a GPU; set nothing up.")
def setup_command(context: Context, only_refuse: bool) -> int:
    """Docker Engine, Compose v2, the site's images and what the tests need on a fresh machine.

    \b
    Example: python -m gb10 set-up --site examples/cpu
    """
    root = context.state.directory.parent
    if only_refuse:
        hostsetup.refuse_on_a_serving_node(context.node, root)
        return EXIT_OK
    hostsetup.prepare(context.node, context.progress, root)
    hostsetup.prepare_tests(context.progress, root)
    images.prepare(context)
    return EXIT_OK


@click.command("demo", hidden=True)
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
    moved(deploy.deploy_baseline(context, allow_dirty=True))
    note("\n3/5 verify (make verify)")
    show(verify.run(context), context.site.directory, everything=True)
    note("\n4/5 try the graph experiment, and come back (make try-graph)")
    outcome = experiment.try_experiment(context, "graph")
    moved(outcome)
    note("\n5/5 verify again (make verify)")
    report = verify.run(context)
    show(report, context.site.directory, everything=False)
    out(f"evidence: {outcome.evidence.directory}")
    out(
        f"state: {context.state.directory}; the baseline keeps serving at {context.site.url}; make demo-clean removes it"
    )
    return EXIT_FAILED if report.failed("baseline") else EXIT_OK


@click.command("demo-clean", hidden=True)
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
