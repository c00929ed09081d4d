"""From ``kernel[grid](...)`` to the run: which arguments, on which grid, to whom."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from triton import knobs
from triton.compiler.compiler import max_shared_mem
from triton.runtime import driver as triton_driver

from kernbench.errors import InternalError, UsageError
from kernbench.logs import logger
from kernbench.triton_backend.binary import (
    KernelBinary,
    Room,
    SharedMemoryExhaustedError,
    TcmExhaustedError,
    build_binary,
)
from kernbench.triton_backend.driver import ENTERED, KernbenchDriver
from kernbench.triton_backend.places import moved_files, with_files
from kernbench.triton_backend.proton import PROTON

MAX_PROGRAMS = 2**27
"""The most programs of a launch: planning it takes 75 bytes of memory for each."""
_CUDA_GRID = (2**31 - 1, 65_535, 65_535)
"""Source: CUDA C++ Programming Guide, technical specifications per compute capability."""
_HIP_THREADS = 2**32 - 1
"""The most threads of one dimension. Source: HIP runtime API, ``hipModuleLaunchKernel``."""
_LOG = logger("compile")

_MOST_ANYWHERE = min(_CUDA_GRID)
"""A size of a grid that every machine takes in each dimension."""

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What host code asks a driver for of one SIP."""

    clock_ghz: float
    hbm_bytes_per_ns: float
    event_ms: float = 0.0
    """What an event adds to the time of what it ends."""


class Launcher(Room, Protocol):
    """What a run offers to Triton: somewhere to launch kernels and someone to time them."""

    cuda_architecture: int | None
    """What the machine says that it is to programs and kernels, 90 for 9.0; None: not CUDA's."""

    def launch(self, binary: KernelBinary, grid: Grid, args: tuple[Any, ...]) -> None:
        """Enqueue a kernel; ``args`` are those of the TTIR function's parameters, in order."""

    def most_resident(self, binary: KernelBinary) -> int:
        """Return how many programs of a kernel the current rank's SIP holds at a time."""

    def num_pes(self) -> int:
        """Return how many PEs the current rank's SIP has."""

    def device_rates(self) -> DeviceRates:
        """Return clock, memory bandwidth and the time of an event of the current rank's SIP."""

    def latest_ns(self) -> Callable[[], float] | None:
        """Return what waits for the rank's latest launch and gives its time, if it has any."""

    def tunes(self, kept: frozenset[str] | None) -> None:
        """Note that a tuner benchmarks the kernel whose launch follows.

        ``kept`` are the arguments that it resets or restores; None: it does not, or the tuner is
        not to be judged.
        """

    def benchmark_ms(self, fn: Callable[[], Any]) -> float:
        """Return the modeled time of what ``fn`` launches, with no effect on time or data."""


def active_launcher() -> Launcher:
    """Return the run that the calling code is inside of, or else the one that began last.

    Raises:
        UsageError: Triton's active driver belongs to no run.
    """
    driver = triton_driver.active
    if isinstance(driver, KernbenchDriver):
        return ENTERED.get() or driver.launcher
    raise UsageError(
        f"a kernel compiled for kernbench was launched while {type(driver).__name__} is active; "
        "launch it inside `with kernbench.RuntimeContext(...)`"
    )


