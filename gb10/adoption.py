"""After the verdict `adopt`: the edit of vars.yaml that makes the measured graphs the baseline's, or why there is none.

Called by bench/command.py and the command line; docs/decisions/adoption.md. Nothing is written: a person makes the edit.
"""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gb10.errors import Gb10Error
from gb10.overlays import SERVICE, unescaped
from gb10.rendering import BASELINE, REPOSITORY, render
from gb10.site import for_site
from gb10.variables import Variables, load

FILE = "vars.yaml"
OVERLAY = "graph"
STEPS = "make render, git diff, git commit -am 'Adopt the measured graphs', make deploy-baseline"


@dataclass(frozen=True)
class Adoption:
    """`words`: what to do with `diff`, or why it is empty."""

    words: str
    diff: str = ""

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield self.words
        yield from self.diff.splitlines()


def adoption(
    site: Path, comparison: Mapping[str, Any], run: Mapping[str, Any] | None, directory: Path | None
) -> Adoption | None:
    """What the comparison's verdict asks of the site's vars.yaml, as that file is now; None when it is not `adopt`.

    `run`: run.json of B; `directory`: where it lies, beside copies of the files that ran.
    """
    if comparison["verdict"]["decision"] != "adopt":
        return None
    try:
        return _adoption(site, comparison["b"]["arm"], run or {}, directory)
    except Exception as error:  # it only tells: no try and no report fails for a file that was edited meanwhile
        why = str(error.faults[0]) if isinstance(error, Gb10Error) else f"{type(error).__name__}: {error}"
        mend = (
            "mend the file, then: make report"
            if isinstance(error, Gb10Error)
            else "copy the section graph to engine.graph"
        )
        return Adoption(for_site(f"{FILE}: the edit that adopts B cannot be shown ({why}); {mend}", site))


def _adoption(site: Path, arm: str, run: Mapping[str, Any], directory: Path | None) -> Adoption:
    facts = run.get("arms", {}).get(arm)
    if facts is None:
        return Adoption("nothing to adopt: what B ran with is not on record")
    overlays = list(facts["overlays"])
    if overlays != [OVERLAY]:
        ran = f"with the overlays {', '.join(overlays)}" if overlays else "without an overlay"
        return Adoption(
            f"nothing to adopt: B ran {ran}, and only what the overlay graph alone sets has a key (engine.graph)"
        )
    text = (site / FILE).read_bytes().decode()
    edited = adopted(text)
    now, after = _loaded(text, site), _loaded(edited, site)
    changed = _changed(_measured(facts["argv"], directory), after, complete=_has_copies(directory))
    if changed:
        back = f"go back to {FILE} of commit {str(run.get('commit'))[:12]}, or measure again: make try-graph"
        return Adoption(for_site(f"{FILE}: is no longer what was measured ({changed}); {back}", site))
    only = "" if _has_copies(directory) else " (only arguments were compared: no copies of the files that ran are here)"
    if now.engine.graph == now.graph:
        return Adoption(for_site(f"{FILE} has these graphs in engine.graph already{only}; next: {STEPS}", site))
    words = for_site(f"to adopt it, edit {FILE} as below{only}; then: {STEPS}", site)
    return Adoption(words, diff(site, text, edited))


def _loaded(text: str, site: Path) -> Variables:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / FILE
        path.write_bytes(text.encode())
        return load(path, site).variables


def _has_copies(directory: Path | None) -> bool:
    return directory is not None and all((directory / name).is_file() for name in (BASELINE, f"{OVERLAY}.yaml"))


def _measured(argv: list[str], directory: Path | None) -> list[str]:
    """What the measured engine ran with, one fact an item: its arguments, and by the files that ran its image and environment."""
    facts = list(argv)
    if directory is not None and _has_copies(directory):
        baseline, overlay = (_service((directory / name).read_bytes()) for name in (BASELINE, f"{OVERLAY}.yaml"))
        facts += _surroundings({**baseline, **overlay, "environment": _environment(baseline) | _environment(overlay)})
    return facts


def _changed(measured: list[str], after: Variables, *, complete: bool) -> str:
    """In what the baseline that the edit would give differs from what was measured; empty when in nothing."""
    service = _service(render(after)[BASELINE])
    rendered = unescaped([*service["entrypoint"], *service["command"]])
    rendered += _surroundings(service) if complete else []
    if rendered == measured:
        return ""
    was, is_now = ([f for f in one if f not in other] for one, other in ((measured, rendered), (rendered, measured)))
    if not was and not is_now:
        return "the same arguments in another order"
    return f"B ran with {', '.join(was) or 'nothing more'}; it would now be {', '.join(is_now) or 'nothing'}"


def _service(data: bytes) -> dict[str, Any]:
    return dict(yaml.safe_load(data)["services"][SERVICE])


def _environment(service: dict[str, Any]) -> dict[str, str]:
    return service.get("environment") or {}


def _surroundings(service: dict[str, Any]) -> list[str]:
    variables = sorted(_environment(service).items())
    return [f"image {service['image']}", *(f"{name}={value}" for name, value in variables)]


def diff(site: Path, before: str, after: str) -> str:
    """The edit as `git apply` takes it, in the repository of a site inside it, else in the site."""
    inside = site.resolve().is_relative_to(REPOSITORY)
    name = (site.resolve().relative_to(REPOSITORY) if inside else Path()) / FILE
    sides = [[f"{line}\n" for line in text.split("\n")] for text in (before, after)]
    for lines in sides:  # after the last line's end there is no further line; without that end, diff says so
        last = lines.pop()
        lines += [f"{last}\\ No newline at end of file\n"] if last != "\n" else []
    return "".join(difflib.unified_diff(*sides, f"a/{name}", f"b/{name}"))


def adopted(text: str) -> str:
    """The text of a vars.yaml with the values of its section `graph` in `engine.graph`, comments and all else kept.

    Raises `ValueError` when one of the two is not there.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    source_key, source = _item(root, "graph")
    _, engine = _item(root, "engine")
    key, present = _item(engine, "graph")
    flow = yaml.safe_dump(
        yaml.safe_load(text)["graph"], default_flow_style=True, sort_keys=False, width=1 << 20
    ).strip()
    if engine.flow_style:
        return text[: present.start_mark.index] + flow + text[_end(present, text) :]
    colon = text.index(":", key.end_mark.index) + 1
    end = max(colon, _end(present, text))
    beside = present.start_mark.line == key.start_mark.line
    comment = text[end : _line_end(text, end)] if beside else text[colon : _line_end(text, colon)]
    if source.flow_style:
        return f"{text[:colon]} {flow}{comment}{text[_line_end(text, end) :]}"
    lines = text[_line_end(text, source_key.end_mark.index) + 1 : _line_end(text, _end(source, text))].split("\n")
    section = "\n".join(" " * key.start_mark.column + line if line.strip() else line for line in lines)
    return f"{text[:colon]}{comment}\n{section}{text[_line_end(text, end) :]}"


def _item(node: Any, name: str) -> tuple[yaml.Node, Any]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
        if key.value == name:
            return key, value
    raise ValueError(f"it has no key {name} where one is needed")


def _line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found


def _end(node: Any, text: str) -> int:
    """Where a value ends. YAML lets a block end only where the next key begins, behind comments that belong to that."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        return len(text[: node.end_mark.index].rstrip())
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last, text)
