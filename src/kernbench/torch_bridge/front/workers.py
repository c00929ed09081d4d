"""``multiprocessing.Process``: it is a worker of a rank (ADR-0177), or a rank (ADR-0101).

``torch.multiprocessing.spawn`` starts ranks of the run in place of processes. All processes share
one real process: a worker uses its rank's modules, whose values are exchanged for its own while it
runs.
"""

from __future__ import annotations

import copy
import importlib
import multiprocessing.context
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from multiprocessing import get_start_method
from multiprocessing import process as processes
from multiprocessing.process import BaseProcess
from operator import attrgetter
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch.multiprocessing
import torch.utils.data._utils.worker as loaders
from torch import Tensor

from kernbench.clock import CtrlC
from kernbench.lazy import refuse_lazy_result
from kernbench.torch_bridge.base.device_limit import check_one_node, check_ranks
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.front import executors, signals
from kernbench.torch_bridge.placement.call_stacks import is_ours
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import HERE, Process, current
from kernbench.torch_bridge.python.endings import live
from kernbench.torch_bridge.python.pipes import PipeEnd, copied, pipe, sent
from kernbench.torch_bridge.python.queues import is_shared

if TYPE_CHECKING:
    from kernbench.runtime_api import SpawnContext, StartedRank
    from kernbench.torch_bridge.front.programs import Programs, StartedWorker


class Memory:
    """A worker's own values of the modules of its program, and of what it was given."""

    def __init__(self, modules: Sequence[ModuleType], argument: Mapping[str, Any]) -> None:
        own = frozenset(("__main__", "__mp_main__", *(module.__name__ for module in modules)))
        self._spaces = [vars(module) for module in modules]
        values = [
            {name: value for name, value in space.items() if not name.startswith("__")}
            for space in self._spaces
        ]
        try:
            *mine, self.argument = copied([*values, dict(argument)], own)
        except Exception:
            # Something cannot be copied: then each value for itself, as far as it can.
            mine = [_each_copied(item, own) for item in values]
            self.argument = _each_copied(argument, own)
        self._mine = [{**space, **copies} for space, copies in zip(self._spaces, mine, strict=True)]
        self._theirs: list[dict[str, Any]] = []
        self._shown: list[tuple[Any, str, Any]] = [(loaders, "_worker_info", None)]

    def be(self, child: processes.BaseProcess) -> None:
        """Let ``multiprocessing.current_process`` return a process."""
        self._shown.append((processes, "_current_process", child))

    def show(self) -> None:
        """Put the worker's values in place of its parent's."""
        self._theirs = [dict(space) for space in self._spaces]
        self._put(self._mine)

    def hide(self) -> None:
        """Put the parent's values back."""
        self._mine = [dict(space) for space in self._spaces]
        self._put(self._theirs)

    def _put(self, values: Sequence[Mapping[str, Any]]) -> None:
        for space, item in zip(self._spaces, values, strict=True):
            space.clear()
            space.update(item)
        shown = [(owner, name, getattr(owner, name)) for owner, name, _ in self._shown]
        for owner, name, value in self._shown:
            setattr(owner, name, value)
        self._shown = shown


def _each_copied(values: Mapping[str, Any], own: frozenset[str]) -> dict[str, Any]:
    result = {}
    for name, value in values.items():
        try:
            result[name] = copied(value, own)
        except Exception:
            result[name] = value
    return result


def _let_programs_spawn(patches: Patches, programs: Programs) -> None:
    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> SpawnContext | None:
        asked = f"torch.multiprocessing.spawn(nprocs={nprocs})"
        check_ranks(nprocs, asked)
        check_one_node(nprocs, programs.session.run.machine, asked)
        context = programs.start(
            _in_new_main(fn, args, programs), nprocs, {}, is_forked=start_method == "fork"
        )
        if not join:
            return context
        context.join()
        return None

    for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.set_all(module, spawn=spawn, start_processes=spawn)


def _in_new_main(
    fn: Callable[..., Any], args: tuple[Any, ...], programs: Programs
) -> Callable[[int], None]:
    """Return the work of a rank: run the program's file as ``__mp_main__``, then its own ``fn``."""
    # As between real processes, tensors, queues and locks are shared; all else is copied, an object
    # whose method it is together with the arguments, which may refer to it.
    method = fn if isinstance(fn, MethodType) and not isinstance(fn.__self__, type) else None
    own = None if method is None else method.__self__, tuple(args)

    def work(rank: int) -> None:
        owner, arguments = own_copy(own)
        function = own_code(fn, programs) if method is None else MethodType(method.__func__, owner)
        refuse_lazy_result(function(rank, *arguments), f"the function of rank {rank}")

    return work


