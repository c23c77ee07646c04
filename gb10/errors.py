"""The errors of this package and the exit codes they mean. Raised everywhere, caught once in the command line and render.py."""

from __future__ import annotations

from dataclasses import dataclass

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_NOT_ON_BASELINE = 3
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Fault:
    """One cause, as the three parts of the line a person reads: where, what is wrong, what to do."""

    where: str
    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.mend}"


class Gb10Error(Exception):
    """A refusal or failure in words: one `Fault` per cause, and the exit code that says where the node is."""

    exit_code = EXIT_FAILED

    def __init__(self, where: str, what: str, mend: str, *, more: list[Fault] | None = None, tail: str = ""):
        self.faults = [Fault(where, what, mend), *(more or [])]
        self.tail = tail
        super().__init__(str(self.faults[0]))

    @classmethod
    def of(cls, faults: list[Fault]) -> Gb10Error:
        """The error for a non-empty list of causes."""
        first, *rest = faults
        return cls(first.where, first.what, first.mend, more=rest)


class RefusedError(Gb10Error):
    """Nothing was touched: usage, variables, lock, open lease or preflight (exit 2)."""

    exit_code = EXIT_REFUSED


class VariablesError(RefusedError):
    """`vars.yaml` is not valid."""


class FailedError(Gb10Error):
    """It failed, and the node is on the baseline that served before (exit 1)."""


class NotOnBaselineError(Gb10Error):
    """The node is not on a working baseline; a person is needed (exit 3)."""

    exit_code = EXIT_NOT_ON_BASELINE


class StoppedError(Gb10Error):
    """SIGINT, SIGTERM or SIGHUP; the node was restored (exit 130)."""

    exit_code = EXIT_INTERRUPTED
