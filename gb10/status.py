"""`status`: what runs now, since when, and what is stored. Reads only; called by the command line."""

from __future__ import annotations

from typing import Any

from gb10 import facts, launch, restore
from gb10.context import Context
from gb10.errors import Gb10Error
from gb10.facts import GIB


def read(context: Context) -> dict[str, Any]:
    """Facts by name, in the order a person wants them."""
    baseline, lease = context.state.current(), context.state.lease()
    containers = context.node.containers(context.site.project)
    record: dict[str, Any] = {"site": str(context.site.directory), "project": context.site.project}
    record["container"] = (
        ", ".join(f"{c.name} ({c.status}, {c.health}, since {c.started_at[:19]}Z)" for c in containers) or "none"
    )
    record["runs"] = _runs(context)
    record["image"] = ", ".join(f"{c.image_tag} {c.image_id[7:19]}" for c in containers) or "none"
    record["stored baseline"] = (
        f"{baseline.sha256[:12]} of {baseline.deployed_at}, commit {baseline.commit[:12]}"
        if baseline
        else "none: never deployed"
    )
    record["lease"] = f"experiment {lease.experiment}, stage {lease.stage}, until {lease.deadline}" if lease else "none"
    available, oom = facts.available_bytes(), facts.oom_kill_count()
    record["available memory"] = (
        f"{available.value / GIB:.2f} GiB" if available.value is not None else f"unknown ({available.why})"
    )
    record["oom_kill"] = oom.value if oom.known else f"unknown ({oom.why})"
    record["url"] = context.site.url
    return record


def _runs(context: Context) -> str:
    try:
        baseline = context.state.current()
        if baseline is None:
            return "nothing that was deployed by this tool"
        if launch.running(context, restore.target(context, baseline)):
            return "the stored baseline"
    except Gb10Error as error:
        return f"unknown ({error})"
    return "not the stored baseline (make diff, make restore)"
