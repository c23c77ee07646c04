"""What nvidia-smi says while requests run, and when a clock counts as collapsed."""

from __future__ import annotations

from gb10.bench.gpu import Sample, collapsed, parse


def sample(second: int, clock: float, busy: float | None = 96.0) -> Sample:
    return Sample(second * 10**9, clock, 60.0, 62.0, busy)


def test_what_is_not_available_is_unknown_and_not_zero() -> None:
    """GB10 answers [N/A] for some fields."""
    assert parse("2229, 61.20, 62, 96", 1) == Sample(1, 2229.0, 61.2, 62.0, 96.0)
    assert parse("[N/A], Not Supported, 62, [N/A]", 1) == Sample(1, None, None, 62.0, None)
    assert parse("", 1) == Sample(1, None, None, None, None)


def test_a_clock_that_falls_under_load_is_a_collapse() -> None:
    """The numbers of dgx-spark-qwen38 issue 8: 2229 MHz, then 695 at 96% load."""
    samples = [sample(1, 2229), sample(2, 2210), sample(11, 695)]
    assert not collapsed(samples, 0, 3 * 10**9)
    assert collapsed(samples, 10 * 10**9, 12 * 10**9)


def test_an_idle_gpu_may_clock_down() -> None:
    samples = [sample(1, 2229), sample(11, 400, busy=0.0), sample(12, 500, busy=None)]
    assert not collapsed(samples, 10 * 10**9, 13 * 10**9)
