"""A cold `python render.py --check` against a cold `docker compose config -q` of the same file, in turns, in one run. Prints the ratio."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gb10 import compose  # noqa: E402

ROUNDS = 15


def seconds(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    program = compose.plugin()
    if program is None:
        sys.exit("render_check: Compose v2 is not installed; run: make setup")
    with tempfile.TemporaryDirectory() as directory:
        plugins = Path(directory) / "cli-plugins"
        plugins.mkdir()
        (plugins / "docker-compose").symlink_to(program)
        environment = {**os.environ, "DOCKER_CONFIG": directory}
        candidates = {
            "render.py --check": [sys.executable, "render.py", "--check"],
            "docker compose config -q": ["docker", "compose", "--file", "compose.yaml", "config", "-q"],
            "the compose plugin by its path": [str(program), "--file", "compose.yaml", "config", "-q"],
        }
        for command in candidates.values():
            seconds(command, environment)
        times: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(ROUNDS):
            for name, command in candidates.items():
                times[name].append(seconds(command, environment))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = medians.pop("render.py --check")
    print(f"render.py --check, median of {ROUNDS}, as a ratio to:")
    for name, value in medians.items():
        print(f"  {name}: {ours / value:.2f}x")
    print("  target: at most 3x `docker compose config -q`")


if __name__ == "__main__":
    main()
