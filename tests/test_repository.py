"""What keeps this repository true to itself: documented keys, arrows between modules, one printer, examples in every help."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest
import yaml

from gb10.cli import COMMANDS, main
from gb10.variables.model import Variables
from tests.conftest import ROOT, SITES

PACKAGE = sorted((ROOT / "gb10").rglob("*.py"))


def key_lines(text: str) -> list[tuple[int, str]]:
    """Line number and text of every line that sets a key in block style."""
    return [(n, line) for n, line in enumerate(text.splitlines()) if re.match(r"^\s*(- )?[A-Za-z_-]+:( |$)", line)]


@pytest.mark.parametrize("name", sorted(SITES))
def test_every_key_of_vars_yaml_has_a_comment_at_its_place(name: str) -> None:
    text = (SITES[name] / "vars.yaml").read_text()
    lines = text.splitlines()
    sections = set(Variables.model_fields)
    for number, line in key_lines(text):
        key = line.strip().removeprefix("- ").partition(":")[0]
        value = line.partition(":")[2].strip()
        commented = "#" in line or lines[number - 1].strip().startswith("#")
        is_section = not value and (key in sections or line.startswith("  "))
        assert commented or is_section, f"{name}/vars.yaml:{number + 1}: {key} has no comment"


@pytest.mark.parametrize("name", sorted(SITES))
def test_vars_yaml_names_every_key_that_the_model_knows(name: str) -> None:
    values = yaml.safe_load((SITES[name] / "vars.yaml").read_text())
    dumped = Variables.model_validate(values).model_dump(exclude_unset=True)
    for section, field in Variables.model_fields.items():
        assert section in dumped, f"{section} is not in {name}/vars.yaml"
        kind = field.annotation
        for key in getattr(kind, "model_fields", {}):
            assert key in dumped[section], f"{section}.{key} is not in {name}/vars.yaml"


def test_both_sites_have_the_same_keys() -> None:
    documents = [yaml.safe_load((path / "vars.yaml").read_text()) for path in SITES.values()]
    assert list(documents[0]) == list(documents[1])
    for section, value in documents[0].items():
        if isinstance(value, dict) and section not in {"images", "experiments"}:
            assert list(value) == list(documents[1][section]), section


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gb10"):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


ORDER = """
errors files facts signals terminal parse_flags resolve_marks effect
variables arguments rendering compose node overlays contract comparison site adoption state context
engine flags marks patches patchgate readiness launch recovery restore preflight
remote verify memory evidence report profile traces statefile guard bench buildinput images hostsetup
deploy experiment status plan doctor cli __main__
"""
"""Every module or package of gb10; each may import only what stands before it."""


def test_dependencies_point_one_way() -> None:
    order = ORDER.split()
    for path in PACKAGE:
        layer = path.relative_to(ROOT / "gb10").parts[0].removesuffix(".py")
        if layer == "__init__":
            continue
        assert layer in order, f"{path.name} has no place in the order"
        later = {f"gb10.{name}" for name in order[order.index(layer) + 1 :]}
        wrong = {name for name in imports_of(path) if any(name == one or name.startswith(one + ".") for one in later)}
        assert not wrong, f"{path.name} imports {wrong}"


def test_nothing_but_the_command_line_imports_it() -> None:
    for path in PACKAGE:
        if "cli" not in path.parts and path.name != "__main__.py":
            assert not {name for name in imports_of(path) if name.startswith("gb10.cli")}, path.name


def test_only_the_command_lines_print_or_exit() -> None:
    for path in PACKAGE:
        if "cli" in path.parts or path.name in {
            "parse_flags.py",
            "resolve_marks.py",
            "probe.py",
        }:  # programs that run inside an image
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert name not in {"print", "click.echo", "sys.exit", "exit", "os._exit"}, (
                f"{path.name}:{getattr(node, 'lineno', 0)}"
            )


def test_files_stay_under_the_ceiling_of_400_lines() -> None:
    for path in [*PACKAGE, ROOT / "render.py"]:
        assert len(path.read_text().splitlines()) <= 400, path.name


def test_every_module_says_what_it_is_in_at_most_three_lines() -> None:
    for path in PACKAGE:
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, path.name
        assert len(docstring.splitlines()) <= 3, path.name


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_help_has_an_example(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    for one in [command, *getattr(command, "commands", {}).values()]:
        assert "Example: python -m gb10" in one.get_help(click.Context(one, info_name=one.name)), one.name


def test_every_make_target_is_in_the_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M)) - {"help"}
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.M))
    assert targets <= described
