"""The shape of `vars.yaml`. The file itself documents each key; this says what values it may hold. Built by load.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Text = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00-\x1f]+$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
ContainerName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$")]
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f:]*$")]
RelativePath = Annotated[str, StringConstraints(pattern=r"^[^/\x00-\x1f][^\x00-\x1f]*$")]
ImageReference = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-zA-Z0-9._/:@-]*$")]
Address = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F.:]+$")]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
MarkName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,62}$")]
FunctionPath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
]
ValuePath = Annotated[str, StringConstraints(pattern=r"^(arguments|returned)(\.[A-Za-z0-9_]+)*$")]
Argument = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00]+$")]
Size = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*[kmg]$")]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Positive = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """A section of the file: unknown keys refused, types strict, values frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


class NodeFacts(Part):
    gpu: Literal["nvidia", "none"]
    memory_gib: Annotated[float, Field(gt=0)]
    host_reserve_gib: Annotated[float, Field(ge=0)]


class Listen(Part):
    address: Address
    port: Annotated[int, Field(ge=1, le=65535)]
    allow_beyond_loopback: bool


class Image(Part):
    tag: ImageReference
    build: RelativePath | None
    source: ImageReference | None
    debootstrap: Name | None

    @property
    def pinned(self) -> bool:
        return self.build is not None or "@sha256:" in self.tag


class Model(Part):
    served_name: Text
    path: AbsolutePath
    host_dir: AbsolutePath | None
    revision: Text


class Mount(Part):
    host: AbsolutePath
    container: AbsolutePath
    read_only: bool


class Cache(Part):
    host: AbsolutePath
    container: AbsolutePath


class VerifiedContext(Part):
    tokens: Positive
    record: RelativePath


class Speculative(Part):
    method: Name
    tokens: Positive


class Graph(Part):
    mode: Literal["PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
    breakable: bool
    adaptation: Name | None
    capture_sizes: Annotated[list[Positive], Field(min_length=1)]


class Engine(Part):
    entrypoint: Annotated[list[Argument], Field(min_length=1)]
    kv_cache_dtype: Name
    max_model_len: Positive
    verified_context: VerifiedContext
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    prefix_caching: bool
    speculative: Speculative | None
    reasoning_parser: Name | None
    tool_call_parser: Name | None
    extra_arguments: list[Argument]
    environment: dict[EnvironmentName, Text]
    graph: Graph | None

    @property
    def tokens_per_decode_step(self) -> int:
        """Tokens that one sequence takes in a decode step: 1 + speculative tokens."""
        return 1 + (self.speculative.tokens if self.speculative else 0)


class Mark(Part):
    name: MarkName
    function: FunctionPath
    show: dict[Name, ValuePath]


class Profile(Part):
    tool: Literal["nsys", "torch"]
    nsys_dir: AbsolutePath | None
    graph_trace: Literal["node", "graph"] | None
    windows: Positive
    output_dir: AbsolutePath
    shm_size: Size
    stop_grace_s: Positive
    marks: list[Mark]


class Container(Part):
    name: ContainerName
    shm_size: Size
    memory_limit: Size | None
    pids_limit: Positive
    stop_grace_s: Positive
    log_max_size: Size
    log_max_files: Positive


class Health(Part):
    interval_s: Positive
    timeout_s: Positive
    retries: Positive
    start_period_s: Positive


class Limits(Part):
    ready_s: Seconds
    canary_s: Seconds
    request_s: Seconds
    settle_s: Seconds


class GuardLimits(Part):
    stop_below_gib: Annotated[float, Field(gt=0)]
    sustained_below_gib: Annotated[float, Field(gt=0)]
    sustained_s: Seconds


class Checks(Part):
    minimum_available_gib: Annotated[float, Field(ge=0)]
    minimum_disk_gib: Annotated[float, Field(ge=0)]
    allowed_failed_units: list[Text]
    kernel_patterns: list[Text]


class Measure(Part):
    experiments: list[Name]
    prove: Name | None
    suite: Name | None
    profile: Name | None
    rounds: Positive
    order: Literal["AB", "ABBA"]


class VerdictRules(Part):
    case: Name
    metric: Literal["decode_tokens_per_s", "ttft_s", "ttft_content_s", "duration_s", "group_tokens_per_s"]
    min_gain: Annotated[float, Field(ge=1)]


class ToolCall(Part):
    """`parameters` is the key `schema` (a name that pydantic's models have for themselves)."""

    name: Name
    arguments: dict[Text, Any] | None = None
    parameters: dict[str, Any] | None = Field(default=None, alias="schema")


class Expect(Part):
    exact: Text | None = None
    one_of: Annotated[list[Text], Field(min_length=1)] | None = None
    contains: Annotated[list[Text], Field(min_length=1)] | None = None
    regex: Text | None = None
    number: float | int | None = None
    script: Literal["han", "latin"] | None = None
    tool_call: ToolCall | None = None
    non_empty: Literal[True] | None = None

    @property
    def given(self) -> list[str]:
        """The rules that are set; a case needs exactly one."""
        return [name for name, value in self if value is not None]

    def as_json(self) -> dict[str, Any]:
        """The rule as it stands in the file."""
        return self.model_dump(exclude_none=True, by_alias=True)


class SmokeCase(Part):
    name: Name
    prompt: Text
    max_tokens: Positive
    expect: Expect


class Variables(Part):
    project: Name
    node: NodeFacts
    listen: Listen
    images: dict[Name, Image]
    model: Model
    mounts: list[Mount]
    caches: list[Cache]
    engine: Engine
    graph: Graph
    profile: Profile
    experiments: dict[Name, Annotated[list[Name], Field(min_length=1)]]
    container: Container
    health: Health
    limits: Limits
    guard: GuardLimits
    checks: Checks
    measure: Measure
    verdict: VerdictRules
    smoke: Annotated[list[SmokeCase], Field(min_length=1)]

    @property
    def baseline_image(self) -> str:
        """The name under `images` of what the baseline runs: `graph` once a graph experiment was adopted, else `eager`."""
        return "eager" if self.engine.graph is None else "graph"

    def image_of(self, overlays: list[str]) -> str:
        """The name under `images` of what the baseline with these overlays runs."""
        return "graph" if "graph" in overlays else self.baseline_image

    def graph_of(self, overlays: list[str]) -> tuple[str, Graph] | None:
        """The section whose graphs the baseline with these overlays asks for, with its path; None: it runs eager."""
        if "graph" in overlays:
            return "graph", self.graph
        return None if self.engine.graph is None else ("engine.graph", self.engine.graph)
