"""Starting a program's processes, and the context that each runs in."""

from __future__ import annotations

import builtins
import decimal
import importlib
import marshal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import spec_from_file_location
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from kernbench.clock import Carrier, Rank, Simulation, on_thread, taking_turns, user_site
from kernbench.errors import UsageError
from kernbench.interrupts import unbroken
from kernbench.open_files import LeftOpen
from kernbench.runtime_api import (
    RankState,
    RuntimeContext,
    SpawnContext,
    StartedRank,
    with_restarts,
)
from kernbench.torch_bridge import c10d
from kernbench.torch_bridge.assigned import Assignments
from kernbench.torch_bridge.base.device_limit import check_nodes, check_one_node, check_ranks
from kernbench.torch_bridge.base.patches import Patches, install_all
from kernbench.torch_bridge.base.refusals import missing_kernels_by_name
from kernbench.torch_bridge.c10d import broadcast_queues
from kernbench.torch_bridge.device.module import architecture_of
from kernbench.torch_bridge.dispatch.kernels import TorchLauncher
from kernbench.torch_bridge.dispatch.observe import observer_of
from kernbench.torch_bridge.dispatch.touching import Touching
from kernbench.torch_bridge.front import helion_kernels
from kernbench.torch_bridge.front.globals import Globals
from kernbench.torch_bridge.front.hosts import name_of
from kernbench.torch_bridge.front.installations import installations
from kernbench.torch_bridge.front.remarks import remarks_of
from kernbench.torch_bridge.front.session import Session
from kernbench.torch_bridge.front.workers import Memory
from kernbench.torch_bridge.memory.host_heap import HostHeap
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.call_counts import counting_calls, unseen
from kernbench.torch_bridge.processes.compiling import COMPILING
from kernbench.torch_bridge.processes.eager_host import new_host
from kernbench.torch_bridge.processes.gpu_trace import sanitizer_of
from kernbench.torch_bridge.processes.host import Disturbed
from kernbench.torch_bridge.processes.library_state import LibraryStates
from kernbench.torch_bridge.processes.process import HERE, Process, _Here, current
from kernbench.torch_bridge.python import environ, event_loops, hash_seeds, locks, queues
from kernbench.torch_bridge.python.endings import leave, live
from kernbench.torch_bridge.python.loggers import ProcessLoggers
from kernbench.torch_bridge.python.modules import ProcessModules
from kernbench.torch_bridge.python.packages import Packages, check_private
from kernbench.torch_bridge.python.rank_threads import RankThreads, interrupt, show_daemon, starting
from kernbench.triton_backend import activate, announced_target, around_launches


class StartedWorker:
    """A worker process of a rank."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self._end = simulation.handle(f"the end of process {name}")
        self.rank: Rank | None = None

    def ended(self, _: Rank) -> None:
        """Resume whoever waits for it."""
        self._end.end_after(0)

    def wait(self, delay_ps: int | None = None) -> None:
        """Block the caller until it has ended, or a timeout is over."""
        self._simulation.wait_at_most(self._end, delay_ps)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in it where it waits, before it waits on."""
        if self.rank is not None and self.rank.alive:
            self.rank.call(function)

    def end(self) -> None:
        """End it where it waits."""
        if self.rank is not None and self.rank.alive:
            self.rank.abort()


