"""The command line, `python -m gb10`: the only package (with render.py) that prints or exits.

A command's module is imported when it is asked for: reading a trace does not wait for what a deploy needs.
"""

from __future__ import annotations

from importlib import import_module

import click

MODULES = {
    "node": "doctor images deploy-baseline try restore verify acknowledge status diff",
    "demo": "set-up demo demo-clean",
    "measure": "smoke bench compare report",
    "profile": "profile",
}
COMMANDS = {command: module for module, commands in MODULES.items() for command in commands.split()}
"""Command -> the module of this package that holds it."""


class Commands(click.Group):
    """The commands by name, each from its own module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"gb10.cli.{COMMANDS[cmd_name]}")
        found = (one for one in vars(module).values() if isinstance(one, click.Command))
        return next(command for command in found if command.name == cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Deploy, try and restore one vLLM node from one variables file.

    \b
    Exit codes of commands that change the node: 0 done; 1 failed, the node is on the baseline that served before;
    2 refused, nothing was touched; 3 not on a working baseline, a person is needed; 130 interrupted, and restored.
    Of commands that only read: 0 all good, 1 something is red, 2 could not be read.

    \b
    Example: python -m gb10 try graph --site examples/cpu
    """
