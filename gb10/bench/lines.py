"""JSONL read line by line: every fault with its file and line, and a line that was never finished told apart.

Used by records.py and imports.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gb10.errors import Fault, RefusedError
from gb10.files import sha256
from gb10.variables.yamlfile import near_miss

SHOWN = 60
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_unicode": "text in valid Unicode",
    "list_type": "a list",
    "dict_type": "an object with keys",
    "dataclass_type": "an object with keys",
}


@dataclass
class Lines:
    """What a file's lines hold. `torn`: the last line, when it has no newline and is not whole; it is left out."""

    name: str
    sha256: str
    objects: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    torn: Fault | None = None


def read(path: Path) -> Lines:
    """The objects of `path`, each with its line number. Raises `RefusedError` when the file cannot be read at all."""
    try:
        data = path.read_bytes()
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise RefusedError(str(path), what, "name a file of request records (JSONL)") from None
    found = Lines(path.name, sha256(data))
    *whole, rest = data.split(b"\n")
    for number, line in enumerate(whole, 1):
        try:
            found.objects.append((number, _parsed(line)))
        except ValueError as error:
            found.faults.append(Fault(f"{path.name}:{number}", str(error), "mend or remove the line"))
    if rest:
        _last(found, rest, len(whole) + 1)
    return found


def _last(found: Lines, rest: bytes, number: int) -> None:
    """A last line without a newline: a prefix of an object is never a whole one, so what can be parsed is whole."""
    try:
        found.objects.append((number, _parsed(rest)))
    except ValueError:
        what = f"is torn after {len(rest)} bytes (its writer was stopped in the middle)"
        found.torn = Fault(f"{found.name}:{number}", what, "it is left out; what was written before it is whole")


def _parsed(line: bytes) -> dict[str, Any]:
    if not line.strip():
        raise ValueError("is blank")
    try:
        value = json.loads(line.decode(), object_pairs_hook=_once, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("is not an object with keys")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"has {key} twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"has {name}, which is not JSON")


def judged(where: str, value: dict[str, Any], kind: TypeAdapter[Any], keys: list[str], required: list[str]) -> Any:
    """`value` as `kind`. Raises `RefusedError` with the first cause: an unknown key, a missing one, or a value."""
    for key in value:
        if key not in keys:
            guess = near_miss(key, keys)
            mend = f"did you mean {guess}?" if guess else "remove it; docs/schemas/request.schema.json has every key"
            raise RefusedError(f"{where}: {key[:SHOWN]}", "unknown key", mend)
    for key in required:
        if value.get(key) is None:
            raise RefusedError(f"{where}: {key}", "is missing", "add it: a record without it belongs nowhere")
    try:
        return kind.validate_json(json.dumps(value))  # JSON, since strict mode takes no dict for an object otherwise
    except ValidationError as error:
        raise RefusedError(*_in_words(where, error.errors()[0])) from None


def _in_words(where: str, item: Any) -> tuple[str, str, str]:
    path = ".".join(str(part) for part in item["loc"] if not str(part).startswith(("function-", "list[", "dict[")))
    kind, context, shown = item["type"], item.get("ctx", {}), _shown(item.get("input"))
    place = f"{where}: {path}" if path else where
    if kind == "literal_error":
        return place, f"{shown} is not {context['expected']}", "write one of these"
    if kind in {"greater_than_equal", "greater_than"}:
        bound = context.get("ge", context.get("gt"))
        return place, f"{shown} is out of range", f"it must be {'at least' if 'ge' in context else 'above'} {bound:g}"
    expected = _EXPECTED.get(kind)
    if expected:
        return place, f"{shown} is not {expected}", f"write {expected}, or leave the key out when it is unknown"
    return place, f"{shown} is not valid ({item['msg'].lower()})", "compare it with docs/schemas/request.schema.json"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=repr)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def gathered(found: Lines) -> Iterator[tuple[str, dict[str, Any]]]:
    """`where` and object of each good line; the caller adds what it finds to `found.faults`, then calls `refuse`."""
    for number, value in found.objects:
        yield f"{found.name}:{number}", value


def refuse(found: Lines) -> None:
    """Raise what was found wrong, one fault a line, in the order of the lines."""
    if found.faults:
        raise RefusedError.of(sorted(found.faults, key=lambda fault: int(fault.where.split(":")[1])))
