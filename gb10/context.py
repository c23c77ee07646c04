"""What a command works with: the site, the node, its state and where progress goes. Built by the command line, passed as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gb10.compose import Project
from gb10.node import Node
from gb10.overlays import project_for
from gb10.signals import Signals
from gb10.site import Site
from gb10.state import State
from gb10.terminal import Progress


@dataclass(frozen=True)
class Context:
    """One command on one site of one node."""

    site: Site
    node: Node
    state: State
    progress: Progress
    signals: Signals

    @property
    def project(self) -> Project:
        """The Compose project, with the state directory as its project directory."""
        return project_for(self.site.project, self.state.directory)

    @property
    def baseline_file(self) -> Path:
        """The site's rendered baseline (the stored one is the truth for a restore)."""
        return self.site.directory / "compose.yaml"
