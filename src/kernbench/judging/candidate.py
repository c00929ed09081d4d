"""The process of a candidate: it runs under kernbench, and all that leaves it are records."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import _exit, fork, kill, killpg, setsid, waitpid
from pathlib import Path
from pkgutil import resolve_name
from select import select
from time import monotonic
from typing import Any
from unittest.mock import patch

import torch
import torch.testing
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from kernbench.judging.limits import (
    PREFIX,
    CandidateLimits,
    confine,
    end_with_parent,
    remove_folder,
    size_of_folder,
)
from kernbench.judging.record import MOST_BYTES, Record, RecordError
from kernbench.judging.recording import CallRecorder
from kernbench.judging.simulation import on_ranks
from kernbench.judging.tasks import JudgedTask, TaskProblem, load_module, opened, tensors_of
from kernbench.judging.values import SentTensor, begin_random_numbers, on_device
from kernbench.torch_bridge import Graphs

MODULE = "candidate"
_LOOK_S = 0.5
"""How often its files are looked at."""
_FAILED, _RECORD = b"F", b"R"


@dataclass
class CandidateFailed(Exception):  # noqa: N818 - no error of the judge's
    """A candidate did not come to a record, as its process says."""

    kinds: list[str]
    """The names of the error's classes, the most special one first."""
    says: str
    line: str = ""

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        return f"{self.kinds[0]}{where}: {self.says}" if self.kinds else self.says


class CandidateProcess:
    """A forked process that calls one candidate as often as it is asked to.

    One of a task of one rank is forked inside of a simulation, which is then its own, too; the
    calls that a simulation replaces are those of before here.
    """

    def __init__(
        self,
        path: Path,
        task: JudgedTask,
        machine: str,
        limits: CandidateLimits,
        folder: Path,
        *,
        data: bool = True,
        hollow: TaskProblem | None = None,
    ) -> None:
        """Fork it: inside of a simulation with data or without, if the task is of one rank.

        ``folder``: where its own will be. ``hollow``: its problem, if it was built in that
        simulation, which is without data. The calling process must have made none of the judge's
        inputs with values by now.
        """
        self.limits = limits
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
        own_read, their_write = os.pipe()
        their_read, own_write = os.pipe()
        self._pid = fork()
        if self._pid == 0:
            os.close(own_read)
            os.close(own_write)
            _live(path, task, machine, limits, self._folder, their_read, their_write, data, hollow)
        os.close(their_read)
        os.close(their_write)
        self._read, self._write = own_read, own_write

    def call(self, *problems: dict[str, Any]) -> list[Record]:
        """Return each rank's record of a call on its problem: its inputs, init and state.

        Without data: its size and seed, by which the task makes it there. ``warm``: how many calls
        come before. A process of several ranks is called once.

        Raises:
            CandidateFailed: It came to none.
        """
        deadline = monotonic() + self.limits.seconds
        with suppress(BrokenPipeError):
            _send(self._write, pickle.dumps(problems, 5))
        head = self._receive(9, deadline)
        size = int.from_bytes(head[1:], "big")
        if size > MOST_BYTES:
            self.close()
            raise CandidateFailed(["RecordError"], f"its record has {size:,} bytes")
        body = self._receive(size, deadline)
        if head[:1] == _RECORD:
            return Record.read_all(body, len(problems))
        try:
            value = json.loads(body)
            kinds = [str(item)[:80] for item in value["kinds"]]
            raise CandidateFailed(kinds, str(value["says"])[:2000], str(value["line"])[:300])
        except (ValueError, KeyError, TypeError):
            raise RecordError("its process says nothing that can be read") from None

    def _receive(self, size: int, deadline: float) -> bytes:
        parts, missing = [], size
        while missing:
            left = deadline - monotonic()
            if left <= 0:
                self.close()
                raise CandidateFailed(
                    ["TimeoutError"], f"it did not end within {self.limits.seconds:g} s"
                )
            if not select([self._read], [], [], min(left, _LOOK_S))[0]:
                self._check_files()
                continue
            part = os.read(self._read, min(missing, 1 << 20))
            if not part:
                raise CandidateFailed(["ProcessEnded"], self._how_it_ended())
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _check_files(self) -> None:
        """End a process whose files have become too large, all together."""
        size = size_of_folder(self._folder)
        if size > self.limits.file_mib << 20:
            self.close()
            raise CandidateFailed(
                ["TimeoutError", "OSError"],
                f"its files have {size >> 20:,} MiB, but it may write {self.limits.file_mib:,}",
            )

    def _how_it_ended(self) -> str:
        status = self._wait()
        if os.WIFSIGNALED(status):
            return f"its process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"its process exited with {os.waitstatus_to_exitcode(status)}"

    def _wait(self) -> int:
        pid, self._pid = self._pid, 0
        return waitpid(pid, 0)[1] if pid else 0

    def close(self) -> None:
        """End the process and remove its folder."""
        if self._pid:
            with suppress(ProcessLookupError):
                killpg(self._pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                kill(self._pid, signal.SIGKILL)
            self._wait()
        if self._read >= 0:
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = -1
            remove_folder(self._folder)


def _send(fd: int, data: bytes, kind: bytes = b"") -> None:
    for part in (kind + len(data).to_bytes(8, "big"), data):
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]


