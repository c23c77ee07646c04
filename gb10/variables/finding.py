"""A fault that only values together have. Made by the rules of crosscheck.py and profiling.py, told by load.py."""

from __future__ import annotations

from dataclasses import dataclass

from gb10.variables.yamlfile import KeyPath


@dataclass(frozen=True)
class Finding:
    """What is wrong at `path`, and what to do; a warning does not refuse the file."""

    path: KeyPath
    what: str
    mend: str
    warning: bool = False
