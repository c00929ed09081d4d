"""The ``torch`` that a bench receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ContextDecorator, ExitStack
from contextvars import ContextVar, Token
from html import escape
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, cast

from kernbench.checks import Checks
from kernbench.clock import Handle
from kernbench.commands import Tf32
from kernbench.dtypes import DType, TorchNames
from kernbench.errors import UsageError
from kernbench.hardware import Machine
from kernbench.notebooks import notebook_progress
from kernbench.op_log import OpLog, uncollected
from kernbench.runtime_api.base.actions import Keeper
from kernbench.runtime_api.base.rank_state import LaunchAttributes
from kernbench.runtime_api.base.run import Run
from kernbench.runtime_api.front import factories
from kernbench.runtime_api.front.advice import advise
from kernbench.runtime_api.front.ahbm import Ahbm
from kernbench.runtime_api.front.distributed import Distributed
from kernbench.runtime_api.front.multiprocessing import Multiprocessing
from kernbench.runtime_api.front.symmetric_memory import SymmetricMemory
from kernbench.runtime_api.front.testing import Testing
from kernbench.runtime_api.launches.kernel_engine import KernelEngine
from kernbench.runtime_api.launches.launcher import KernelLauncher
from kernbench.runtime_api.tensors.device import Device
from kernbench.runtime_api.tensors.operators import missing, operators
from kernbench.runtime_api.tensors.tensor import Tensor
from kernbench.triton_backend import activate

if TYPE_CHECKING:
    from kernbench.report import Report
    from kernbench.runtime_api.tensors.torch_names import TorchFunctions
else:
    TorchFunctions = object


class NoGradients(ContextDecorator):
    """A block, or a decorated function, without gradients, as all of a bench is."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        return None


# Every greenlet has a context of its own; a rank starts with its spawner's.
_CURRENT: ContextVar[RuntimeContext | None] = ContextVar("kernbench_run", default=None)


def current_context() -> RuntimeContext:
    """Return the innermost run that the calling code is inside of.

    Raises:
        UsageError: There is none.
    """
    context = _CURRENT.get()
    if context is None:
        raise UsageError(
            "there is no run here; use `with kernbench.RuntimeContext(machine=...) as torch:`"
        )
    return context


