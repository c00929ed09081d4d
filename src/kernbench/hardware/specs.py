"""What a machine file says: one pydantic model per group of keys, units in the key names."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from kernbench.errors import MachineError
from kernbench.hardware.collective_specs import CollectivesSpec
from kernbench.hardware.host_specs import HostSpec, StorageSpec
from kernbench.hardware.link_specs import LinksSpec
from kernbench.hardware.rates import PS_PER_NS, PS_PER_US, ceil_ps, cycles_ps, transfer_ps
from kernbench.hardware.scenarios.specs import ScenarioSpec
from kernbench.hardware.spec_base import Count, Cycles, NotNegative, Positive, Share, Spec

MOST_PES = 1 << 16
"""The most PEs of one SIP: each is an engine with a queue of its own."""

_FLOAT32_PASSES = {
    "tf32": ("tf32", 1),
    "tf32x3": ("tf32", 3),
    "bf16x3": ("bfloat16", 3),
    "bf16x6": ("bfloat16", 6),
}
"""What Triton's ``input_precision`` makes of float32 operands: their type, and the passes."""


class GemmSpec(Spec):
    """The matrix engine of a PE. A command occupies whole native tiles."""

    native_m: Count
    """Rows of the result that one pass of the engine computes."""
    native_n: Count
    """Columns of the result that one pass of the engine computes."""
    native_k: Count
    """Products that one pass adds up for each element of the result."""
    fill_drain_cycles: Cycles
    """The time paid once per command: filling and draining the array."""
    efficiency: Share = Fraction(1)
    """Share of its peak that the engine reaches in short runs, once its operands are there."""
    flops_per_clock: dict[str, Count]
    """FLOPs per clock by operand dtype (torch's name), or ``tf32``; a dtype that is absent is not
    supported."""


class MathRates(Spec):
    """Elements per clock of each class of vector operation."""

    simple: Count
    """Add, multiply, compare, select and the like."""
    divide: Count
    """Division and remainder."""
    transcendental: Count
    """Exponentials, logarithms, roots, trigonometry."""
    convert: Count
    """A conversion from one dtype to another."""
    reduce: Count
    """Operands of sums, maxima and scans."""
    exchange: Count = 32
    """Values that lanes of a warp exchange, as reductions do. The default: CUDA C++ Programming
    Guide, warp shuffles per clock cycle per multiprocessor."""


class MathSpec(Spec):
    """The vector engine of a PE."""

    startup_cycles: Cycles
    """The time paid once per command."""
    elements_per_clock: MathRates
    """Its throughput, by class of operation."""


class WarpSpec(Spec):
    """How a PE holds threads: in warps, as a GPU's multiprocessors do."""

    resident: Count
    """Warps of all its programs together."""
    resident_programs: Count
    """Programs, whatever their size."""
    lanes: Count = 32
    """Threads of a warp: 64 in a wave of AMD's."""
    schedulers: Count = 4
    """Each issues for its own warps, and has its part of the engines."""
    thread_registers: Count = 255
    """Registers of 32 bits that one thread can have; what is more is spilled to memory."""
    mma_share: Share = Fraction(1)
    """Share of the matrix engine's rate that products reach whose operands come from registers."""
    reserved_shared_bytes: Cycles = 1024
    """Shared memory that the system takes of each program."""
    shared_bytes_per_clock: Count = 128
    """Bytes per clock of shared memory, to and from registers and the matrix engine."""
    dispatch_cycles: NotNegative = Fraction(11, 10)
    """The time from one program that the device begins to the next, on whatever PE."""
    near_latency_cycles: Cycles = 40
    """Latency of a load that finds its bytes in the PE's own cache, where an earlier one left
    them."""
    cache_latency_cycles: Cycles = 262
    """Latency of a load that the cache of all PEs serves, with nothing else under way."""
    hbm_latency_cycles: Cycles = 472
    """Latency of a load that HBM serves, with nothing else under way."""
    cache_bandwidth_gbps: Positive | None = None
    """Bandwidth of the cache, for loads each of which is for one PE. When missing, that of
    ``cache``."""


