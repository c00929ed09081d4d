"""What the parts of a saved run in JSON describe, as models that a file is held to (ADR-0234)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kernbench.saved.layout import MOST, MOST_TEXT

Count = Annotated[int, Field(ge=0, le=MOST)]
Number = Annotated[float, Field(ge=0, le=1e300)]
_MOST_TTIR = 1 << 26


class _Described(BaseModel):
    """An object of JSON: of the types that it says, and perhaps with more than it says."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="allow",
        allow_inf_nan=False,
        defer_build=True,
        str_max_length=MOST_TEXT,
    )


class MachineData(_Described):
    """As ``hardware.machine_data`` returns it; the machine itself is validated as of a file."""

    spec: dict[str, Any]
    num_sips: Annotated[int, Field(ge=1)]
    shape: list[Annotated[int, Field(ge=1)]] | None
    num_hosts: Annotated[int, Field(ge=1)] = 1
    """Runs that were saved before there were nodes have one."""


class KernelData(_Described):
    name: str
    launches: Count
    time_ns: Number
    flops: Count
    bytes: Count
    utilization: Number
    bound_by: str


class CollectiveData(_Described):
    op: str
    algorithm: str
    count: Count
    bytes: Count
    time_ns: Number


class AccuracyData(_Described):
    family: str
    error_percent: float | None
    rows: Count
    share: Number
    elsewhere_percent: float | None = None
    elsewhere_rows: Count = 0
    programs_percent: float | None = None
    programs_rows: Count = 0


class RankData(_Described):
    rank: Count


class ReportData(_Described):
    """What is read again of a run's report."""

    machine: str
    ranks: Annotated[int, Field(ge=1)]
    per_rank: list[RankData]
    """Figures of each rank that ran."""
    kernels: list[KernelData]
    collectives: list[CollectiveData]
    accuracy: list[AccuracyData] | None = None
    cost_usd: Number | None = None
    wall_s: Number | None = None
    remarks: list[str] = []


class Version(_Described):
    """Which kernbench has saved a run."""

    format: int
    kernbench: Annotated[str, Field(max_length=100)]


class About(Version):
    """A run, but for its tables."""

    program: str
    machine: MachineData
    report: ReportData
    graphs: dict[str, list[str]]
    running: list[Count] | None = None
    sources: list[str]


class Given(_Described):
    """What a template was launched with."""

    grid: Annotated[list[Count], Field(min_length=1, max_length=3)] | None = None
    num_warps: Count = 0
    arguments: dict[str, Any] | None = None
    shapes: list[Any] | None = None
    dtypes: list[Any] | None = None
    itemsize: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    root: int | None = None
    resident_programs: Count = 0
    spilled_registers: Count = 0


class _NamedWork(_Described):
    """A piece of work that ranks did."""

    kind: Any
    name: str


class HostWork(_NamedWork):
    kind: Literal["host"]


class TransferWork(_NamedWork):
    kind: Literal["transfer"]
    sip: Count
    bytes: Count


class KernelWork(_NamedWork):
    kind: Literal["kernel"]
    text: Count
    grid: Annotated[list[Count], Field(min_length=3, max_length=3)]
    ints: list[tuple[int, int]]
    policies: list[tuple[Count, dict[str, Any]]]
    follows: bool
    cached: list[tuple[str | int, str]]
    tables: list[list[int]]


class KernelOperation(KernelWork):
    kind: Literal["kernel operation"]  # type: ignore[assignment] # it is one of PyTorch's
    sip: Count
    phase: Annotated[int, Field(ge=0, le=2)] = 0
    cold: list[int] | None = None


class DecidedByData(_NamedWork):
    kind: Literal["decided by data"]
    launch: Count
    addresses: list[int]
    operands: list[list[Any]]


class AsItWas(_NamedWork):
    kind: Literal["as it was"]
    launches: Annotated[list[Count], Field(min_length=1, max_length=2)]


class OperationWork(_NamedWork):
    kind: Literal["operation"]
    operation: tuple[str, str]
    given: Annotated[list[Any], Field(min_length=3, max_length=3)]
    allowed: list[str]
    float32: dict[str, Any]
    sip: Count
    launches: Annotated[list[Count], Field(min_length=2, max_length=2)]
    phase: Annotated[int, Field(ge=0, le=2)] = 0


class Streamed(_Described):
    kind: Literal["streamed"]
    given: tuple[str, Count, Count, Count]
    float32: dict[str, Any]
    phase: Annotated[int, Field(ge=0, le=2)] = 0


class PartWork(_NamedWork):
    kind: Literal["part"]
    has_host: bool
    op: str
    shapes: list[list[Count]]
    dtype: tuple[str, Annotated[int, Field(ge=1, le=1 << 16)]] | None
    reduce_op: str
    root: int
    algorithm: str
    num_elements: Count | None
    protocol: str
    sent: list[Count]
    taken: list[Count]
    called: str
    sip: Count
    site: tuple[str, Count]
    position: Count
    channel: Count
    stream: Annotated[int, Field(ge=-1)]


Work = Annotated[
    HostWork
    | TransferWork
    | KernelWork
    | KernelOperation
    | DecidedByData
    | AsItWas
    | OperationWork
    | Streamed
    | PartWork,
    Field(discriminator="kind"),
]


class Text(_Described):
    """A kernel."""

    ttir: Annotated[str, Field(max_length=_MOST_TTIR)]
    name: str
    num_warps: Annotated[int, Field(ge=1, le=1024)]
    num_stages: Annotated[int, Field(ge=0, le=1024)]
    matrix_side: Annotated[int, Field(ge=0, le=1024)] = 0
    constants: list[Any]


class KeptMeeting(_Described):
    """A collective."""

    title: str
    ranks: Annotated[list[Count], Field(min_length=1)]
    timeout_ps: Count | None
    call: Count


class FoldingData(_Described):
    num_ranks: Annotated[int, Field(ge=1)]
    axes: list[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]]
    base: Count


class DescribedActions(_Described):
    """What the numbers of actions stand for."""

    tf32: Literal["round", "truncate", "ieee"]
    actors: Annotated[list[Count], Field(min_length=1)]
    works: list[Work]
    texts: list[Text]
    streams: list[tuple[Count, Annotated[int, Field(ge=0, lt=1 << 12)]]]
    meetings: list[KeptMeeting]
    tuples: list[list[int]]
    spends: list[tuple[str, str, Count, Count]] = []
    owed: list[list[tuple[str, Count]]] = []
    labels: list[str] = []
    refused: list[str]
    asked: dict[str, Count]
    peak_bytes: list[tuple[Count, Count]] = []
    folding: FoldingData | None = None
    pytorch: bool = False
    counts_python: bool = False
