"""The test engine: a stand-in for vLLM in tests of gb10, with faults on demand. It runs no model and is never deployed.

Like vLLM it is two processes: this one answers HTTP (api.py) and its worker completes (worker.py). README.md lists every
TEST_ENGINE_ variable; faults.py reads them. Standard library only, so that its image is Debian's Python and these files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import worker
from api import VERSION, Server
from faults import Faults, read

PORT = 8000
TICK_S = 0.1
DEAD_FOR_S = 3.0
"""A vLLM whose EngineCore died ends by itself after 3 to 6 s, with exit code 0."""
IGNORED = (
    "kv-cache-dtype",
    "max-num-seqs",
    "max-num-batched-tokens",
    "gpu-memory-utilization",
    "speculative-config",
    "reasoning-parser",
    "tool-call-parser",
    "seed",
    "dtype",
    "block-size",
    "load-format",
    "max-logprobs",
)
"""vLLM's flags with a value that are accepted and have no effect here."""
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """vLLM's flags as far as gb10 renders them. Anything else ends with exit code 2, as vLLM does."""
    parser = argparse.ArgumentParser(prog="api_server.py", allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--compilation-config", type=json.loads)
    parser.add_argument("--profiler-config", type=json.loads)
    for name in ("enforce-eager", "enable-auto-tool-choice", "enable-prefix-caching", "cudagraph-metrics"):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=name == "enable-prefix-caching")
    for name in IGNORED:
        parser.add_argument(f"--{name}")
    options = parser.parse_args(arguments)
    options.model = options.model or options.model_tag or "/model"
    options.served_model_name = options.served_model_name or options.model
    return options


def log(text: str, process: str = "APIServer", level: str = "INFO") -> None:
    """A line in vLLM's form."""
    when = time.strftime("%m-%d %H:%M:%S")
    print(f"({process} pid={os.getpid()}) {level} {when} [test_engine.py:1] {text}", flush=True)


def announce(options: argparse.Namespace, faults: Faults) -> None:
    """The lines about graph capture that vLLM writes for these flags; gb10 tells from them whether a graph overlay took effect."""
    if faults.graph_silent:
        return
    wanted = (options.compilation_config or {}).get("cudagraph_mode", "NONE")
    captures = bool(options.compilation_config) and not (options.enforce_eager or faults.graph_downgraded)
    if faults.auto_breakable and "VLLM_USE_BREAKABLE_CUDAGRAPH" not in os.environ:
        log("Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1. Set VLLM_USE_BREAKABLE_CUDAGRAPH=0 to opt out.")
    if options.enforce_eager:
        log("Enforce eager set, disabling torch.compile and CUDAGraphs.", level="WARNING")
    elif options.compilation_config and faults.graph_downgraded:
        log(f"Cudagraph mode {wanted} is not compatible with compilation mode 0. Overriding to NONE.")
    mode = f"{{'cudagraph_mode': <CUDAGraphMode.{wanted if captures else 'NONE'}: 1>}}"
    log(f"Initializing a V1 LLM engine (test engine) with config: model={options.model!r}, {mode}", "EngineCore")
    if captures and os.environ.get("VLLM_USE_BREAKABLE_CUDAGRAPH") == "1":
        log("Breakable CUDA graph enabled", "EngineCore")
    if captures:
        log("Graph capturing finished in 1 secs, took 0.10 GiB", "EngineCore")


def fork_worker(faults: Faults) -> tuple[int, str]:
    """Start the worker; returns its process id and the (abstract) address of its socket."""
    parent = os.getpid()
    address = f"\0gb10-test-engine-{os.urandom(8).hex()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    child = os.fork()
    if child == 0:
        try:
            worker.run(listener, faults, parent)
        finally:
            os._exit(1)
    listener.close()
    return child, address


def leave_with(child: int) -> Callable[[int], NoReturn]:
    """The way out: at once, and not without the worker."""

    def leave(code: int) -> NoReturn:
        with contextlib.suppress(ProcessLookupError):  # a dead worker is gone already
            os.kill(child, signal.SIGKILL)
        os._exit(code)

    return leave


def live(server: Server, faults: Faults, child: int, began: float) -> NoReturn:
    """Load, serve and end as asked. Signals are blocked and fetched here, so that nothing depends on being process 1."""
    shown, died = -1, 0.0
    while True:
        elapsed = time.monotonic() - began
        if faults.crash_after_s is not None and elapsed >= faults.crash_after_s:
            log("RuntimeError: crash asked for by TEST_ENGINE_CRASH_AFTER_S", "EngineCore", "ERROR")
            server.leave(faults.exit_code)
        if server.state == "loading":
            tenths = min(10, int(10 * elapsed / faults.start_s)) if faults.start_s else 10
            if tenths > shown:
                shown = tenths
                print(f"Loading safetensors checkpoint shards: {tenths * 10:3d}% Completed | {tenths}/10", flush=True)
            if elapsed >= faults.start_s and not faults.never_ready:
                server.state = "ready"
                print("INFO:     Application startup complete.", flush=True)
        if server.state == "dead" and elapsed >= died + DEAD_FOR_S:
            server.leave(0)
        arrived = signal.sigtimedwait(SIGNALS, TICK_S)
        if arrived is None:
            continue
        if arrived.si_signo == signal.SIGCHLD:
            if server.state != "dead" and os.waitpid(child, os.WNOHANG)[0]:
                log(f"vllm.v1.engine.exceptions.EngineDeadError: {worker.DEAD}", level="ERROR")
                server.state, died = "dead", elapsed
        elif not (faults.ignore_sigterm or (faults.ignore_sigterm_while_loading and server.state == "loading")):
            log("[shutdown] API server: shutdown triggered")
            server.leave(0)


def main() -> NoReturn:
    began = time.monotonic()
    options = parse(sys.argv[1:])
    try:
        faults = read(os.environ, sys.argv[1:])
    except ValueError as error:
        print(f"test engine: {error}", file=sys.stderr)
        sys.exit(2)
    worker.name_process("TEST::Server")
    log(f"gb10 test engine, not vLLM: version {VERSION}, served name {options.served_model_name}")
    if faults.crash_at_start is not None:
        print('Traceback (most recent call last):\n  File "/server.py", line 1, in <module>', file=sys.stderr)
        print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr)
        sys.exit(faults.crash_at_start)
    announce(options, faults)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    child, address = fork_worker(faults)
    server = Server(options.port, options, faults, address, leave_with(child))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    live(server, faults, child, began)


if __name__ == "__main__":
    main()
