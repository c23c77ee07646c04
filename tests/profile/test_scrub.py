"""A scrubbed copy says nothing of the machine, and its report is the same to the byte."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from gb10.cli import main
from tests.profile.running import TRACES, run

SECRETS = ("hf_planted_token", "node-of-the-owner", "/home/owner/run.py", "python3-of-the-owner", "--api-key=planted")


@pytest.mark.parametrize("name", sorted(path.name for path in TRACES.glob("*.gz")))
def test_the_report_of_a_scrubbed_trace_is_the_same_to_the_byte(name: str, tmp_path: Path) -> None:
    run("scrub", TRACES / name, tmp_path / name)
    for form in ([], ["--json", "--top", "50"]):
        assert run("report", tmp_path / name, *form).stdout == run("report", TRACES / name, *form).stdout


def test_what_an_export_tells_of_its_machine_is_not_in_the_copy(tmp_path: Path) -> None:
    raw = tmp_path / "raw.sqlite"
    raw.write_bytes(gzip.decompress((TRACES / "vllm-graph-short.sqlite.gz").read_bytes()))
    sql = sqlite3.connect(raw)
    sql.execute("drop table TARGET_INFO_SYSTEM_ENV")
    sql.execute(
        "create table TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT)"
    )
    sql.execute("insert into TARGET_INFO_SYSTEM_ENV values (1, 'HF_TOKEN', 'HF_TOKEN', 1, ?)", (SECRETS[0],))
    sql.execute("insert into META_DATA_EXPORT values ('EXPORT_HOST', ?)", (SECRETS[1],))
    sql.execute("insert into META_DATA_CAPTURE values ('COMMAND_LINE', ?)", (SECRETS[4],))
    sql.execute("drop table if exists PROCESSES")
    sql.execute("create table PROCESSES (globalPid INTEGER, name TEXT)")
    sql.execute("insert into PROCESSES values (1, ?)", (SECRETS[3],))
    sql.execute("insert into StringIds values (999999, ?)", (SECRETS[3],))
    sql.execute(
        "update DIAGNOSTIC_EVENT set text = 'Cannot read ' || ? || ' with ' || ? where severity = 2",
        (SECRETS[2], SECRETS[4]),
    )
    sql.commit()
    sql.close()
    assert all(secret.encode() in raw.read_bytes() for secret in SECRETS), "the test plants nothing"
    run("scrub", raw, tmp_path / "out" / "raw.sqlite")
    copy = (tmp_path / "out" / "raw.sqlite").read_bytes()
    assert [secret for secret in SECRETS if secret.encode() in copy] == []
    shown = run("report", raw, "--json").stdout
    assert shown == run("report", tmp_path / "out" / "raw.sqlite", "--json").stdout
    assert "Cannot read [...] with [...]" in shown
    assert [secret for secret in SECRETS if secret in shown] == []


def test_what_a_torch_trace_tells_of_its_machine_is_not_in_the_copy(tmp_path: Path) -> None:
    document = json.loads(gzip.decompress((TRACES / "kineto-graph.json.gz").read_bytes()))
    document["traceName"] = SECRETS[2]
    document["distributedInfo"] = {"host": SECRETS[1]}
    document["deviceProperties"][0]["note"] = SECRETS[0]
    document["traceEvents"].append({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": SECRETS[3]}})
    document["traceEvents"].append({"ph": "X", "cat": "python_function", "name": SECRETS[2], "ts": 1, "dur": 1})
    document["traceEvents"][0].setdefault("args", {})["Call stack"] = SECRETS[4]
    (tmp_path / "raw.json").write_text(json.dumps(document))
    run("scrub", tmp_path / "raw.json", tmp_path / "out" / "raw.json")
    copy = (tmp_path / "out" / "raw.json").read_text()
    assert [secret for secret in SECRETS if secret in copy] == []
    assert (
        run("report", tmp_path / "raw.json", "--json").stdout
        == run("report", tmp_path / "out" / "raw.json", "--json").stdout
    )


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "kept.sqlite").write_text("the owner's")
    result = CliRunner().invoke(
        main, ["profile", "scrub", str(TRACES / "replay-loop.sqlite.gz"), str(tmp_path / "kept.sqlite")]
    )
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / 'kept.sqlite'}: is there already; name another file")
    assert (tmp_path / "kept.sqlite").read_text() == "the owner's"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.sqlite"]
