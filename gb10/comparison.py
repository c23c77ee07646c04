"""Is a container what a flattened file says? In words, aspect by aspect. Used by deploy, `diff` and the checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gb10.node import Container
from gb10.overlays import unescaped


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
        )


def differences(expected: Expected, container: Container, image_environment: dict[str, str]) -> list[Difference]:
    """Everything that is not as expected: image, argv, environment (the image's own left out), mounts, ports, restart policy.

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
        return [Difference(f"{aspect} order", " ".join(expected), " ".join(found))]
    return [Difference(aspect, word, "not there") for word in missing] + [
        Difference(aspect, "not there", word) for word in extra
    ]


def _set(aspect: str, expected: set[str], found: set[str]) -> list[Difference]:
    return [Difference(aspect, item, "not there") for item in sorted(expected - found)] + [
        Difference(aspect, "not there", item) for item in sorted(found - expected)
    ]


def _environment(expected: dict[str, str], container: Container, image: dict[str, str]) -> list[Difference]:
    actual = environment_of(container.raw)
    result = [
        Difference(f"environment {name}", value, actual.get(name, "not set"))
        for name, value in sorted(expected.items())
        if actual.get(name) != value
    ]
    for name in sorted(set(actual) - set(expected)):
        if image.get(name) != actual[name]:
            result.append(Difference(f"environment {name}", "not set", "set (value not shown)"))
    return result
