"""The checks of a host, shown red on a simulated node with systemd, looked at over SSH as from another machine."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator

import pytest

from gb10.node import Node
from tests.e2e.conftest import EngineImages, Sandbox, deployed, free_port, remove_project
from tests.e2e.simulated import SimulatedNode, name_for
from tests.e2e.states import wait_for

pytestmark = pytest.mark.docker

BOOT = "the host was not rebooted since the deploy"
MARK = "gb10-test-kernel-line"


class Watched:
    """A sandbox deployed on this machine and the simulated node that shares its boot, engine and state."""

    def __init__(self, box: Sandbox, there: SimulatedNode):
        self.box, self.there = box, there

    def verify(self, *words: str) -> tuple[int, dict[str, tuple[str, str]], float]:
        """`gb10 verify --host`: exit code, sentence -> (outcome, message), seconds of the checks."""
        ssh = ["--host", self.there.url, "--ssh-config", str(self.there.ssh_config)]
        result = self.box.gb10("verify", "--json", *ssh, *words)
        assert result.out, result.err
        report = json.loads(result.out)
        found = {r["sentence"]: (r["outcome"], r["message"]) for r in report["results"]}
        return result.code, found, report["duration_s"]


@pytest.fixture(scope="module")
def watched(
    node: Node, test_engine_images: EngineImages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("node")
    box = Sandbox(directory, "onnode", node, test_engine=test_engine_images)
    name = name_for("node")
    try:
        box.change("kernel_patterns: [NV_ERR_NO_MEMORY]", f"kernel_patterns: [{MARK}-{box.port}]")
        box.render()
        there = SimulatedNode(node, name, directory, free_port())
        with deployed(box):
            yield Watched(box, there)
    finally:
        remove_project(node, name)


@contextlib.contextmanager
def failed_unit(at: Watched, scope: str) -> Iterator[None]:
    at.there.run(f"systemd-run {scope} --quiet --unit=gb10-fails false; sleep 0.5")
    wait_for(lambda: at.there.succeeds(f"systemctl {scope} is-failed gb10-fails"), "the unit's failure")
    yield
    at.there.run(f"systemctl {scope} reset-failed")


def a_failed_system_unit(at: Watched) -> contextlib.AbstractContextManager[None]:
    return failed_unit(at, "--system")


def a_failed_user_unit(at: Watched) -> contextlib.AbstractContextManager[None]:
    return failed_unit(at, "--user")


@contextlib.contextmanager
def a_line_in_the_kernel_log(at: Watched) -> Iterator[None]:
    at.there.run(f"echo 'NVRM: {MARK}-{at.box.port}: out of memory' > /dev/kmsg")
    yield


@contextlib.contextmanager
def little_memory_in_proc_meminfo(at: Watched) -> Iterator[None]:
    """The node's own /proc/meminfo, with 1 GiB available: mounted over, so that no memory is really taken."""
    at.there.run(
        "sed 's/^MemAvailable:.*/MemAvailable:    1048576 kB/' /proc/meminfo > /run/meminfo; "
        "mount --bind /run/meminfo /proc/meminfo"
    )
    yield
    at.there.run("umount /proc/meminfo")


@contextlib.contextmanager
def docker_disabled_at_boot(at: Watched) -> Iterator[None]:
    at.there.run("systemctl disable --quiet docker.service")
    yield
    at.there.run("systemctl enable --quiet docker.service")


@contextlib.contextmanager
def a_reboot(at: Watched) -> Iterator[None]:
    at.there.reboot()
    yield


