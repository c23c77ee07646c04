"""A strict YAML reader: one document of plain values, with the line of every key. Called by load.py and gb10/patches.py."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gb10.errors import Fault

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KeyPath = tuple[str | int, ...]

MOST_DIGITS = 12
TRUTHS = {"true": True, "false": False}


@dataclass
class Document:
    """The values of a file, the line (from 1) of each key path, and what is wrong with it as YAML."""

    values: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def read(path: Path, name: str, root: type[yaml.Node] = yaml.MappingNode) -> Document:
    """Read `path`; `name` is what faults call it, `root` what the document has to be. Faults are all returned, never raised."""
    document = Document()
    if path.exists() and not path.is_file():
        document.faults.append(
            Fault(str(path), "is not a regular file", "name a variables file with --vars, or a site with --site")
        )
        return document
    try:
        raw = path.read_bytes()
    except OSError as error:
        document.faults.append(
            Fault(str(path), f"cannot be read ({error.strerror})", "check the path given with --vars or --site")
        )
        return document
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        document.faults.append(
            Fault(f"{name}:{line}", f"byte 0x{raw[error.start]:02x} is not UTF-8", "save the file as UTF-8")
        )
        return document
    try:
        node = yaml.compose(text, Loader=Loader)
    except yaml.YAMLError as error:
        document.faults.append(_syntax_fault(error, name, text))
        return document
    if not isinstance(node, root):
        fault = (
            Fault(name, "holds no keys", "start from the vars.yaml of the repository")
            if root is yaml.MappingNode
            else Fault(name, "holds no list", "write [] for an empty one")
        )
        document.faults.append(fault)
        return document
    document.values = _Reader(document, name).value(node, ())
    return document


def _syntax_fault(error: yaml.YAMLError, name: str, text: str) -> Fault:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else 1
    lines = text.splitlines()
    shown = lines[line - 1] if line <= len(lines) else ""
    if "\t" in shown[: len(shown) - len(shown.lstrip())] or "'\\t'" in str(error):
        return Fault(f"{name}:{line}", "a tab indents this line", "indent with spaces")
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if "expected a single document" in str(error):
        return Fault(f"{name}:{line}", "a second YAML document starts here", "keep one document in the file")
    return Fault(f"{name}:{line}", f"not YAML ({problem})", "mend the line, or the one above it")


class _Reader:
    """Turns nodes into values, refusing what YAML 1.1 reads as something other than what is written."""

    def __init__(self, document: Document, name: str):
        self.document = document
        self.name = name
        self.seen: set[int] = set()

    def fault(self, node: yaml.Node, path: KeyPath, what: str, mend: str) -> None:
        where = f"{self.name}:{node.start_mark.line + 1}"
        self.document.faults.append(Fault(f"{where}: {dotted(path)}" if path else where, what, mend))

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if id(node) in self.seen:
            self.fault(node, path, "is used again through a YAML alias", "write the value out where it is needed")
            return None
        self.seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.document.lines[(*path, index)] = item.start_mark.line + 1
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first_line: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if key_node.tag == "tag:yaml.org,2002:merge":
                self.fault(key_node, path, "a YAML merge (<<)", "write the keys out")
                continue
            if not isinstance(key, str) or (key_node.tag != "tag:yaml.org,2002:str"):
                self.fault(key_node, path, f"the key {key} is not text to YAML", "quote it")
                continue
            if key in values:
                self.fault(
                    key_node,
                    (*path, key),
                    f"is set a second time (first on line {first_line[key]})",
                    "keep one of the two",
                )
                continue
            first_line[key] = line
            self.document.lines[(*path, key)] = line
            values[key] = self.value(value_node, (*path, key))
        return values

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text, kind = node.value, node.tag.rpartition(":")[2]
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool":
            if text in TRUTHS:
                return TRUTHS[text]
            truth = "true" if text.lower() in {"yes", "on", "true"} else "false"
            self.fault(
                node, path, f"YAML reads {text} as {truth}", f'write {truth}, or "{text}" in quotes for the text'
            )
            return None
        if kind == "int":
            return self.integer(node, path)
        if kind == "float":
            if ":" in text or "_" in text:
                self.fault(
                    node,
                    path,
                    f"YAML reads {text} as a number in base 60 or with separators",
                    "write the digits plainly, or quote it",
                )
                return None
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        self.fault(node, path, f"YAML reads {text} as a {kind}", "quote it")
        return None

    def integer(self, node: yaml.ScalarNode, path: KeyPath) -> int | None:
        text = node.value
        digits = text.lstrip("+-")
        if digits.isascii() and digits.isdigit() and (digits == "0" or not digits.startswith("0")):
            if len(digits) <= MOST_DIGITS:
                return int(text)
            self.fault(node, path, f"a number of {len(digits)} digits", f"write one of at most {MOST_DIGITS}")
            return None
        form = (
            "base 60"
            if ":" in text
            else "octal"
            if digits.startswith("0") and digits.isdigit()
            else "a number in another notation"
        )
        self.fault(node, path, f"YAML reads {text} as {form}", "write a plain decimal number, or quote it for the text")
        return None


def dotted(path: KeyPath) -> str:
    """A key path as people write it: `smoke[0].name`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def near_miss(word: str, choices: list[str]) -> str | None:
    """The choice that `word` was probably meant to be, or None."""
    matches = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return matches[0] if matches else None
