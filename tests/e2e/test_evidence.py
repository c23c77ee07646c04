"""What a command leaves behind: whole enough to know what ran and whether it was right, and without secrets."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gb10.statefile import identity_in
from tests.e2e.conftest import PLANTED, SCHEMA, Sandbox
from tests.e2e.states import by_hand, compose_command, wait_for

pytestmark = pytest.mark.docker


def newest(box: Sandbox, name: str) -> dict[str, Any]:
    paths = sorted((box.site / "evidence").glob(f"*/{name}"), key=lambda path: path.stat().st_mtime_ns)
    return dict(json.loads(paths[-1].read_text()))


def test_a_restore_leaves_a_recovery_record(serving: Sandbox) -> None:
    by_hand(["docker", "stop", serving.container().id])
    assert serving.gb10("restore").code == 0
    recovery, container, current = newest(serving, "recovery.json"), serving.container(), serving.state.current()
    assert current is not None
    assert (recovery["why"], recovery["moved"]) == ("make restore", True)
    assert recovery["container"]["id"] == container.id
    assert recovery["container"]["image_id"] == current.image_id
    assert recovery["container"]["argv"] == container.argv, "all of them are in the committed file"
    assert recovery["container"]["restart_policy"] == "unless-stopped"
    assert recovery["compose_yaml"]["as_before"] is True
    assert recovery["compose_yaml"]["as_stored"] is True
    assert (
        recovery["compose_yaml"]["stored"] == hashlib.sha256((serving.site / "compose.yaml").read_bytes()).hexdigest()
    )
    assert recovery["oom_kill"]["before"] == recovery["oom_kill"]["after"]
    assert [case["name"] for case in recovery["smoke"] if case["passed"]] == ["arithmetic", "language", "tool-call"]
    assert not [r for r in recovery["checks"]["results"] if r["outcome"] == "failed"]


def test_a_try_leaves_one_too_with_the_bytes_before_and_after(serving: Sandbox) -> None:
    assert serving.gb10("try", "graph").code == 0
    recovery, record = newest(serving, "recovery.json"), serving.evidence()
    assert recovery["why"] == "the end of experiment graph"
    assert recovery["compose_yaml"]["as_before"] is True
    assert set(record["files"]) == {"compose.yaml", "graph.yaml"}
    assert record["experiment_container"]["id"] != record["baseline"]["id"]
    lowest = record["available_bytes"]["lowest"]
    assert lowest <= min(record["available_bytes"]["before"], record["available_bytes"]["after"])
    text = (serving.site / "STATE.md").read_text()
    assert "| last experiment | graph at " in text
    assert "passed, restored, graphs in effect" in text


def test_an_effect_that_the_log_does_not_tell_is_unknown_and_in_nobodys_way(sandbox: Sandbox) -> None:
    sandbox.faults("TEST_ENGINE_ONLY_WITH: --compilation-config", 'TEST_ENGINE_GRAPH_SILENT: "1"')
    assert sandbox.gb10("deploy-baseline").code == 0
    result = sandbox.gb10("try", "graph")
    assert result.code == 0, result.err
    assert "graph overlay: unknown (the log has no line about graph capture)" in result.err
    assert sandbox.evidence()["graph_effective"]["value"] == {"unknown": "the log has no line about graph capture"}
    assert "effect of graphs unknown" in (sandbox.site / "STATE.md").read_text()
    assert sandbox.gb10("restore").code == 0


def test_a_deploy_that_fails_keeps_the_bytes_that_failed_and_says_what_serves(serving: Sandbox) -> None:
    before = (serving.site / "compose.yaml").read_bytes()
    serving.faults('TEST_ENGINE_CRASH_AT_START: "7"')
    failed = (serving.site / "compose.yaml").read_bytes()
    assert serving.gb10("deploy-baseline").code == 1
    directory = max((serving.site / "evidence").glob("*"))
    assert (directory / "compose.yaml").read_bytes() == failed
    recovery = newest(serving, "recovery.json")
    assert recovery["why"] == "the deploy failed"
    assert recovery["compose_yaml"]["as_stored"] is False, "compose.yaml is the owner's, and still the new one"
    assert recovery["compose_yaml"]["stored"] == hashlib.sha256(before).hexdigest()
    red = {r["sentence"] for r in recovery["checks"]["results"] if r["outcome"] == "failed"}
    assert red == {"compose yaml has the stored bytes"}, "the baseline that serves was checked, not the one that failed"


def test_raw_files_are_listed_by_size_and_hash_and_stay_in_the_state_directory(serving: Sandbox) -> None:
    assert serving.gb10("try", "graph").code == 0
    manifest = newest(serving, "manifest.json")
    raw = Path(manifest["directory"])
    assert raw.is_relative_to(serving.state.directory)
    assert raw.stat().st_mode & 0o777 == 0o700
    names = [file["name"] for file in manifest["files"]]
    assert any(name.endswith("-memory.jsonl") for name in names)
    assert any(name.endswith(".log") for name in names)
    for file in manifest["files"]:
        data = (raw / file["name"]).read_bytes()
        assert (file["size_bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


def test_state_md_names_its_proof_and_verify_says_when_it_is_stale(serving: Sandbox) -> None:
    path, container = serving.site / "STATE.md", serving.container()
    text = path.read_text()
    for words in (
        "| runs | the baseline (eager), no overlay |",
        container.image_id[:19],
        container.id[:12],
        serving.git("rev-parse", "HEAD")[:12],
        "| answers | 3 of 3 right (arithmetic, language, tool-call) |",
        "| last experiment | none on record |",
        "| not verified | contexts beyond 4096 tokens, long soak, multimodal input |",
        "deploy-baseline: deployed; record: `evidence/",
    ):
        assert words in text, text
    identity = identity_in(path)
    assert identity is not None
    assert identity["container"] == container.id[:12]
    by_hand(["docker", "rm", "--force", container.id])
    by_hand(compose_command(serving, "up", "--detach", "--pull", "never", overlay=None))
    wait_for(lambda: serving.container().health == "healthy", "the engine's start")
    outcome, message = serving.checks()["state md says what runs"]
    assert outcome == "failed"
    assert f"found a stale one (container {container.id[:12]})" in message
    assert serving.gb10("restore").code == 0
    assert serving.checks()["state md says what runs"][0] == "passed"


def test_planted_secrets_are_nowhere_but_in_raw_files(serving: Sandbox, tmp_path: Path) -> None:
    """By hand: an engine with a secret in a variable, in a flag, as a word and so in its log, then everything that writes."""
    override = tmp_path / "by-hand.yaml"
    command = [*serving.container().argv[2:], f"--api-key={PLANTED}"]
    value = {"HF_TOKEN": PLANTED, "VLLM_NO_USAGE_STATS": PLANTED}
    engine = {"environment": value, "command": command, "entrypoint": ["python3", "/server.py"]}
    override.write_text(json.dumps({"services": {"engine": engine}}))
    by_hand(compose_command(serving, "--file", str(override), "up", "--detach", "--pull", "never", overlay=None))
    for words in (["verify"], ["verify", "--report", str(tmp_path / "report")], ["diff"], ["status"]):
        serving.gb10(*words)  # asserts that nothing of it is printed
    assert PLANTED not in "".join(path.read_text() for path in (tmp_path / "report").iterdir())
    named = serving.gb10("diff").out
    assert "--api-key=(value not shown)" in named
    assert "environment HF_TOKEN: expected not set, found set (value not shown)" in named
    assert "environment VLLM_NO_USAGE_STATS: expected 1, found another value (not shown)" in named
    assert serving.gb10("restore").code == 0
    assert serving.gb10("try", "graph").code == 0
    serving.assert_evidence_holds_nothing_else()


def test_the_schema_refuses_what_it_does_not_name(serving: Sandbox) -> None:
    """The guard of the tests above, shown red."""
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    validator.check_schema(validator.schema)
    record = serving.evidence()
    validator.validate(record)
    for change in (
        lambda r: r.update(environment={"HF_TOKEN": "x"}),
        lambda r: r["baseline"].update(environment={}),
        lambda r: r["oom_kill"].update(after=None),
        lambda r: r.update(commit="not a hash"),
        lambda r: r.pop("verdict"),
    ):
        changed = copy.deepcopy(record)
        change(changed)
        assert not validator.is_valid(changed)
