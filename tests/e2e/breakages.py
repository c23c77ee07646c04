"""Ways to break exactly one thing that a check guards, on something real. Each is a context manager over a sandbox whose baseline serves.

`@breaks` names the check that must turn red, words of its message, and which other checks may turn red along with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gb10 import flags, overlays, patches
from gb10.files import write_json
from gb10.node import PROJECT_LABEL
from gb10.state import lease_for
from tests.e2e.conftest import Sandbox
from tests.e2e.states import by_hand, compose_command, wait_for, wedged_with_health_still_200

STALE = "state md says what runs"
Break = Callable[[Sandbox], Iterator[None]]


@dataclass(frozen=True)
class Breakage:
    """One row of the table."""

    check: str
    says: str
    also: frozenset[str]
    how: str
    broken: Callable[[Sandbox], contextlib.AbstractContextManager[None]]


HERE: list[Breakage] = []
"""Broken and looked at on this machine."""


def breaks(check: str, says: str, *, also: set[str] = frozenset()) -> Callable[[Break], Break]:  # type: ignore[assignment]
    """Add a row; the function's name says how it is broken."""

    def add(function: Break) -> Break:
        how = function.__name__.replace("_", " ")
        HERE.append(Breakage(check, says, frozenset(also), how, contextlib.contextmanager(function)))
        return function

    return add


def back(box: Sandbox) -> None:
    result = box.gb10("restore")
    assert result.code == 0, result.err


@contextlib.contextmanager
def recreated(box: Sandbox, **changes: object) -> Iterator[None]:
    """The engine as Compose makes it from the stored file and one change by hand; with `restore` afterwards."""
    override = box.state_root / "by-hand.yaml"
    write_json(override, {"services": {"engine": changes}})
    words = compose_command(box, "--file", str(override), "up", "--detach", "--pull", "never", overlay=None)
    by_hand(words)
    wait_for(lambda: box.container().health in {"healthy", "unhealthy"}, "the engine's start")
    yield
    back(box)


def arguments(box: Sandbox, old: str, new: str) -> list[str]:
    """The baseline's command with one word changed."""
    words = [word.replace(old, new) for word in box.container().raw["Config"]["Cmd"]]
    assert any(new in word for word in words), words
    return words


def inside(box: Sandbox, *words: str) -> None:
    by_hand(["docker", "exec", box.container().id, *words])


@contextlib.contextmanager
def switched(box: Sandbox, name: str) -> Iterator[None]:
    """A switch of the test engine (its README), thrown and put back."""
    inside(box, "touch", f"/tmp/{name}")
    yield
    inside(box, "rm", f"/tmp/{name}")


@breaks("one container of the project is there", "found")
def a_second_container_with_the_projects_label(box: Sandbox) -> Iterator[None]:
    api = box.node.client.api
    labels = {PROJECT_LABEL: box.project}
    other = api.create_container("gb10-gitops/base:bookworm", ["sleep", "300"], labels=labels)["Id"]
    api.start(other)
    yield
    api.remove_container(other, force=True)


@breaks("the engine is running", "found exited (exit code 0); run: make restore")
def docker_stop(box: Sandbox) -> Iterator[None]:
    by_hand(["docker", "stop", box.container().id])
    yield
    back(box)


@breaks("the engine is running", "found paused")
def docker_pause(box: Sandbox) -> Iterator[None]:
    by_hand(["docker", "pause", box.container().id])
    yield
    back(box)


@breaks("the engine is healthy", "expected healthy, found unhealthy", also={STALE})
def a_health_check_that_fails(box: Sandbox) -> Iterator[None]:
    health = {"test": ["CMD", "false"], "interval": "1s", "retries": 1, "start_period": "0s"}
    with recreated(box, healthcheck=health):
        yield


@breaks("the container has the baselines name", "found renamed-by-hand")
def docker_rename(box: Sandbox) -> Iterator[None]:
    before = box.container()
    by_hand(["docker", "rename", before.id, "renamed-by-hand"])
    yield
    by_hand(["docker", "rename", before.id, before.name])


@breaks("the restart policy is the baselines", "expected unless-stopped, found no")
def docker_update_of_the_restart_policy(box: Sandbox) -> Iterator[None]:
    by_hand(["docker", "update", "--restart=no", box.container().id])
    yield
    by_hand(["docker", "update", "--restart=unless-stopped", box.container().id])


@breaks("the image is the stored one", "engine:eager)", also={STALE})
def another_image_under_the_same_tag(box: Sandbox) -> Iterator[None]:
    before = box.node.image_id(f"{box.project}/engine:eager")
    by_hand(["docker", "tag", f"{box.project}/engine:graph", f"{box.project}/engine:eager"])
    with recreated(box):
        by_hand(["docker", "tag", str(before), f"{box.project}/engine:eager"])
        yield


