"""Is a container what a flattened file says? In words, aspect by aspect. Used by deploy, `diff` and the checks.

What is not committed may be a secret, and is named but not shown: a foreign argument's or variable's value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gb10.node import Container
from gb10.overlays import unescaped
from gb10.variables.owned import OWNED_FLAGS

UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


@dataclass(frozen=True)
class Difference:
    """One aspect in which the container is not what is expected."""

    aspect: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.aspect}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Expected:
    """What a service of a flattened file makes of a container."""

    image_id: str
    argv: list[str]
    environment: dict[str, str]
    mounts: set[str]
    ports: set[str]
    restart: str
    capabilities: set[str]
    limits: dict[str, int]

    @classmethod
    def of(cls, service: dict[str, Any], image_id: str) -> Expected:
        """`image_id`: the local id that the service's tag must mean."""
        return cls(
            image_id=image_id,
            argv=unescaped([*service["entrypoint"], *service["command"]]),
            environment={k: v.replace("$$", "$") for k, v in (service.get("environment") or {}).items()},
            mounts={
                _mount(m["source"], m["target"], not m.get("read_only", False)) for m in service.get("volumes", [])
            },
            ports={
                f"{p.get('host_ip', '0.0.0.0')}:{p['published']} -> {p['target']}" for p in service.get("ports", [])
            },
            restart=service["restart"],
            capabilities=_capabilities(
                service.get("cap_add"), service.get("cap_drop"), service.get("privileged", False)
            ),
            limits={
                "memory": _bytes(service.get("mem_limit", 0)),
                "/dev/shm": _bytes(service["shm_size"]),
                "processes": int(service.get("pids_limit") or 0),
            },
        )


def differences(expected: Expected, container: Container, image_environment: dict[str, str]) -> list[Difference]:
    """Everything that is not as expected: image, argv, environment, mounts, ports, restart policy, capabilities, limits.

    `image_environment` is the image's: docker inspect mixes both, in random order.
    """
    found: list[Difference] = []
    if container.image_id != expected.image_id:
        found.append(
            Difference("image", short(expected.image_id), f"{short(container.image_id)} ({container.image_tag})")
        )
    found += _sequence("argument", expected.argv, container.argv)
    found += _environment(expected.environment, container, image_environment)
    found += _set("mount", expected.mounts, mounts_of(container))
    found += _set("port", expected.ports, ports_of(container))
    found += _set("capability", expected.capabilities, capabilities_of(container))
    limits = limits_of(container)
    found += [
        Difference(f"limit {name}", str(value), str(limits[name]))
        for name, value in expected.limits.items()
        if limits[name] != value
    ]
    if container.restart_policy != expected.restart:
        found.append(Difference("restart policy", expected.restart, container.restart_policy))
    return found


def environment_of(raw: dict[str, Any] | None) -> dict[str, str]:
    """The environment of an inspected image or container."""
    entries = ((raw or {}).get("Config") or {}).get("Env") or []
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def mounts_of(container: Container) -> set[str]:
    """Its mounts as `host -> container (mode)`."""
    return {_mount(m.get("Source", m.get("Name", "?")), m["Destination"], m["RW"]) for m in container.raw["Mounts"]}


def ports_of(container: Container) -> set[str]:
    """Its published ports as configured, which stays true while it is stopped."""
    bindings = container.raw["HostConfig"].get("PortBindings") or {}
    return {
        f"{b.get('HostIp') or '0.0.0.0'}:{b['HostPort']} -> {port.split('/')[0]}"
        for port, hosts in bindings.items()
        for b in hosts or []
    }


def capabilities_of(container: Container) -> set[str]:
    """What it may do beside an ordinary container, as `+NAME`, `-NAME` and `privileged`."""
    host = container.raw["HostConfig"]
    return _capabilities(host.get("CapAdd"), host.get("CapDrop"), host.get("Privileged", False))


def limits_of(container: Container) -> dict[str, int]:
    """Its limits: memory and /dev/shm in bytes, processes as a number; 0 is none."""
    host = container.raw["HostConfig"]
    return {
        "memory": int(host.get("Memory") or 0),
        "/dev/shm": int(host.get("ShmSize") or 0),
        "processes": max(0, int(host.get("PidsLimit") or 0)),
    }


def shown(word: str) -> str:
    """An argument that is not in a committed file, without what may be a secret: values only of flags that vars.yaml has keys for."""
    name, separator, _ = word.partition("=")
    flag = re.fullmatch(r"--[a-z0-9_.-]+", name)
    if name in OWNED_FLAGS or (flag and not separator):
        return word
    return f"{name}=(value not shown)" if flag else "(a word that is not shown)"


def public(argv: list[str], committed: set[str]) -> list[str]:
    """A container's arguments for a record: those of the committed files as they are, any other as `shown`."""
    return [word if word in committed else shown(word) for word in argv]


def short(image_id: str) -> str:
    """The first 12 digits of an image id, as docker shows it."""
    return image_id.removeprefix("sha256:")[:12]


def _mount(source: str, target: str, writable: bool) -> str:
    return f"{source} -> {target} ({'read-write' if writable else 'read-only'})"


def _sequence(aspect: str, expected: list[str], found: list[str]) -> list[Difference]:
    if expected == found:
        return []
    missing = [word for word in expected if word not in found]
    extra = [word for word in found if word not in expected]
    if not missing and not extra:
        return [Difference(f"{aspect} order", " ".join(expected), " ".join(found))]  # the same words: all committed
    return [Difference(aspect, word, "not there") for word in missing] + [
        Difference(aspect, "not there", shown(word)) for word in extra
    ]


def _set(aspect: str, expected: set[str], found: set[str]) -> list[Difference]:
    return [Difference(aspect, item, "not there") for item in sorted(expected - found)] + [
        Difference(aspect, "not there", item) for item in sorted(found - expected)
    ]


def _environment(expected: dict[str, str], container: Container, image: dict[str, str]) -> list[Difference]:
    actual = environment_of(container.raw)
    result = [
        Difference(f"environment {name}", value, "another value (not shown)" if name in actual else "not set")
        for name, value in sorted(expected.items())
        if actual.get(name) != value
    ]
    for name in sorted(set(actual) - set(expected)):
        if image.get(name) != actual[name]:
            result.append(Difference(f"environment {name}", "not set", "set (value not shown)"))
    return result


def _capabilities(add: list[str] | None, drop: list[str] | None, privileged: bool) -> set[str]:
    """Docker 20.10 keeps the names as given, later ones write CAP_ before them."""
    names = {f"+{name.removeprefix('CAP_')}" for name in add or []}
    names |= {f"-{name.removeprefix('CAP_')}" for name in drop or []}
    return names | ({"privileged"} if privileged else set())


def _bytes(size: str | int) -> int:
    """A size as Compose writes it: a number, or with a unit."""
    text = str(size).lower().removesuffix("b") or "0"
    return int(text) if text.isdigit() else int(text[:-1]) * UNITS[text[-1]]
