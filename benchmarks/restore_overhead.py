"""`restore` against a bare `docker compose up -d` of the same file to the same readiness, in turns, for each starting state. Prints ratios and overhead.

Runs on the test engine (ready in about half a second), so that the overhead is not hidden behind a model's load time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gb10 import compose  # noqa: E402
from gb10.engine import client  # noqa: E402
from gb10.node import Node  # noqa: E402
from tests.e2e import states  # noqa: E402
from tests.e2e.conftest import Sandbox, build_engines, remove_leftovers, remove_project  # noqa: E402

ROUNDS = 3
STARTING_STATES = [
    "nothing running",
    "stopped by hand",
    "paused",
    "experiment running and its controller killed",
    "baseline created but not started",
    "image tag points at another image",
]


def until_ready(box: Sandbox) -> None:
    states.wait_for(
        lambda: box.container().health == "healthy" and client.is_healthy(f"http://127.0.0.1:{box.port}"), "readiness"
    )


def bare_up(box: Sandbox) -> float:
    """What a person would type: remove nothing, `up -d`, and wait. From nothing running."""
    states.STATES["nothing running"](box)
    began = time.monotonic()
    subprocess.run(
        states.compose_command(box, "up", "--detach", "--pull", "never", overlay=None),
        env=compose.environment(),
        check=True,
        capture_output=True,
    )
    until_ready(box)
    return time.monotonic() - began


def restored(box: Sandbox, name: str) -> tuple[float, float]:
    """Seconds of a whole `restore` from a state, and the part of it that the checks took."""
    states.STATES[name](box)
    began = time.monotonic()
    result = box.gb10("restore")
    took = time.monotonic() - began
    if result.code != 0:
        sys.exit(f"restore_overhead: {name}: {result.err}")
    return took, box.evidence()["checks"]["duration_s"]


def main() -> None:
    node = Node()
    remove_leftovers(node)
    images = build_engines(node)
    with tempfile.TemporaryDirectory() as directory:
        box = Sandbox(Path(directory), "benchmark", node, test_engine=images)
        try:
            if (result := box.gb10("deploy-baseline")).code != 0:
                sys.exit(f"restore_overhead: {result.err}")
            print(f"restore against a bare `compose up -d` to the same readiness, medians of {ROUNDS}:")
            for name in STARTING_STATES:
                pairs = [(bare_up(box), restored(box, name)) for _ in range(ROUNDS)]
                bare = statistics.median(up for up, _ in pairs)
                whole = statistics.median(took for _, (took, _) in pairs)
                checks = statistics.median(checked for _, (_, checked) in pairs)
                print(
                    f"  {name}: {whole / bare:.2f}x; {whole - checks - bare:+.1f} s beside the checks ({checks:.1f} s)"
                )
            print("  target: under 2 s over the bare call, beside the checks")
        finally:
            remove_project(node, box.project)


if __name__ == "__main__":
    main()
