#!/usr/bin/env python3
"""Stands where Nsight Systems would: runs the engine, and writes one report a window after the engine has ended, as nsys does.

It writes as many as windows were begun (the test engine counts them), at most `--capture-range-end=repeat:N`; FAKE_NSYS_WRITES_S seconds
are spent on that. `export` gives the SQLite file that lies beside it. It records nothing: what it proves is the way there and back.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

if sys.argv[1:] == ["--version"]:
    print("NVIDIA Nsight Systems version 0.0.0-fake")
    sys.exit(0)
if sys.argv[1] == "export":
    report, target = Path(sys.argv[-1]), Path(sys.argv[sys.argv.index("--output") + 1])
    assert report.read_text().startswith("window ")
    shutil.copyfile(Path(__file__).with_name("exported.sqlite"), target)
    sys.exit(0)
words = sys.argv[2:]
options = [word for word in words if word.startswith("--") and words.index(word) < words.index("python3")]
values = dict(word.lstrip("-").split("=", 1) for word in options)
child = subprocess.Popen(words[len(options) :])
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
code = child.wait()
time.sleep(float(os.environ.get("FAKE_NSYS_WRITES_S", "0")))
begun = Path("/tmp/capture-windows")
windows = len(begun.read_text().splitlines()) if begun.exists() else 0
for number in range(1, min(windows, int(values["capture-range-end"].partition(":")[2])) + 1):
    Path(f"{values['output']}.{number}.nsys-rep").write_text(f"window {number}")
sys.exit(code)