class Programs:
    """Runs one program file in simulated processes of a run."""

    def __init__(
        self,
        session: Session,
        context: RuntimeContext,
        path: Path,
        code: CodeType,
        shown: Collection[int] | None,
        with_rank: bool,
        package: str | None = None,
        private: Collection[str] = (),
        log_dir: Path | None = None,
        has_seeds: bool = False,
        is_last: bool = False,
    ) -> None:
        self.session = session
        self._context = context
        self._package = package
        """The package of a program that is run as a module; None for a file."""
        self._path = path
        self.has_seeds = has_seeds
        """Whether each rank has its own hash seed."""
        self._num_seeds = count()
        self._code = hash_seeds.compiled(path.read_bytes(), str(path)) if has_seeds else code
        self.output = (shown, with_rank, log_dir)
        """The ranks whose output is shown, whether lines are prefixed with ranks, and the folder
        of the nodes' logs."""
        set_already = environ.variables()
        variables = environ.encoded(helion_kernels.VARIABLES) | set_already
        self._base = Process(session, 0, variables)
        self._base.hash_seed = self._new_seed(variables)
        self.globals = Globals(self._base)
        self.states = LibraryStates(self._base)
        late = {
            **helion_kernels.PATCHES,
            queues.ALIKE: queues.patch_alike,
            locks.BARS: locks.patch_bars,
            event_loops.IN_C: event_loops.patch_loops_in_c,
            broadcast_queues.MODULE: broadcast_queues.patch,
        }
        self.assignments = Assignments(self._base, is_last)
        packages = Packages(private)
        self.modules = ProcessModules(
            self._base, self.states, packages, self.assignments, late, has_seeds
        )
        self.loggers = ProcessLoggers(self._base)
        self.threads = RankThreads(inside, self._enter, self.assignments.pause)
        self._files = LeftOpen()
        self._keep_files = unseen(self._files.keep)
        """It is no work of the program's."""
        self._heap = None if session.run.has_data else HostHeap()
        self._memory: Memory | None = None
        """The memory of the worker whose values modules have, if it is one."""

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Replace parts of PyTorch and Python for the program, and restore them at the end."""
        patches = Patches()
        try:
            self.globals.begin()
            self.globals.start(self._base, is_forked=True)
            patches.on_close(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
            patches.on_close(setattr, sys, "argv", sys.argv)
            # For this thread, and for threads that libraries start.
            patches.set(HERE, "process", self._base)
            patches.set(_Here, "process", self._base)
            patches.set(HERE, "is_foreign", False)
            install_all(patches, installations(self))
            self.assignments.expect(self._code)
            folder = self._path.resolve().parent if self._package is None else Path.cwd()
            patches.set(sys, "path", [str(folder), *sys.path])
            run = self.session.run
            patches.set(run.simulation, "main_waits", self.assignments.pause)
            patches.set(run.simulation, "main_resumes", lambda: self._enter(self._base))
            patches.set(run.simulation, "host_ps", lambda: current().host.paid_ps)
            launcher = TorchLauncher(run, self._context.launcher.engine)
            arch = architecture_of(run.machine.spec)
            with activate(launcher, DEVICE_TYPE), announced_target(DEVICE_TYPE, arch):
                if run.machine.spec.host is None:
                    yield
                else:
                    # It may compile, or find a compiled kernel: only its arguments decide its time.
                    with around_launches(unseen):
                        yield
        finally:
            try:
                self._enter(self._base)
                self.globals.end()
                self._files.close()
            finally:
                self._restore(patches)

    @unbroken
    def _restore(self, patches: Patches) -> None:
        """Show what all have, then what it replaced; an interrupt (Ctrl-C) waits meanwhile."""
        try:
            self.assignments.close()
        finally:
            patches.close()

    def execute(self, name: str) -> ModuleType:
        """Execute the program as the module ``name`` of the calling process."""
        module = ModuleType(name)
        module.__dict__.update(__file__=str(self._path), __builtins__=builtins)
        if self.has_seeds:
            module.__dict__.update(hash_seeds.NAMES)
        if self._package is not None:
            module.__package__ = self._package
            name_of_spec = f"{self._package}.{self._path.stem}".lstrip(".")
            spec = spec_from_file_location(name_of_spec, self._path)
            assert spec is not None
            module.__spec__, module.__loader__ = spec, spec.loader
        sys.modules[name] = module
        if self._package:
            importlib.import_module(self._package)
        # Code of its own: PyTorch's compiler keeps what it compiles with the code, for all of one
        # module's globals.
        exec(marshal.loads(marshal.dumps(self._code)), module.__dict__)
        return module

    def on_main(self, variables: Mapping[str, str]) -> None:
        """Execute the program once, as rank 0; it may spawn ranks."""
        self._base.environ.update(environ.encoded(variables))
        self.assignments.run_in_base()
        with inside(self._base), missing_kernels_by_name():
            try:
                live(self._base, lambda: self.execute("__main__"))
            finally:
                self._keep_files()
        self._base.host.catch_up()

    def start(
        self,
        work: Callable[[int], Any],
        nprocs: int,
        variables: Mapping[str, str],
        *,
        is_forked: bool = False,
    ) -> SpawnContext:
        """Start ranks that run ``work(rank)``.

        ``{rank}``, ``{local_rank}`` and ``{node}`` in a variable become a rank's own numbers.
        """
        run = self.session.run
        processes: dict[int, Process] = {}

        def carrier_of(rank: int) -> Carrier:
            own = _of_rank(variables, rank, run.machine.sips_per_host)
            process = processes[rank] = self._process(rank, own, is_forked)
            if isinstance(process.host, Disturbed):
                process.host.dies_ps = self._dies_ps(rank)
            return self._carrier(process)

        def body(rank: int) -> None:
            self._run_in(processes[rank], lambda process: live(process, lambda: work(rank)))

        with starting():
            return self._context.multiprocessing.start(body, (), nprocs, carrier_of)

    def start_one(self, work: Callable[[Process], object], is_forked: bool) -> StartedRank:
        """Start one more rank, which runs ``work(process)``, and return it.

        Raises:
            UsageError: No SIP is left for it.
        """
        run = self.session.run
        rank = self._context.multiprocessing.add()
        if current().takes_number:
            current().host.be_unseen()
        check_one_node(rank.number + 1, run.machine, "multiprocessing.Process")
        process = self._process(rank.number, {}, is_forked)
        process.takes_number = True
        with starting():
            rank.start(lambda: self._run_in(process, work), self._carrier(process))
        return rank

    def _process(self, rank: int, variables: Mapping[str, str], is_forked: bool) -> Process:
        """Return a new process that inherits the caller's environment, and all if it is forked."""
        environment = environ.variables() | environ.encoded(variables)
        process = Process(self.session, rank, environment)
        self.globals.start(process, is_forked)
        self.assignments.start(process, is_forked)
        parent = current()
        process.signals.handlers.update(parent.signals.handlers)
        if is_forked:
            process.precision = parent.precision
            process.hash_seed = parent.hash_seed
        else:
            process.signals.begin_program()
            process.hash_seed = self._new_seed(environment)
        return process

    def _new_seed(self, environment: Mapping[Any, Any]) -> bytes | None:
        """Return the hash seed of a process that starts with such variables; None without seeds."""
        if not self.has_seeds:
            return None
        seed = hash_seeds.seed_of(environment, f"process {next(self._num_seeds)}")
        self.session.hash_seeds.append(seed)
        return seed

    def _carrier(
        self, process: Process, name: str = "", interrupted: Callable[[], None] | None = None
    ) -> Carrier:
        name = name or f"rank {process.rank}"
        carrier = on_thread(
            name,
            lambda: self._enter(process),
            lambda target: threading.Thread(target=target, name=name, daemon=True),
            interrupted,
            self.assignments.pause,
        )
        return lambda run: _with_checked_waits(*carrier(run))

    def start_worker(
        self, work: Callable[[Process], object], memory: Memory, pid: int, name: str
    ) -> StartedWorker:
        """Start a worker of the calling process, which runs ``work(process)``, and return it.

        It has a host and a memory of its own, and its parent's devices.
        """
        parent, run = current(), self.session.run
        if run.keeper is not None:
            run.keeper.refused["it starts threads or worker processes"] = None
        state = replace(
            RankState(parent.rank, parent.state.world_size, parent.state.sip_id, -1),
            spawn_id=parent.state.spawn_id,
        )
        process = self._process(parent.rank, {}, is_forked=True)
        process.state, process.memory, process.pid = state, memory, pid
        process.modules = self.modules.shown()
        process.host = new_host(run, parent.rank)
        process.host.be_unseen()
        worker = StartedWorker(run.simulation, name)

        def interrupted() -> None:
            run.simulation.call_soon(interrupt)

        carrier = self._carrier(process, name, interrupted)
        with starting():
            worker.rank = run.simulation.start_thread(
                parent.rank_of_run,
                lambda: self._run_in(process, work),
                worker.ended,
                state,
                carrier,
            )
        return worker

    def _dies_ps(self, rank: int) -> int | None:
        """Return when a rank ends by a fault of the scenario, None if it does not from now on."""
        run = self.session.run
        ends_ps = [
            round(death.at_s * 10**12)
            for death in run.machine.spec.scenario.deaths
            if death.rank == rank
        ]
        return min((number for number in ends_ps if number >= run.simulation.now_ps), default=None)

    def _run_in(self, process: Process, work: Callable[[Process], object]) -> None:
        """Run a process's work on its own main thread."""
        process.begin()
        HERE.process = process
        HERE.is_foreign = False
        process.first_thread = threading.current_thread()
        show_daemon(process.first_thread, False)
        # An object, which the context of who has started the process refers to as well.
        decimal.setcontext(decimal.getcontext().copy())
        with inside(process), missing_kernels_by_name():
            try:
                work(process)
            finally:
                self._keep_files()
        process.host.catch_up()

    def end(self) -> None:
        """End the process that started all ranks: libraries may have started threads in it."""
        with inside(self._base):
            leave(self._base)

    def _enter(self, process: Process) -> None:
        """Load a process's own state before it resumes."""
        if self._heap is not None:
            self._heap.next_turn()
        process.show(process.main_thread)
        if process.memory is not self._memory:
            self._exchange(process.memory)
        self.modules.look_for_new()
        self.globals.load(process)
        self.states.load(process)
        self.modules.load(process)
        self.loggers.load(process)
        self.assignments.load(process)

    def _exchange(self, memory: Memory | None) -> None:
        """Show the values of a worker's modules, or those of its parent again."""
        if self._memory is not None:
            self._memory.hide()
        self._memory = memory
        if memory is not None:
            memory.show()


