"""Progress for a person: rich on a terminal, plain lines elsewhere. Made by the command line; the rest of the package sees `Progress`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import IO, Protocol

from rich.console import Console


class Progress(Protocol):
    """What a long operation tells while it runs. A lost terminal never breaks the operation."""

    def note(self, text: str) -> None:
        """One line that stays."""

    def waiting(self, text: str) -> None:
        """What is being waited for right now; replaced by the next."""

    def stage(self, name: str, text: str = "") -> contextlib.AbstractContextManager[None]:
        """A named stage around a block; its seconds are shown when it ends."""


class _Console(Console):
    """rich ends the process when a pipe breaks; a restore must not end with its reader."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Terminal:
    """Writes to a stream: a live status line when it is a terminal, else a plain line at most every ten seconds."""

    QUIET_S = 10.0

    def __init__(self, stream: IO[str]):
        self._console = _Console(file=stream, highlight=False, soft_wrap=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._live = False
        self._last_wait = time.monotonic() - self.QUIET_S + 1.0  # what is over within a second needs no line

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._console.print(text, markup=False)

    def waiting(self, text: str) -> None:
        text = "".join(character for character in text if character.isprintable())
        with contextlib.suppress(OSError, ValueError):
            if self._status is not None:
                if not self._live:
                    self._status.start()
                    self._live = True
                self._status.update(text.replace("[", r"\["))
            elif time.monotonic() - self._last_wait >= self.QUIET_S:
                self._last_wait = time.monotonic()
                self.note(f"  {text}")

    @contextlib.contextmanager
    def stage(self, name: str, text: str = "") -> Iterator[None]:
        began = time.monotonic()
        self._last_wait = began
        self.note(f"{name}: {text}" if text else name)
        try:
            yield
        except BaseException:
            self.settle()
            self.note(f"{name}: not done after {time.monotonic() - began:.1f} s")
            raise
        self.settle()
        self.note(f"{name}: done in {time.monotonic() - began:.1f} s")

    def settle(self) -> None:
        """Take the live line away: what was waited for is over."""
        if self._status is not None and self._live:
            with contextlib.suppress(OSError, ValueError):
                self._status.stop()
            self._live = False
