"""What a rule may say of a tool call, and whether arguments fit its schema. Used by crosscheck.py, bench/suite.py, engine/oracle.py.

jsonschema is imported where a schema is judged: rendering a site without one need not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gb10.variables.model import Expect
from gb10.variables.yamlfile import KeyPath, dotted

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

DIALECT = "https://json-schema.org/draft/2020-12/schema"
LONGEST = 160
CIRCLE = "goes round in a circle"


def faults(expect: Expect, path: KeyPath) -> Iterator[tuple[KeyPath, str, str]]:
    """Where, what and mend of everything that is wrong with the tool call of the rule at `path`."""
    call = expect.tool_call
    if call is None:
        return
    where: KeyPath = (*path, "tool_call")
    if (call.arguments is None) == (call.parameters is None):
        has = "neither arguments nor schema" if call.parameters is None else "arguments and schema"
        yield where, f"has {has}", "give one: arguments (judged by value) or schema (a JSON Schema)"
    if call.parameters is not None:
        yield from _schema_faults(call.parameters, (*where, "schema"))


def _schema_faults(schema: dict[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str, str]]:
    """The first thing that is wrong with a schema."""
    from jsonschema import Draft202012Validator, SchemaError
    from referencing import Registry, jsonschema
    from referencing.exceptions import Unresolvable

    if schema.get("$schema", DIALECT) != DIALECT:
        yield (*path, "$schema"), "is another dialect than the one that judges", f"write {DIALECT}, or leave it out"
        return
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        mend = "compare it with JSON Schema, draft 2020-12"
        yield (*path, *error.absolute_path), f"is no JSON Schema ({_line(error.message)})", mend
        return
    if schema.get("type") != "object":
        yield path, "does not describe an object, as the arguments of a tool are", "write type: object at its top"
        return
    here = Registry().resolver_with_root(jsonschema.DRAFT202012.create_resource(schema))
    for where, reference in _references(schema, path):
        try:
            here.lookup(reference)
        except Unresolvable:
            mend = "write out what it means under $defs: nothing is fetched"
            yield where, f"{reference} is not in the schema", mend
            return
    try:
        _validator(schema).is_valid({})
    except RecursionError:
        yield path, f"{CIRCLE} by its references", "break it"


def _references(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Every reference of a schema, with its path."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key in {"$ref", "$dynamicRef"} and isinstance(item, str):
            yield (*path, key), item
        else:
            yield from _references(item, (*path, key))


def misfit(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    """Why arguments do not fit a schema that has no faults; empty when they do."""
    from jsonschema.exceptions import best_match

    try:
        error = best_match(_validator(schema).iter_errors(arguments))
    except RecursionError:
        return f"the schema {CIRCLE} on these arguments"
    if error is None:
        return ""
    place = dotted(tuple(error.absolute_path))
    return f"argument {place}: {_line(error.message)}" if place else _line(error.message)


def _validator(schema: dict[str, Any]) -> Draft202012Validator:
    """With a registry of its own, so that no reference is ever fetched."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())


def _line(text: str) -> str:
    """A message of the library on one line of bounded length: it repeats the value, which a model wrote."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
