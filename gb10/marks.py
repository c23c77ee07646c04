"""The profiler's marks on the node: are their functions in the image, where is their program, were they applied? Called by preflight.py, doctor.py and traces.py.

Why it is done so: docs/decisions/profile.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from gb10 import files
from gb10.arguments import marks_source
from gb10.comparison import environment_of
from gb10.compose import Command
from gb10.context import Context
from gb10.errors import Fault, Gb10Error
from gb10.facts import Fact
from gb10.rendering import REPOSITORY
from gb10.variables import Variables

SCRIPT = Path(__file__).with_name("resolve_marks.py")
PROGRAM = REPOSITORY / "overlays/profile"
FILES = ("sitecustomize.py", "gb10_marks.py")
RECORD = "marks.json"
TIMEOUT_S = 60.0
LINE = re.compile(r"gb10-marks: (\S+) (wraps|not applied: )(.*)")


def refusals(context: Context, role: str) -> list[Fault]:
    """Marks that cannot be applied in the image of `role`, each with a mend. What the source does not show is only told."""
    v = context.site.variables
    if not v.profile.marks:
        return []
    image_id = context.node.image_id(v.images[role].tag) or ""
    faults = []
    if "PYTHONPATH" in environment_of(context.node.image(image_id)) and "PYTHONPATH" not in v.engine.environment:
        what = f"images.{role} sets PYTHONPATH itself, and the marks' own would take its place"
        faults.append(
            Fault("profile.marks", what, "repeat the image's PYTHONPATH in engine.environment: it is then joined")
        )
    context.progress.waiting(f"looking for the marked functions in images.{role}")
    for index, (mark, verdict) in enumerate(zip(v.profile.marks, judge(context, image_id), strict=True)):
        where = f"profile.marks[{index}].{verdict['key']}"
        if verdict["outcome"] == "refused":
            faults.append(Fault(where, f"{mark.name}: {verdict['why']} (in images.{role})", verdict["mend"]))
        elif verdict["outcome"] == "unknown":
            context.progress.note(f"mark {mark.name}: unknown until the engine starts ({verdict['why']})")
    return faults


def judge(context: Context, image_id: str) -> list[dict[str, str]]:
    """The verdict on each mark from the source in the image (a second or two), unless these marks were judged in it before."""
    v = context.site.variables
    asked = [{"function": mark.function, "show": mark.show} for mark in v.profile.marks]
    path = v.engine.environment.get("PYTHONPATH")
    words = json.dumps(asked, sort_keys=True)
    key = files.sha256("\0".join([image_id, words, path or "", SCRIPT.read_text()]).encode())[:24]
    record = _well_formed(context.state.read_record(RECORD) or {})
    if key in record:
        return list(record[key]["verdicts"])
    name = f"gb10-marks-{context.site.project}-{os.getpid()}"
    docker = ("docker", "run", "--rm", "--name", name, "--network", "none", "--memory", "2g", "--cap-drop", "ALL")
    further = ("--env", f"PYTHONPATH={path}") if path else ()
    argv = (*docker, *further, "--entrypoint", "python3", image_id, "-c", SCRIPT.read_text(), words)
    try:
        verdicts = json.loads(context.node.run(Command(argv, TIMEOUT_S)).strip().splitlines()[-1])
    except (Gb10Error, ValueError, IndexError) as error:
        with contextlib.suppress(Gb10Error):  # ending the docker client does not end the container
            context.node.run(Command(("docker", "rm", "--force", name)))
        why = f"the image could not be looked into ({str(error)[:160]})"
        return [{"outcome": "unknown", "key": "function", "why": why, "mend": ""} for _ in asked]
    if path is not None:  # what lies there can be mounted, and this container has no mounts
        verdicts = [one | {"outcome": "unknown"} if "no module" in one["why"] else one for one in verdicts]
    local = {
        one: value for one, value in record.items() if context.node.image(value["image"])
    }  # so that it stays small
    context.state.write_record(RECORD, local | {key: {"image": image_id, "verdicts": verdicts}})
    return list(verdicts)


def _well_formed(record: dict[str, Any]) -> dict[str, Any]:
    """The entries as this version writes them: a record is asked again rather than believed."""
    return {
        key: value
        for key, value in record.items()
        if isinstance(value, dict) and isinstance(value.get("image"), str) and isinstance(value.get("verdicts"), list)
    }


def place(v: Variables) -> dict[str, str]:
    """Copy the program to where the overlay mounts it from; returns the SHA-256 of each file. Nothing without marks."""
    if not v.profile.marks:
        return {}
    directory = Path(marks_source(v))
    contents = {directory / name: (PROGRAM / name).read_bytes() for name in FILES}
    files.write_all(contents)
    directory.chmod(0o755)  # the engine's root has no capability to read past a mode; nothing in it is a secret
    for path in set(directory.iterdir()) - set(contents):
        if path.is_file():
            path.unlink()
    return {path.name: files.sha256(data) for path, data in contents.items()}


def applied(v: Variables, log: str) -> list[dict[str, Any]]:
    """Each mark with whether the engine's log says that its function was wrapped."""
    said: dict[str, list[tuple[str, str]]] = {}
    for name, word, rest in LINE.findall(log):
        said.setdefault(name, []).append((word, rest.strip()))
    return [
        {"name": mark.name, "function": mark.function, "applied": _applied(said.get(mark.name, [])).as_json()}
        for mark in v.profile.marks
    ]


def _applied(lines: list[tuple[str, str]]) -> Fact[bool]:
    if any(word == "wraps" for word, _ in lines):
        return Fact(True)
    return Fact(False) if lines else Fact(None, "the log has no line about it: its module was not imported")


def why_not(log: str) -> dict[str, str]:
    """Why marks were not applied, by name, as the engine's log says."""
    return {name: rest.strip() for name, word, rest in LINE.findall(log) if word != "wraps"}