ROWS: list[tuple[str, Callable[[Watched], contextlib.AbstractContextManager[None]], str]] = [
    ("no system unit is failed", a_failed_system_unit, "found gb10-fails.service; look at: systemctl status"),
    ("no user unit is failed", a_failed_user_unit, "found gb10-fails.service; look at: systemctl --user status"),
    ("enough memory is available", little_memory_in_proc_meminfo, "expected at least 2 GiB available, found 1.00 GiB"),
    ("docker starts at boot", docker_disabled_at_boot, "expected docker enabled at boot, found disabled"),
    ("the kernel log is clean since the deploy", a_line_in_the_kernel_log, f"found 1 such, the last: NVRM: {MARK}"),
    (BOOT, a_reboot, "expected boot"),
]
OOM = "no oom kill since the deploy"
"""May turn red along with a reboot: after one the counter should be 0, and the simulated node shows the machine's."""
"""In this order: a line in the kernel log and a reboot cannot be taken back."""


def test_a_sound_node_is_green_over_ssh_and_every_fact_of_the_host_is_known(watched: Watched) -> None:
    watched.there.run("echo 'echo a greeting of the login shell' > /root/.bashrc")
    code, found, seconds = watched.verify()
    watched.there.run("rm /root/.bashrc")
    others = {sentence: outcome for sentence, (outcome, _) in found.items() if outcome != "passed"}
    assert others == {"the engines own parser accepts the flags": "unknown"}, "the test engine has no parser of vLLM's"
    assert code == 0
    print(f"checked over SSH in {seconds:.1f} s")


lasting: set[str] = set()


@pytest.mark.parametrize(("check", "broken", "says"), ROWS, ids=[row[1].__name__ for row in ROWS])
def test_a_check_of_the_host_turns_red_when_its_subject_is_broken(
    check: str,
    broken: Callable[[Watched], contextlib.AbstractContextManager[None]],
    says: str,
    watched: Watched,
    request: pytest.FixtureRequest,
) -> None:
    before = {sentence for sentence, (outcome, _) in watched.verify()[1].items() if outcome == "failed"}
    assert before <= lasting
    with broken(watched):
        code, found, _ = watched.verify()
    red = {sentence: message for sentence, (outcome, message) in found.items() if outcome == "failed"}
    if broken in (a_line_in_the_kernel_log, a_reboot):
        lasting.update({check, OOM})
    others = sorted(set(red) - {check} - before)
    how = broken.__name__.replace("_", " ")
    request.node.user_properties.append(("breakage", [check, how, red.get(check, "NOT RED"), ", ".join(others)]))
    assert code == 1
    assert check in red, red
    assert says in red[check]
    assert set(others) <= ({OOM} if broken is a_reboot else set()), others


def test_an_acknowledgement_on_the_node_is_seen_from_afar(watched: Watched) -> None:
    _, found, _ = watched.verify()
    reboot = f"{BOOT}: {found[BOOT][1]}"
    assert found[BOOT][0] == "failed"
    time.sleep(1)
    watched.box.state.acknowledge([reboot])
    assert watched.verify()[1][BOOT][0] == "acknowledged"


def test_a_host_that_cannot_be_reached_or_has_no_state_is_one_line(watched: Watched) -> None:
    box, there = watched.box, watched.there
    config = ["--ssh-config", str(there.ssh_config)]
    for url, says in (
        (f"ssh://root@127.0.0.1:{free_port()}", "its state cannot be read"),
        ("ftp://127.0.0.1", "is not a host; write ssh://user@name"),
        ("ssh://-oProxyCommand=x", "is not a host"),
        ("ssh://root@127.0.0.1:port", "is not a host"),
    ):
        result = box.gb10("verify", "--host", url, *config)
        assert result.code == 2, result.out
        assert says in result.err
        assert len(result.err.splitlines()) == 1, result.err
    there.run("mount --bind /dev/null /var/run/docker.sock")
    result = box.gb10("verify", "--host", there.url, *config)
    there.run("umount /var/run/docker.sock")
    assert result.code == 2, result.out
    assert "docker does not answer there" in result.err
    box.state_root.joinpath("elsewhere").mkdir()
    result = box.gb10("verify", "--host", there.url, *config, "--state", f"{box.state_root}/elsewhere")
    assert result.code == 2
    assert "no state of" in result.err