def own_code(value: Any, programs: Programs, *, is_forked: bool = False) -> Any:
    """Return the calling process's own version of a function or class of its parent.

    It is looked up by name in the process's own modules, as in a spawned real process; a forked one
    has what only its parent has defined, too, as under ``if __name__ == "__main__"``.
    """
    if isinstance(value, MethodType) and isinstance(value.__self__, type):
        return getattr(own_code(value.__self__, programs), value.__name__)
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if module is None or "<" in path:
        return value
    main = sys.modules["__main__"]
    if module == "__main__" and hasattr(main, "__file__"):
        if main.__name__ == "__main__":
            main = sys.modules["__main__"] = programs.execute("__mp_main__")
        if is_forked and not hasattr(main, path.partition(".")[0]):
            return _with_names_of(value, main)
        return attrgetter(path)(main)
    try:
        return attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return value


def _with_names_of(value: Any, main: ModuleType) -> Any:
    """Return code of a parent's ``__main__`` that finds its names in the calling process's own."""
    if not isinstance(value, FunctionType) or value.__module__ != "__main__":
        return value
    names = FunctionType(
        value.__code__, vars(main), value.__name__, value.__defaults__, value.__closure__
    )
    names.__kwdefaults__ = value.__kwdefaults__
    return update_wrapper(names, value)


def take_values(parent: Mapping[str, Any]) -> None:
    """Copy what the parent's ``__main__`` has, as a forked process has it.

    Of code that is what the process has not defined itself.
    """
    main = sys.modules.get("__mp_main__")
    if main is None or vars(main) is parent:
        return
    for name, value in parent.items():
        is_code = isinstance(value, (type, FunctionType, ModuleType))
        if is_code and not name.startswith("__"):
            vars(main).setdefault(name, _with_names_of(value, main))
        elif not name.startswith("__"):
            try:
                vars(main)[name] = own_copy(value)
            except Exception:
                # Not every value can be copied, and each says so in its own way: a lock, a pool.
                vars(main)[name] = value


def own_copy(value: Any) -> Any:
    """Return what another process receives for a value: a copy, except of what ranks share."""
    shared = found_in(value, lambda item: isinstance(item, Tensor) or is_shared(item))
    return copy.deepcopy(value, {id(item): item for item in shared})


