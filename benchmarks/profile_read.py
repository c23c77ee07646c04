"""Reading a trace: a cold `profile report --json` against SQLite's own scan of four columns, in turns, in one run; peak memory; growth.

The traces are generated with the schema of a real export of Nsight Systems 2025.3.2 (node mode, 3 streams, NVTX ranges, 5% of the rows out
of order), and as JSON of the torch profiler. They need 3 GiB in TMPDIR for a few minutes.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REAL = ROOT / "tests/data/traces/vllm-graph-short.sqlite.gz"
SIZES = (200_000, 1_000_000, 3_000_000, 10_000_000)
ROUNDS = 3
EVENTS = 1_000_000
RATIO, MIB, KINETO_MIB = 2.5, 300, 200
NEEDED_BYTES = 3 << 30
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
SCAN = f"select count(*), sum(end - start), sum(shortName), count(graphNodeId) from {KERNEL}"


def generate(path: Path, kernels: int) -> None:
    """An export with so many kernel rows; a row starts about every microsecond, one in twenty up to 200 rows late."""
    path.write_bytes(gzip.decompress(REAL.read_bytes()))
    sql = sqlite3.connect(path)
    sql.execute("pragma journal_mode = off")
    sql.execute("pragma synchronous = off")
    names = [number for (number,) in sql.execute(f"select distinct shortName from {KERNEL}")]
    process, context = sql.execute(f"select globalPid, contextId from {KERNEL} limit 1").fetchone()
    for table in (
        KERNEL,
        "NVTX_EVENTS",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "CUDA_GRAPH_NODE_EVENTS",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
    ):
        sql.execute(f"delete from {table}")
    sql.execute("create temp table name (at integer primary key, id integer)")
    sql.executemany("insert into name values (?, ?)", list(enumerate(names)))
    row = "case when n % 20 = 7 then max(0, n - 200) * 1000 + n * 7919 % 900 else n * 1000 + n * 7919 % 300 end"
    columns = "start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, launchType, registersPerThread, "
    columns += "gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, "
    columns += "gridId, graphNodeId"
    sql.execute(
        f"insert into {KERNEL} ({columns}) with recursive i(n) as (select 0 union all select n + 1 from i where n < {kernels - 1}) "
        f"select {row}, {row} + 200 + n * 104729 % 1500, 0, {context}, 7 + n % 3, 1000000 + n / 4, {process}, id, id, 1, 64, 256, 4, 1, 128, 1, 1, "
        f"4096, 65536, 0, 131072, n, case when n % 10 < 8 then 80000000000 + n % 5370 end from i join name on at = n % {len(names)}"
    )
    sql.execute(
        "insert into NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) with recursive i(n) as (select 0 union all "
        f"select n + 1 from i where n < {kernels // 400}) select n * 400000, n * 400000 + 350000, 59, "
        f"'execute_context_0(0)_generation_' || (1 + n % 4) || '(' || (1 + n % 4) || ')', {process}, 0 from i"
    )
    sql.commit()
    sql.close()


def generate_kineto(path: Path, events: int) -> None:
    """JSON of the torch profiler: per launch a CPU operation, a call, a kernel and a flow event, as in a real one."""
    kinds = (
        ("cpu_op", "aten::mm"),
        ("cuda_runtime", "cudaLaunchKernel"),
        ("kernel", "void at::native::vectorized_elementwise_kernel<4>(int)"),
    )
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"name": "a GPU"}], "traceEvents": [\n')
        for number in range(events):
            category, name = kinds[number % 3]
            arguments = {
                "External id": number,
                "device": 0,
                "stream": 7,
                "correlation": number // 3,
                "grid": [4, 1, 1],
                "block": [128, 1, 1],
            }
            event = {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0,
                "tid": 7,
                "ts": 5147964547884.963 + number * 1.5,
                "dur": 1.25,
                "args": arguments,
            }
            file.write(json.dumps(event) + (",\n" if number < events - 1 else "\n"))
        file.write("]}\n")


def cold(command: list[str]) -> tuple[float, float]:
    """Seconds, and peak resident memory in MiB, of a process of its own."""
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"profile_read: {' '.join(command[:6])} failed; run it by hand")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def report(path: Path) -> list[str]:
    return [sys.executable, "-m", "gb10", "profile", "report", str(path), "--json"]


def main() -> None:
    sqlite = shutil.which("sqlite3")
    code = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone())"
    scan = [sqlite] if sqlite else [sys.executable, "-c", code]
    with tempfile.TemporaryDirectory(prefix="gb10-benchmark-") as room:
        if shutil.disk_usage(room).free < NEEDED_BYTES:
            sys.exit(f"profile_read: {room} has less than 3 GiB free; set TMPDIR to a larger place")
        print(
            f"profile report --json (cold) against {'sqlite3' if sqlite else 'the sqlite3 module'}'s scan of four columns, medians of {ROUNDS}:"
        )
        first: tuple[int, float] | None = None
        for size in SIZES:
            path = Path(room) / "trace.sqlite"
            generate(path, size)
            ours, theirs, peaks = [], [], []
            for _ in range(ROUNDS):
                theirs.append(cold([*scan, str(path), SCAN])[0])
                seconds, peak = cold(report(path))
                ours.append(seconds)
                peaks.append(peak)
            mine = statistics.median(ours)
            first = first or (size, mine)
            grown = (
                f"{mine / first[1]:.1f}x the time of {first[0] / 1e6:g} million" if size != first[0] else "the smallest"
            )
            print(
                f"  {size / 1e6:g} million kernels, {path.stat().st_size / 2**20:.0f} MiB: {mine / statistics.median(theirs):.2f}x the scan, "
                f"peak {max(peaks):.0f} MiB, {grown}"
            )
            path.unlink()
        print("  target at 10 million: at most 2.5x the scan and 300 MiB")
        missed = mine / statistics.median(theirs) > RATIO or max(peaks) > MIB
        path = Path(room) / "trace.json"
        generate_kineto(path, EVENTS)
        seconds, peak = cold(report(path))
        parse = [sys.executable, "-c", "import json, sys; json.load(open(sys.argv[1]))", str(path)]
        whole, whole_peak = cold(parse)
        print(
            f"torch profiler, {EVENTS / 1e6:g} million events, {path.stat().st_size / 2**20:.0f} MiB: peak {peak:.0f} MiB (target: under 200), "
            f"{seconds / whole:.2f}x the time and {peak / whole_peak:.2f}x the memory of json.load alone"
        )
        if missed or peak > KINETO_MIB:
            sys.exit(
                "profile_read: a target is missed; a ratio can be, where other programs keep the cores busy: run it again"
            )


if __name__ == "__main__":
    main()
