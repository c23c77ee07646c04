"""Opens a trace of whatever form: .sqlite, .json, both also as .gz, .nsys-rep through nsys. Every refusal is one line. Called by command.py."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import sqlite3
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gb10.errors import RefusedError
from gb10.profile.kineto import KinetoTrace
from gb10.profile.nsys import NsysTrace
from gb10.profile.trace import Progress, public
from gb10.signals import held

SQLITE = b"SQLite format 3\0"
GZIP = b"\x1f\x8b"
CHUNK = 1 << 22
EXPORT_S = 900.0
FORMS = "name a trace: .sqlite of nsys export, .json of the torch profiler, or .nsys-rep"


@contextlib.contextmanager
def opened(path: Path, progress: Progress, nsys: Path | None = None) -> Iterator[NsysTrace | KinetoTrace]:
    """A trace, open for reading; `nsys` exports a report where the program is not on PATH.

    What has to be unpacked lies in a directory of its own until the block ends."""
    name, given = path.name, path
    with contextlib.ExitStack() as stack:
        try:
            if not path.is_file():
                raise RefusedError(str(path), "is not a file" if path.exists() else "is not there", FORMS)
            before = _state(given)
            if path.name.endswith(".nsys-rep"):
                path = _exported(path, stack, progress, nsys)
            head = _head(path)
            if head.startswith(GZIP):
                inner = _head(path, unpack=True)
                if inner.startswith(SQLITE):
                    path, head = _unpacked(path, stack, progress), inner
            if head.startswith(SQLITE):
                _whole(path, name)
                trace: NsysTrace | KinetoTrace = NsysTrace(path, name, progress)
            else:
                trace = KinetoTrace(stack.enter_context(text(path)), name, progress)
            stack.callback(trace.close)
            yield trace
            if _state(given) != before:  # each batch opens the file anew: two files would be one report
                raise RefusedError(
                    name, "was changed while it was read", "wait until it is written, then read it again"
                )
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise RefusedError(
                    name, "is locked: another program writes it", "wait for its end, or copy the file"
                ) from None
            raise RefusedError(name, f"cannot be read ({error})", "export it again") from None
        except (sqlite3.DatabaseError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise RefusedError(name, f"is damaged or ends in the middle ({error})", "copy or export it again") from None
        except UnicodeDecodeError:
            raise RefusedError(name, "is neither SQLite nor JSON", FORMS) from None
        except OSError as error:
            raise RefusedError(name, f"cannot be read ({error.strerror or error})", FORMS) from None


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _head(path: Path, *, unpack: bool = False) -> bytes:
    with gzip.open(path) if unpack else path.open("rb") as file:
        return file.read(len(SQLITE))


def text(path: Path) -> IO[str]:
    """A JSON trace as text, unpacked while it is read."""
    packed = _head(path).startswith(GZIP)
    return gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8")


def _whole(path: Path, name: str) -> None:
    """Refuse a database that is shorter than its header says (bytes 16 and 28 of the SQLite file format)."""
    with path.open("rb") as file:
        header = file.read(100)
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    whole = pages * (65536 if page == 1 else page)
    size = path.stat().st_size
    if len(header) < 100 or size < whole:
        raise RefusedError(name, f"ends in the middle ({size} bytes of {whole})", "copy or export it again")


def _room(stack: contextlib.ExitStack) -> Path:
    with held():
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gb10-trace-")))


def _unpacked(path: Path, stack: contextlib.ExitStack, progress: Progress) -> Path:
    target = _room(stack) / "trace.sqlite"
    written = 0
    with gzip.open(path) as source, target.open("wb") as file:
        while chunk := source.read(CHUNK):
            free = shutil.disk_usage(target.parent).free
            if free < 4 * len(chunk):
                raise RefusedError(
                    path.name, f"needs more room than {target.parent} has", "set TMPDIR to a larger place"
                )
            file.write(chunk)
            written += len(chunk)
            progress(f"{path.name}: unpacking, {written >> 20} MiB")
    return target


def _exported(path: Path, stack: contextlib.ExitStack, progress: Progress, nsys: Path | None) -> Path:
    """An .nsys-rep as SQLite, by `nsys export` of this machine."""
    program = str(nsys) if nsys and nsys.is_file() else shutil.which("nsys")
    command = f"nsys export --type sqlite --output {path.with_suffix('.sqlite').name} {path.name}"
    if program is None:
        raise RefusedError(
            path.name, "is a report of Nsight Systems, and nsys is not on PATH", f"run where it is: {command}"
        )
    target = _room(stack) / "trace.sqlite"
    progress(f"{path.name}: nsys export")
    argv = [program, "export", "--type", "sqlite", "--lazy", "true", "--output", str(target), str(path)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=EXPORT_S, env={**os.environ, "LC_ALL": "C"}, check=False
        )
    except subprocess.TimeoutExpired:
        raise RefusedError(path.name, f"was not exported within {EXPORT_S:g} s", f"run: {command}") from None
    if done.returncode or not target.is_file():
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise RefusedError(path.name, f"nsys export failed ({public(last[0])[:160]})", f"run: {command}")
    return target
