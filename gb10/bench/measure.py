"""A run: the arms of a suite one after the other, its requests, memory and events on disk. Called by the command line and experiment.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gb10 import effect, facts, files
from gb10.bench import counters, gpu, records, runner, suite
from gb10.bench.runner import Limits, Target
from gb10.bench.suite import Suite
from gb10.context import Context
from gb10.errors import RefusedError
from gb10.facts import GIB
from gb10.memory import LowWater
from gb10.site import commit_of
from gb10.state import now

SCHEMA = 1
STALL_FACTOR = 2
MEMORY_EVERY_S = 2.0


def suite_of(context: Context, name: str) -> tuple[Suite, str]:
    """A suite of the site, by name. Raises `RefusedError` or `VariablesError`."""
    return suite.load(context.site.directory / "suites" / f"{name}.yaml")


def refuse_beyond_verified(context: Context, name: str, mend: str) -> None:
    """A suite longer than the verified context is refused: near the limit a GB10 froze. `mend`: what to do in this command."""
    chosen, _ = suite_of(context, name)
    longest = max((case.archive.tokens for case in chosen.cases if case.archive), default=0)
    verified = context.site.variables.engine.verified_context.tokens
    if longest > verified:
        what = f"asks for {longest} tokens, beyond the verified context of {verified}"
        raise RefusedError(f"suite {name}", what, mend)


@dataclass
class Run:
    """What is measured in one evidence directory. `record` is run.json; `lines` are what requests.jsonl holds."""

    context: Context
    directory: Path
    record: dict[str, Any]
    began: float = field(default_factory=time.monotonic)
    lines: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def begin(cls, context: Context, directory: Path, name: str, sha256: str, rounds: int) -> Run:
        """An empty run; nothing is sent yet."""
        guard = context.site.variables.guard
        record = {
            "schema": SCHEMA,
            "kind": "run",
            "site": context.site.project,
            "commit": commit_of(context.site).id,
            "host": facts.host_name(),
            "started_at": now(),
            "ended_at": None,
            "suite": {"name": name, "sha256": sha256},
            "rounds": rounds,
            "order": [],
            "partial": None,
            "diagnostic": None,
            "arms": {},
            "requests": {"file": "requests.jsonl", "sha256": None},
            "events": [],
            "memory": [],
            "floors": {
                "stop_below_bytes": int(guard.stop_below_gib * GIB),
                "sustained_below_bytes": int(guard.sustained_below_gib * GIB),
            },
        }
        return cls(context, directory, record)

    def event(self, arm: str, what: str) -> None:
        """Something that happened, on the run's own clock."""
        self.record["events"].append({"at_s": round(time.monotonic() - self.began, 2), "arm": arm, "what": what})

    def arm(
        self,
        name: str,
        overlays: list[str],
        container: dict[str, Any],
        chosen: Suite,
        *,
        stop_on_failure: bool = False,
        opening: Callable[[str], None] = lambda window: None,
    ) -> list[dict[str, Any]]:
        """Run the suite against the engine that serves now, as one arm. What was measured is kept however it ends.

        An arm that was measured before (A-B-B-A) goes on counting its rounds; what is recorded of it is its first start.
        `container`: its record in the evidence, whose arguments hold nothing that is not committed. `opening`: told of each
        capture window before it is opened.
        """
        v, url = self.context.site.variables, self.context.site.url
        block = counters.block_size(url)
        earlier = self.record["order"].count(name)
        entry = self.record["arms"].get(name) or {
            "overlays": overlays,
            "image_id": container["image_id"],
            "argv": container["argv"],
            "container_started_at": container["started_at"],
            "block_size": block.as_json(),
            "graph_effective": self._effect(container["id"]) if effect.asked_for(container["argv"]) else None,
            "guard_tripped": None,
            "oom_kill": {"before": facts.oom_kill_count().as_json(), "after": None},
            "lowest_available_bytes": {"unknown": "it was not measured to its end"},
        }
        self.record["order"].append(name)
        self.record["arms"][name] = entry
        if "profile" in overlays:
            self.record["diagnostic"] = records.PROFILER
        limits = Limits(v.limits.request_s * STALL_FACTOR, v.limits.request_s)
        marks = (records.PROFILER,) if "profile" in overlays else ()
        watch = gpu.Watch()

        def window(case: str) -> None:
            self.event(name, f"capture window {case}")
            opening(case)

        target = Target(name, url, v.model.served_name, limits, marks, watch.marks, window)
        measured: list[dict[str, Any]] = []
        path = self.directory / "requests.jsonl"
        self.event(name, "begins")
        memory = LowWater(facts.available_bytes(), interval_s=MEMORY_EVERY_S, each=self._sample)
        try:
            with records.Writer(path) as writer, watch:

                def write(record: dict[str, Any]) -> None:
                    writer.write(records.parsed(record["group"], record))

                for record in runner.run(chosen, self.record["rounds"], target, write, self._progress, earlier):
                    measured.append(record)
                    if stop_on_failure and not record["right"]:
                        self.record["partial"] = f"stopped at the first wrong answer ({record['case']})"
                        break
        except BaseException as error:
            self.record["partial"] = f"ended in {name} by {type(error).__name__}"
            raise
        finally:
            entry["oom_kill"]["after"] = facts.oom_kill_count().as_json()
            lowest, earlier_lowest = memory.stop(facts.available_bytes()), entry["lowest_available_bytes"]
            both = [value for value in (lowest.value, earlier_lowest) if isinstance(value, int)]
            entry["lowest_available_bytes"] = min(both) if both else lowest.as_json()
            self.lines += measured
            seen = watch.summary()
            self.event(name, f"ends; {seen.value if seen.known else f'GPU clock unknown ({seen.why})'}")
            self.save()
        return measured

    def save(self) -> None:
        """Write run.json, with the hash of the requests."""
        path = self.directory / "requests.jsonl"
        self.record["requests"]["sha256"] = files.sha256(path.read_bytes()) if path.is_file() else None
        self.record["ended_at"] = now()
        files.write_json(self.directory / "run.json", self.record)

    def _sample(self, available: int) -> None:
        at_s = round(time.monotonic() - self.began, 1)
        self.record["memory"].append({"at_s": at_s, "available_bytes": available})

    def _effect(self, container_id: str) -> Any:
        log = self.context.node.log(container_id).decode("utf-8", "replace")
        return effect.graph_effective(log)[0].as_json()

    def _progress(self, text: str) -> None:
        self.context.progress.waiting(text)


def not_exercised(lines: list[dict[str, Any]], chosen: Suite, block: Any) -> list[str]:
    """Cases that should be prefix hits and were not whole blocks, in words: such a run proves nothing about reuse."""
    wanted = {case.name for case in chosen.cases if case.hit}
    found = []
    for line in lines:
        if line["case"] not in wanted or line["round"] == 0 or line["concurrency"] != 1:
            continue
        hits, where = line["hit_tokens"], f"round {line['round']}, {line['case']}"
        if hits is None or not isinstance(block, int):
            found.append(f"{where}: the engine's hits or its block size are unknown")
        elif hits == 0:
            found.append(f"{where}: no token came from the cache")
        elif hits % block:
            found.append(f"{where}: {hits} tokens are not whole blocks of {block}")
    return found
