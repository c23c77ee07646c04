"""What every command shares: options, output, and the one place where errors become words and exit codes."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gb10.errors import EXIT_INTERRUPTED, EXIT_NOT_ON_BASELINE, EXIT_OK, EXIT_REFUSED, Gb10Error, RefusedError
from gb10.signals import Interrupted, Signals, stopping
from gb10.terminal import Terminal

if TYPE_CHECKING:
    from gb10 import deploy, verify

CHANGE_THE_NODE = ("deploy_command", "try_command", "restore_command")
OUTCOMES = ("passed", "failed", "unknown", "acknowledged")


def out(text: str = "") -> None:
    """A result, on stdout. A lost terminal does not break the command."""
    with contextlib.suppress(OSError):
        click.echo(text)


def err(text: str) -> None:
    """A refusal or a failure, on stderr."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def one_line(text: str) -> str:
    """A fault as one line that a terminal shows as it is, whatever a name in it holds."""
    shown = " ".join(text.split("\n"))
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in shown)


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
        from gb10.context import Context  # what only a command about a site needs
        from gb10.node import Node
        from gb10.site import Site
        from gb10.state import State

        terminal = Terminal(sys.stderr)
        signals = Signals(terminal.note)

        def work() -> int | None:
            with signals.installed():
                site = Site.load(site_path)
                for warning in site.warnings:
                    err(f"warning: {warning}")
                context = Context(site, Node(), State(_root(state_root), site.project), terminal, signals)
                return function(context, **options)

        moving = function.__name__ in CHANGE_THE_NODE
        sys.exit(_in_words(work, verbose=verbose, site=site_path, moving=moving))

    return wrapper


def reading_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--verbose`, a terminal for progress, and the same place for errors: for commands that need no site."""

    @click.option("--verbose", is_flag=True, help="Show a traceback with an error.")
    @wraps(function)
    def wrapper(verbose: bool, **options: Any) -> None:
        terminal = Terminal(sys.stderr)

        def work() -> int | None:
            with stopping():
                return function(terminal, **options)

        sys.exit(_in_words(work, verbose=verbose))

    return wrapper


def _in_words(work: Callable[[], int | None], *, verbose: bool, site: Path | None = None, moving: bool = False) -> int:
    """Run a command; every error becomes its words on stderr and its exit code."""
    try:
        return work() or EXIT_OK
    except Gb10Error as error:
        code = error.exit_code
        if verbose:
            err(traceback.format_exc())
        if error.tail:
            err("\n".join(f"  | {line}" for line in error.tail.splitlines()))
        for fault in error.faults:
            err(_for_site(one_line(str(fault)), site))
        return code
    except (Interrupted, KeyboardInterrupt) as error:
        name = str(error) or "SIGINT"
        left = "the node was not touched (images, downloads or set-up may be unfinished: run it again)"
        err(f"{name}: ended; {left if site is not None else 'nothing was changed'}")
        return EXIT_INTERRUPTED
    except Exception as error:  # a defect of ours, or a disk that is full or gone
        if verbose:
            err(traceback.format_exc())
        mend = "run: make status, then make restore" if moving else "run it again with --verbose"
        err(_for_site(one_line(f"{type(error).__name__}: {error}; {mend}"), site))
        return EXIT_NOT_ON_BASELINE if moving else EXIT_REFUSED


def _root(given: Path | None) -> Path:
    """The root of the state directories, absolute. An empty --state (an unset variable of a script) is refused."""
    from gb10.state import default_root

    if given is None:
        return default_root()
    if str(given) == ".":
        raise RefusedError(
            "--state", "names no directory of its own", "give the path of a directory for state, or leave it out"
        )
    return given.absolute()


def _for_site(text: str, site: Path | None) -> str:
    """The words for a command about this site; a command without one has nothing to add."""
    if site is None:
        return text
    from gb10.site import for_site

    return for_site(text, site)


def moved(outcome: deploy.Outcome) -> int:
    """Show how a command that moved the node ended. History and repository findings never change its exit code."""
    show(outcome.checks, outcome.evidence.context.site.directory, everything=False)
    out(f"{outcome.line}; evidence: {outcome.evidence.directory}")
    for line in outcome.further:
        out(line)
    return EXIT_OK


def show(report: verify.Report, site: Path, *, everything: bool) -> None:
    """Results by group, the three findings kept apart."""
    from gb10.site import for_site
    from gb10.verify import GROUPS

    for group, title in GROUPS.items():
        results = [r for r in report.results if r.group == group]
        shown = results if everything else [r for r in results if r.outcome != "passed"]
        out(f"{title}: {counts({o: sum(r.outcome == o for r in results) for o in OUTCOMES})}")
        for result in shown:
            message = f": {for_site(result.message, site)}" if result.message else ""
            out(f"  {result.outcome:7} {result.sentence}{message}")
    out(f"checked in {report.duration_s:.1f} s")


def counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count or name != "acknowledged")
