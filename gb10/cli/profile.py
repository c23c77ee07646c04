"""Commands that read traces: profile report, compare, plot, scrub, verify-manifest. Part of the command line; they need no site."""

from __future__ import annotations

import json
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from gb10 import files, report
from gb10.cli.common import err, one_line, out, reading_option
from gb10.errors import EXIT_FAILED, EXIT_OK, RefusedError
from gb10.terminal import Terminal

PATH = click.Path(path_type=Path)
TRACES = click.argument("traces", type=PATH, nargs=-1)
WINDOW = click.option(
    "--window", "named", multiple=True, metavar="NAME=FILE", help="A trace with the name of its window."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable output (docs/profile.md).")
PACKAGES = ("numpy", "pyarrow", "adbc_driver_sqlite")
UNSEEN = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""What acts on a terminal unseen, or is no text at all; JSON lets the rest of the control characters stand as escapes already."""


def as_text(found: Any) -> str:
    """JSON with names as they are read, and what acts unseen in them as escapes."""
    text = json.dumps(found, indent=2, ensure_ascii=False)
    return UNSEEN.sub(lambda each: f"\\u{ord(each[0]):04x}", text)


def part(name: str) -> Any:
    """A module of gb10/profile. Its packages are an extra: without them, one line says how to get them."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        what = f"the packages for reading traces are not installed ({', '.join(missing)})"
        raise RefusedError("profile", what, "run: make setup, or: pip install 'gb10-gitops[analysis]'")
    return import_module(f"gb10.profile.{name}")


@click.group("profile")
def profile_group() -> None:
    """What the GPU did: traces of Nsight Systems (SQLite) and of the torch profiler (JSON), read into numbers.

    \b
    Example: python -m gb10 profile report window.1.sqlite window.2.sqlite
    """


@profile_group.command("report")
@reading_option
@TRACES
@WINDOW
@JSON
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="Length of the lists.")
def report_command(
    terminal: Terminal, traces: tuple[Path, ...], named: tuple[str, ...], as_json: bool, top: int
) -> int:
    """GPU busy, kernels from graphs, launches, ranges and their overlap, of each window and in total.

    \b
    Example: python -m gb10 profile report --window short=window.1.sqlite --window long=window.2.sqlite
    """
    command = part("command")
    found = command.report(command.windows_of(list(traces), list(named)), terminal.waiting, top=top)
    terminal.settle()
    out(as_text(found) if as_json else report.profile_markdown(found))
    return EXIT_OK


@profile_group.command("compare")
@reading_option
@click.argument("eager", type=PATH)
@click.argument("graph", type=PATH)
@JSON
def compare_command(terminal: Terminal, eager: Path, graph: Path, as_json: bool) -> int:
    """Two profiles side by side: each a trace, a report in JSON, or an evidence directory.

    \b
    Example: python -m gb10 profile compare evidence/A-try-profile evidence/B-try-graph-profile
    """
    command = part("command")
    found = command.compared(command.side(eager, terminal.waiting), command.side(graph, terminal.waiting))
    terminal.settle()
    out(as_text(found) if as_json else report.profile_markdown(found))
    return EXIT_OK


@profile_group.command("plot")
@reading_option
@TRACES
@WINDOW
@click.option("--out", "target", type=PATH, required=True, help="The SVG file to write.")
def plot_command(terminal: Terminal, traces: tuple[Path, ...], named: tuple[str, ...], target: Path) -> int:
    """A strip for each window: when the GPU was busy, with and without graphs, the longest ranges and pauses.

    \b
    Example: python -m gb10 profile plot window.1.sqlite --out timeline.svg
    """
    command = part("command")
    windows = command.windows_of(list(traces), list(named))
    mend = "name a file in a directory that has room and may be written to"
    if target.is_dir() or any(
        target.exists() and each.path.exists() and target.samefile(each.path) for each in windows
    ):
        raise RefusedError(str(target), "is a directory, or a trace itself", mend)
    found = command.report(windows, terminal.waiting, strips=True)
    terminal.settle()
    picture = report.profile_picture(found).encode()
    try:
        files.write(target, picture)
    except OSError as error:
        raise RefusedError(str(target), f"cannot be written ({error.strerror or error})", mend) from None
    out(str(target))
    return EXIT_OK


@profile_group.command("scrub")
@reading_option
@click.argument("trace", type=PATH)
@click.argument("target", type=PATH, metavar="OUT")
def scrub_command(terminal: Terminal, trace: Path, target: Path) -> int:
    """A copy without environment, arguments, names of hosts and processes; its report is the same.

    \b
    Example: python -m gb10 profile scrub window.1.sqlite public/window.1.sqlite
    """
    part("scrub").scrub(trace, target, terminal.waiting)
    terminal.settle()
    out(str(target))
    return EXIT_OK


@profile_group.command("verify-manifest")
@reading_option
@click.argument("manifest", type=PATH)
def verify_manifest_command(terminal: Terminal, manifest: Path) -> int:
    """Are the raw files that a manifest lists still there, with its sizes and hashes?

    \b
    Example: python -m gb10 profile verify-manifest evidence/20260918T012100Z-try-profile
    """
    command = part("command")
    listed, good, faults = command.verify_manifest(manifest)
    for fault in faults:
        err(one_line(str(fault)))
    out(f"{good} of {listed} files as recorded")
    return EXIT_FAILED if faults else EXIT_OK