class PeSpec(Spec):
    """A processing element: the engines and the scratchpad that one program has to itself."""

    tcm_kib: Count
    """Capacity of the scratchpad."""
    register_kib: Cycles = 0
    """Part of the TCM that holds results and not loads that run ahead: a GPU's registers."""
    shared_memory_kib: Count | None = None
    """What host code reads as the memory that one program has for loads: a GPU's shared memory per
    block. When missing, TCM less the registers."""
    resident_programs: Count
    """How many programs a PE may run at the same time, if TCM holds them."""
    warps: WarpSpec | None = None
    """What decides how a user's Triton kernels run, if PEs hold threads in warps."""
    dma_port_gbps: Positive
    """Between a PE and the rest of the SIP, in each direction."""
    dma_issue_cycles: Cycles
    """Time that a DMA queue spends on every command, however small."""
    gemm: GemmSpec
    """The matrix engine."""
    math: MathSpec
    """The vector engine."""

    @model_validator(mode="after")
    def _shared_memory_is_part_of_tcm(self) -> Self:
        if self.shared_memory_kib is not None and self.shared_memory_kib > self.tcm_kib:
            raise ValueError(
                f"shared_memory_kib is {self.shared_memory_kib}, but tcm_kib is {self.tcm_kib}; "
                "shared memory is a part of TCM"
            )
        return self


class CubeSpec(Spec):
    """The memory of one cube."""

    hbm_gib: Positive
    """Capacity of the cube's HBM."""
    hbm_bandwidth_gbps: Positive
    """Peak bandwidth of the cube's HBM."""
    hbm_efficiency: Share = Fraction(1)
    """Share of the bandwidth that streams reach."""
    hbm_page_bytes: Count = 1
    """Runs of consecutive bytes shorter than this do not stream: they open a DRAM page each."""
    hbm_short_run_efficiency: Share | None = None
    """Share of the bandwidth that short runs reach; that of streams when missing."""
    hbm_load_efficiency: Share | None = None
    """Share of the bandwidth that loads reach with no stores beside them; that of streams when
    missing."""
    hbm_latency_ns: NotNegative
    """The time from a request that misses the cache to its first byte."""
    hbm_burst_bytes: Count
    """The least that DRAM moves: masked or strided tiles move whole bursts."""


class CacheSpec(Spec):
    """A cache that all PEs of a SIP share, between their ports and HBM."""

    capacity_mib: Positive
    """Capacity, of the whole SIP."""
    bandwidth_gbps: Positive
    """What all PEs together read and write in it at most."""
    latency_ns: NotNegative
    """The time from a request that hits to its first byte."""
    retained_share: Share
    """Share of the capacity within which data survives from one wave of programs to the next."""
    write_back: bool = False
    """Whether a store ends once the cache has it, and is written to HBM in the background."""

    @cached_property
    def held_bytes(self) -> int:
        """How much data survives until it is used again."""
        return max(int(self.capacity_mib * 2**20 * self.retained_share), 1)


class MathEnergies(Spec):
    """Picojoules of each class of vector operation, per element."""

    simple: NotNegative
    """Add, multiply, compare, select and the like."""
    divide: NotNegative
    """Division and remainder."""
    transcendental: NotNegative
    """Exponentials, logarithms, roots, trigonometry."""
    convert: NotNegative
    """A conversion from one dtype to another."""
    reduce: NotNegative
    """Operands of sums, maxima and scans."""
    exchange: Count = 32
    """Values that lanes of a warp exchange, as reductions do. The default: CUDA C++ Programming
    Guide, warp shuffles per clock cycle per multiprocessor."""