def _with_checked_waits(worker: Any, to_main: Callable[[Any], object]) -> Any:
    """Refuse a rank's wait while all ranks would find PyTorch as its compiler does."""

    def wait(handle: Any) -> object:
        if COMPILING.depth:
            raise UsageError(
                f"a rank waits for others inside of FakeTensorMode, at {user_site()}, where "
                "nothing takes simulated time; wait before or after it"
            )
        return to_main(handle)

    return worker, wait


@contextmanager
def inside(process: Process) -> Iterator[None]:
    """Run the code of a thread of a process, observed."""
    c10d.know_groups(process)
    if process.order is not None and process.touching is None:
        process.touching = Touching(process)
    sanitizer = sanitizer_of(process)
    with counting_calls(process):
        observer = observer_of(process)
        process.observers.append(observer)
        try:
            if sanitizer is None:
                with observer, _one_thread_backward():
                    yield
            else:
                with observer, sanitizer, _one_thread_backward():
                    yield
            if process.order is not None:
                process.order.raise_late()
        finally:
            process.observers.remove(observer)
            if process.memory_use is not None:
                process.memory_use.finish()


@contextmanager
def _one_thread_backward() -> Iterator[None]:
    """Keep backward passes on this thread, which has the state of its process."""
    before = torch.autograd.is_multithreading_enabled()
    torch.autograd.set_multithreading_enabled(False)
    try:
        yield
    finally:
        torch.autograd.set_multithreading_enabled(before)


