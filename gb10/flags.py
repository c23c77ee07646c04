"""The flags' verdict: a site's arguments through the parser of the site's own image. Needs no GPU; called by doctor and preflight."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gb10.compose import Command
from gb10.context import Context
from gb10.errors import Gb10Error
from gb10.files import sha256
from gb10.overlays import unescaped
from gb10.state import State

SCRIPT = Path(__file__).with_name("parse_flags.py")
TIMEOUT_S = 180.0
MEMORY = "6g"
RECORD = "flags.json"


@dataclass(frozen=True)
class Verdict:
    """`accepted`, `refused` or `unknown` (until the image's own parser has judged, flags are never green)."""

    outcome: str
    why: str = ""


def words_of(service: dict[str, Any]) -> list[str]:
    """The words that the engine's parser gets: those of the entrypoint after the program, and the command."""
    entrypoint = [word for word in service["entrypoint"] if word.startswith("--profiler-config")]
    return unescaped([*entrypoint, *service["command"]])


def known(state: State, image_id: str, arguments: list[str]) -> Verdict:
    """The recorded verdict for this image and these arguments, or unknown."""
    record = (state.read_record(RECORD) or {}).get(key(image_id, arguments))
    return (
        Verdict(record["outcome"], record["why"])
        if record
        else Verdict("unknown", "the image's parser has not judged them yet")
    )


def judge(context: Context, image_id: str, arguments: list[str]) -> Verdict:
    """Run the image's own parser on the arguments (about 10 s), unless this pair was judged before."""
    verdict = known(context.state, image_id, arguments)
    if verdict.outcome != "unknown":
        return verdict
    name = f"gb10-parser-{context.site.project}-{os.getpid()}"
    docker = ("docker", "run", "--rm", "--name", name, "--network", "none", "--memory", MEMORY, "--cap-drop", "ALL")
    argv = (*docker, "--entrypoint", "python3", image_id, "-c", SCRIPT.read_text(), *arguments)
    try:
        answer = json.loads(context.node.run(Command(argv, TIMEOUT_S)).strip().splitlines()[-1])
        verdict = Verdict(answer["outcome"], answer["why"])
    except (Gb10Error, ValueError, KeyError, IndexError) as error:
        with contextlib.suppress(Gb10Error):  # ending the docker client does not end the container
            context.node.run(Command(("docker", "rm", "--force", name)))
        return Verdict("unknown", f"the image's parser could not be run ({str(error)[:160]})")
    if verdict.outcome != "unknown":
        record = context.state.read_record(RECORD) or {}
        record[key(image_id, arguments)] = {"outcome": verdict.outcome, "why": verdict.why}
        context.state.write_record(RECORD, record)
    return verdict


def key(image_id: str, arguments: list[str]) -> str:
    return sha256("\0".join([image_id, *arguments]).encode())[:24]