class PowerSpec(Spec):
    """What a SIP draws, at the clock of the file.

    At a lower clock the voltage falls too, and with its square do the energies of what runs on that
    clock (the engines, TCM, the cache) and of each cycle of ``active_w``. Those of HBM and of links
    stay.
    """

    board_w: Positive
    """What the board may draw: what would draw more runs at a lower clock."""
    measured_w: Positive | None = None
    """The limit of the board on which the machine's rates were measured: their times hold what it
    costs, and kernels whose counted energies are more take less. Left out: rates are those of an
    engine that nothing slows down."""
    cap_w: Positive | None = None
    """A lower limit: kernels that would draw more run at a lower clock. Left out: none."""
    clock_share: Share = 1  # type: ignore[assignment]  # an int is as exact
    """A clock that is locked, relative to the file's."""
    idle_w: NotNegative
    """While nothing runs, and below all that does."""
    active_w: NotNegative
    """On top of that while kernels or collectives run, whatever they do: clocks, schedulers."""
    standby_w: NotNegative = 0  # type: ignore[assignment]
    """As much again that no clock changes: memory that leaves its idle state, leakage."""
    voltage_slope: NotNegative = 1  # type: ignore[assignment]
    """How much of the voltage goes with a share of the clock: with 1 they fall alike."""
    voltage_floor: Share = Fraction(84, 100)
    """The lowest voltage, relative to that at the file's clock; lower clocks save no energy per
    operation."""
    gemm_pj_per_flop: dict[str, NotNegative]
    """Energy by operand dtype, as ``sip.pe.gemm.flops_per_clock``; a multiply-add is two."""
    math_pj_per_element: MathEnergies
    """Energy of the vector engines, their instructions and registers included."""
    tcm_pj_per_byte: NotNegative
    """Into TCM and out of it, of what crosses the PE's port."""
    cache_pj_per_byte: NotNegative
    """Between the shared cache and the PEs' ports; without a cache, between HBM and the ports."""
    hbm_pj_per_byte: NotNegative
    """Between HBM and the cache: DRAM, its interface and its controller."""
    link_pj_per_byte: NotNegative = 0  # type: ignore[assignment]
    """Energy of each link inside a node that a byte takes, both ends together."""
    network_pj_per_byte: NotNegative = 0  # type: ignore[assignment]
    """Energy of each link between nodes, as far as the device pays for it."""
    host_pj_per_byte: NotNegative = 0  # type: ignore[assignment]
    """Between the host and the SIP."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.cap_w is not None and not self.idle_w < self.cap_w:
            raise ValueError(
                f"cap_w must be above idle_w, which no clock changes, but got "
                f"{float(self.cap_w):g} and {float(self.idle_w):g} W"
            )
        if not self.idle_w < self.board_w:
            raise ValueError(
                f"idle_w must be below board_w, but got {float(self.idle_w):g} and "
                f"{float(self.board_w):g} W"
            )
        return self

    @property
    def running_w(self) -> float:
        """What a device draws on top of ``idle_w`` while it does anything, at the file's clock."""
        return float(self.active_w + self.standby_w)

    @property
    def limit_w(self) -> float:
        """What a device draws at most, whatever it does: the board's limit, or a cap below it."""
        return float(self.board_w if self.cap_w is None else min(self.cap_w, self.board_w))

    def voltage_at(self, clock: float) -> float:
        """Return the voltage at a clock, both relative to the file's.

        Source: Zeus (You, Chung and Chowdhury, NSDI 2023), traces of power: time and mean power of
        training under seven to nine limits on V100, A40 and Quadro RTX 6000.
        """
        return max(float(self.voltage_floor), 1 - float(self.voltage_slope) * (1 - clock))

    @property
    def lowers_clocks(self) -> bool:
        """Whether a kernel alone may run at a lower clock than its rates were measured at."""
        return self.measured_w is None or self.limit_w < self.measured_w