def run_torchrun(
    context: RuntimeContext,
    path: Path,
    code: CodeType,
    argv: list[str],
    nprocs: int,
    *,
    shown: Collection[int] | None = None,
    with_rank: bool = False,
    module: str | None = None,
    variables: Mapping[str, str] | None = None,
    private: Collection[str] = (),
    num_nodes: int = 1,
    max_restarts: int = 0,
    log_dir: Path | None = None,
    hash_seeds: bool = False,
    is_last: bool = False,
) -> None:
    """Run a program as ``torchrun --nproc-per-node nprocs FILE ARGS`` would, inside ``context``.

    With several nodes there are ``nprocs`` ranks on each, as many as a node of the machine has
    devices (ADR-0062).

    ``argv`` becomes the program's ``sys.argv``: its file and its arguments. ``shown`` are the ranks
    whose output is shown (None: all), each line prefixed with the rank's number if ``with_rank``;
    in the folder ``log_dir`` a file per node has all of it.
    ``module`` is the program's name if it is run as ``python -m`` would; ``variables`` override the
    environment variables of the launcher. Each rank imports the packages ``private`` for itself, in
    addition to those that it would import for itself anyway (ADR-0113). With ``hash_seeds``
    each has its own order of sets of strings in what it imports for itself (ADR-0227).

    When a rank fails, all are started again, up to ``max_restarts`` times, with
    ``TORCHELASTIC_RESTART_COUNT`` in their environment; where they go on is up to the program.
    If the real process runs no program after this one (``is_last``), one process of it does not
    pay for leaving registries of shared libraries as they were.

    Raises:
        UnknownNameError: A package of ``private`` does not exist.
        TorchVersionError: PyTorch is missing, or a release that the bridge does not know.
        UsageError: A package of ``private`` must be shared by all ranks, there are more ranks on a
        node than PyTorch can number devices, or ranks do not fill the nodes.
    """
    check_ranks(nprocs, f"run_torchrun(nprocs={nprocs})")
    check_nodes(context.run.machine, nprocs, num_nodes)
    check_private(private, path.parent)
    session = Session(context.run)
    context.run.remarks.append(lambda: remarks_of(session))
    context.run.peaks.append(session.memories.peaks)
    package = None if module is None else module.rpartition(".")[0]
    if module is not None and path.name == "__main__.py":
        package = module
    programs = Programs(
        session,
        context,
        path,
        code,
        shown,
        with_rank,
        package,
        private,
        log_dir,
        hash_seeds,
        is_last,
    )
    num_ranks = nprocs * num_nodes
    variables = {
        "RANK": "{rank}",
        "LOCAL_RANK": "{local_rank}",
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(nprocs),
        "GROUP_RANK": "{node}",
        "GROUP_WORLD_SIZE": str(num_nodes),
        "NODE_RANK": "{node}",
        "ROLE_RANK": "{rank}",
        "ROLE_WORLD_SIZE": str(num_ranks),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost" if num_nodes == 1 else name_of(0),
        "MASTER_PORT": "29500",
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": "none",
        **(variables or {}),
    }

    def attempt(number: int) -> None:
        own = {**variables, "TORCHELASTIC_RESTART_COUNT": str(number)}
        if number:
            session.start_again()
        # The machine may be larger; a program that spawns ranks may have more.
        context.run.world_size = num_ranks
        if num_ranks == 1:
            programs.on_main(_of_rank(own, 0, 1))
        else:
            programs.start(lambda _: programs.execute("__main__"), num_ranks, own).join()

    with taking_turns(), programs.surroundings():
        sys.argv = argv
        with_restarts(context, attempt, max_restarts)
        if num_ranks > 1:
            programs.end()


def _of_rank(variables: Mapping[str, str], rank: int, per_node: int) -> dict[str, str]:
    """Return the environment variables of one rank."""
    node, local_rank = divmod(rank, per_node)
    numbers = {"{rank}": rank, "{local_rank}": local_rank, "{node}": node}
    own = dict(variables)
    for name, value in own.items():
        for mark, number in numbers.items():
            value = value.replace(mark, str(number))
        own[name] = value
    return own
