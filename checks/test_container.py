"""The container: is the project's one container what the stored baseline says, and only that?"""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from conftest import Deployed, fail, unknown

from gb10 import patches
from gb10.arguments import MARKS_DIR, MARKS_VARIABLE, PROFILES_DIR
from gb10.comparison import differences, environment_of, short
from gb10.node import Container
from gb10.site import Site
from gb10.state import History

RESTORE = "run: make restore"
CGROUP_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


@pytest.mark.baseline
def test_one_container_of_the_project_is_there(containers: list[Container]) -> None:
    if len(containers) != 1:
        fail("one container", ", ".join(f"{c.name} ({c.status})" for c in containers) or "none", RESTORE)


@pytest.mark.baseline
def test_the_engine_is_running(container: Container) -> None:
    if not container.running:
        fail("running", f"{container.status} (exit code {container.exit_code})", RESTORE)


@pytest.mark.baseline
def test_the_engine_is_healthy(serving: Container) -> None:
    if serving.health != "healthy":
        fail("healthy", serving.health, "look at `docker logs`, then: make restore")


@pytest.mark.baseline
def test_the_container_has_the_baselines_name(container: Container, deployed: Deployed) -> None:
    name = deployed.service["container_name"]
    if container.name != name:
        fail(name, container.name, RESTORE)


@pytest.mark.baseline
def test_the_restart_policy_is_the_baselines(container: Container, deployed: Deployed) -> None:
    if container.restart_policy != deployed.expected.restart:
        fail(deployed.expected.restart, container.restart_policy, RESTORE)


@pytest.mark.baseline
def test_the_image_is_the_stored_one(container: Container, deployed: Deployed) -> None:
    image_id = deployed.expected.image_id
    if container.image_id != image_id:
        fail(short(image_id), f"{short(container.image_id)} ({container.image_tag})", RESTORE)


@pytest.mark.baseline
@pytest.mark.parametrize("aspect", ["argument", "environment", "mount", "port", "capability", "limit"])
def test_every_aspect_is_the_baselines(
    aspect: str, container: Container, deployed: Deployed, image_environment: dict[str, str]
) -> None:
    found = [d for d in differences(deployed.expected, container, image_environment) if d.aspect.startswith(aspect)]
    if found:
        first, more = found[0], f" and {len(found) - 1} more" if len(found) > 1 else ""
        mend = "run: make diff to see all, make restore to mend"
        wanted = f"no other {first.aspect}" if first.expected == "not there" else f"{first.aspect} {first.expected}"
        fail(wanted, f"{first.found}{more}", mend)


@pytest.mark.baseline
def test_no_profiler_is_left(container: Container) -> None:
    words = [word for word in container.argv if word.startswith("--profiler-config") or word.endswith("/nsys")]
    words += [m["Destination"] for m in container.raw["Mounts"] if m["Destination"] in {PROFILES_DIR, MARKS_DIR}]
    environment = environment_of(container.raw)
    words += [name for name, value in environment.items() if name == MARKS_VARIABLE or MARKS_DIR in value]
    if words:
        fail("no argument, mount or variable of a profiler", words[0].partition("=")[0], RESTORE)


@pytest.fixture(scope="module")
def manifest(host: Any, serving: Container) -> dict[str, Any] | None:
    """The patch manifest in the running container; None when its image has none."""
    result = host.run("timeout 20 docker exec %s cat %s", serving.id, patches.MANIFEST)
    if result.rc != 0 and "No such file" not in result.stderr:
        unknown(f"the container's patch manifest cannot be read (exit code {result.rc})")
    if result.rc != 0:
        changes = host.run("timeout 20 docker diff %s", serving.id).stdout.splitlines()
        if f"D {patches.MANIFEST}" in changes:
            fail(
                "the image's patch manifest", "it was removed in the container", "run: make restore (a fresh container)"
            )
        return None
    try:
        return patches.parsed(result.stdout)
    except (ValueError, KeyError, TypeError):
        fail("a patch manifest in the container", "another text", "run: make restore; if it stays, make images")


@pytest.mark.baseline
def test_patched_files_are_as_the_image_was_built(
    host: Any, serving: Container, manifest: dict[str, Any] | None
) -> None:
    """Read in the running container: a file changed by hand in there is not what the image id stands for."""
    if manifest is None:
        return
    if manifest["schema"] != patches.SCHEMA:
        unknown(f"the image's patch manifest has schema {manifest['schema']}, this version reads {patches.SCHEMA}")
    names = patches.files_of(manifest)
    result = host.run(f"timeout 20 docker exec {serving.id} sha256sum {shlex.join(names)}") if names else None
    if result and result.rc != 0 and "No such file" not in result.stderr:
        unknown(f"the patched files cannot be read (exit code {result.rc})")
    words = [line.split("  ", 1) for line in (result.stdout if result else "").splitlines()]
    found = patches.problems(manifest, {path: digest for digest, path in words})
    if found:
        fail("the files of the image's patch manifest", found[0], "run: make restore (a fresh container)")


@pytest.mark.repository
def test_the_image_has_the_repositorys_patches(manifest: dict[str, Any] | None, site: Site) -> None:
    wanted = patches.expected(site.variables, site.variables.baseline_image)
    found = patches.lacking(manifest, wanted)
    if found:
        fail(f"an image with {', '.join(wanted)}", "; ".join(found), "run: make images, then make deploy-baseline")


@pytest.mark.history
def test_the_engine_was_never_restarted(history: History, container: Container) -> None:
    if container.restart_count:
        mend = "look at `docker logs` for why it ended, then: make acknowledge"
        fail("0 restarts", f"{container.restart_count}", mend)


@pytest.mark.history
def test_nothing_in_the_container_was_killed_for_memory(host: Any, container: Container) -> None:
    """Docker's own flag is unreliable (moby#15621); the cgroup's counter also sees a child that was killed."""
    mend = "find out what grew (docker logs, dmesg), then: make acknowledge"
    if container.oom_killed:
        fail("0 OOM kills", "OOMKilled set by Docker", mend)
    if not container.running:
        unknown(f"the engine is not running ({container.status}), so its cgroup is gone")
    names = " ".join(CGROUP_EVENTS)
    result = host.run("timeout 20 docker exec %s sh -c %s", container.id, f"cat {names} 2>/dev/null")
    counts = [int(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("oom_kill ")]
    if not counts:
        unknown("the container does not see its cgroup's oom_kill counter")
    if counts[0]:
        fail("0 OOM kills", f"{counts[0]} in its cgroup", mend)