class SustainedSpec(Spec):
    """What the clock loses to heat when the GEMM engines work hard for long."""

    clock_loss: Positive
    """How much slower a long kernel at full load is than its first moments suggest: 2 is three
    times as long, as on a board with a low power cap."""
    full_load: Share
    """GEMM utilization from which on the whole loss is paid; below, the loss is in proportion."""
    half_time_us: Positive
    """Duration of a kernel that pays half of the loss."""
    float32_clock_loss: NotNegative | None = None
    """``clock_loss`` of products of float32, which draw the most for a multiplication, on a board
    that meets its limit by them in 50 microseconds; None: the same as of others."""
    half_share: Share = Fraction(1)
    """The share of a vendor library's rate that products of 16 bits reach, however short: a board
    that is at its limit before the loop of a kernel has settled."""


class DieToDieSpec(Spec):
    """The links between the cubes of a SIP."""

    bandwidth_gbps: Positive
    """Into one cube from all others."""
    latency_ns: NotNegative
    """The time added to an access to another cube."""


class HostLinkSpec(Spec):
    """The path of copies between the host and a SIP."""

    bandwidth_gbps: Positive
    """The bandwidth in either direction."""
    latency_ns: NotNegative
    """The time paid once per copy."""


class SipSpec(Spec):
    """One device."""

    clock_ghz: Positive
    """Clock of all engines; everything in cycles counts these."""
    num_cubes: Count
    """HBM stacks with their PEs."""
    pes_per_cube: Count
    """Processing elements of each cube."""
    host_launch_us: NotNegative
    """Time that a launch keeps the rank's host busy."""
    front_end_us: NotNegative
    """Time from a kernel's start on the device to its first command."""
    queued_front_end_us: NotNegative | None = None
    """The same for a kernel that waited in the device's queue for the one before it to end."""
    event_us: NotNegative = Fraction(0)
    """Time that an event with a time stamp takes of its stream, once all before it has ended."""
    driver_mib: NotNegative = Fraction(0)
    """Memory that the driver and error correction keep: no program sees it."""
    context_mib: NotNegative = Fraction(0)
    """Memory that a process takes before its first tensor, for its context and loaded kernels."""
    cube: CubeSpec
    """The memory of each cube."""
    pe: PeSpec
    """The engines and the scratchpad of each PE."""
    cache: CacheSpec | None = None
    """Left out: every access goes to HBM."""
    die_to_die: DieToDieSpec | None = None
    """Needed where there are several cubes."""
    sustained: SustainedSpec | None = None
    """Left out: the clock holds under any load."""
    power: PowerSpec | None = None
    """Left out: energy is not modeled."""
    host_link: HostLinkSpec
    """The path of copies between the host and the SIP."""

    @model_validator(mode="after")
    def _cubes_are_joined(self) -> Self:
        if self.num_cubes > 1 and self.die_to_die is None:
            raise ValueError(
                f"num_cubes is {self.num_cubes}, but nothing joins them: die_to_die is missing"
            )
        return self

    @model_validator(mode="after")
    def _something_is_left_for_programs(self) -> Self:
        if self.hbm_bytes <= self.context_mib * 2**20:
            raise ValueError(
                f"driver_mib ({float(self.driver_mib):g}) and context_mib "
                f"({float(self.context_mib):g}) leave nothing of {float(self.cube.hbm_gib):g} GiB "
                "a cube"
            )
        return self

    @model_validator(mode="after")
    def _pes_can_be_scheduled(self) -> Self:
        if self.num_pes > MOST_PES:
            raise ValueError(
                f"num_cubes ({self.num_cubes}) times pes_per_cube ({self.pes_per_cube}) must be "
                f"at most {MOST_PES}, but is {self.num_pes}"
            )
        return self

    @property
    def num_pes(self) -> int:
        return self.num_cubes * self.pes_per_cube

    @cached_property
    def hbm_bytes(self) -> int:
        """Capacity of the whole SIP that programs see."""
        return int(self.cube.hbm_gib * self.num_cubes * 2**30 - self.driver_mib * 2**20)

    @property
    def tcm_bytes(self) -> int:
        """Capacity of one PE."""
        return self.pe.tcm_kib * 1024

    @property
    def shared_memory_bytes(self) -> int:
        """What host code is told of the TCM of one PE."""
        told_kib = self.pe.shared_memory_kib
        return (told_kib or self.pe.tcm_kib - self.pe.register_kib) * 1024

    @cached_property
    def cube_hbm_gbps(self) -> Fraction:
        """What streams reach of one cube's HBM bandwidth."""
        return self.cube.hbm_bandwidth_gbps * self.cube.hbm_efficiency

    @cached_property
    def hbm_gbps(self) -> Fraction:
        """What streams reach of the whole SIP's HBM bandwidth."""
        return self.cube_hbm_gbps * self.num_cubes

    @cached_property
    def host_launch_ps(self) -> int:
        return ceil_ps(self.host_launch_us * PS_PER_US)

    @cached_property
    def front_end_ps(self) -> int:
        return ceil_ps(self.front_end_us * PS_PER_US)

    @cached_property
    def queued_front_end_ps(self) -> int:
        """What the front end takes of a kernel that directly follows another one."""
        if self.queued_front_end_us is None:
            return self.front_end_ps
        return ceil_ps(self.queued_front_end_us * PS_PER_US)

    @cached_property
    def dispatch_ps(self) -> int:
        """From one program of a launch that begins to the next, where PEs hold warps."""
        warps = self.pe.warps
        return 0 if warps is None else ceil_ps(warps.dispatch_cycles * PS_PER_NS / self.clock_ghz)

    @cached_property
    def event_ps(self) -> int:
        return ceil_ps(self.event_us * PS_PER_US)

    @cached_property
    def short_run_slowdown(self) -> Fraction:
        """How many times longer HBM takes for short runs of bytes than for streams."""
        short = self.cube.hbm_short_run_efficiency
        return Fraction(1) if short is None else max(self.cube.hbm_efficiency / short, Fraction(1))

    @cached_property
    def hbm_latency_ps(self) -> int:
        return ceil_ps(self.cube.hbm_latency_ns * PS_PER_NS)

    def cycles_ps(self, cycles: int) -> int:
        """Return the time of ``cycles`` clock cycles, rounded up."""
        return cycles_ps(cycles, self.clock_ghz)

    def host_copy_ps(self, size_bytes: int) -> int:
        """Return the time of a copy between the host and this SIP, in either direction."""
        latency_ps = ceil_ps(self.host_link.latency_ns * PS_PER_NS)
        return latency_ps + transfer_ps(size_bytes, self.host_link.bandwidth_gbps)

    def hbm_stream_ps(self, size_bytes: int) -> int:
        """Return the time of ``size_bytes`` over all of the SIP's HBM, without latency."""
        return transfer_ps(size_bytes, self.hbm_gbps)

    def hbm_load_ps(self, size_bytes: int) -> int:
        """Return the least time in which loads bring ``size_bytes`` from all of the SIP's HBM."""
        share = self.cube.hbm_load_efficiency
        if share is None:
            return self.hbm_stream_ps(size_bytes)
        return transfer_ps(size_bytes, self.cube.hbm_bandwidth_gbps * share * self.num_cubes)

    def gemm_flops_per_clock(self, dtype_name: str) -> int:
        """Return the matrix engine's rate for operands of a dtype (or ``tf32``), per PE.

        Raises:
            MachineError: The machine gives no rate for it.
        """
        try:
            return self.pe.gemm.flops_per_clock[dtype_name]
        except KeyError:
            known = ", ".join(sorted(self.pe.gemm.flops_per_clock))
            raise MachineError(
                f"the GEMM engine has no rate for {dtype_name} (it has {known}); cast the "
                f"operands, or add sip.pe.gemm.flops_per_clock.{dtype_name} to the machine"
            ) from None

    def float32_passes(self, precision: str) -> tuple[str, int]:
        """Return what float32 operands are multiplied as, and in how many passes.

        ``precision`` is Triton's ``input_precision``. Where the engine has no rate for what that
        asks for, it is float32 itself.
        """
        name, passes = _FLOAT32_PASSES.get(precision, ("float32", 1))
        return (name, passes) if name in self.pe.gemm.flops_per_clock else ("float32", 1)

    def peak_flops_per_s(self, dtype_name: str) -> Fraction:
        """Return the peak of the whole SIP for GEMM operands of a dtype."""
        return self.gemm_flops_per_clock(dtype_name) * self.num_pes * self.clock_ghz * 10**9


