"""Adopting: the edit of vars.yaml that is shown gives a file that loads, renders what was measured, and keeps all else."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gb10 import report
from gb10.adoption import STEPS, Adoption, adopted, adoption, diff
from gb10.arguments import engine_arguments
from gb10.bench.records import Writer
from gb10.rendering import render
from gb10.site import Site
from gb10.variables import Variables, load
from tests.conftest import ROOT
from tests.made import arm, run
from tests.report import samples

ADOPT = {"verdict": {"decision": "adopt"}, "b": {"arm": "experiment"}}
VARIABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"


def copied(site: Site, directory: Path) -> Path:
    """A copy of a site that a test may edit."""
    for name in ("vars.yaml", site.variables.engine.verified_context.record):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes((site.directory / name).read_bytes())
    for path in (site.directory / "suites").glob("*.yaml"):
        (directory / "suites").mkdir(exist_ok=True)
        (directory / "suites" / path.name).write_bytes(path.read_bytes())
    return directory


def measured(v: Variables, **changes: Any) -> dict[str, Any]:
    """run.json of a try of the graph experiment as these variables render it."""
    argv = [*v.engine.entrypoint, *engine_arguments(v, v.graph)]
    return run(experiment={"argv": argv, **changes})


def ran(site: Site, directory: Path) -> Path:
    """The directory of a try: copies of the files that ran."""
    directory.mkdir()
    (directory / "compose.yaml").write_bytes(site.rendered["compose.yaml"])
    (directory / "graph.yaml").write_bytes(site.rendered["overlays/graph.yaml"])
    return directory


def variables_of(text: str, site: Path, directory: Path) -> Variables:
    path = directory / "edited.yaml"
    path.write_bytes(text.encode())
    return load(path, site).variables


def asked(site: Path, document: dict[str, Any], directory: Path | None = None) -> Adoption:
    found = adoption(site, ADOPT, document, directory)
    assert found is not None
    return found


def test_the_diff_makes_a_file_whose_baseline_has_the_measured_arguments(site: Site, tmp_path: Path) -> None:
    copy = copied(site, tmp_path / "site")
    document = measured(site.variables)
    found = asked(copy, document, ran(site, tmp_path / "try"))
    assert found.words == f"to adopt it, edit vars.yaml as below; then: {STEPS}".replace(
        "make render", f"make render SITE={copy}"
    ).replace("make deploy-baseline", f"make deploy-baseline SITE={copy}")
    (tmp_path / "adopt.diff").write_text(found.diff)
    subprocess.run(["git", "apply", str(tmp_path / "adopt.diff")], cwd=copy, check=True)
    after = Site.load(copy)
    service = yaml.safe_load(after.rendered["compose.yaml"])["services"]["engine"]
    assert service["entrypoint"] + service["command"] == document["arms"]["experiment"]["argv"]
    assert after.variables.engine.graph == after.variables.graph == site.variables.graph
    assert after.variables.baseline_image == "graph"


def test_the_edit_leaves_every_other_line_of_the_file(site: Site) -> None:
    text = (site.directory / "vars.yaml").read_text()
    lines = list(difflib.ndiff(text.splitlines(), adopted(text).splitlines()))
    assert [line for line in lines if line.startswith("- ")] == ["-   graph: null"]
    section = text.partition("\ngraph:\n")[2].partition("\n\n")[0]
    assert [line[2:] for line in lines if line.startswith("+ ")] == [
        "  graph:",
        *(f"  {line}" for line in section.splitlines()),
    ]
    values, edited = yaml.safe_load(text), yaml.safe_load(adopted(text))
    values["engine"]["graph"] = values["graph"]
    assert edited == values


def test_an_adopted_baseline_differs_from_the_eager_one_in_the_graphs_alone(site: Site, tmp_path: Path) -> None:
    text = adopted((site.directory / "vars.yaml").read_text())
    rendered = render(variables_of(text, site.directory, tmp_path))
    before, after = (data["compose.yaml"].decode().splitlines() for data in (site.rendered, rendered))
    changes = [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if not line.startswith("@@")]
    graph, images = site.variables.graph, site.variables.images
    config = {"mode": 0, "cudagraph_mode": graph.mode, "cudagraph_capture_sizes": graph.capture_sizes}
    argument = "--compilation-config=" + json.dumps(config, separators=(",", ":"))
    head = "# Rendered by render.py from vars.yaml. Edit vars.yaml and run `make render`. This is the "
    assert changes[2:] == [
        f"-{head}eager baseline.",
        f"+{head}baseline, with CUDA graphs.",
        f'-    image: "{images["eager"].tag}"',
        f'+    image: "{images["graph"].tag}"',
        '-      - "--enforce-eager"',
        f"+      - {json.dumps(argument)}",
        f'+      {VARIABLE}: "1"',
    ]
    first = b"# Rendered by render.py from vars.yaml. Only the difference to compose.yaml: other CUDA graphs.\n"
    assert rendered["overlays/graph.yaml"].startswith(first)
    assert rendered["overlays/graph.yaml"].split(b"\n")[1:] == site.rendered["overlays/graph.yaml"].split(b"\n")[1:]
    assert rendered["overlays/profile.yaml"] == site.rendered["overlays/profile.yaml"]


def test_another_adopted_section_and_the_overlay_of_the_section_graph_are_rendered_each_from_its_own(
    site: Site, tmp_path: Path
) -> None:
    text = adopted((site.directory / "vars.yaml").read_text())
    sizes = ", ".join(str(size) for size in site.variables.graph.capture_sizes)
    head, found, rest = text.rpartition(f"capture_sizes: [{sizes}]")
    assert found
    text = (head + "capture_sizes: [1, 2, 4, 8, 16]" + rest).replace("breakable: true", "breakable: false", 1)
    rendered = render(variables_of(text, site.directory, tmp_path))
    baseline, overlay = (
        yaml.safe_load(rendered[name])["services"]["engine"] for name in ("compose.yaml", "overlays/graph.yaml")
    )
    assert f'"cudagraph_capture_sizes":[{sizes.replace(" ", "")}]' in baseline["command"][-1]
    assert '"cudagraph_capture_sizes":[1,2,4,8,16]' in overlay["command"][-1]
    assert (baseline["environment"][VARIABLE], overlay["environment"][VARIABLE]) == ("0", "1")


def changed(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert text.count(old) >= 1, old
        text = text.replace(old, new)
    return text


COMPACT = (ROOT / "tests/data/valid/compact.yaml").read_text()
BLOCK = "\ngraph:\n  mode: PIECEWISE\n  breakable: true\n  adaptation: graph2\n  capture_sizes: [1, 2, 4, 8, 12]\n"
FLOW = "\ngraph: {mode: PIECEWISE, breakable: true, adaptation: graph2,\n  capture_sizes: [1, 2, 4, 8, 12]}\n"
OLD = "  graph:  # of 1 June\n    # fewer sizes\n    mode: FULL\n    breakable: false\n    adaptation: null\n    capture_sizes:\n    - 3  # one\n"
ENGINE = yaml.safe_dump(yaml.safe_load(COMPACT)["engine"], default_flow_style=True, sort_keys=False, width=1 << 20)
START, STOP = COMPACT.index("engine:\n"), COMPACT.index("graph:\n  mode")
WAYS = {
    "a null with a comment beside it": changed(COMPACT, ("  graph: null\n", "  graph: null  # eager\n")),
    "a key without a value": changed(COMPACT, ("  graph: null\n", "  graph:\n")),
    "an earlier section in its place": changed(COMPACT, ("  graph: null\n", OLD)),
    "an earlier section before a comment of what comes next": changed(
        COMPACT, ("  graph: null\n", f"{OLD}\n# What the overlay changes.\n")
    ),
    "an earlier section on one line": changed(
        COMPACT,
        ("  graph: null\n", "  graph: {mode: FULL, breakable: false, adaptation: null, capture_sizes: [3]}  # old\n"),
    ),
    "a section graph in braces": changed(COMPACT, (BLOCK, FLOW)),
    "a section graph in braces and an earlier section": changed(COMPACT, (BLOCK, FLOW), ("  graph: null\n", OLD)),
    "an engine in braces": COMPACT[:START] + f"engine: {ENGINE}" + COMPACT[STOP:],
    "a key in the middle of the engine": changed(
        COMPACT, ("  graph: null\n", ""), ("engine:\n", "engine:\n  graph: null\n")
    ),
    "sizes in a list of lines with comments after them": changed(
        COMPACT,
        (
            "  capture_sizes: [1, 2, 4, 8, 12]\n",
            "  capture_sizes:\n  - 1\n  # two\n  - 12  # last\n\n# of the profile\n",
        ),
    ),
    "Windows line ends": COMPACT.replace("\n", "\r\n"),
    "no line end after the last line": COMPACT.rstrip("\n"),
    "the engine as the last section": COMPACT[:START] + COMPACT[STOP:] + COMPACT[START:STOP].rstrip("\n"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_write_the_file_can_be_edited(way: str, tmp_path: Path) -> None:
    text = WAYS[way]
    (tmp_path / "vars.yaml").write_bytes(text.encode())
    before = variables_of(text, ROOT, tmp_path)
    after = variables_of(adopted(text), ROOT, tmp_path)
    assert after.engine.graph == before.graph
    bare = [v.model_copy(update={"engine": v.engine.model_copy(update={"graph": None})}) for v in (before, after)]
    assert bare[0] == bare[1]
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    replaced = {" fewer sizes", " one"}
    assert [one for one in comments if one not in replaced and one not in adopted(text)] == []


@pytest.mark.parametrize("way", WAYS)
def test_the_diff_of_every_way_to_write_the_file_applies(way: str, tmp_path: Path) -> None:
    text = WAYS[way]
    (tmp_path / "vars.yaml").write_bytes(text.encode())
    (tmp_path / "adopt.diff").write_bytes(diff(tmp_path, text, adopted(text)).encode())
    subprocess.run(["git", "apply", str(tmp_path / "adopt.diff")], cwd=tmp_path, check=True)
    assert (tmp_path / "vars.yaml").read_bytes() == adopted(text).encode()


EDITED = {
    "capture_sizes: [1, 2, 4]\n": (
        "capture_sizes: [1, 2, 4, 8]\n",
        'B ran with --compilation-config={"mode":0,"cudagraph_mode":"PIECEWISE","cudagraph_capture_sizes":[1,2,4]}; it '
        'would now be --compilation-config={"mode":0,"cudagraph_mode":"PIECEWISE","cudagraph_capture_sizes":[1,2,4,8]}',
    ),
    "max_num_seqs: 4": ("max_num_seqs: 3", "B ran with --max-num-seqs=4; it would now be --max-num-seqs=3"),
    "breakable: true": ("breakable: false", f"B ran with {VARIABLE}=1; it would now be {VARIABLE}=0"),
    "vllm-cpu-graph:0.32.0": (
        "vllm-cpu-graph:0.33.0",
        "B ran with image gb10-gitops/vllm-cpu-graph:0.32.0; it would now be image gb10-gitops/vllm-cpu-graph:0.33.0",
    ),
    'VLLM_NO_USAGE_STATS: "1"': (
        'VLLM_NO_USAGE_STATS: "1"\n    # More.\n    MORE: "1"',
        "B ran with nothing more; it would now be MORE=1",
    ),
}


@pytest.mark.parametrize("old", EDITED)
def test_a_file_that_was_edited_since_is_told_and_no_diff_is_shown(old: str, tmp_path: Path) -> None:
    site = Site.load(ROOT / "examples/cpu")
    copy, directory = copied(site, tmp_path / "site"), ran(site, tmp_path / "try")
    new, said = EDITED[old]
    path = copy / "vars.yaml"
    path.write_text(changed(path.read_text(), (old, new)))
    found = asked(copy, measured(site.variables), directory)
    back = f"go back to vars.yaml of commit 000000000000, or measure again: make try-graph SITE={copy}"
    assert found == Adoption(f"vars.yaml: is no longer what was measured ({said}); {back}")


def test_without_copies_of_the_files_that_ran_arguments_alone_are_compared_and_that_is_said(tmp_path: Path) -> None:
    site = Site.load(ROOT / "examples/cpu")
    copy = copied(site, tmp_path / "site")
    found = asked(copy, measured(site.variables))
    assert "(only arguments were compared: no copies of the files that ran are here)" in found.words
    assert found.diff
    path = copy / "vars.yaml"
    path.write_text(changed(path.read_text(), ("max_num_seqs: 4", "max_num_seqs: 3")))
    assert "is no longer what was measured (B ran with --max-num-seqs=4;" in asked(copy, measured(site.variables)).words


NOTHING = {
    "the profile overlay": (["profile"], "nothing to adopt: B ran with the overlays profile, and only"),
    "two overlays": (["graph", "profile"], "nothing to adopt: B ran with the overlays graph, profile, and only"),
    "no overlay": (
        [],
        "nothing to adopt: B ran without an overlay, and only what the overlay graph alone sets has a key",
    ),
}


@pytest.mark.parametrize("what", NOTHING)
def test_only_the_graph_overlay_can_be_adopted(what: str) -> None:
    overlays, said = NOTHING[what]
    found = asked(ROOT, measured(Site.load(ROOT).variables, overlays=overlays))
    assert found.words.startswith(said)
    assert found.diff == ""


def test_what_is_not_on_record_cannot_be_adopted() -> None:
    assert adoption(ROOT, ADOPT, None, None) == Adoption("nothing to adopt: what B ran with is not on record")


def test_what_is_adopted_already_needs_only_the_next_commands(tmp_path: Path) -> None:
    site = Site.load(ROOT)
    copy = copied(site, tmp_path / "site")
    (copy / "vars.yaml").write_text(adopted((ROOT / "vars.yaml").read_text()))
    found = asked(copy, measured(site.variables), ran(site, tmp_path / "try"))
    assert found.words.startswith("vars.yaml has these graphs in engine.graph already; next: make render SITE=")
    assert found.diff == ""


def test_a_file_that_is_broken_now_is_one_line(tmp_path: Path) -> None:
    site = Site.load(ROOT)
    copy = copied(site, tmp_path / "site")
    (copy / "vars.yaml").write_text("engine: {graph: null}\ngraph: {}\n")
    found = asked(copy, measured(site.variables))
    assert found.words.startswith("vars.yaml: the edit that adopts B cannot be shown (vars.yaml")
    assert found.words.endswith(f"); mend the file, then: make report SITE={copy}")
    assert "\n" not in found.words


@pytest.mark.parametrize("decision", ["keep baseline", "reject", "none"])
def test_no_other_verdict_has_an_edit(decision: str) -> None:
    assert (
        adoption(ROOT, {**ADOPT, "verdict": {"decision": decision}}, measured(Site.load(ROOT).variables), None) is None
    )


def test_the_report_shows_the_edit_in_both_forms() -> None:
    text = (ROOT / "vars.yaml").read_text()
    words, edit = "to adopt it, edit vars.yaml", f"-  graph: null\n+  graph:\n+    # `a` <b>\n{len(text)}\n"
    shown = {"words": words, "diff": edit}
    page, markdown = report.html(*samples.adopt(), shown), report.markdown(*samples.adopt(), shown)
    assert "<h2>To adopt it</h2>" in page
    assert "-  graph: null\n+  graph:\n+    # `a` &lt;b&gt;" in page
    assert f"## To adopt it\n\n{words}\n\n```\n{edit}```\n" in markdown
    for bare in (report.html(*samples.adopt()), report.markdown(*samples.adopt())):
        assert "To adopt it" not in bare


def test_compare_ends_with_the_edit_and_the_next_commands(tmp_path: Path) -> None:
    site = Site.load(ROOT / "examples/cpu")
    directory = ran(site, tmp_path / "try")
    with Writer(directory / "requests.jsonl") as writer:
        for record in arm("baseline", 30.0) + arm("experiment", 33.0):
            writer.write(record)
    document = measured(site.variables)
    document["requests"]["sha256"] = None
    (directory / "run.json").write_text(json.dumps(document))
    words = ["compare", str(directory), str(directory), "--site", "examples/cpu", "--state", str(tmp_path / "state")]
    result = subprocess.run(
        [sys.executable, "-m", "gb10", *words], cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ
    )
    assert result.returncode == 0, result.stderr
    assert "verdict: adopt" in result.stdout
    _, said, shown = result.stdout.partition(
        "\nto adopt it, edit vars.yaml as below; then: make render SITE=examples/cpu, git diff, "
    )
    assert said
    assert "--- a/examples/cpu/vars.yaml\n+++ b/examples/cpu/vars.yaml\n" in shown
    assert "\n-  graph: null\n+  graph:\n" in shown