@breaks("every argument is the baselines", "expected argument --max-num-seqs=4, found not there", also={STALE})
def another_argument(box: Sandbox) -> Iterator[None]:
    with recreated(box, command=arguments(box, "--max-num-seqs=4", "--max-num-seqs=5")):
        yield


@breaks(
    "every environment is the baselines",
    "expected environment EXTRA not set, found set (value not shown)",
    also={STALE},
)
def another_variable(box: Sandbox) -> Iterator[None]:
    with recreated(box, environment={"EXTRA": "1"}):
        yield


@breaks("every mount is the baselines", "expected no other mount, found", also={STALE})
def another_mount(box: Sandbox) -> Iterator[None]:
    with recreated(box, volumes=[{"type": "bind", "source": str(box.site), "target": "/extra"}]):
        yield


@breaks("every port is the baselines", "expected no other port, found", also={STALE})
def another_port(box: Sandbox) -> Iterator[None]:
    with recreated(box, ports=["127.0.0.1::8000"]):
        yield


@breaks("every capability is the baselines", "expected no other capability, found +SYS_NICE", also={STALE})
def another_capability(box: Sandbox) -> Iterator[None]:
    with recreated(box, cap_add=["SYS_NICE"]):
        yield


@breaks("every limit is the baselines", "expected limit processes 4096, found 100")
def docker_update_of_a_limit(box: Sandbox) -> Iterator[None]:
    by_hand(["docker", "update", "--pids-limit=100", box.container().id])
    yield
    by_hand(["docker", "update", "--pids-limit=4096", box.container().id])


@breaks("no profiler is left", "found", also={"every mount is the baselines", STALE})
def the_profilers_mount(box: Sandbox) -> Iterator[None]:
    traces = box.state_root / box.project / "profiles"
    traces.mkdir(exist_ok=True)
    with recreated(box, volumes=[{"type": "bind", "source": str(traces), "target": "/profiles"}]):
        yield


@breaks(
    "no profiler is left",
    "expected no argument, mount or variable of a profiler, found PYTHONPATH",
    also={"every environment is the baselines", STALE},
)
def the_marks_on_pythons_path(box: Sandbox) -> Iterator[None]:
    with recreated(box, environment={"PYTHONPATH": "/opt/gb10-marks"}):
        yield


@breaks(
    "no profiler can be started",
    "expected 404 from /start_profile, found 405",
    also={"every argument is the baselines", "no profiler is left", STALE},
)
def the_profilers_argument(box: Sandbox) -> Iterator[None]:
    with recreated(box, entrypoint=["python3", "/server.py", '--profiler-config={"profiler":"torch"}']):
        yield


@breaks(
    "health answers",
    "expected 200 from GET /health, found 503",
    also={"the engine is healthy", "the published port leads to the engine"},
)
def health_says_503(box: Sandbox) -> Iterator[None]:
    with switched(box, "no-health"):
        yield
    wait_for(lambda: box.container().health == "healthy", "health")


@breaks("the published port leads to the engine", "expected an HTTP answer at 127.0.0.1:")
def the_container_is_taken_off_its_network(box: Sandbox) -> Iterator[None]:
    by_hand(["docker", "network", "disconnect", f"{box.project}_default", box.container().id])
    yield
    by_hand(["docker", "rm", "--force", box.container().id])
    back(box)


@breaks("the metrics that are measured are there", "expected vllm:num_preemptions in GET /metrics, found not there")
def a_metric_of_another_name(box: Sandbox) -> Iterator[None]:
    with switched(box, "no-preemptions"):
        yield


@breaks("the metrics answer", "expected 200 from GET /metrics, found 404")
def metrics_are_gone(box: Sandbox) -> Iterator[None]:
    with switched(box, "no-metrics"):
        yield


@breaks(
    "the served name is the baselines",
    "found another-name",
    also={"every argument is the baselines", "a completion comes back", STALE},
)
def another_served_name(box: Sandbox) -> Iterator[None]:
    with recreated(box, command=arguments(box, "--served-model-name=smollm2-135m", "--served-model-name=another-name")):
        yield


@breaks(
    "the context is the baselines",
    "expected a context of 4096 tokens, found 2048",
    also={"every argument is the baselines", STALE},
)
def another_context(box: Sandbox) -> Iterator[None]:
    with recreated(box, command=arguments(box, "--max-model-len=4096", "--max-model-len=2048")):
        yield


@breaks("a completion comes back", "expected a completion within 30 s, found TimeoutError")
def a_frozen_worker_with_health_still_200(box: Sandbox) -> Iterator[None]:
    wedged_with_health_still_200(box)
    yield
    back(box)


