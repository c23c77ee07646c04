"""The guard in its plain form: while an experiment runs, a thread watches memory and the OOM counter and ends it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from gb10 import facts
from gb10.facts import GIB
from gb10.signals import Signals
from gb10.variables.model import GuardLimits

INTERVAL_S = 1.0


class Guard:
    """Samples MemAvailable and `oom_kill` every second from `start` to `stop`; trips once."""

    def __init__(self, limits: GuardLimits, signals: Signals, log: Path):
        self._limits = limits
        self._signals = signals
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="guard", daemon=True)
        self._oom_before = facts.oom_kill_count().value
        self._low_since: float | None = None
        self.lowest_bytes: int | None = None
        self.samples = 0
        self.reason = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(INTERVAL_S * 3)

    def summary(self) -> dict[str, Any]:
        """For the evidence: how many samples, the lowest value, why it tripped."""
        return {"samples": self.samples, "lowest_available_bytes": self.lowest_bytes, "tripped": self.reason or None}

    def _watch(self) -> None:
        with self._log.open("a", buffering=1) as log:
            while not self._stop.is_set():
                available, oom = facts.available_bytes().value, facts.oom_kill_count().value
                log.write(
                    json.dumps({"at": round(time.time(), 3), "available_bytes": available, "oom_kill": oom}) + "\n"
                )
                self.samples += 1
                if available is not None:
                    self.lowest_bytes = min(available, self.lowest_bytes or available)
                self.reason = self._judge(available, oom, time.monotonic())
                if self.reason:
                    self._signals.trip(self.reason)
                    return
                self._stop.wait(INTERVAL_S)

    def _judge(self, available: int | None, oom: int | None, at: float) -> str:
        limits = self._limits
        if oom is not None and self._oom_before is not None and oom > self._oom_before:
            return f"the host's oom_kill grew from {self._oom_before} to {oom}"
        if available is None:
            return ""
        if available < limits.stop_below_gib * GIB:
            return f"available memory {available / GIB:.2f} GiB is below guard.stop_below_gib {limits.stop_below_gib:g}"
        if available >= limits.sustained_below_gib * GIB:
            self._low_since = None
            return ""
        self._low_since = self._low_since if self._low_since is not None else at
        if at - self._low_since >= limits.sustained_s:
            return (
                f"available memory {available / GIB:.2f} GiB was below guard.sustained_below_gib "
                f"{limits.sustained_below_gib:g} for {at - self._low_since:.0f} s"
            )
        return ""
