"""Source patches as data: an image's patches.yaml, what the build gets of it, and what the image's manifest must show.

Used by buildinput.py, patchgate.py and checks/. The program that applies them is images/apply_patches.py.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, StringConstraints

from gb10.compose import Command
from gb10.errors import FailedError, Fault, RefusedError, VariablesError
from gb10.files import sha256
from gb10.node import Container, Node
from gb10.rendering import REPOSITORY
from gb10.variables import Variables
from gb10.variables.load import located, validated
from gb10.variables.model import Image, Name, Part, Positive, Text
from gb10.variables.yamlfile import KeyPath, read

MANIFEST = "/usr/local/share/gb10/patches.json"
SCHEMA = 1
FILE = "patches.yaml"
EXAMPLE = "images/eager/patches.yaml"
READ_S = 60.0

Anchor = Annotated[str, StringConstraints(pattern=r"\S")]
Link = Annotated[str, StringConstraints(pattern=r"^https://\S+$")]
PackagePath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")]


class Alternative(Part):
    seen_in: Text
    find: Anchor
    replace: str
    count: Positive


class Marker(Part):
    find: Anchor
    count: Positive


class Patch(Part):
    """One entry: a change of one file, by the one alternative whose anchor is there, or by text at its end."""

    id: Name
    why: Text
    link: Link
    enabled: bool = True
    file: PackagePath
    alternatives: list[Alternative] = Field(default_factory=list)
    append: Anchor | None = None
    fixed_by: list[Marker]

    def as_json(self) -> dict[str, Any]:
        """What the build needs of it. `entry` is the SHA-256 of what it does (not of what is for people): the manifest keeps it."""
        way = {"alternatives"} if self.append is None else {"append"}
        deed = self.model_dump(include={"file", "fixed_by"} | way)
        bare = self.model_dump(include={"file", "fixed_by"} | way, exclude={"alternatives": {"__all__": {"seen_in"}}})
        return {
            "id": self.id,
            "enabled": self.enabled,
            "entry": sha256(json.dumps(bare, sort_keys=True).encode()),
            **deed,
        }


def load(path: Path) -> list[Patch]:
    """The entries of a patches.yaml. Raises `VariablesError`, one fault a cause, with path and line."""
    name = _shown(path)
    document = read(path, name, yaml.SequenceNode)
    if document.faults:
        raise VariablesError.of(document.faults)
    entries: list[Patch] = validated(document, name, list[Patch], EXAMPLE)
    faults = [Fault(located(where, document, name), what, mend) for where, what, mend in _findings(entries)]
    if faults:
        raise VariablesError.of(faults)
    return entries


def _shown(path: Path) -> str:
    return str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY / "images") else path.name


def _findings(entries: list[Patch]) -> Iterator[tuple[KeyPath, str, str]]:
    """What only the values of an entry together show."""
    for index, entry in enumerate(entries):
        anchors = [alternative.find for alternative in entry.alternatives]
        if entry.id in [earlier.id for earlier in entries[:index]]:
            yield (index, "id"), f"{entry.id} is used twice", "give each entry an id of its own"
        if bool(anchors) == (entry.append is not None):
            what = "has both alternatives and append" if anchors else "has neither alternatives nor append"
            yield (index,), f"{entry.id} {what}", "give exactly one of the two"
        if ".." in Path(entry.file).parts:
            yield (index, "file"), f"{entry.file} leads out of the package", "write it from the package's directory"
        for number, alternative in enumerate(entry.alternatives):
            where: KeyPath = (index, "alternatives", number)
            if alternative.find in anchors[:number]:
                yield (*where, "find"), "is the anchor of an earlier alternative too", "keep one of the two"
            if alternative.replace == alternative.find:
                yield (*where, "replace"), "is the same text as find", "write what it should become"
        for number, marker in enumerate(entry.fixed_by):
            if any(anchor in marker.find for anchor in anchors):
                mend = "name a text that only the fixed file has"
                yield (index, "fixed_by", number, "find"), "holds an anchor: both would be there at once", mend


def for_build(path: Path) -> bytes:
    """patches.json for the build: the entries of a patches.yaml without what is for people only."""
    return (json.dumps([entry.as_json() for entry in load(path)], indent=1, ensure_ascii=False) + "\n").encode()


def expected(variables: Variables, role: str) -> dict[str, str]:
    """The enabled entries of the image of `role` and of what it is built from: id -> SHA-256 of the entry, sources first."""
    found: dict[str, str] = {}
    for image in reversed(_chain(variables, role)):
        path = REPOSITORY / (image.build or "") / FILE
        if image.build and path.is_file():
            found |= {entry.id: entry.as_json()["entry"] for entry in load(path) if entry.enabled}
    return found


def _chain(variables: Variables, role: str) -> list[Image]:
    """The image of `role`, what it is built from, and so on, as far as this file says."""
    chain = [variables.images[role]]
    while (source := chain[-1].source) in variables.images:
        chain.append(variables.images[str(source)])
    return chain


def shown_ids(manifest: dict[str, Any] | None) -> list[str]:
    """The ids that a manifest shows as applied or already fixed; none, when it is of a schema that is not known here."""
    entries = manifest["entries"] if manifest and manifest.get("schema") == SCHEMA else []
    return [entry["id"] for entry in entries if entry["outcome"] in {"applied", "already-fixed"}]


def lacking(manifest: dict[str, Any] | None, wanted: Mapping[str, str]) -> list[str]:
    """In what an image falls short of `expected`, in words: no manifest, ids that it does not show, ids with another text."""
    if manifest is None:
        return [f"its image has no patch manifest, which should show {', '.join(wanted)}"] if wanted else []
    if manifest.get("schema") != SCHEMA:
        return [f"its patch manifest has schema {manifest.get('schema')}, this version reads {SCHEMA}"]
    shown, texts = shown_ids(manifest), {entry["id"]: entry["entry"] for entry in manifest["entries"]}
    missing = [name for name in wanted if name not in shown]
    older = [name for name in wanted if name in shown and texts[name] != wanted[name]]
    found = [f"its patch manifest lacks {', '.join(missing)}"] if missing else []
    return found + ([f"its patch manifest shows another text of {', '.join(older)} than patches.yaml"] if older else [])


def problems(manifest: dict[str, Any], hashes: Mapping[str, str]) -> list[str]:
    """In what the files differ from what the manifest says, in sentences; empty when they do not.

    `hashes`: absolute path in the container -> SHA-256 found; a missing file is absent.
    """
    found = []
    for file in manifest["files"]:
        if file["path"] not in hashes:
            found.append(f"{file['path']} is in the patch manifest and not in the container")
        elif hashes[file["path"]] != file["sha256_after"]:
            was = ", its text before the patches" if hashes[file["path"]] == file["sha256_before"] else ""
            found.append(f"{file['path']} does not have the bytes that the patch manifest says{was}")
    return found


def files_of(manifest: dict[str, Any] | None) -> list[str]:
    """Absolute paths, in the container, of the files that a manifest has hashes of."""
    return [file["path"] for file in (manifest or {}).get("files", [])]


def parsed(text: str | bytes) -> dict[str, Any]:
    """A manifest's text as a document. Raises `ValueError`, `KeyError` or `TypeError` when it is none."""
    manifest = json.loads(text)
    _ = [(entry["id"], entry["outcome"], entry["entry"]) for entry in manifest["entries"]]
    _ = [(file["path"], file["sha256_before"], file["sha256_after"]) for file in manifest["files"]]
    return dict(manifest)


