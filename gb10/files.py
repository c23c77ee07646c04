"""Atomic, synced writes and hashes. Used by rendering, state and evidence."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def sha256(data: bytes) -> str:
    """The SHA-256 of `data` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def write_all(contents: dict[Path, bytes], mode: int = 0o644) -> None:
    """Write several files so that a failure before the last one is staged leaves every old file as it was.

    Each file is staged and synced beside its target, then all are renamed into place and the directories synced.
    """
    staged: list[tuple[Path, Path]] = []
    try:
        for path, data in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            staged.append((Path(name), path))
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
        for temporary, path in staged:
            temporary.replace(path)
        for directory in {path.parent for path in contents}:
            sync_directory(directory)
    finally:
        for temporary, _ in staged:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` with `data`: a reader sees the old bytes or the new ones, also after a power cut."""
    write_all({path: data}, mode)


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Write `value` as indented JSON with sorted keys, atomically."""
    write(path, (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode(), mode)


def remove(path: Path) -> None:
    """Remove `path` if it is there and sync its directory."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename or removal in `path` last through a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
