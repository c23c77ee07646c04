"""The guard in its plain form: while an experiment runs, a thread watches memory and the OOM counter and ends it."""

from __future__ import annotations

import contextlib
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
    """Samples MemAvailable and `oom_kill` every second from `start` to `stop`; trips once, also when it cannot watch any more."""

    def __init__(self, limits: GuardLimits, signals: Signals, log: Path):
        self._limits = limits
        self._signals = signals
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
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
        """For the evidence: how many samples, the lowest value, why it tripped, and where the samples are."""
        return {
            "samples": self.samples,
            "lowest_available_bytes": self.lowest_bytes,
            "tripped": self.reason or None,
            "log": str(self._log),
        }

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self.reason:
                self._sample()
                self._stop.wait(0 if self.reason else INTERVAL_S)
        except Exception as error:  # an experiment that nobody watches must not go on
            self.reason = f"the guard cannot watch any more ({type(error).__name__}: {error})"
        if self.reason:
            self._signals.trip(self.reason)

    def _sample(self) -> None:
        available, oom = facts.available_bytes(), facts.oom_kill_count().value
        sample = {"at": round(time.time(), 3), "available_bytes": available.as_json(), "oom_kill": oom}
        with contextlib.suppress(OSError), self._log.open("a") as log:  # a full disk costs the record, not the watch
            log.write(json.dumps(sample) + "\n")
        self.samples += 1
        if available.value is None:
            self.reason = f"available memory cannot be read any more ({available.why})"
            return
        self.lowest_bytes = min(available.value, self.lowest_bytes or available.value)
        self.reason = self._judge(available.value, oom, time.monotonic())

    def _judge(self, available: int, oom: int | None, at: float) -> str:
        """Why the experiment must end now; empty when it may go on."""
        limits = self._limits
        if oom is not None and self._oom_before is not None and oom > self._oom_before:
            return f"the host's oom_kill grew from {self._oom_before} to {oom}"
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
