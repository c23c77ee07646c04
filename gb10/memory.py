"""Available memory while a command works: a thread that samples. Used by evidence.py and bench/; the guard judges, this only records."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gb10 import facts
from gb10.facts import Fact

INTERVAL_S = 0.5


class LowWater:
    """Samples MemAvailable from its making to `stop`. A process that is killed takes it along.

    `each` gets every sample, in bytes.
    """

    def __init__(
        self, first: Fact[int], *, interval_s: float = INTERVAL_S, each: Callable[[int], None] = lambda available: None
    ) -> None:
        self._interval_s, self._each = interval_s, each
        self._stop = threading.Event()
        self._lowest = first
        self._thread = threading.Thread(target=self._run, name="low-water", daemon=True)
        self._thread.start()

    def stop(self, last: Fact[int]) -> Fact[int]:
        """End it; returns the lowest MemAvailable in bytes, first and last sample included."""
        self._stop.set()
        self._thread.join(self._interval_s * 4)
        self._take(last)
        return self._lowest

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            sample = facts.available_bytes()
            self._take(sample)
            if sample.value is not None:
                self._each(sample.value)

    def _take(self, sample: Fact[int]) -> None:
        if sample.value is not None and (self._lowest.value is None or sample.value < self._lowest.value):
            self._lowest = sample