@breaks("the engines own parser accepts the flags", "found unrecognized arguments")
def the_recorded_verdict_of_the_parser_is_a_refusal(box: Sandbox) -> Iterator[None]:
    current = box.state.current()
    assert current is not None
    project = overlays.project_for(box.project, box.state.directory)
    service = overlays.service_of(overlays.flatten(box.node, project, [box.state.file_of(current)]))
    path = box.state.directory / flags.RECORD
    before = path.read_bytes() if path.exists() else None
    refusal = {"outcome": "refused", "why": "unrecognized arguments: --max-num-seqs=4"}
    box.state.write_record(flags.RECORD, {flags.key(current.image_id, flags.words_of(service)): refusal})
    yield
    path.write_bytes(before) if before else path.unlink()


@breaks("a baseline is stored with its bytes intact", "expected SHA-256")
def the_stored_file_is_edited(box: Sandbox) -> Iterator[None]:
    current = box.state.current()
    assert current is not None
    path = box.state.file_of(current)
    before = path.read_bytes()
    path.write_bytes(before + b"# damaged\n")
    yield
    path.write_bytes(before)


@breaks("a baseline is stored with its bytes intact", "current.json: does not hold the fields of this version")
def the_record_of_another_version(box: Sandbox) -> Iterator[None]:
    before = box.state.read_record("current.json")
    assert before is not None
    box.state.write_record("current.json", before | {"another_field": 1})
    yield
    box.state.write_record("current.json", before)


@breaks("no experiment holds the node", "found experiment graph since", also={STALE})
def a_lease_is_open(box: Sandbox) -> Iterator[None]:
    box.state.write_lease(lease_for("graph", ["graph"], "prove", 600, "by-hand"))
    yield
    box.state.close_lease()


@breaks("compose yaml has the stored bytes", "found other bytes", also={"every rendered file fits the variables"})
def compose_yaml_is_edited(box: Sandbox) -> Iterator[None]:
    path = box.site / "compose.yaml"
    before = path.read_bytes()
    path.write_bytes(before + b"# an edit\n")
    yield
    path.write_bytes(before)


@breaks("every rendered file fits the variables", "overlays/graph.yaml differs; run: make render")
def vars_yaml_is_edited_and_not_rendered(box: Sandbox) -> Iterator[None]:
    box.change("capture_sizes: [1, 2, 4]", "capture_sizes: [1, 2]")
    yield
    box.change("capture_sizes: [1, 2]", "capture_sizes: [1, 2, 4]")


@breaks(STALE, "found a stale one")
def an_older_state_md(box: Sandbox) -> Iterator[None]:
    path = box.site / "STATE.md"
    before = path.read_text()
    path.write_text(before.replace(box.container().id[:12], "0123456789ab"))
    yield
    path.write_text(before)


@breaks("patched files are as the image was built", "does not have the bytes that the patch manifest says")
def a_patched_file_is_edited_in_the_container(box: Sandbox) -> Iterator[None]:
    inside(box, "sh", "-c", "echo '# by hand' >> /api.py")
    yield
    by_hand(["docker", "rm", "--force", box.container().id])
    back(box)


@breaks(
    "patched files are as the image was built",
    "found it was removed in the container",
    also={"the image has the repositorys patches"},
)
def the_patch_manifest_is_removed_in_the_container(box: Sandbox) -> Iterator[None]:
    inside(box, "rm", patches.MANIFEST)
    yield
    by_hand(["docker", "rm", "--force", box.container().id])
    back(box)


@breaks(
    "the image has the repositorys patches",
    "found its patch manifest lacks mamba-worker-slot, mamba-scheduler-split; run: make images",
)
def vars_yaml_names_another_directory_to_build_from(box: Sandbox) -> Iterator[None]:
    box.change("build: tests/engine", "build: images/cpu")
    yield
    box.change("build: images/cpu", "build: tests/engine")


@breaks("the engine was never restarted", "expected 0 restarts, found 1; look at `docker logs`", also={STALE})
def the_engine_dies_and_docker_starts_it_again(box: Sandbox) -> Iterator[None]:
    os.kill(box.container().raw["State"]["Pid"], signal.SIGKILL)
    wait_for(lambda: box.container().restart_count == 1 and box.container().health == "healthy", "the restart")
    yield
    by_hand(["docker", "rm", "--force", box.container().id])
    back(box)


@breaks("enough disk is free", "expected at least 5 GiB free for")
def the_state_directory_on_a_small_disk(box: Sandbox) -> Iterator[None]:
    directory, keep = box.state.directory, box.state_root / "keep"
    directory.rename(keep)
    directory.mkdir()
    by_hand(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(directory)])
    by_hand(["cp", "-a", f"{keep}/.", str(directory)])
    yield
    by_hand(["umount", str(directory)])
    directory.rmdir()
    keep.rename(directory)