class MachineSpec(Spec):
    """A machine file: one device, how many of them there may be, and what joins them."""

    name: str
    """What reports and errors call the machine."""
    description: str = ""
    """One line for ``kernbench machine list``."""
    sizes: tuple[Count, ...] = Field(min_length=1)
    """Numbers of SIPs that the machine comes in; a run takes the smallest that holds its ranks."""
    sip: SipSpec
    """The device; all SIPs are alike but for ``sip_overrides``."""
    sip_overrides: dict[Annotated[int, Field(ge=0)], dict[str, Any]] = Field(default_factory=dict)
    """For single SIPs, by number: the keys of ``sip`` that differ."""
    host: HostSpec | None = None
    """The CPU of eager PyTorch programs; without it a launch takes ``sip.host_launch_us``, and
    Python between operations takes no time."""
    storage: StorageSpec | None = None
    """Where checkpoints go; without it, ``kernbench goodput`` needs their time."""
    links: LinksSpec | None = None
    """May be left out where there is one SIP only."""
    collectives: CollectivesSpec | None = None
    """The collective library; without it a transfer takes what the links take."""
    scenario: ScenarioSpec = ScenarioSpec()
    """Noise and faults of the machine; ``--scenario FILE`` takes these keys, too."""
    cuda_capability: str | None = Field(default=None, pattern=r"^[1-9]\d*\.\d$")
    """The compute capability that programs and kernels see, such as ``"9.0"``; without it the
    machine is no CUDA device to them."""
    kernel_library: str | None = None
    """The architecture whose vendor kernels the machine runs, such as ``sm90``: a file of
    constants that ships with kernbench. Without it, products and attention take the time of
    kernbench's own Triton kernels."""
    usd_per_device_hour: Positive | None = None
    """What one device costs, for ``cost`` in reports, plans and searches."""
    area_mm2: dict[str, NotNegative] = Field(default_factory=dict)
    """The area of parts of a device, by the key that each grows with, such as
    ``sip.cache.capacity_mib``, for ``kernbench sensitivity``."""
    base: str | None = None
    """A machine that ships with kernbench, of which this file says only what differs: nodes and the
    network between them, for example."""
    clusters: tuple[str, ...] = ()
    """Sources of measurements between nodes, whose rows ``kernbench validate`` compares with this
    machine."""
    devices: tuple[str, ...] = ()
    """Names of the device in files of measurements, whose rows ``kernbench validate`` compares with
    this machine."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Where numbers come from, by key path or the start of one; ``assumed`` marks a guess."""

    @property
    def cuda_architecture(self) -> int | None:
        """The capability as Triton writes it: 90 for 9.0."""
        return None if self.cuda_capability is None else int(self.cuda_capability.replace(".", ""))

    @model_validator(mode="after")
    def _a_switch_reduces_where_there_is_one(self) -> Self:
        if self.collectives is None or self.collectives.in_switch is None:
            return self
        if self.links is None or self.links.topology != "switch":
            raise ValueError(
                "collectives.in_switch needs a switch that reduces, but links.topology is "
                f"{self.links.topology if self.links is not None else 'missing'}"
            )
        return self
