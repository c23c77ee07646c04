"""run.json as the comparison needs it: read, and refused in words when it is no run. Called by the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gb10.errors import RefusedError
from gb10.variables.yamlfile import near_miss

SCHEMA = 1
KEYS = [
    *("schema", "kind", "site", "commit", "host", "started_at", "ended_at", "suite", "rounds", "order"),
    *("partial", "diagnostic", "arms", "requests", "events", "memory", "floors"),
]
"""Of docs/schemas/run.schema.json, all required: a key that is missing must not pass for `null`, which means none."""
_OBJECTS = ("suite", "arms", "requests", "floors")
_LISTS = ("order", "events", "memory")
_WORDS = ("partial", "diagnostic")
_ARM = ("overlays", "graph_effective", "guard_tripped", "oom_kill")


def read_run(path: Path) -> dict[str, Any]:
    """The document of a run.json. Raises `RefusedError` with the first thing that is wrong with it."""
    name, mend = str(path), "name the run.json that a run left"
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise RefusedError(name, f"cannot be read ({error.strerror or error})", mend) from None
    except (ValueError, RecursionError):
        raise RefusedError(name, "is not JSON", mend) from None
    if not isinstance(document, dict) or document.get("kind") != "run":
        raise RefusedError(name, "is not a run", mend)
    if document.get("schema") != SCHEMA:
        what = f"has schema {document.get('schema')}, this version reads {SCHEMA}"
        raise RefusedError(name, what, "read it with the version that wrote it")
    _judge(name, document)
    return document


def _judge(name: str, document: dict[str, Any]) -> None:
    see = "compare it with docs/schemas/run.schema.json"
    for key in document:
        if key not in KEYS:
            guess = near_miss(key, KEYS)
            raise RefusedError(f"{name}: {key[:60]}", "unknown key", f"did you mean {guess}?" if guess else see)
    for key in KEYS:
        if key not in document:
            raise RefusedError(f"{name}: {key}", "is missing", see)
    wrong = [key for key in _OBJECTS if not isinstance(document[key], dict)]
    wrong += [key for key in _LISTS if not isinstance(document[key], list)]
    wrong += [key for key in _WORDS if not isinstance(document[key], str | None)]
    if wrong:
        raise RefusedError(f"{name}: {wrong[0]}", "does not have the form that stands here", see)
    for arm, facts in document["arms"].items():
        for key in _ARM:
            if not isinstance(facts, dict) or key not in facts:
                raise RefusedError(f"{name}: arms.{arm}.{key}", "is missing", see)
        if not isinstance(facts["oom_kill"], dict) or not isinstance(facts["overlays"], list):
            raise RefusedError(f"{name}: arms.{arm}", "does not have the form that stands here", see)
