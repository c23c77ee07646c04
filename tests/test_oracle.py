"""Arguments of a tool call, judged by value or by a JSON Schema; and a schema that cannot judge is refused when the file is read."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from gb10.bench import suite
from gb10.engine.oracle import fault, tool_of
from gb10.engine.stream import Completion
from gb10.errors import VariablesError
from gb10.variables import load, toolcalls
from gb10.variables.model import Expect
from tests.conftest import ROOT

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["celsius", "fahrenheit", None]},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"stop": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}},
}
BY_SCHEMA = Expect.model_validate({"tool_call": {"name": "forecast", "schema": SCHEMA}})
BY_VALUE = Expect.model_validate({"tool_call": {"name": "forecast", "arguments": {"city": "Paris", "days": 3}}})


def called(arguments: Any, name: str = "forecast") -> Completion:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    calls = [{"function": {"name": name, "arguments": text}}]
    return Completion(0, finish_reason="tool_calls", tool_calls=calls)


RIGHT = {
    "the least": {"city": "Paris", "days": 1},
    "everything": {"city": "Paris", "days": 7, "unit": "celsius", "stops": [{"name": "Lyon"}]},
    "an enumeration's null": {"city": "Paris", "days": 3, "unit": None},
}
WRONG = {
    "a wrong type": ({"city": 75, "days": 3}, "argument city: 75 is not of type 'string'"),
    "a number as text": ({"city": "Paris", "days": "3"}, "argument days: '3' is not of type 'integer'"),
    "out of range": ({"city": "Paris", "days": 8}, "argument days: 8 is greater than the maximum of 7"),
    "a missing one": ({"city": "Paris"}, "'days' is a required property"),
    "one more": (
        {"city": "Paris", "days": 3, "mood": "good"},
        "Additional properties are not allowed ('mood' was unexpected)",
    ),
    "deep inside": (
        {"city": "Paris", "days": 3, "stops": [{"name": "Lyon"}, {}]},
        "argument stops[1]: 'name' is a required property",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_arguments_that_fit_the_schema_are_right(name: str) -> None:
    assert fault(BY_SCHEMA, called(RIGHT[name])) == ""


@pytest.mark.parametrize("name", WRONG)
def test_arguments_that_do_not_fit_the_schema_are_told_with_their_place(name: str) -> None:
    arguments, why = WRONG[name]
    assert fault(BY_SCHEMA, called(arguments)) == f"the arguments do not fit the schema ({why})"


@pytest.mark.parametrize("expect", [BY_SCHEMA, BY_VALUE], ids=["schema", "value"])
def test_what_is_no_call_with_an_object_is_wrong_by_either_rule(expect: Expect) -> None:
    assert fault(expect, called('{"city": "Paris", ')) == "the arguments are not JSON"
    assert fault(expect, called("")) == "the arguments are not JSON"
    assert fault(expect, called("[" * 100_000)) == "the arguments are not JSON"
    assert fault(expect, called(["Paris", 3])) == "the arguments are no JSON object"
    assert fault(expect, called({"city": "Paris", "days": 3}, "weather")) == "called weather, not forecast"
    assert fault(expect, Completion(0, finish_reason="stop", text="It is sunny.")) == "no tool call"
    assert fault(expect, called({"city": "Paris", "days": 3})) == ""


def test_by_value_no_other_argument_is_right() -> None:
    assert fault(BY_VALUE, called({"city": "Paris", "days": 4})) == "argument days is 4, not 3"
    further = called({"city": "Paris", "days": 3, "unit": "celsius"})
    assert fault(BY_VALUE, further) == "argument unit is not in the tool's schema"
    assert fault(BY_SCHEMA, further) == ""


def test_a_long_argument_does_not_make_a_long_verdict() -> None:
    why = fault(BY_SCHEMA, called({"city": "Paris", "days": "x" * 10_000}))
    assert len(why) < 300
    assert why.endswith("is not of type 'integer')")


def test_the_tool_that_is_sent_has_the_schema_as_its_parameters() -> None:
    tool = tool_of(BY_SCHEMA)
    assert tool is not None
    assert (tool["name"], tool["parameters"]) == ("forecast", SCHEMA)
    tool = tool_of(BY_VALUE)
    assert tool is not None
    assert tool["parameters"] == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }


def test_a_record_holds_the_rule_as_it_stands_in_the_file() -> None:
    assert BY_SCHEMA.as_json() == {"tool_call": {"name": "forecast", "schema": SCHEMA}}


REFUSED = {
    "both ways": (
        {"arguments": {"city": "Paris"}, "schema": SCHEMA},
        "tool_call",
        "has arguments and schema; give one: arguments (judged by value) or schema (a JSON Schema)",
    ),
    "neither way": (
        {},
        "tool_call",
        "has neither arguments nor schema; give one: arguments (judged by value) or schema (a JSON Schema)",
    ),
    "a misspelled type": (
        {"schema": {"type": "object", "properties": {"days": {"type": "intger"}}}},
        "tool_call.schema.properties.days.type",
        "is no JSON Schema ('intger' is not valid under any of the given schemas); compare it with JSON Schema, draft 2020-12",
    ),
    "required as one word": (
        {"schema": {"type": "object", "required": "city"}},
        "tool_call.schema.required",
        "is no JSON Schema ('city' is not of type 'array'); compare it with JSON Schema, draft 2020-12",
    ),
    "a broken pattern": (
        {"schema": {"type": "object", "properties": {"city": {"pattern": "("}}}},
        "tool_call.schema.properties.city.pattern",
        "is no JSON Schema ('(' is not a 'regex'); compare it with JSON Schema, draft 2020-12",
    ),
    "a list": (
        {"schema": {"type": "array"}},
        "tool_call.schema",
        "does not describe an object, as the arguments of a tool are; write type: object at its top",
    ),
    "another draft": (
        {"schema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}},
        "tool_call.schema.$schema",
        f"is another dialect than the one that judges; write {toolcalls.DIALECT}, or leave it out",
    ),
    "a reference that leads nowhere": (
        {"schema": {"type": "object", "properties": {"stop": {"$ref": "#/$defs/stop"}}}},
        "tool_call.schema.properties.stop.$ref",
        "#/$defs/stop is not in the schema; write out what it means under $defs: nothing is fetched",
    ),
    "a circle": (
        {"schema": {"type": "object", "allOf": [{"$ref": "#"}]}},
        "tool_call.schema",
        "goes round in a circle by its references; break it",
    ),
}


def rule(call: dict[str, Any]) -> dict[str, Any]:
    return {"tool_call": {"name": "forecast", **call}}


@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_that_cannot_judge_is_refused_in_vars_yaml_with_its_place(name: str, tmp_path: Path) -> None:
    call, where, said = REFUSED[name]
    values = yaml.safe_load((ROOT / "tests/data/valid/compact.yaml").read_text())
    values["smoke"][2]["expect"] = rule(call)
    path = tmp_path / "vars.yaml"
    path.write_text(yaml.dump(values, sort_keys=False, Dumper=Plain))
    with pytest.raises(VariablesError) as refusal:
        load(path, ROOT)
    assert [told(one) for one in refusal.value.faults] == [f"smoke[2].expect.{where}: {said}"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_that_cannot_judge_is_refused_in_a_suite_with_its_place(name: str, tmp_path: Path) -> None:
    call, where, said = REFUSED[name]
    case = {"name": "tool", "prompt": "Call it.", "max_tokens": 64, "expect": rule(call)}
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.dump({"description": "One.", "rounds": 1, "fresh": "never", "cases": [case]}, Dumper=Plain))
    with pytest.raises(VariablesError) as refusal:
        suite.load(path)
    assert [told(one) for one in refusal.value.faults] == [f"cases[0].expect.{where}: {said}"]


def test_a_schema_in_a_suite_makes_the_tool_that_is_sent(tmp_path: Path) -> None:
    case = {"name": "tool", "prompt": "Call it.", "max_tokens": 64, "expect": rule({"schema": SCHEMA})}
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.dump({"description": "One.", "rounds": 1, "fresh": "never", "cases": [case]}, Dumper=Plain))
    loaded, _ = suite.load(path)
    ((request,),) = suite.requests(loaded, "small", 1, lambda text: len(text.split()))
    assert request.body["tools"][0]["function"]["parameters"] == SCHEMA


def test_a_misspelled_schema_gets_the_key_that_was_meant(tmp_path: Path) -> None:
    text = (ROOT / "tests/data/valid/compact.yaml").read_text()
    path = tmp_path / "vars.yaml"
    path.write_text(text.replace("      arguments: {city: Paris}\n", "      shema: {type: object}\n"))
    with pytest.raises(VariablesError) as refusal:
        load(path, ROOT)
    assert str(refusal.value).endswith("smoke[2].expect.tool_call.shema: unknown key; did you mean schema?")


def test_nothing_is_fetched_for_a_reference() -> None:
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1)

        def answer() -> None:
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                asked.append("a connection")
                connection.close()

        listener = threading.Thread(target=answer)
        listener.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        schema = {"type": "object", "properties": {"city": {"$ref": address}}}
        found = [what for _, what, _ in toolcalls.faults(Expect.model_validate(rule({"schema": schema})), ())]
        listener.join()
    assert found == [f"{address} is not in the schema"]
    assert asked == []


class Plain(yaml.SafeDumper):
    """Without anchors: a schema that is used twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def told(one: Any) -> str:
    """A fault without file and line."""
    return str(one).split(": ", 1)[1]
