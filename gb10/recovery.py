"""When the state directory is gone: which baseline it was, from the evidence's copies and the stored image tags. Called by restore.py."""

from __future__ import annotations

import json
from pathlib import Path

from gb10 import files
from gb10.context import Context
from gb10.overlays import flatten, service_of
from gb10.state import Baseline, History, baseline_key, now, stored_repository

SERVED = ("deployed", "already deployed", "restored", "was on the baseline already")
"""Verdicts of deploys and restores whose compose.yaml served in the end."""


def recover(context: Context) -> Baseline | None:
    """The last baseline that is proved twice: its bytes (evidence or site) and its image (a tag of ours) name each other.

    A stored tag's name holds the first digits of both hashes. Returns None, and changes nothing, when no pair fits.
    """
    tags = context.node.tags(stored_repository(context.site.project))
    for path in _candidates(context):
        data = path.read_bytes()
        for key, image_id in tags.items():
            if key != baseline_key(files.sha256(data), image_id):
                continue
            image_tag = service_of(flatten(context.node, context.project, [path]))["image"]
            baseline = context.state.store(data, image_tag, image_id, "unknown", dirty=False)
            context.state.promote(baseline, History(None, None, now()))
            context.progress.note(
                f"the state directory was lost: lease, history, acknowledgements and raw records are gone; "
                f"recovered the baseline {key} from {path} and its stored image"
            )
            return baseline
    return None


def _candidates(context: Context) -> list[Path]:
    """Copies of baselines that served, newest first; then the site's own file."""
    found = []
    for record in sorted((context.site.directory / "evidence").glob("*/record.json"), reverse=True):
        try:
            document = json.loads(record.read_text())
            served = str(document.get("verdict", "")).startswith(SERVED)
            tried = str(document.get("what", "")).startswith("try-")
        except (OSError, ValueError, AttributeError):
            continue
        if (served or tried) and (record.parent / "compose.yaml").is_file():
            found.append(record.parent / "compose.yaml")
    return [*found, context.baseline_file]
