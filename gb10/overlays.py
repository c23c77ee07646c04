"""A baseline with overlays on top, flattened by Compose itself. Used before every deploy, by the contract and by checks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from gb10 import compose
from gb10.compose import Project
from gb10.errors import Gb10Error, RefusedError
from gb10.node import Node

SERVICE = "engine"


def project_for(name: str, directory: Path) -> Project:
    """The Compose project of a site. `directory` is the state directory's, so that two clones deploy the same thing."""
    program = compose.plugin()
    if program is None:
        raise RefusedError(
            "compose",
            "Compose v2 is not installed",
            "install the docker-compose-v2 or docker-compose-plugin package, or run `make setup` (x86-64)",
        )
    if shutil.which("docker") is None:
        raise RefusedError("docker", "the docker command is not on PATH", "correct PATH, or install docker-cli")
    return Project(program, name, directory)


def flatten(node: Node, project: Project, files: list[Path]) -> dict[str, Any]:
    """`docker compose config` of the files as one document. Raises `RefusedError` with Compose's own reason."""
    try:
        return json.loads(node.run(project.config(files)))
    except Gb10Error as error:
        raise RefusedError(
            " + ".join(file.name for file in files),
            f"Compose refuses it ({error.faults[0].what})",
            "mend the template, or vars.yaml",
        ) from None


def service_of(document: dict[str, Any]) -> dict[str, Any]:
    """The engine's service of a flattened document."""
    return document["services"][SERVICE]


def unescaped(words: list[str]) -> list[str]:
    """Arguments as the process gets them: Compose writes a literal `$` as `$$`."""
    return [word.replace("$$", "$") for word in words]
