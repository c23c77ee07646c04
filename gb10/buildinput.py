"""What the build of an image reads: its directory, patches with their program, wheels. Called by images.py and the tests."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gb10 import files, patches
from gb10.errors import FailedError, RefusedError
from gb10.files import sha256
from gb10.rendering import REPOSITORY
from gb10.terminal import Progress

PROGRAM = REPOSITORY / "images/apply_patches.py"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
IMAGE_PYTHON = "3.11"
WHEEL_PLATFORMS = ("manylinux_2_34", "manylinux_2_31", "manylinux_2_28", "manylinux2014")
WHEELS_S = 1800


def fingerprint(directory: Path, source: str) -> str:
    """SHA-256 of all that a build reads: its source's id, the directory, and the patches with their program.

    Notes and the unlocked list of packages (*.md, *.in) change no image, nor do the comments of patches.yaml.
    """
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    paths = [path for path in paths if path.suffix not in {".in", ".md", ".pyc"} and path.name != patches.FILE]
    lines = [f"{path.relative_to(directory)} {sha256(path.read_bytes())}" for path in paths]
    lines += [f"{name} {sha256(data)}" for name, data in _patch_files(directory).items()]
    return sha256("\n".join([source, *lines]).encode())


def _patch_files(directory: Path) -> dict[str, bytes]:
    """What a build finds in `patches/`: the program and its entries; nothing where the directory has no patches.yaml."""
    path = directory / patches.FILE
    if not path.is_file():
        return {}
    return {"patches/apply_patches.py": PROGRAM.read_bytes(), "patches/patches.json": patches.for_build(path)}


@contextlib.contextmanager
def prepared(directory: Path, cache: Path, progress: Progress) -> Iterator[Path]:
    """The build's input: a copy of the directory, with `patches/` where it has a patches.yaml and `wheels/` where a lock names some."""
    added, lock = _patch_files(directory), directory / "requirements.lock"
    if not added and not lock.is_file():
        yield directory
        return
    fetched = wheels(lock, cache, progress) if lock.is_file() else None
    work = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
    try:
        shutil.copytree(directory, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", patches.FILE))
        for name, data in added.items():
            files.write(work / name, data)
        if fetched:
            (work / "wheels").mkdir()
            for wheel in fetched.iterdir():
                os.link(wheel, work / "wheels" / wheel.name)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def wheels(lock: Path, cache: Path, progress: Progress) -> Path:
    """Every wheel of hashed locks for the image's Python, downloaded once into `cache` and kept there by the locks' hash."""
    torch = lock.with_name("torch.lock")
    locks = [lock, torch] if torch.is_file() else [lock]
    digest = sha256(b"".join(path.read_bytes() for path in locks))
    kept = cache / f"wheels-{digest[:16]}"
    if kept.is_dir():
        return kept
    if platform.machine() != "x86_64":
        what = f"its wheels are for x86_64, this is {platform.machine()}"
        raise RefusedError(str(lock.relative_to(REPOSITORY)), what, "run the CPU site on an x86-64 machine")
    progress.note(f"  downloading the wheels of {lock.name}")
    work = Path(tempfile.mkdtemp(prefix="wheels-", dir=cache))
    try:
        _download(work, lock, progress)
        if torch.is_file():
            try:
                _download(work, torch, progress)
            except FailedError:
                progress.note(f"  torch for the CPU: from PyTorch's own index ({TORCH_CPU_INDEX})")
                _download(work, torch, progress, "--index-url", TORCH_CPU_INDEX)
        work.rename(kept)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return kept


def _download(directory: Path, lock: Path, progress: Progress, *options: str) -> None:
    """`pip download` of a hashed lock for the image's Python, which need not be this one."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--quiet",
        "--disable-pip-version-check",
        "--retries=2",
    ]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", f"--python-version={IMAGE_PYTHON}"]
    command += ["--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none"]
    command += [f"--platform={name}_x86_64" for name in WHEEL_PLATFORMS]
    command += ["--dest", str(directory), "--requirement", str(lock), *options]
    run(command, WHEELS_S, f"pip download of {lock.name}", progress)


def run(argv: list[str], timeout_s: float, what: str, progress: Progress) -> None:
    """A long local program: bounded, its last lines shown when it fails."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    waited = 0.0
    try:
        while True:
            try:
                out, _ = process.communicate(timeout=2)
                break
            except subprocess.TimeoutExpired:
                waited += 2
                progress.waiting(f"{what}, {waited:.0f} s")
                if waited > timeout_s:
                    raise FailedError(
                        what, f"took longer than {timeout_s:.0f} s", "check the network, then run it again"
                    ) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        lines = out.decode("utf-8", "replace").strip().splitlines()
        raise FailedError(
            what,
            lines[-1] if lines else f"exit code {process.returncode}",
            "read its last lines below",
            tail="\n".join(lines[-15:]),
        )
