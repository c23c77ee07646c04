"""requests.jsonl: what is read, each refusal in its words, and that a killed writer harms no other line."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gb10.bench.records import KEYS, REQUIRED, Failure, Record, Writer, as_line, read
from gb10.errors import FailedError, RefusedError
from gb10.files import sha256
from tests.conftest import ROOT
from tests.made import record, sha

SCHEMA = json.loads((ROOT / "docs/schemas/request.schema.json").read_text())
LEAST = {"schema": 1, "arm": "baseline", "round": 1, "case": "short", "slot": 0, "phase": "timed"}
FULL = record(
    "baseline",
    "short",
    0,
    30.0,
    reasoning="先算\n再答\u2028",
    tool_calls=[{"name": "add"}],
    failure=Failure("closed", "x"),
    marks=["preemption"],
    unknown={"chunks": "not kept"},
)


def lines(path: Path, *texts: str | dict[str, Any], end: str = "\n") -> Path:
    path.write_text("\n".join(t if isinstance(t, str) else json.dumps(t) for t in texts) + end)
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    least = Record(**{key: value for key, value in LEAST.items() if key != "schema"})
    with Writer(tmp_path / "requests.jsonl") as writer:
        writer.write(FULL)
        writer.write(least)
    found = read(tmp_path / "requests.jsonl")
    assert found == [FULL, least]
    assert found.torn is None
    assert found.sha256 == sha256((tmp_path / "requests.jsonl").read_bytes())
    assert found[1].answer is None, "a missing field is unknown"


def test_half_a_surrogate_pair_does_not_make_a_line_unreadable(tmp_path: Path) -> None:
    with Writer(tmp_path / "r.jsonl") as writer:
        writer.write(record("baseline", "tool", 0, 30.0, tool_calls=[{"arguments": "\ud83d"}]))
    assert read(tmp_path / "r.jsonl")[0].tool_calls == [{"arguments": "?"}]


def test_the_schema_has_the_fields_that_the_reader_knows() -> None:
    assert list(SCHEMA["properties"]) == KEYS
    assert SCHEMA["required"] == REQUIRED
    assert all(field.get("description") for field in SCHEMA["properties"].values())
    assert not SCHEMA["additionalProperties"]


def test_what_is_written_holds_against_the_schema() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for one in (FULL, record("experiment", "short", 3, 31.0)):
        validator.validate(json.loads(as_line(one)))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(LEAST | {"tokens": 3})


REFUSED = [
    (LEAST | {"complettion_tokens": 3}, "complettion_tokens: unknown key; did you mean completion_tokens?"),
    (LEAST | {"zzz": 3}, "zzz: unknown key; remove it; docs/schemas/request.schema.json has every key"),
    ({k: v for k, v in LEAST.items() if k != "arm"}, "arm: is missing; add it: a record without it belongs nowhere"),
    (LEAST | {"schema": 2}, "schema: 2 is not 1; write one of these"),
    (LEAST | {"phase": "cold"}, "phase: \"cold\" is not 'warm-up', 'timed' or 'traced'; write one of these"),
    (
        LEAST | {"completion_tokens": "214"},
        'completion_tokens: "214" is not a whole number; write a whole number, or leave the key out when it is unknown',
    ),
    (LEAST | {"ttft_s": -1}, "ttft_s: -1 is out of range; it must be at least 0"),
    (
        LEAST | {"right": 1},
        "right: 1 is not true or false; write true or false, or leave the key out when it is unknown",
    ),
    (LEAST | {"unknown": {"hits": "why"}}, "unknown.hits: is not a field of a record; name a field that is"),
    ("", "is blank; mend or remove the line"),
    ("[1]", "is not an object with keys; mend or remove the line"),
    ('{"a": 1, "a": 2}', "has a twice; mend or remove the line"),
    ('{"a": NaN}', "has NaN, which is not JSON; mend or remove the line"),
    ('{"a": 1', "is not JSON (Expecting ',' delimiter at column 8); mend or remove the line"),
]


@pytest.mark.parametrize(("bad", "message"), REFUSED)
def test_a_bad_line_is_one_fault_with_its_place(tmp_path: Path, bad: str | dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as error:
        read(lines(tmp_path / "r.jsonl", LEAST, bad, LEAST))
    (fault,) = error.value.faults
    assert str(fault) in {f"r.jsonl:2: {message}", f"r.jsonl:2{message}"}


def test_every_bad_line_is_named_in_order(tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as error:
        read(lines(tmp_path / "r.jsonl", LEAST | {"aarm": 1}, "{", LEAST | {"slot": None}))
    assert [fault.where for fault in error.value.faults] == ["r.jsonl:1: aarm", "r.jsonl:2", "r.jsonl:3: slot"]


def test_bytes_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(b'{"arm": "\xff"}\n')
    with pytest.raises(RefusedError, match=r"r\.jsonl:1: is not UTF-8"):
        read(tmp_path / "r.jsonl")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="cannot be read"):
        read(tmp_path / "r.jsonl")


def test_a_torn_last_line_is_told_and_left_out(tmp_path: Path) -> None:
    found = read(lines(tmp_path / "r.jsonl", LEAST, '{"schema": 1, "ar', end=""))
    assert len(found) == 1
    assert str(found.torn).startswith("r.jsonl:2: is torn after 17 bytes")


def test_a_torn_line_that_is_not_the_last_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"r\.jsonl:1: is not JSON"):
        read(lines(tmp_path / "r.jsonl", '{"schema": 1, "ar', LEAST))


def test_a_last_line_that_only_lacks_its_newline_is_whole(tmp_path: Path) -> None:
    found = read(lines(tmp_path / "r.jsonl", LEAST, LEAST, end=""))
    assert (len(found), found.torn) == (2, None)
    with pytest.raises(RefusedError, match="unknown key"):
        read(lines(tmp_path / "r.jsonl", LEAST, LEAST | {"zzz": 1}, end=""))


def test_every_cut_of_a_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    data = as_line(FULL) * 2
    middle = len(data) // 2
    for cut in range(len(data) + 1):
        (tmp_path / "r.jsonl").write_bytes(data[:cut])
        found = read(tmp_path / "r.jsonl")
        assert len(found) == (cut >= middle - 1) + (cut >= len(data) - 1)
        assert (found.torn is not None) == (cut not in {0, middle - 1, middle, len(data) - 1, len(data)})


def test_threads_share_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Writer(path) as writer:

        def work(name: str) -> None:
            for number in range(50):
                writer.write(record(name, "short", number, 30.0, answer=name * 3000))

        threads = [threading.Thread(target=work, args=(str(number),)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read(path)) == 400
    with pytest.raises(FailedError, match="is closed; open a new writer"):
        writer.write(FULL)


def test_a_writer_cuts_off_what_a_killed_one_left(tmp_path: Path) -> None:
    path = lines(tmp_path / "r.jsonl", json.dumps(LEAST), '{"answer": "' + "x" * 200_000, end="")
    with Writer(path) as writer:
        writer.write(FULL)
        assert writer.cut == 1
    assert read(path)[1:] == [FULL]
    lines(path, '{"arm', end="")
    with Writer(path) as writer:
        writer.write(FULL)
    assert read(path) == [FULL]


PROGRAM = """
import random, resource, sys, time
from pathlib import Path
from gb10.bench.records import Writer
from gb10.errors import FailedError
from tests.made import record, sha
path, name, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
chance = random.Random(name)
writer = Writer(path)
for number in range(100_000):
    text = chance.choice("ab\\u5148\\n") * (chance.randrange(150_000) if number % 8 == 7 else chance.randrange(3000))
    try:
        writer.write(record(name, "short", 0, 30.0, request=number, answer=text, input_sha256=sha(text)))
    except FailedError as error:
        print(error, flush=True)
        break
    time.sleep(chance.uniform(0, 0.004))
"""


def start(path: Path, name: str, limit: int = 0) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", PROGRAM, str(path), name, str(limit)]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_eight_processes_killed_at_random_leave_whole_lines(tmp_path: Path) -> None:
    path, chance = tmp_path / "r.jsonl", random.Random(8)
    processes = [start(path, str(number)) for number in range(8)]
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or len({one.arm for one in read(path)}) < 8:
            assert time.monotonic() < deadline, "the writers did not start"
            time.sleep(0.2)
        for process in chance.sample(processes, 8):
            time.sleep(chance.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    found = read(path)  # raises when a line that ends in a newline is not whole
    assert all(one.input_sha256 == sha(one.answer or "") for one in found)
    for number in range(8):
        written = [one.request for one in found if one.arm == str(number)]
        assert written == list(range(len(written))), "no whole line of a killed writer was lost"
        assert written


def test_a_full_disk_fails_and_keeps_no_part_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    output, _ = start(path, "full", limit=20_000).communicate(timeout=60)
    assert "bytes of a record were written" in output
    assert output.strip().endswith("free space, then measure again")
    assert read(path).torn is None
    assert path.read_bytes().endswith(b"\n")
