"""The GPU's clock, power and temperature while requests run, where nvidia-smi can read them. Used by measure.py.

A hidden low-power state halves the speed (dgx-spark-qwen38 issue 8: 2229 to 695 MHz at 96% load), so a collapse marks the request.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from dataclasses import dataclass

from gb10.facts import Fact

QUERY = "--query-gpu=clocks.sm,power.draw,temperature.gpu,utilization.gpu"
EVERY_S = 1.0
COLLAPSE = 0.6
"""A clock below this share of the highest one seen in the run, while the GPU is busy."""
BUSY_PERCENT = 50.0


@dataclass(frozen=True)
class Sample:
    """One reading; None where nvidia-smi says N/A. `at_ns`: monotonic."""

    at_ns: int
    clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    busy_percent: float | None


def parse(line: str, at_ns: int) -> Sample:
    """A line of nvidia-smi's CSV. `[N/A]` and `Not Supported` are unknown and never 0."""
    values: list[float | None] = []
    for word in [*line.split(","), "", "", "", ""][:4]:
        try:
            values.append(float(word.strip()))
        except ValueError:
            values.append(None)
    return Sample(at_ns, *values)


class Watch:
    """Samples once a second from `start` to `stop`; without nvidia-smi there are none, and `why` says so."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.why = "" if shutil.which("nvidia-smi") else "nvidia-smi is not here"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu", daemon=True)

    def __enter__(self) -> Watch:
        if not self.why:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(EVERY_S * 5)

    def marks(self, sent_ns: int, ended_ns: int) -> list[str]:
        """`clock collapse` when a busy GPU's clock fell during these requests."""
        return ["clock collapse"] if collapsed(self.samples, sent_ns, ended_ns) else []

    def summary(self) -> Fact[str]:
        """The range of what was read, in words."""
        clocks = [s.clock_mhz for s in self.samples if s.clock_mhz is not None]
        if not clocks:
            return Fact(None, self.why or "nvidia-smi gave no clock")
        hottest = max((s.temperature_c for s in self.samples if s.temperature_c is not None), default=None)
        heat = f", at most {hottest:.0f} C" if hottest is not None else ""
        return Fact(f"GPU clock {min(clocks):.0f} to {max(clocks):.0f} MHz{heat}")

    def _run(self) -> None:
        command = ["nvidia-smi", QUERY, "--format=csv,noheader,nounits"]
        while not self._stop.wait(EVERY_S):
            try:
                result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if result.returncode == 0 and result.stdout.strip():
                self.samples.append(parse(result.stdout.splitlines()[0], time.monotonic_ns()))


def collapsed(samples: list[Sample], sent_ns: int, ended_ns: int) -> bool:
    """Was the clock of a busy GPU, between two times, below `COLLAPSE` of the highest one so far?"""
    busy = [s for s in samples if s.clock_mhz is not None and (s.busy_percent or 0) >= BUSY_PERCENT]
    during = [s.clock_mhz for s in busy if sent_ns <= s.at_ns <= ended_ns]
    highest = max((s.clock_mhz for s in busy if s.at_ns <= ended_ns), default=0.0)  # type: ignore[type-var]
    return any(clock < COLLAPSE * highest for clock in during)  # type: ignore[operator]
