"""What the tests of profiled experiments share. Used by test_profile.py and test_profile_windows.py."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WINDOWS = ["traced-short", "traced-long-first", "traced-long-again"]
"""The traced cases of examples/cpu/suites/profile.yaml."""


def in_the_traces(record: dict[str, Any]) -> Iterator[tuple[str, Path]]:
    """Each window's files, whose size and hash the record has."""
    for window in record["profile"]["windows"]:
        for file in window["files"]:
            path = Path(record["profile"]["output_dir"]) / file["name"]
            data = path.read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size_bytes"], file["sha256"])
            yield window["name"], path
