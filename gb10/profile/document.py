"""A JSON document of any size as a stream: events one by one, other keys whole. Called by kineto.py, scrub.py and command.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import IO, Any

from gb10.errors import RefusedError

CHUNK = 1 << 20
EVENTS = "traceEvents"
NEAR_THE_END = 16


def document(file: IO[str], name: str) -> Iterator[tuple[str, Any]]:
    """Each event as `("traceEvents", event)`, every other key of the document as it stands. Bounded memory.

    Raises `RefusedError` where the text is no JSON or is cut off.
    """
    text = _Text(file, name)
    if text.next() == "[":  # the format's other form: the list of events alone
        text.take("[")
        yield from ((EVENTS, event) for event in text.items())
        text.end()
        return
    text.take("{")
    while text.next() != "}":
        key = text.value()
        if not isinstance(key, str):
            raise _no_trace(name)
        text.take(":")
        if key == EVENTS and text.next() == "[":
            text.take("[")
            yield from ((EVENTS, event) for event in text.items())
        else:
            yield key, text.value()
        if text.next() == ",":
            text.take(",")
    text.take("}")
    text.end()


class _Text:
    """A window on the text, moved along by the standard library's own scanner."""

    def __init__(self, file: IO[str], name: str):
        self._file, self._trace, self._buffer, self._at = file, name, "", 0
        self._decoder = json.JSONDecoder(parse_float=Decimal)

    def _more(self) -> bool:
        chunk = self._file.read(CHUNK)
        self._buffer, self._at = self._buffer[self._at :] + chunk, 0
        return bool(chunk)

    def next(self) -> str:
        """The next character that is no space, not taken yet."""
        while True:
            while self._at < len(self._buffer):
                if not self._buffer[self._at].isspace():
                    return self._buffer[self._at]
                self._at += 1
            if not self._more():
                raise _cut_off(self._trace)

    def take(self, character: str) -> None:
        """The next character must be this one."""
        if self.next() != character:
            raise _no_trace(self._trace)
        self._at += 1

    def end(self) -> None:
        """Nothing may follow: a second document would be left out without a word."""
        while not self._buffer[self._at :].strip():
            self._at = len(self._buffer)
            if not self._more():
                return
        raise _no_trace(self._trace)

    def value(self) -> Any:
        """The next JSON value, whole."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except RecursionError:
                raise _no_trace(self._trace) from None
            except ValueError as error:
                if len(self._buffer) - self._at > 64 * CHUNK or _wrong_within(error, len(self._buffer)):
                    raise _no_trace(self._trace) from None
                if not self._more():
                    raise _cut_off(self._trace) from None
                continue
            if end < len(self._buffer):
                self._at = end
                return value
            if not self._more():  # a number at the very end of what was read could go on
                self._at = len(self._buffer)
                return value

    def items(self) -> Iterator[Any]:
        """The values of a list whose bracket was taken."""
        while self.next() != "]":
            item = self.value()
            if isinstance(item, dict):
                yield item
            if self.next() == ",":
                self.take(",")
            elif self.next() != "]":
                raise _no_trace(self._trace)
        self.take("]")


def _wrong_within(error: ValueError, size: int) -> bool:
    """Is it wrong before the end of what was read, so that no further text can mend it?"""
    at = getattr(error, "pos", 0)
    return at < size - NEAR_THE_END and not getattr(error, "msg", "").startswith("Unterminated string")


def _cut_off(name: str) -> RefusedError:
    return RefusedError(name, "ends in the middle", "copy it again, or record it again")


def _no_trace(name: str) -> RefusedError:
    return RefusedError(
        name,
        "is not JSON of the torch profiler",
        "name a trace: .sqlite of nsys export, or .json of the torch profiler",
    )


def printable(text: str) -> str:
    """The text as UTF-8 can hold it: half of a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
