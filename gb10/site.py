"""A site and its repository: variables, rendered bytes and git facts. Loaded once by the command line and passed on."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gb10 import rendering
from gb10.errors import Fault, RefusedError
from gb10.rendering import REPOSITORY
from gb10.variables import Variables, load

MAKE_TARGET = re.compile(
    r"\bmake (?:deploy-baseline|restore|render|images|diff|verify|doctor|acknowledge|status|report|try-[a-z0-9-]+)\b"
)


@dataclass(frozen=True)
class Site:
    """One directory with vars.yaml, and what its variables render to."""

    directory: Path
    variables: Variables
    rendered: dict[str, bytes]
    warnings: list[Fault]

    @classmethod
    def load(cls, directory: Path) -> Site:
        """Read and render a site. Raises `VariablesError` when its variables are not valid."""
        try:
            directory = directory.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise RefusedError(
                str(directory), f"is not a site ({error})", "name one with --site (make ... SITE=examples/cpu)"
            ) from None
        if not (directory / "vars.yaml").is_file():
            raise RefusedError(
                str(directory),
                "is not a site (it has no vars.yaml)",
                "name one with --site (make ... SITE=examples/cpu)",
            )
        loaded = load(directory / "vars.yaml", directory)
        return cls(directory, loaded.variables, rendering.render(loaded.variables), loaded.warnings)

    @property
    def project(self) -> str:
        return self.variables.project

    @property
    def url(self) -> str:
        """Where the engine answers, seen from the node."""
        address = self.variables.listen.address
        host = (
            "127.0.0.1"
            if address == "0.0.0.0"
            else "[::1]"
            if address == "::"
            else f"[{address}]"
            if ":" in address
            else address
        )
        return f"http://{host}:{self.variables.listen.port}"

    def stale(self) -> list[str]:
        """Rendered files that differ from the variables."""
        return rendering.differing(self.rendered, self.directory)

    def overlay_files(self, names: list[str]) -> list[Path]:
        """The overlay files of an experiment."""
        return [self.directory / "overlays" / f"{name}.yaml" for name in names]


def for_site(text: str, site: Path) -> str:
    """Make targets in a mend, with the SITE they need: `make restore` alone would act on the repository's own site."""
    try:
        if site.resolve() == REPOSITORY:
            return text
        name = site.resolve().relative_to(REPOSITORY)
    except ValueError:
        name = site.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return text
    return MAKE_TARGET.sub(rf"\g<0> SITE={name}", text)


@dataclass(frozen=True)
class Commit:
    """The commit that is checked out, and which deployed files differ from it; `unknown` is why git could not say."""

    id: str
    dirty: list[str]
    unknown: str = ""


def commit_of(site: Site) -> Commit:
    """The site's commit and the files of a deploy that are changed or untracked."""
    inputs = ["vars.yaml", *rendering.OUTPUTS]
    inside = _git(site.directory, "rev-parse", "HEAD")
    status = _git(site.directory, "status", "--porcelain", "--untracked-files=all", "--", *inputs)
    if inside is None or status is None:
        return Commit("unknown", [], "git does not answer here, or there is no commit")
    return Commit(inside.strip(), [line[3:] for line in status.splitlines() if line])


def _git(directory: Path, *words: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(directory), *words], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
