"""Variables to the bytes of a site's files, and what differs on disk. Called by render.py, site.py and preflight.py."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gb10 import files
from gb10.arguments import (
    MARKS_DIR,
    PROFILES_DIR,
    baseline_environment,
    engine_arguments,
    graph_environment,
    marks_environment,
    marks_source,
    profiler_entrypoint,
)
from gb10.variables import Variables
from gb10.variables.crosscheck import OVERLAYS

REPOSITORY = Path(__file__).resolve().parent.parent
BASELINE = "compose.yaml"
OUTPUTS = (BASELINE, *(f"overlays/{name}.yaml" for name in OVERLAYS))


@dataclass(frozen=True)
class Bind:
    """One bind mount of the baseline."""

    host: str
    container: str
    read_only: bool


def binds(v: Variables) -> list[Bind]:
    """The baseline's mounts: model, further mounts, caches."""
    model = [Bind(v.model.host_dir, v.model.path, True)] if v.model.host_dir else []
    mounts = [Bind(m.host, m.container, m.read_only) for m in v.mounts]
    return model + mounts + [Bind(c.host, c.container, False) for c in v.caches]


def profiler_environment(v: Variables) -> dict[str, str]:
    """The profile overlay's environment. nsys cannot follow a forked worker."""
    spawn = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"} if v.profile.tool == "nsys" else {}
    return spawn | marks_environment(v)


def literal(text: str) -> str:
    """A YAML double-quoted scalar that Compose does not interpolate: JSON, with `$` doubled."""
    return json.dumps(text, ensure_ascii=False).replace("$", "$$")


def render(v: Variables, templates: Path = REPOSITORY / "templates") -> dict[str, bytes]:
    """The bytes of each output, by its path in the site. The same variables give the same bytes, always."""
    environment = Environment(
        loader=FileSystemLoader(templates),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["literal"] = literal
    context: dict[str, Any] = {
        "v": v,
        "binds": binds,
        "engine_arguments": engine_arguments,
        "baseline_environment": baseline_environment,
        "graph_environment": graph_environment,
        "profiler_entrypoint": profiler_entrypoint,
        "profiler_environment": profiler_environment(v),
        "profiles_dir": PROFILES_DIR,
        "marks_dir": MARKS_DIR,
        "marks_source": marks_source(v),
    }
    return {output: environment.get_template(f"{output}.j2").render(context).encode() for output in OUTPUTS}


def write(rendered: dict[str, bytes], directory: Path) -> list[str]:
    """Write what differs, all or nothing; returns the outputs that changed."""
    changed = differing(rendered, directory)
    files.write_all({directory / output: rendered[output] for output in changed})
    return changed


def differing(rendered: dict[str, bytes], directory: Path) -> list[str]:
    """The outputs whose file in `directory` is missing or has other bytes."""
    return [output for output, data in rendered.items() if _bytes_of(directory / output) != data]


def diff(rendered: dict[str, bytes], directory: Path) -> str:
    """What rendering would change, as a unified diff; empty when nothing."""
    text = ""
    for output in differing(rendered, directory):
        before = (_bytes_of(directory / output) or b"").decode("utf-8", "replace").splitlines(keepends=True)
        after = rendered[output].decode().splitlines(keepends=True)
        text += "".join(difflib.unified_diff(before, after, f"{output} (on disk)", f"{output} (rendered)"))
    return text


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return None
