"""SIGINT, SIGTERM and SIGHUP as one exception in the main thread, held back while the baseline is being restored."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GUARD = signal.SIGUSR1
ENDING = "bringing the node back to its baseline"


class Interrupted(BaseException):
    """A person or the system asked this command to end. A BaseException: nothing may swallow it on the way up."""

    def __init__(self, name: str):
        self.name = name
        super().__init__(name)


class GuardTripped(BaseException):
    """The guard asks for the experiment's end; the text says why, with the numbers."""


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """For a command that only reads: a signal ends the block at once, and what was unpacked is removed on the way."""

    def ended(number: int, frame: FrameType | None) -> None:
        for each in STOPPING:
            signal.signal(each, signal.SIG_IGN)  # a second one must not break off the removal
        raise Interrupted(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number in STOPPING:
        if before[number] is not signal.SIG_IGN:  # nohup
            signal.signal(number, ended)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """No signal of `STOPPING` is delivered inside: what is made and what will remove it come together."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Signals:
    """Installed for one command. `shield` holds signals back and tells the person what is still being done."""

    def __init__(self, note: Callable[[str], None]):
        self._note = note
        self._shielded = ""
        self._trip = ""
        self.received: str | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[Signals]:
        before = {number: signal.getsignal(number) for number in (*STOPPING, GUARD)}
        for number in (*STOPPING, GUARD):
            signal.signal(number, self._handle)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def shield(self, doing: str) -> Iterator[None]:
        """Until the block ends, a signal is noted and nothing is broken off."""
        before, self._shielded = self._shielded, doing
        try:
            yield
        finally:
            self._shielded = before

    @contextlib.contextmanager
    def deferred(self, doing: str) -> Iterator[None]:
        """Like `shield`, but a signal that came meanwhile is raised at the end, unless a shield was up already."""
        before, seen = self._shielded, self.received
        with self.shield(doing):
            yield
        if not before and self.received and self.received != seen:
            self._shielded = ENDING
            raise Interrupted(self.received)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within a command whose node is back and proved: a signal ends the block, and nothing but the block."""
        before, self._shielded = self._shielded, ""
        try:
            yield
        finally:
            self._shielded = before

    def hold(self) -> None:
        """From here on signals are only noted: called when the last interruptible stage is over."""
        self._shielded = self._shielded or ENDING

    def trip(self, reason: str) -> None:
        """Called by the guard's thread: raise `GuardTripped` in the main thread."""
        self._trip = reason
        signal.pthread_kill(threading.main_thread().ident or 0, GUARD)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == GUARD:
            if not self._shielded:
                self._shielded = ENDING
                raise GuardTripped(self._trip)
            return
        name = signal.Signals(number).name
        self.received = self.received or name
        if self._shielded:
            self._note(f"{name}: still {self._shielded}; this ends by itself, please wait")
            return
        self._shielded = ENDING  # a second signal between here and the restore must not raise again
        raise Interrupted(name)