class CompiledLauncher:
    """Launches one compiled kernel. Triton keeps it with the kernel, maybe over several runs.

    So it holds nothing of a run: the launcher and its TCM capacity are asked for at each launch.
    """

    def __init__(self, src: Any, metadata: Any) -> None:
        self._name: str = metadata.name
        self._num_warps: int = metadata.num_warps
        self._num_stages: int = metadata.num_stages
        self._matrix_side: int = metadata.matrix_instr_nonkdim
        self._is_cooperative: bool = getattr(metadata, "launch_cooperative_grid", False)
        self._stands_for_library: bool = getattr(
            getattr(src, "fn", None), "stands_for_library", False
        )
        self._constants = named_constants(src)
        self._signature: Mapping[str, Any] = src.signature
        is_gluon = getattr(getattr(src, "language", None), "name", "") == "GLUON"
        self.pick = build_argument_picker(src.signature, is_gluon)
        """Picks those of the TTIR function from a launch's arguments."""
        self._binary: KernelBinary | None = None
        self._moved = moved_files(getattr(metadata, "files", {}), getattr(src, "fn", None))
        _LOG.debug("%s is ready, num_warps=%d", self._name, self._num_warps)
        # Triton keeps what the first machine of the process had, and refuses by that for good.
        max_shared_mem.cache_clear()
        self._check_memory(metadata)

    def _check_memory(self, metadata: Any) -> None:
        """Refuse what does not fit, before Triton does, which cannot say what takes the bytes."""
        launcher = active_launcher()
        tcm, shared = launcher.tcm_capacity_bytes(), launcher.shared_memory_bytes()
        spilled = 0 if metadata.spills else metadata.tcm_bytes
        for error, required, limit, tiles in (
            (TcmExhaustedError, spilled, tcm, metadata.tcm_tiles),
            (SharedMemoryExhaustedError, metadata.shared, shared, metadata.shared_tiles),
        ):
            if required > limit:
                largest = tuple(self._in_their_files(tiles))
                raise error(required, limit, self._name, self._num_stages, largest)

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        ttir: bytes | str,
        packed_metadata: Any,
        launch_metadata: Any,
        enter_hook: Callable[[Any], Any] | None,
        exit_hook: Callable[[Any], Any] | None,
        *args: Any,
    ) -> None:
        launcher = active_launcher()
        try:
            picked = self.pick(args)
        except UsageError:
            raise
        except (IndexError, ValueError):
            raise self._too_few(args) from None
        binary = self._binary or self._read(ttir, len(picked))
        binary.check_room(launcher)
        grid = (grid_x, grid_y, grid_z)
        if not (
            type(grid_x) is type(grid_y) is type(grid_z) is int
            and min(grid) > 0
            and max(grid) <= _MOST_ANYWHERE
            and grid_x * grid_y * grid_z <= MAX_PROGRAMS
        ):
            grid = check_grid(self._name, grid, self._grid_limits(launcher))
        if self._is_cooperative:
            check_cooperative(binary, grid, launcher)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        # Triton's launchers do nothing for a grid without programs.
        if all(grid):
            launcher.launch(binary, grid, picked)
            if PROTON.is_recording:
                PROTON.note(self._name, launcher.latest_ns())
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _grid_limits(self, launcher: Launcher) -> tuple[str, Grid]:
        """Return who limits the sizes of a grid, and how large each may be."""
        if self._stands_for_library or not launcher.counts_warps:
            return "kernbench", (MAX_PROGRAMS,) * 3
        if launcher.cuda_architecture is not None:
            return "CUDA", _CUDA_GRID
        threads = self._num_warps * launcher.warp_lanes
        return "HIP", (_HIP_THREADS // threads, _HIP_THREADS, _HIP_THREADS)

    @property
    def plain(self) -> KernelBinary | None:
        """The fast path of a launch, where no hook and no profiler is installed.

        None where one does, and before the first launch.
        """
        runtime = knobs.runtime
        if (
            PROTON.is_recording
            or _is_heard(runtime.launch_enter_hook)
            or _is_heard(runtime.launch_exit_hook)
        ):
            return None
        return self._binary

    def _too_few(self, args: tuple[Any, ...]) -> UsageError:
        names = [name for name, ty in self._signature.items() if ty != "constexpr"]
        return UsageError(
            f"kernel {self._name} was launched with {len(args)} arguments, but its parameters "
            f"{', '.join(map(str, names))} need one each, at their places among its "
            f"{len(self._signature)}"
        )

    def _read(self, ttir: bytes | str, num_args: int) -> KernelBinary:
        text = ttir.decode() if isinstance(ttir, bytes) else ttir
        text = with_files(text, self._moved)
        binary = build_binary(
            *(text, self._name, self._num_warps, self._num_stages, self._constants),
            stands_for_library=self._stands_for_library,
            matrix_side=self._matrix_side,
        )
        if len(binary.signature) != num_args:
            raise InternalError(
                f"kernel {self._name} has {len(binary.signature)} parameters in TTIR, but Triton's "
                f"signature gives {num_args} arguments"
            )
        self._binary = binary
        return binary

    def _in_their_files(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines of a message that end with a place in a file."""
        names = {Path(old).name: Path(new).name for old, new in self._moved.items()}
        for line in lines:
            what, at, place = line.rpartition(" at ")
            file, _, number = place.rpartition(":")
            yield f"{what} at {names.get(file, file)}:{number}" if at else line


def _is_heard(hook: Any) -> bool:
    """Return whether a hook is installed: not None, and not an empty chain of Triton's."""
    return bool(hook.calls) if type(hook) is knobs.HookChain else hook is not None


def named_constants(src: Any) -> tuple[tuple[str, str], ...]:
    """Return what a kernel's source was specialised to, as names and values.

    A source that is TTIR text itself has none.
    """
    names = getattr(getattr(src, "fn", None), "arg_names", ())
    constants = []
    for path, value in getattr(src, "constants", {}).items():
        first, *rest = path if isinstance(path, tuple) else (path,)
        name = names[first] if isinstance(first, int) and first < len(names) else str(first)
        text = str(getattr(value, "value", value))
        constants.append((name + "".join(f"[{index}]" for index in rest), text))
    return tuple(constants)


def check_grid(name: str, grid: tuple[Any, Any, Any], limits: tuple[str, Grid]) -> Grid:
    """Return the grid as plain integers.

    ``limits``: who sets them, and the largest size in each dimension.

    Raises:
        UsageError: A size is no integer, negative or too large, or there are too many programs.
    """
    try:
        x, y, z = (operator.index(size) for size in grid)
    except TypeError:
        types = ", ".join(type(size).__name__ for size in grid)
        raise UsageError(
            f"grid of kernel {name} must be integers, but got {grid} ({types}); "
            "use triton.cdiv or // for sizes"
        ) from None
    if min(x, y, z) < 0:
        raise UsageError(
            f"grid of kernel {name} must not be negative in any dimension, but got {(x, y, z)}"
        )
    if 0 in (x, y, z):
        return x, y, z
    who, most = limits
    for axis, size, limit in zip("xyz", (x, y, z), most, strict=True):
        if size > limit:
            raise UsageError(
                f"grid {(x, y, z)} of kernel {name} has {size:,} programs in {axis}, but {who} "
                f"takes at most {limit:,} there; "
                + ("let each program do more" if axis == "x" else "put the longest dimension in x")
            )
    if x * y * z > MAX_PROGRAMS:
        raise UsageError(
            f"grid {(x, y, z)} of kernel {name} has {x * y * z:,} programs, but at most "
            f"{MAX_PROGRAMS:,} can be simulated; let each program do more"
        )
    return x, y, z


def check_cooperative(binary: KernelBinary, grid: Grid, launcher: Launcher) -> None:
    """Refuse a cooperative launch of more programs than the device holds, as a driver does.

    Raises:
        UsageError: It is one.
    """
    x, y, z = grid
    most = launcher.most_resident(binary)
    if x * y * z > most:
        raise UsageError(
            f"kernel {binary.name} is launched with launch_cooperative_grid=True on {x * y * z:,} "
            f"programs, but the device holds {most:,} of them at a time; launch at most as many, "
            "each of which does more"
        )


def build_argument_picker(
    signature: Mapping[str, Any], is_gluon: bool = False
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return the function from a launch's arguments to those that are left in TTIR.

    Constants of the specialisation are gone there (``constexpr`` in the signature: also integers
    that are 1, and None); tuples and tensor descriptors are flattened. Who launches a compiled
    kernel may leave out the constants behind the last argument that is left, as on a GPU.
    """
    types = tuple(signature.values())
    kept = [index for index, ty in enumerate(types) if ty != "constexpr"]
    if any(not isinstance(ty, str) or ty.startswith("tensordesc") for ty in types):
        needed = kept[-1] + 1
        return lambda args: tuple(_flatten(types[:needed], args[:needed], is_gluon))
    if not kept:
        return lambda args: ()
    if len(kept) == 1:
        only = kept[0]
        return lambda args: (args[only],)
    return operator.itemgetter(*kept)


def _flatten(types: tuple[Any, ...], args: tuple[Any, ...], is_gluon: bool) -> Iterator[Any]:
    for ty, arg in zip(types, args, strict=True):
        if not isinstance(ty, str):
            yield from _flatten(tuple(ty), tuple(arg), is_gluon)
        elif ty.startswith("tensordesc") and is_gluon:
            if ty.startswith("tensordesc_im2col"):
                raise UsageError(
                    "a descriptor for a Gluon kernel copies in im2col mode, which is not "
                    "simulated; load the pixels by their addresses"
                )
            if arg.padding == "nan":
                raise UsageError(
                    "a descriptor for a Gluon kernel pads with NaN, which is not simulated; "
                    'make it with padding="zero" and mask what lies outside'
                )
            yield from (arg.base, *arg.shape, *arg.strides)
        elif ty.startswith("tensordesc"):
            # The parameters that Triton's rewrite to pointers makes of one descriptor.
            yield from (arg.base, *arg.shape, *arg.strides, arg.padding == "nan")
            if hasattr(arg, "round_f32_to_tf32"):
                yield arg.round_f32_to_tf32
            yield from (*arg.shape, *arg.strides)
        elif ty != "constexpr":
            yield arg
