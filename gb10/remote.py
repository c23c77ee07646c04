"""`verify --host ssh://...`: one shared SSH connection, and a copy of the node's state to compare with. Reads only; called by verify.py."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from gb10.errors import RefusedError

CONNECT_S = 10
FETCH_S = 30
MOST_BYTES = 64 * 1024**2
RECORDS = ("current.json", "history.json", "acknowledged.json", "lease.json", "flags.json", "baselines")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
CONFIG = """\
ControlMaster auto
ControlPath {directory}/%C
ControlPersist 60
BatchMode yes
ConnectTimeout {connect_s}
ServerAliveInterval 5
ServerAliveCountMax 3
Include "{ssh_config}"
Include /etc/ssh/ssh_config
"""
MARK = b"gb10-state:"
FETCH = """
for root in {roots}; do
    if [ -d "$root/{project}" ]; then
        cd "$root/{project}" || exit 45
        printf '\\n{mark}%s\\n' "$root"
        exec tar -cf - $(ls -d {records} 2>/dev/null)
    fi
done
exit 44
"""
"""Looks where a deploy puts its state. The mark is where the output begins: a shell's start-up files may have printed before it."""


@dataclass(frozen=True)
class Remote:
    """A node behind SSH: Testinfra's host specification, the copy's root, and where the state lies on the node.

    Testinfra's `safe-ssh` tells a command's output from what the login shell's start-up files print.
    """

    hosts: str
    state_root: Path
    state_on_node: str


@contextlib.contextmanager
def connected(url: str, project: str, state_root: Path | None, ssh_config: Path | None) -> Iterator[Remote]:
    """Open the connection, copy the state's records (not the raw ones), and close both in the end.

    `url`: ssh://[user@]host[:port]. `state_root`: the root on the node; None looks where a deploy puts it. `ssh_config`:
    a file in the place of ~/.ssh/config.
    Raises `RefusedError` when there is no way to the node or nothing was deployed there.
    """
    target = _target(url)
    directory = Path(tempfile.mkdtemp(prefix="gb10-ssh-", dir="/tmp"))  # a socket's path is short: about 100 bytes
    config = directory / "config"
    theirs = ssh_config.absolute() if ssh_config else "~/.ssh/config"
    config.write_text(CONFIG.format(directory=directory, connect_s=CONNECT_S, ssh_config=theirs))
    ssh = ["ssh", "-F", str(config), *target]
    try:
        found = _fetch(ssh, url, project, state_root, directory / "state")
        _engine_answers(ssh, url)
        yield Remote(
            f"safe-{url.rstrip('/')}?ssh_config={config}&controlpersist=0", directory / "state", f"{found}/{project}"
        )
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([*ssh[:3], "-O", "exit", *target], capture_output=True, timeout=5, check=False)
        shutil.rmtree(directory, ignore_errors=True)


def _target(url: str) -> list[str]:
    """The arguments of `ssh` for a URL. Nothing of it can be taken for an option or reach a shell."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    name = parts.netloc.rpartition("@")[2].partition(":")[0]
    words = [name, *([parts.username] if parts.username is not None else [])]
    plain = parts.scheme == "ssh" and not parts.password and parts.path in ("", "/")
    if not plain or set(url) & set("?#,") or port == -1 or not all(NAME.fullmatch(word) for word in words):
        raise RefusedError("--host", f"{url} is not a host", "write ssh://user@name, or ssh://user@name:port")
    user = ["-l", parts.username] if parts.username else []
    return [*user, *(["-p", str(port)] if port else []), name]


def _fetch(ssh: list[str], url: str, project: str, state_root: Path | None, copy: Path) -> str:
    """Copy the project's records into `copy`; returns the root on the node where they were found."""
    default = '"${GB10_STATE:-/var/lib/gb10}" /var/lib/gb10 "${XDG_STATE_HOME:-$HOME/.local/state}/gb10"'
    roots = shlex.quote(str(state_root)) if state_root else default
    script = FETCH.format(roots=roots, project=shlex.quote(project), records=" ".join(RECORDS), mark=MARK.decode())
    result = _run(ssh, url, script)
    if result.returncode == 45:
        what = f"the state of {project} there cannot be read by this user"
        raise RefusedError(url, what, "log in as the user who deploys")
    if result.returncode == 44:
        where = str(state_root or "/var/lib/gb10 or ~/.local/state/gb10")
        what = f"no state of {project} in {where} there"
        raise RefusedError(url, what, "log in as the user who deploys, or name the root with --state")
    if result.returncode != 0:
        by_hand = f"try it by hand: ssh {shlex.join(ssh[3:])}"
        raise RefusedError(url, f"its state cannot be read ({_reason(result)})", by_hand)
    root, _, archive = result.stdout.partition(b"\n" + MARK)[2].partition(b"\n")
    if len(archive) > MOST_BYTES:
        raise RefusedError(url, "its state's records are larger than 64 MiB", "look into the directory on the node")
    (copy / project).mkdir(parents=True, mode=0o700)
    try:
        _unpack(archive, copy / project)
    except (tarfile.TarError, OSError) as error:
        raise RefusedError(url, f"its state came back damaged ({error})", "try again") from None
    return root.decode("utf-8", "replace")


def _unpack(archive: bytes, directory: Path) -> None:
    """Regular files only, and nothing outside the directory."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            data = tar.extractfile(member) if member.isfile() else None
            if data is not None and ".." not in PurePosixPath(member.name).parts:
                path = directory / member.name.lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data.read())


def _engine_answers(ssh: list[str], url: str) -> None:
    """Raises `RefusedError` when Docker does not answer there: then nothing can be read, and nothing is red."""
    result = _run(ssh, url, "timeout 20 docker version --format '{{.Server.Version}}'")
    if result.returncode != 0:
        what = f"docker does not answer there ({_reason(result)})"
        raise RefusedError(url, what, "start it, or log in as root or a member of the group docker")


def _run(ssh: list[str], url: str, script: str) -> subprocess.CompletedProcess[bytes]:
    command = [*ssh, f"sh -c {shlex.quote(script)}"]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=FETCH_S, check=False)
    except OSError as error:
        raise RefusedError("ssh", f"cannot be run ({error.strerror})", "install openssh-client") from None
    except subprocess.TimeoutExpired:
        by_hand = f"try it by hand: ssh {shlex.join(ssh[3:])}"
        raise RefusedError(url, f"no answer within {FETCH_S} s", by_hand) from None


def _reason(result: subprocess.CompletedProcess[bytes]) -> str:
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {result.returncode}"