class RuntimeContext(TorchNames, TorchFunctions):
    """One run on a simulated machine, shaped like the module ``torch``.

    Args:
        machine: A preset's name, one with a size (``"ahbm:64"``), a YAML file or a Machine.
        ranks: The size of a preset, and :attr:`world_size`. None: as many as the SIPs of a Machine
            or of a name's size (``"ahbm:64"``), else 1; a preset is then as large as it comes.
        data: Whether tensors hold numbers. Without, only shapes and time exist.
        seed: What all random numbers depend on.
        check: Whether replay looks for reads of unwritten memory, races, undefined values and
            overflowing addresses, which are errors, and for NaN that first appears, which is a
            warning. Without data only addresses are checked. None: as ``KERNBENCH_CHECK`` says (0,
            1, or nan for 1 with ``nan_is_error``), which is 1 inside pytest unless it is set.
        nan_is_error: Whether NaN that first appears is an error; needs ``check``. None: no, or as
            ``KERNBENCH_CHECK`` says where ``check`` is None.
        allow: Names of mistakes to let pass: ``"masked-lanes"`` (lanes masked off without
            ``other=`` are zeros, as on NVIDIA's GPUs) and ``"out-of-bounds-reads"`` (they read
            zeros and are a warning, with and without ``check``). None: as ``KERNBENCH_ALLOW`` says
            (names with commas between them).
        tf32: How float32 operands of products are rounded whose kernel asks for less than float32
            (``input_precision``, Triton's default is tf32), on a machine with an engine for that:
            ``"round"`` to nearest, ``"truncate"``, or ``"ieee"``: not at all.
        record_memory: Whether :attr:`op_log` has what was allocated, when, where and what for
            (``kernbench memory``).
        record_lines: Whether :attr:`op_log` has which lines of the program launched what and kept
            hosts busy (:func:`kernbench.analysis.program_lines`).
        kernel_engine: What plans, times and executes kernels; None is the run's own. It brings its
            own ``tf32``.

    Raises:
        UsageError: A value is none of these.

    >>> with RuntimeContext(machine="ahbm", ranks=2) as torch:
    ...     torch.ones(2, 3).sip_id
    0
    """

    Tensor = Tensor
    dtype = DType
    device = Device

    empty = factories.empty
    zeros = factories.zeros
    ones = factories.ones
    full = factories.full
    empty_like = factories.empty_like
    zeros_like = factories.zeros_like
    ones_like = factories.ones_like
    full_like = factories.full_like
    arange = factories.arange
    rand = factories.rand
    randn = factories.randn
    randint = factories.randint
    manual_seed = factories.manual_seed
    tensor = factories.tensor
    from_numpy = factories.from_numpy
    cat = factories.cat
    stack = factories.stack
    linspace = factories.linspace
    eye = factories.eye
    no_grad = NoGradients
    inference_mode = NoGradients

    def __init__(
        self,
        machine: str | Path | Machine = "ahbm",
        ranks: int | None = None,
        data: bool = True,
        seed: int = 0,
        *,
        check: bool | None = None,
        nan_is_error: bool | None = None,
        allow: str | Iterable[str] | None = None,
        tf32: str = "round",
        record_memory: bool = False,
        record_lines: bool = False,
        kernel_engine: KernelEngine | None = None,
    ) -> None:
        checks = Checks.of(check, allow, nan_is_error)
        run = self.run = Run(machine, ranks, data, seed, checks, record_memory, record_lines)
        self.ahbm = Ahbm(run)
        self.distributed = Distributed(run)
        memory = SymmetricMemory(self)
        self.distributed.symmetric_memory = self.distributed._symmetric_memory = memory
        self.multiprocessing = Multiprocessing(run)
        self.testing = Testing()
        self.launcher = KernelLauncher(
            run, kernel_engine or KernelEngine(run.machine, _as_tf32(tf32), run.outside)
        )
        run.remarks.append(self.launcher.engine.remarks)
        self._exit = ExitStack()
        self._token: Token[RuntimeContext | None] | None = None

    def __enter__(self) -> Self:
        if self._token is not None or self.run.ended:
            raise UsageError("a RuntimeContext is one run; make a new one for the next")
        self._exit.enter_context(activate(self.launcher))
        self._exit.enter_context(notebook_progress(self.run.describe))
        self._token = _CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *rest: object
    ) -> None:
        if error is not None:
            advise(error, self.launcher.engine, self.run.has_data)
        try:
            # After an error nothing more happens; ranks that wait are ended.
            if kind is None:
                self.multiprocessing.join()
                self.run.simulation.drain()
                self.run.devices.raise_unseen()
                if self.run.sanitizer is not None and not self.run.replay_queue.has_failed:
                    # Data that was never read may be wrong as well.
                    self.run.replay_queue.drain()
                self.run.replay_queue.let_speak()
        finally:
            self.run.ended = True
            self.multiprocessing.end()
            for rank in self.run.simulation.ranks:
                if rank.alive:
                    rank.kill()
            if self._token is not None:
                _CURRENT.reset(self._token)
            self._exit.close()

    @property
    def machine(self) -> Machine:
        """The machine that is simulated."""
        return self.run.machine

    @property
    def world_size(self) -> int:
        """How many ranks the run was asked for; what a bench passes to ``spawn`` as nprocs.

        From a ``spawn`` of more on, that many.
        """
        return self.run.world_size

    @property
    def has_data(self) -> bool:
        """Whether tensors hold numbers; without, only shapes and time exist."""
        return self.run.has_data

    @property
    def op_log(self) -> OpLog:
        """The record of all commands so far."""
        return self.run.op_log

    def keep_actions(self, *, with_sites: bool = False) -> None:
        """Keep what the program does, so that a saved run can be retimed; before it does anything.

        It may be kept with the lines at which it is done.

        What was kept is ``actions=torch.run.actions()`` of :func:`kernbench.saved.save_run`.
        """
        if self.run.actions_of is None:
            self.run.keeper = Keeper(self.run.simulation, with_sites=with_sites)
            self.run.keeper.about["tf32"] = self.launcher.engine.tf32
            if self.op_log.allocations is not None:
                self.op_log.allocations.on_event = self.run.keeper.memory_event
            if self.run.devices.memory_recorder is not None:
                self.run.devices.memory_recorder.keeper = self.run.keeper

    def wait(self, handle: Handle) -> None:
        """Block the current rank until ``handle`` has ended, and raise its error if it failed.

        One that has ended returns at once, without yielding to other ranks.

        Raises:
            UsageError: ``handle`` is nothing that a launch or a collective returns.
        """
        self.run.wait(handle)

    def synchronize(self, sip_id: int) -> None:
        """Block the current rank until all streams of a SIP are idle."""
        self.run.synchronize(sip_id)

    def drain(self) -> None:
        """Complete everything in flight, then replay it. Main only; idempotent.

        Raises:
            DeadlockError: Ranks wait for something that cannot come.
        """
        self.run.drain()

    def current_rank(self) -> int:
        """Return the number of the calling rank, 0 outside of ``spawn``."""
        return self.run.rank_state.rank

    def launch(
        self,
        name: str,
        kernel: Any,
        *args: Any,
        grid: Any = None,
        attributes: Any = None,
        **constexprs: Any,
    ) -> Handle:
        """Do ``kernel[grid](*args, **constexprs)``; log and report call the launch ``name``.

        ``grid`` is a number, a tuple or a function of the kernel's arguments; None is one program.
        ``attributes`` is a :class:`LaunchAttributes`. Returns the handle of the launch, for
        :meth:`wait`.
        """
        if attributes is not None and not isinstance(attributes, LaunchAttributes):
            raise UsageError(
                f"launch {name}: attributes must be LaunchAttributes, but got {attributes!r}"
            )
        if not hasattr(kernel, "run"):
            raise UsageError(
                f"launch {name}: {kernel!r} is not a kernel; decorate it with @triton.jit"
            )
        state = self.run.rank_state
        outer, state.launch_label = state.launch_label, name
        outer_attributes, state.launch_attributes = state.launch_attributes, attributes
        state.last_launch = None
        try:
            if _CURRENT.get() is self:
                kernel[_as_grid(grid)](*args, **constexprs)
            else:
                with activate(self.launcher):
                    kernel[_as_grid(grid)](*args, **constexprs)
        finally:
            state.launch_label = outer
            state.launch_attributes = outer_attributes
        if state.last_launch is None:
            # A grid without programs, or a benchmark: there is nothing to wait for.
            handle = Handle(self.run.simulation.env, name)
            handle.callbacks = None  # type: ignore[assignment]  # SimPy's sign for "over"
            return handle
        return state.last_launch

    if not TYPE_CHECKING:  # so that a type checker finds names that are missing

        def __getattr__(self, name: str) -> Any:
            # Operations of kernbench.ops that need no place in the class.
            functions = {} if name.startswith("_") else operators().TORCH_FUNCTIONS
            if name in functions:
                return functions[name]
            raise missing("the torch of a run", name, dir(self))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *operators().TORCH_FUNCTIONS})

    def report(self) -> Report:
        """Return what ``--json`` prints, about everything so far.

        Called on main, it first completes everything in flight.
        """
        from kernbench.report import ShownReport, build_report

        if self.run.simulation.running is None:
            self.run.complete()
        with uncollected():
            report = build_report(
                self.op_log,
                self.machine,
                ranks=self.world_size,
                wall_s=perf_counter() - self.run.started_s,
                time_ps=self.run.simulation.now_ps,
            )
        return cast("Report", ShownReport(report, self.machine, self.op_log))

    def __repr__(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        time = f"{self.run.simulation.now_ps / 1e6:.2f} us{'' if self.run.ended else ' so far'}"
        return (
            f"RuntimeContext({ranks} on {self.machine.name}, {len(self.op_log)} launches, {time})"
        )

    def _repr_html_(self) -> str:
        """Show the run so far in a notebook, without completing what is in flight."""
        said = f"<p>{escape(repr(self))}</p>"
        if not self.run.ended:
            return said
        shown: Any = self.report()
        return f"{said}{shown._repr_html_()}"


def _as_tf32(text: str) -> Tf32:
    try:
        return Tf32(text)
    except ValueError:
        known = " or ".join(repr(str(tf32)) for tf32 in Tf32)
        raise UsageError(f"tf32 must be {known}, but got {text!r}") from None


def _as_grid(grid: Any) -> tuple[Any, ...] | Callable[..., Any]:
    if grid is None:
        return (1,)
    if callable(grid):
        call: Callable[..., Any] = grid
        return call
    return tuple(grid) if isinstance(grid, list | tuple) else (grid,)
