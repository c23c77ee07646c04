"""Patch manifests."""

from __future__ import annotations

import json
from typing import Any

from gb10.node import Container, Node

MANIFEST = "/usr/local/share/gb10/patches.json"


def manifest_in(node: Node, container: Container) -> dict[str, Any] | None:
    """The manifest that a container's image carries, read from the container; None when it has none."""
    data = node.read_file(container.id, MANIFEST)
    return json.loads(data) if data else None
