"""The contract on files that real Compose merged: both sites keep it in every experiment, and each rule can be broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from gb10 import contract, rendering
from gb10.arguments import engine_arguments
from gb10.site import Site
from tests.conftest import ROOT

BREAKERS = sorted((ROOT / "tests/data/contract").glob("*.yaml"))


def test_the_baseline_and_every_experiment_of_both_sites_keep_the_contract(site: Site, flatten) -> None:
    baseline = flatten([site.directory / "compose.yaml"])
    for names in [[], *site.variables.experiments.values()]:
        flat = flatten([site.directory / "compose.yaml", *site.overlay_files(names)])
        assert contract.violations(contract.Case(flat, baseline, names, site.variables)) == []


def adopted(site: Site, directory: Path) -> Site:
    """The site with its graphs adopted, rendered in `directory`. The overlay then tries other sizes."""
    graph = site.variables.graph
    engine = site.variables.engine.model_copy(update={"graph": graph})
    tried = graph.model_copy(update={"capture_sizes": [*graph.capture_sizes, 24], "breakable": False})
    variables = site.variables.model_copy(update={"engine": engine, "graph": tried})
    rendered = rendering.render(variables)
    rendering.write(rendered, directory)
    return Site(directory, variables, rendered, [])


def test_an_adopted_baseline_and_every_experiment_on_it_keep_the_contract(site: Site, flatten, tmp_path: Path) -> None:
    mine = adopted(site, tmp_path / "adopted")
    baseline = flatten([mine.directory / "compose.yaml"])
    service = baseline["services"]["engine"]
    assert service["image"] == site.variables.images["graph"].tag
    assert service["command"] == engine_arguments(site.variables, site.variables.graph)
    assert service["environment"]["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "1"
    assert service["restart"] == "unless-stopped"
    for names in [[], *site.variables.experiments.values()]:
        flat = flatten([mine.directory / "compose.yaml", *mine.overlay_files(names)])
        assert contract.violations(contract.Case(flat, baseline, names, mine.variables)) == []
        service = flat["services"]["engine"]
        tried = mine.variables.graph if "graph" in names else site.variables.graph
        assert service["image"] == site.variables.images["graph"].tag
        assert service["command"] == engine_arguments(site.variables, tried)
        assert service["environment"]["VLLM_USE_BREAKABLE_CUDAGRAPH"] == ("0" if "graph" in names else "1")


def test_a_baseline_that_should_capture_and_is_eager_or_says_it_twice_is_refused(flatten, tmp_path: Path) -> None:
    mine = adopted(Site.load(ROOT), tmp_path / "adopted")
    flat = flatten([mine.directory / "compose.yaml"])
    command = flat["services"]["engine"]["command"]
    rule = "compose.yaml: graphs_are_captured_where_asked_for"
    broken = {
        f"{rule}: --enforce-eager is set with engine.graph: it clears the capture sizes": [*command, "--enforce-eager"],
        f"{rule}: --compilation-config is not there once": command[:-1],
        f"{rule}: --compilation-config is not there once; ": [*command, command[-1]],
    }
    for line, words in broken.items():
        service = {**flat["services"]["engine"], "command": words}
        case = contract.Case({**flat, "services": {"engine": service}}, flat, [], mine.variables)
        assert [str(fault) for fault in contract.violations(case)] == [
            f"{line.removesuffix('; ')}; render again: make render"
        ]


@pytest.mark.parametrize("path", BREAKERS, ids=lambda path: path.stem)
def test_a_file_that_breaks_a_rule_is_refused_by_that_rule_alone(path: Path, flatten) -> None:
    lines = path.read_text().splitlines()
    rules, _, message = lines[0].removeprefix("# breaks: ").partition("; ")
    kind = lines[1].removeprefix("# as: ") if lines[1].startswith("# as: ") else "experiment"
    names = {"baseline": [], "graph": ["graph"], "experiment": ["tried"]}[kind]
    site = Site.load(ROOT)
    baseline = flatten([ROOT / "compose.yaml"])
    flat = flatten([ROOT / "compose.yaml", path])
    faults = contract.violations(contract.Case(flat, baseline, names, site.variables))
    assert {fault.where.rpartition(": ")[2] for fault in faults} == set(rules.split(", "))
    assert any(message in fault.what for fault in faults), [str(fault) for fault in faults]
    assert all(fault.mend for fault in faults)


def test_every_rule_is_broken_by_some_file() -> None:
    broken = {
        rule
        for path in BREAKERS
        for rule in path.read_text().splitlines()[0].removeprefix("# breaks: ").partition("; ")[0].split(", ")
    }
    assert broken == {rule.__name__ for rule in contract.RULES}


def test_a_port_beyond_loopback_passes_when_the_site_says_so(flatten) -> None:
    site = Site.load(ROOT)
    listen = site.variables.listen.model_copy(update={"allow_beyond_loopback": True})
    variables = site.variables.model_copy(update={"listen": listen})
    flat = flatten([ROOT / "compose.yaml"])
    flat["services"]["engine"]["ports"][0]["host_ip"] = "0.0.0.0"
    assert contract.violations(contract.Case(flat, flat, [], variables)) == []


def test_graph_and_profile_overlays_compose_into_one_profiled_graph_engine(site: Site, flatten) -> None:
    both = flatten([site.directory / "compose.yaml", *site.overlay_files(["graph", "profile"])])["services"]["engine"]
    graph = flatten([site.directory / "compose.yaml", *site.overlay_files(["graph"])])["services"]["engine"]
    profile = flatten([site.directory / "compose.yaml", *site.overlay_files(["profile"])])["services"]["engine"]
    assert (both["image"], both["command"]) == (graph["image"], graph["command"])
    assert (both["entrypoint"], both["shm_size"], both["stop_grace_period"]) == (
        profile["entrypoint"],
        profile["shm_size"],
        profile["stop_grace_period"],
    )
    assert profile["image"] != graph["image"]
    assert both["environment"]["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "1"
    assert {mount["target"] for mount in both["volumes"]} >= {"/profiles"}