def _close_all_but(*kept: int) -> None:
    """Close what else is open: it leads to whoever waits for the verdict."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) not in (0, 1, 2, *kept):
            with suppress(OSError):
                os.close(int(path.name))


def _live(
    path: Path,
    task: JudgedTask,
    machine: str,
    limits: CandidateLimits,
    folder: Path,
    read: int,
    write: int,
    has_data: bool,
    hollow: TaskProblem | None,
) -> None:
    """Be the process of a candidate; never returns."""
    try:
        with suppress(OSError):
            setsid()
        _close_all_but(read, write)
        end_with_parent()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        confine(limits, folder)
        requests = os.fdopen(read, "rb")
        notes: list[str] = []

        def one_by_one(_: Graphs, model: Any, *args: Any, **options: Any) -> Any:
            notes.append("torch.compile captures no CUDA graph here: launches are timed one by one")
            return model

        patch.object(Graphs, "cudagraphify", one_by_one).start()

        def receive() -> list[dict[str, Any]] | None:
            head = requests.read(8)
            if not head:
                return None
            data: list[dict[str, Any]] = pickle.loads(requests.read(int.from_bytes(head, "big")))
            return data

        def serve() -> None:
            module: Any = None
            guarded = _guarded() if has_data else []
            while problems := receive():
                try:
                    problem = _problem(task, problems[0], 0, hollow)
                    if module is None:
                        module = load_module(path, MODULE)
                    record = _record(partial(task.bind, module, problem), problem)
                    record.remarks += [f"it replaces {e}" for e in _replaced(guarded, path)]
                    record.remarks += notes
                    _send(write, record.write(), _RECORD)
                except BaseException as error:
                    _send(write, _described(error, path), _FAILED)

        def serve_rank(problems: list[dict[str, Any]], _: Any, rank: int) -> bytes:
            problem = _problem(task, problems[rank], rank)
            module = load_module(path, MODULE)
            return _record(partial(task.bind, module, problem), problem).write()

        if task.ranks == 1:
            serve()
        else:
            work = partial(serve_rank, receive() or [])
            parts = on_ranks(work, machine, task.ranks, data=has_data)
            _send(write, b"".join(parts), _RECORD)
        _exit(0)
    except BaseException as error:
        with suppress(BaseException):
            _send(write, _described(error, path), _FAILED)
    finally:
        _exit(1)


_GUARDED = (
    "torch", "torch.Tensor", "torch.cuda", "torch.cuda.Event", "torch.cuda.Stream",
    "torch.testing", "torch.nn.functional", "torch.linalg", "time", "builtins", "triton",
    "triton.testing", "os", "statistics", "timeit",
)  # fmt: skip
"""In what a candidate has no reason to replace functions and classes."""


def _guarded() -> list[tuple[dict[str, Any], str, str, Any, Any]]:
    """Return what must stay: a namespace, its name, a name in it, the function, and its code.

    A simulated process has some classes of its own.
    """
    owners: dict[str, Any] = {name: resolve_name(name) for name in _GUARDED}
    owners |= {"the recorder": CallRecorder, "the record": Record}
    modules = [
        (sys.modules, "sys.modules", name, value, None)
        for name, value in owners.items()
        if name in sys.modules
    ]
    return modules + [
        (space, owner, name, value, getattr(value, "__code__", None))
        for owner, space in ((owner, vars(value)) for owner, value in owners.items())
        for name, value in space.items()
        if callable(value)
    ]


def _replaced(guarded: list[tuple[dict[str, Any], str, str, Any, Any]], path: Path) -> list[str]:
    """Return what a candidate has replaced by functions or classes of its own."""
    names = []
    for space, owner, name, value, before in guarded:
        new = space.get(name)
        if new is value and (before is None or getattr(value, "__code__", None) is before):
            continue
        code = getattr(getattr(new, "__func__", new), "__code__", None)
        is_own = getattr(code, "co_filename", "") in (str(path), "<string>")
        if not callable(new) or is_own or getattr(new, "__module__", "") == MODULE:
            names.append(f"{owner}.{name}")
    return names


def _problem(
    task: JudgedTask, problem: dict[str, Any], rank: int, hollow: TaskProblem | None = None
) -> dict[str, Any]:
    """Return a problem with ``args``, what a candidate is called with: on the device."""
    if "seed" in problem:
        hollow = hollow or task.hollow(problem["size"], problem["seed"], rank)
        return {**problem, "args": hollow.inputs, "init": hollow.init, "state": {}, "values": []}
    leaves, form = tree_flatten(opened(problem["inputs"], SentTensor))
    leaves = [leaf.on_host() if isinstance(leaf, SentTensor) else leaf for leaf in leaves]
    args = tree_unflatten([on_device(e) if isinstance(e, Tensor) else e for e in leaves], form)
    state = {name: tensor.on_host() for name, tensor in problem["state"].items()}
    return {**problem, "args": args, "state": state, "values": tensors_of(leaves)}


def _record(bind: Callable[[], Any], problem: dict[str, Any]) -> Record:
    """Return the record of a call with the same inputs as ``warm`` calls before it.

    What is answered from memory, by whatever it is found there, is no work of the recorded one.
    """
    args, has_data = problem["args"], "inputs" in problem
    tensors = tensors_of(args)
    function = bind()
    # Without data nothing comes of waiting, which has work scheduled that nobody asks for.
    wait = torch.cuda.synchronize if has_data else int
    with torch.no_grad():
        for _ in range(problem["warm"]):
            function(*_with_objects_of_its_own(args))
            wait()
            for tensor, value in zip(tensors, problem["values"], strict=has_data):
                # Its version stays: that it was written would tell calls apart.
                tensor.data.copy_(value)
        wait()
        begin_random_numbers()  # what it draws is what the reference draws
        recorder = CallRecorder(tensors, has_data=has_data)
        with recorder.recording():
            results = function(*_with_objects_of_its_own(args))
    return recorder.finish(results)


def _with_objects_of_its_own(args: Any) -> Any:
    """Return the same tensors, and copies of what else a call may change, as of a counter."""
    return tree_map(lambda leaf: leaf if isinstance(leaf, Tensor) else copy.deepcopy(leaf), args)


def _described(error: BaseException, path: Path) -> bytes:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{path.name}:{frame.lineno}" for frame in frames if frame.filename == str(path)]
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind is not object]
    said = {"kinds": kinds, "says": str(error), "line": lines[-1] if lines else ""}
    return json.dumps(said).encode()