def found_in(value: Any, is_wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield what is wanted among a value and what its lists and dictionaries hold."""
    if is_wanted(value):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from found_in(item, is_wanted)


_OF_HELPERS = frozenset({"multiprocessing.pool", "torch.utils.data._utils.worker"})
"""Modules whose functions never run a rank: those of workers of pools and of loaders."""
_FIRST_PID = 2**22
"""Above the largest process id of Linux."""
_KEPT = ("_config", "_popen", "_Popen")
"""Attributes of a process that are not the program's; its key must not be copied."""
_start: Any = BaseProcess.start
_real_pid = os.getpid
_children: set[BaseProcess] = vars(processes)["_children"]


def install(patches: Patches, programs: Programs) -> None:
    """Let ranks start workers, and processes that spawn or have no group start ranks."""
    _let_programs_spawn(patches, programs)
    patches.set(BaseProcess, "start", lambda self: _start_process(self, programs))
    # The start method, which a program may set once.
    context: Any = multiprocessing.context._default_context
    patches.set(context, "_actual_context", context._actual_context)
    patches.set_all(processes, _children=_ChildrenOfEach(), _current_process=_as_rank())
    executors.install(patches)
    patches.set_all(os, getpid=_getpid, getppid=_getppid)
    patches.set(multiprocessing, "parent_process", _parent_process)


def _as_rank() -> Any:
    """Return what ``multiprocessing`` takes a rank for: this process, which may start others.

    It may be a daemon, as a worker of a sweep is, which could not.
    """
    of_rank = copy.copy(processes.current_process())
    of_rank._config = {**of_rank._config, "daemon": False}  # type: ignore[attr-defined]
    return of_rank


# What a library has taken of these for its own ends is called when Python has cleared this module.
def _getpid(here: Any = HERE, real: Callable[[], int] = os.getpid) -> int:
    process = here.process
    return real() if process is None else process.pid or real()


def _getppid(here: Any = HERE, real: Callable[[], int] = os.getppid) -> int:
    process = here.process
    return real() if process is None or not process.pid else process.parent_pid


class _Parent(processes._ParentProcess):  # type: ignore[name-defined]
    """What a process finds of the one that has started it, which outlives it."""

    def is_alive(self) -> bool:
        """Return True."""
        return True


def _parent_process() -> Any:
    process = HERE.process
    if process is None or not process.parent_pid:
        return processes.parent_process()
    return _Parent("MainProcess", process.parent_pid, None)


class _ChildrenOfEach:
    """Replaces the set of running children that ``multiprocessing`` keeps, per process."""

    @property
    def _own(self) -> set[BaseProcess]:
        process = HERE.process
        return _children if process is None or HERE.is_foreign else process.workers

    def __iter__(self) -> Iterator[BaseProcess]:
        return iter(self._own)

    def add(self, started: BaseProcess) -> None:
        self._own.add(started)

    def discard(self, started: BaseProcess) -> None:
        self._own.discard(started)


def _start_process(self: Any, programs: Programs) -> None:
    """``multiprocessing.Process.start``."""
    process = HERE.process
    if process is None or HERE.is_foreign:
        _start(self)
        return
    has_group = process.world is not None and process.world.default_pg is not None
    is_first = process.rank_of_run is None and process.session.run.simulation.running is None
    # A rank that was started so may be the engine that starts those with the devices.
    is_first |= process.takes_number
    helps = getattr(self._target, "__module__", None) in _OF_HELPERS
    kind = RankProcess if is_first and not has_group and not helps else Worker
    self._Popen = partial(kind, programs)
    _start(self)


class _Started:
    """A started process, with the interface of ``multiprocessing.popen_fork.Popen``."""

    _work: StartedRank | StartedWorker

    def __init__(self, started: BaseProcess) -> None:
        session = current().session
        # No real process has this id, so that a signal cannot reach one.
        self.pid = _FIRST_PID + next(session.pids)
        session.started[self.pid] = self
        self.forks = (getattr(started, "_start_method", None) or get_start_method()) == "fork"
        self.process: Process | None = None
        """The process, once it lives."""
        self.returncode: int | None = None
        self._ended, self._ends = pipe(duplex=False)
        self.sentinel = self._ended.fileno()
        """The descriptor of what can be read once it has ended."""

    def run(self, child: BaseProcess, work: Callable[[], object], held: Any) -> None:
        """Run ``work``, set the exit status by how it ends, and close the pipes among ``held``."""
        code = 1
        try:
            work()
            code = 0
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                code = end.code or 0
            else:
                print(end.code, file=sys.stderr)
        except CtrlC:
            raise
        except BaseException as error:
            print(f"Process {child.name}:", file=sys.stderr)
            frames = error.__traceback__
            # Those of a started process begin behind what starts it.
            while frames is not None and is_ours(frames.tb_frame.f_code.co_filename):
                frames = frames.tb_next
            traceback.print_exception(error.with_traceback(frames))
        finally:
            self.end(code)
        for pipe_end in found_in(held, lambda item: isinstance(item, PipeEnd)):
            pipe_end.close()

    def end(self, code: int) -> None:
        """Set the exit status, unless it is set."""
        if self.returncode is None:
            self.returncode = code
            self._ends.close()

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        if self.returncode is None and HERE.process is not None:
            current().host.glance("multiprocessing.Process.is_alive")
        return self.returncode

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.receive(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.receive(signal.SIGKILL)

    def receive(self, number: int) -> None:
        """Let it do what it does by a signal: call its handler where it waits, or end there."""
        process = self.process
        if self.returncode is not None:
            return
        if process is None or signals.ends(process, number):
            self.end(-number)
            self._work.end()
        else:
            self._work.call(lambda: signals.receive(process, number))

    def wait(self, timeout: float | None = None) -> int | None:
        """Return its exit status when it has ended, None if it has not in time."""
        current().host.reach()
        self._work.wait(None if timeout is None else int(max(timeout, 0) * 10**12))
        return self.returncode

    def close(self) -> None:
        """Accept it: there is nothing to release."""


class Worker(_Started):
    """A worker process of a rank: it has a host and a memory of its own, and no device."""

    @unseen
    def __init__(self, programs: Programs, started: BaseProcess) -> None:
        # It looks at all that has changed in what processes share: not the program's doing.
        super().__init__(started)
        parent = current()
        kept = {name: started.__dict__[name] for name in started.__dict__ if name in _KEPT}
        modules = [sys.modules["__main__"], *programs.modules.own()]
        own = {n: v for n, v in started.__dict__.items() if n not in _KEPT}
        memory = Memory(modules, own)
        # ``start`` deletes the target and arguments of the process that was started.
        child = object.__new__(type(started))
        child.__dict__.update(memory.argument | kept)
        memory.be(child)

        def live_as(process: Process) -> None:
            self.process, process.parent_pid = process, parent.pid or _real_pid()
            if not self.forks:
                process.signals.begin_program()
            self.run(child, lambda: live(process, child.run), memory.argument)

        self._work = programs.start_worker(live_as, memory, self.pid, started.name)


class RankProcess(_Started):
    """A process started by one without a group: a rank of the run (ADR-0101)."""

    @unseen
    def __init__(self, programs: Programs, started: BaseProcess) -> None:
        super().__init__(started)
        parent_process = current()
        kept = {name: started.__dict__[name] for name in started.__dict__ if name in _KEPT}
        value = own_copy({n: v for n, v in started.__dict__.items() if n not in _KEPT}) | kept
        parent = vars(sys.modules["__main__"])
        received = sent(value, programs.assignments.own_modules)

        def work() -> None:
            value = received()
            child = object.__new__(own_code(type(started), programs))
            child.__dict__.update(value)
            if value["_target"] is not None:
                child.__dict__["_target"] = own_code(
                    value["_target"], programs, is_forked=self.forks
                )
            if self.forks:
                take_values(parent)
            child.run()

        def live_as(process: Process) -> None:
            self.process, process.pid = process, self.pid
            process.parent_pid = parent_process.pid or _real_pid()
            self.run(started, lambda: live(process, work), value)

        self._work = programs.start_one(live_as, self.forks)

    def poll(self) -> int | None:
        number = super().poll()
        if number is not None:
            # The remaining work of it costs no time: another process may need its device.
            self._work.wait()
        return number
