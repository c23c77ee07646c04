"""The contract on files that real Compose merged: both sites keep it in every experiment, and each rule can be broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from gb10 import contract
from gb10.site import Site
from tests.conftest import ROOT

BREAKERS = sorted((ROOT / "tests/data/contract").glob("*.yaml"))


def test_the_baseline_and_every_experiment_of_both_sites_keep_the_contract(site: Site, flatten) -> None:
    baseline = flatten([site.directory / "compose.yaml"])
    for names in [[], *site.variables.experiments.values()]:
        flat = flatten([site.directory / "compose.yaml", *site.overlay_files(names)])
        assert contract.violations(contract.Case(flat, baseline, names, site.variables)) == []


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
