"""`load`: a path to `Variables`, or every fault in words. Called by render.py and the command line; `validated` by gb10/patches.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from gb10.errors import Fault, VariablesError
from gb10.variables import crosscheck
from gb10.variables.model import Variables
from gb10.variables.yamlfile import Document, KeyPath, dotted, near_miss, read


@dataclass(frozen=True)
class Loaded:
    """A valid file: its values, and warnings about what is legitimate but worth knowing."""

    variables: Variables
    warnings: list[Fault]


def load(path: Path, site: Path) -> Loaded:
    """Read and judge `path`; `site` is the directory that relative records are looked up in.

    Raises `VariablesError` with one fault a cause: of the YAML first, else of single values, else of values together.
    """
    name = path.name
    document = read(path, name)
    if document.faults:
        raise VariablesError.of(document.faults)
    variables: Variables = validated(document, name, Variables)
    findings = [(located(f.path, document, name), f) for f in crosscheck.findings(variables, site)]
    faults = [Fault(where, f.what, f.mend) for where, f in findings if not f.warning]
    if faults:
        raise VariablesError.of(faults)
    return Loaded(variables, [Fault(where, f.what, f.mend) for where, f in findings])


def validated(document: Document, name: str, kind: Any, example: str = "vars.yaml") -> Any:
    """The document's values as `kind` (a model, or a list of models). Raises `VariablesError`, one fault a cause.

    `example` is the repository's file whose comments explain the keys.
    """
    try:
        return TypeAdapter(kind).validate_python(document.values)
    except ValidationError as error:
        causes = _causes(error.errors(), kind)
        raise VariablesError.of([_fault(item, document, name, kind, example) for item in causes]) from None


def _causes(items: list[Any], kind: Any) -> list[Any]:
    """Errors without cascades: a misspelled key is one cause, not also a missing one."""
    unknown = [item["loc"] for item in items if item["type"] == "extra_forbidden"]
    meant = {(*loc[:-1], near_miss(str(loc[-1]), _keys_at(loc[:-1], kind))) for loc in unknown}
    return [item for item in items if item["type"] != "missing" or tuple(item["loc"]) not in meant]


def located(path: KeyPath, document: Document, name: str) -> str:
    """`vars.yaml:12: guard.sustained_s`: the line of the key, or of the nearest section that is there."""
    for length in range(len(path), 0, -1):
        if path[:length] in document.lines:
            return f"{name}:{document.lines[path[:length]]}: {dotted(path)}"
    return f"{name}: {dotted(path)}"


def _fault(item: Any, document: Document, name: str, root: Any, example: str) -> Fault:
    path: KeyPath = tuple(item["loc"])
    kind, context, given = item["type"], item.get("ctx", {}), item.get("input")
    if "[key]" in path:
        path = tuple(part for part in path if part != "[key]")
        mend = "use letters, digits and _" if "environment" in path else _SHAPE_MEND
        return Fault(located(path, document, name), f"{path[-1]} is not a name that can stand here", mend)
    where = located(path, document, name)
    if kind == "missing":
        return Fault(where, "is missing", f"add it (the repository's {example} explains each key)")
    if kind == "extra_forbidden":
        return _unknown_key(where, path, root)
    if given is None:
        return Fault(where, "is empty", f"give it {_EXPECTED.get(kind, 'a value')}")
    if kind in _EXPECTED:
        return Fault(where, f"{_shown(given)} is not {_EXPECTED[kind]}", _type_mend(kind, given, str(path[-1])))
    if kind == "literal_error":
        choices = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        guess = near_miss(str(given), choices)
        hint = f"did you mean {guess}?" if guess else "use one of these"
        return Fault(where, f"{_shown(given)} is not one of {', '.join(choices)}", hint)
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return Fault(where, f"{_shown(given)} is out of range", f"it must be {words} {context[key]:g}")
    if kind in {"too_short", "string_too_short"}:
        return Fault(where, "is empty", "give it at least one item")
    if kind == "string_pattern_mismatch":
        return Fault(
            where,
            f"{_shown(given)} does not have the form that stands here",
            _PATTERN_MEND.get(context["pattern"], _SHAPE_MEND),
        )
    return Fault(
        where, f"{_shown(given)} is not valid ({item['msg'].lower()})", f"compare it with the repository's {example}"
    )


def _type_mend(kind: str, given: Any, key: str) -> str:
    if key in {"shm_size", "memory_limit", "log_max_size"}:
        return "write a size such as 512m or 8g"
    if kind == "string_type" and isinstance(given, int | float):
        return f'put it in quotes: "{_shown(given)}"'
    if kind in {"int_type", "float_type"} and isinstance(given, str) and given.isdecimal():
        return "remove the quotes"
    return f"write {_EXPECTED[kind]}"


_SHAPE_MEND = "use lower-case letters, digits, - and _"
_PATTERN_MEND = {
    r"^/[^\x00-\x1f:]*$": "write an absolute path without a colon",
    r"^[^/\x00-\x1f][^\x00-\x1f]*$": "write a path relative to the repository or site",
    r"^[^\x00-\x1f]+$": "write one line of text",
    r"\S": "write text that is not only spaces",
    r"^https://\S+$": "write an address that begins with https://",
    r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$": "write it from the directory that holds the package, such as vllm/envs.py",
    r"^[A-Za-z][A-Za-z0-9_.-]{0,62}$": "use letters, digits, - _ and .",
    r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$": "write it as module:function, such as vllm.envs:compile_factors",
    r"^(arguments|returned)(\.[A-Za-z0-9_]+)*$": "write arguments.NAME, or returned.FIELD",
    r"^[1-9][0-9]*[kmg]$": "write a size such as 512m or 8g",
    r"^[0-9a-fA-F.:]+$": "write an IP address",
    r"^[a-z0-9][a-zA-Z0-9._/:@-]*$": "write an image reference such as local/name:tag",
    r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$": "use letters, digits, - _ and .",
}
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a section with keys",
    "model_type": "a section with keys",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a section with keys"
    if isinstance(value, list):
        return "a list"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(where: str, path: KeyPath, root: Any) -> Fault:
    choices = _keys_at(path[:-1], root)
    guess = near_miss(str(path[-1]), choices)
    if guess:
        return Fault(where, "unknown key", f"did you mean {guess}?")
    return Fault(where, "unknown key", f"remove it; known here: {', '.join(choices)}")


def _keys_at(path: KeyPath, kind: Any) -> list[str]:
    """The keys that `kind` knows in the section at `path`."""
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(part)].annotation
            kind = _section(kind)
        else:
            kind = _section(get_args(kind)[-1])
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []
    return [field.alias or name for name, field in kind.model_fields.items()]


def _section(kind: Any) -> Any:
    """The section class inside an optional annotation; lists and dicts as they are."""
    candidates = [kind, *get_args(kind)]
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate if kind is candidate or type(None) in get_args(kind) else kind
    return kind
