"""The test engine's worker process: it makes the completions and holds the memory and disk faults. Forked by server.py.

It stands for vLLM's EngineCore: kill or freeze it (its process name is TEST::Worker) and completions stop while the server lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from answers import answer
from faults import MEMORY_CEILING_MIB, Faults

NAME = "TEST::Worker"
FILL = Path("/fill")
MIB = 1 << 20
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class WorkerDeadError(Exception):
    """The worker ended before its answer did; the text is what vLLM says then."""


def name_process(name: str) -> None:
    """Set what `ps -o comm` and `pgrep` show, at most 15 characters."""
    Path("/proc/self/comm").write_text(name)


def ask(address: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Send one request to the worker: `{"token": text}` for each token, then the finish. Blocks while the worker is frozen."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            connection.sendall(json.dumps(request).encode() + b"\n")
            for line in connection.makefile("rb"):
                event = json.loads(line)
                yield event
                if "finish_reason" in event:
                    return
    except OSError:
        pass
    raise WorkerDeadError(DEAD)


def run(listener: socket.socket, faults: Faults, parent: int) -> None:
    """Answer until killed. Signals are those of a plain process again; a worker whose server died ends too."""
    name_process(NAME)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    held: list[bytes] = []
    _start(_end_with, parent)
    if faults.leak_mib_per_s:
        _start(_leak, faults, held)
    if faults.jump_mib_after_s:
        _start(_jump, *faults.jump_mib_after_s, held)
    if faults.fill_disk_mib:
        _start(_fill, faults.fill_disk_mib)
    if faults.worker_dies_after_s is not None:
        _start(_die, faults.worker_dies_after_s)
    while True:
        connection, _ = listener.accept()
        _start(_complete, connection, faults)


def _complete(connection: socket.socket, faults: Faults) -> None:
    """One completion, a line of JSON for each token. A client that went away ends it."""
    with contextlib.suppress(OSError), connection, connection.makefile("rwb", buffering=0) as lines:
        request = json.loads(lines.readline())
        if faults.wedge_after is not None and request["number"] > faults.wedge_after:
            threading.Event().wait()
        result = answer(request["body"], wrong=faults.wrong_answer, truncate=faults.truncate)
        for token in result.tokens:
            time.sleep(faults.token_ms / 1000)
            lines.write(json.dumps({"token": token}).encode() + b"\n")
        lines.write(json.dumps({"finish_reason": result.finish_reason, "tool": result.tool}).encode() + b"\n")


def _start(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _die(after_s: float) -> None:
    time.sleep(after_s)
    print(f"(EngineCore pid={os.getpid()}) ERROR [test engine] Fatal Python error: Segmentation fault", flush=True)
    os._exit(1)


def _leak(faults: Faults, held: list[bytes]) -> None:
    leaked = 0.0
    while leaked < faults.leak_max_mib:
        time.sleep(0.1)
        step = min(faults.leak_mib_per_s / 10, faults.leak_max_mib - leaked)
        leaked += step
        _take(step, held)


def _jump(after_s: float, mib: int, held: list[bytes]) -> None:
    time.sleep(after_s)
    _take(mib, held)


def _take(mib: float, held: list[bytes]) -> None:
    """Allocate and touch memory, at most MEMORY_CEILING_MIB over all faults. (A repeated 1 writes every page; a 0 would not.)"""
    room = MEMORY_CEILING_MIB * MIB - sum(map(len, held))
    held.append(b"\1" * min(int(mib * MIB), room))


def _fill(mib: int) -> None:
    """Write real blocks to /fill, which a test may mount. A full disk is reported and survived."""
    try:
        FILL.mkdir(exist_ok=True)
        with (FILL / "test-engine.bin").open("wb") as file:
            for _ in range(mib):
                file.write(b"\1" * MIB)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        print(f"(EngineCore pid={os.getpid()}) ERROR [test engine] {error}", flush=True)