def manifest_in(node: Node, container: Container) -> dict[str, Any] | None:
    """The patch manifest that is in a container now; None when there is none, or what is there is none."""
    data = node.read_file(container.id, MANIFEST)
    try:
        return parsed(data) if data is not None else None
    except (ValueError, KeyError, TypeError):
        return None


def manifest_of(node: Node, image_id: str) -> dict[str, Any] | None:
    """The patch manifest inside a local image, or None when it has none. Raises `RefusedError` when it cannot be read."""
    name = f"gb10-manifest-{os.getpid()}-{sha256(image_id.encode())[:12]}"
    docker = ("docker", "run", "--rm", "--name", name, "--network", "none", "--memory", "256m", "--cap-drop", "ALL")
    try:
        text = node.run(Command((*docker, "--entrypoint", "cat", image_id, MANIFEST), READ_S))
        return parsed(text)
    except FailedError as error:
        if MANIFEST in error.faults[0].what and "No such file" in error.faults[0].what:
            return None
        with contextlib.suppress(FailedError):  # ending the docker client does not end the container
            node.run(Command(("docker", "rm", "--force", name)))
        what = f"its patch manifest cannot be read ({error.faults[0].what[:160]})"
        raise RefusedError(image_id[:19], what, "check the engine and the image, then try again") from None
    except (ValueError, KeyError, TypeError):
        what = f"{MANIFEST} in it is not a patch manifest"
        raise RefusedError(image_id[:19], what, "build the image again: make images") from None
