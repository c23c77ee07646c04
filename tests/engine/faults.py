"""The faults that TEST_ENGINE_ variables ask for: names, values, ceilings. Read once, at start, by server.py.

A variable that is misspelled, malformed or above its ceiling is refused, so that no test passes because a fault was not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

PREFIX = "TEST_ENGINE_"
STREAMS = (
    "error_event",
    "cut",
    "stall",
    "non_utf8",
    "no_usage",
    "multi_token",
    "late_text",
    "reasoning_only",
    "role_only_first",
    "empty_choices_first",
)
SLOW = "slow_first_token"
Stream = str
"""One of STREAMS, or slow_first_token:SECONDS."""
MEMORY_CEILING_MIB = 1024
CEILINGS = {"leak_max_mib": MEMORY_CEILING_MIB, "fill_disk_mib": 512}


@dataclass(frozen=True)
class Faults:
    """One field a variable: `start_s` is TEST_ENGINE_START_S. README.md says what each does.

    Names end in their unit; `_after_s` counts from the start of the process. The defaults are a sound engine.
    """

    only_with: str = ""
    start_s: float = 0.0
    never_ready: bool = False
    crash_at_start: int | None = None
    crash_after_s: float | None = None
    exit_code: int = 1
    worker_dies_after_s: float | None = None
    wedge_after: int | None = None
    die_after_requests: int | None = None
    wrong_answer: str = ""
    truncate: bool = False
    ignore_sigterm: bool = False
    ignore_sigterm_while_loading: bool = True
    leak_mib_per_s: float = 0.0
    leak_max_mib: int = 256
    jump_mib_after_s: tuple[float, int] | None = None
    fill_disk_mib: int = 0
    stream: Stream = ""
    token_ms: float = 0.0
    wrong_prompt_tokens: bool = False
    hit_tokens: int | None = None
    graph_downgraded: bool = False
    graph_silent: bool = False
    auto_breakable: bool = False
    no_trace: int | None = None
    stop_profile_fails: int | None = None

    @property
    def first_token_s(self) -> float:
        """How long a stream keeps its first token back."""
        kind, _, seconds = self.stream.partition(":")
        return float(seconds) if kind == SLOW else 0.0


def read(environment: Mapping[str, str], arguments: Sequence[str]) -> Faults:
    """The faults asked for. None at all when `only_with` is set and no argument holds it. Raises `ValueError`."""
    kinds = {field.name: str(field.type) for field in fields(Faults)}
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in kinds:
            raise ValueError(f"{variable}: the test engine knows no such variable")
        try:
            values[name] = READERS[kinds[name]](text)
        except ValueError:
            raise ValueError(f"{variable}: {text!r} cannot be read as {kinds[name]}") from None
        if name in CEILINGS and values[name] > CEILINGS[name]:
            raise ValueError(f"{variable}: {text} is above the ceiling of {CEILINGS[name]} MiB")
    faults = Faults(**values)
    if faults.jump_mib_after_s and faults.jump_mib_after_s[1] > MEMORY_CEILING_MIB:
        raise ValueError(f"{PREFIX}JUMP_MIB_AFTER_S: above the ceiling of {MEMORY_CEILING_MIB} MiB")
    absent = faults.only_with and not any(faults.only_with in argument for argument in arguments)
    return Faults() if absent else faults


def _yes(text: str) -> bool:
    if text not in {"0", "1"}:
        raise ValueError
    return text == "1"


def _positive(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e6:
        raise ValueError
    return number


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def _stream(text: str) -> str:
    kind, colon, seconds = text.partition(":")
    if not (kind == SLOW and colon) and text not in STREAMS:
        raise ValueError
    if colon:
        _positive(seconds)
    return text


def _pair(text: str) -> tuple[float, int]:
    after_s, _, mib = text.partition(":")
    return _positive(after_s), _whole(mib)


READERS = {
    "str": str,
    "bool": _yes,
    "float": _positive,
    "float | None": _positive,
    "int": _whole,
    "int | None": _whole,
    "tuple[float, int] | None": _pair,
    "Stream": _stream,
}
