"""A warm process that judges: each request in a process forked from it, which keeps nothing.

Its argument is the number of a socket, by which it gets one more for each request: JSON is read
from that, and written.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from os import _exit, close, fork, kill, pipe, waitpid
from pathlib import Path
from select import POLLIN, poll
from signal import ITIMER_REAL, setitimer
from socket import (
    AF_UNIX,
    MSG_DONTWAIT,
    SHUT_WR,
    SOCK_SEQPACKET,
    recv_fds,
    send_fds,
    socket,
    socketpair,
)
from types import ModuleType
from typing import Any, Never

import torch
import triton
import triton.language as tl
from torch.utils._triton import triton_hash_with_backend

from kernbench.errors import KernbenchError
from kernbench.judging.executing import Executor
from kernbench.judging.limits import (
    PREFIX,
    CandidateLimits,
    end_with_parent,
    limit_judge,
    remove_folder,
)
from kernbench.judging.recording import CallRecorder
from kernbench.judging.simulation import in_simulation
from kernbench.judging.verdict import Verdict


@triton.jit  # type: ignore[untyped-decorator]
def _rows(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803, ANN
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + at, at < n, 0.0)
    tl.store(y + tl.program_id(0) * n + at, tl.exp(row) / tl.sum(row, 0), at < n)


def rehearse(machine: str) -> None:
    """Record and execute a small kernel on a machine."""

    def work(_: Any) -> None:
        x = torch.ones(2, 8, device="cuda")
        recorder = CallRecorder([x], has_data=True)
        with torch.no_grad(), recorder.recording():
            y = torch.empty_like(x)
            _rows[(2,)](x, y, 8, BLOCK=8)
            y = torch.relu(y * 2)
        Executor(recorder.finish(y), [x]).run()
        torch.softmax(x.double(), -1).cpu()
        triton_hash_with_backend()  # which asks programs that candidates may not call

    in_simulation(work, machine, check=True)


def main() -> None:
    """Judge until there is nothing more to read."""
    control = socket(fileno=int(sys.argv[1]))
    _warm_up()
    control.send(b"!")
    # It ends when whoever asked has, and removes its folder, also if all of a group are to end.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    ready: dict[str, _Ready] = {}
    while True:
        _, descriptors, _, _ = recv_fds(control, 1, 1)
        if not descriptors:
            break
        with socket(fileno=descriptors[0]) as asks:
            data = b"".join(iter(partial(asks.recv, 1 << 20), b""))
            try:
                value = json.loads(data)
            except ValueError:  # whoever asked has gone
                continue
            files = [value["task"], *(machine.partition(":")[0] for machine in value["machines"])]
            key = json.dumps([value["options"], value["machines"], files, *map(_stamp, files)])
            there = ready.pop(key, None)
            if there is None or not there.takes(data, asks):
                there = _Ready([control, *(other.control for other in ready.values())], value)
                there.takes(data, asks)
            ready[key] = there
            if len(ready) > _MOST_READY:
                ready.pop(next(iter(ready))).control.close()
    for there in ready.values():
        there.control.close()
    # Whoever asked has gone, perhaps without a word.
    with suppress(ChildProcessError):
        os.wait()  # for all, as what is ignored cannot be waited for one by one
    folder = Path(tempfile.gettempdir())
    if folder.name.startswith(PREFIX):
        remove_folder(folder)


_MOST_READY = 3
"""How many tasks stay ready at a time."""


def _stamp(path: str) -> list[int]:
    """Return what tells a file, or a task's folder, from what it was; empty if there is none."""
    described = Path(path, "task.yml")
    with suppress(OSError):
        status = (described if described.is_file() else Path(path)).stat()
        return [status.st_mtime_ns, status.st_size]
    return []


class _Ready:
    """A process that has loaded a task and timed its reference, as the warm one knows it."""

    def __init__(self, of_parent: Iterable[socket], request: dict[str, Any]) -> None:
        """Fork it, for requests like this one; ``of_parent``: what its own parent listens to."""
        self.control, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self._files: dict[str, list[int]] = {}
        """What it has loaded, as it was then; it says so when it is ready."""
        with theirs:
            if os.fork() == 0:
                # Else others would not hear that their parent has closed theirs.
                for own in (self.control, *of_parent):
                    own.close()
                _be_ready(Forking(theirs), request)

    def takes(self, request: bytes, asks: socket) -> bool:
        """Hand on a request, and return whether it was taken: files as they were, and alive."""
        try:
            with suppress(BlockingIOError):
                self._files = json.loads(self.control.recv(1 << 20, MSG_DONTWAIT))
            if all(_stamp(path) == stamp for path, stamp in self._files.items()):
                send_fds(self.control, [request], [asks.fileno()])
                return True
        except (OSError, ValueError):
            pass
        self.control.close()
        return False


class Forking:
    """Forks a process for each request that comes on a socket, and answers for those that die."""

    def __init__(self, control: socket) -> None:
        self._control: socket | None = control
        self._poll = poll()
        self._poll.register(control, POLLIN)
        self._running: dict[int, tuple[int, socket, str]] = {}
        """By what tells of its end: a process, who asked for it, and its folder."""
        self.asks: socket | None = None
        """Who asked for what the calling process is to judge; None: it was not forked here."""

    def say(self, value: dict[str, Any]) -> None:
        """Tell whoever sends requests."""
        assert self._control is not None
        with suppress(OSError):
            self._control.send(json.dumps(value).encode())

    def request(self) -> dict[str, Any]:
        """Return a request, in a process forked for it; in the calling one, never."""
        while self._control is not None or self._running:
            # One at a time: what comes of it may close another, whose number is then a new one's.
            number, _ = self._poll.poll()[0]
            if self._control is not None and number == self._control.fileno():
                value = self._taken(self._control)
                if value is not None:
                    return value
            elif number in self._running:
                self._clear(number)
            else:  # whoever asked has gone
                self._poll.unregister(number)
                for pid, asks, _ in self._running.values():
                    if asks.fileno() == number:
                        kill(pid, signal.SIGKILL)
        _exit(0)

    def answer(self, value: dict[str, Any]) -> Never:
        """Answer the request that the calling process was forked for, and end."""
        assert self.asks is not None
        _answer(self.asks, value)
        _exit(0)

    def _taken(self, control: socket) -> dict[str, Any] | None:
        try:
            data, descriptors, _, _ = recv_fds(control, 1 << 20, 1)
        except ConnectionResetError:  # whoever sends requests did not hear that it is ready
            descriptors = []
        if not descriptors:
            self._poll.unregister(control)
            self._control = None
            return None
        asks = socket(fileno=descriptors[0])
        folder = tempfile.mkdtemp(prefix=PREFIX)
        # Open as long as the process lives: its candidates close what is open.
        ends, lives = pipe()
        pid = fork()
        if pid == 0:
            end_with_parent()
            self.asks = asks
            return {**json.loads(data), "folder": folder}
        close(lives)
        self._running[ends] = pid, asks, folder
        self._poll.register(ends, POLLIN)
        self._poll.register(asks, 0)
        return None

    def _clear(self, ends: int) -> None:
        """Clear up after a process that has ended; if it has not answered, say how it ended."""
        pid, asks, folder = self._running.pop(ends)
        self._poll.unregister(ends)
        close(ends)
        how = os.waitstatus_to_exitcode(waitpid(pid, 0)[1])
        with suppress(KeyError):
            self._poll.unregister(asks)
        _answer(asks, {"unknown": f"the process that judged it ended with {how}"})
        remove_folder(folder)


def _answer(asks: socket, value: dict[str, Any]) -> None:
    """Answer whoever asked, if nobody has."""
    # Other processes that were forked have the socket, too: closing it says nothing.
    with asks, suppress(OSError):
        asks.sendall(json.dumps(value).encode())
        asks.shutdown(SHUT_WR)


def _warm_up() -> None:
    """Import all that judging needs, and keep it from the garbage collector of forked processes."""
    import importlib

    from kernbench.torch_bridge import import_programs

    import_programs()
    # The last registers itself for good, and candidates whose imports need it would do it again.
    for name in (
        *("kernbench.judging.requests", "kernbench.triton_backend.float8", "numpy.ma"),
        *("triton.language", "torch._dynamo.precompile_context"),
    ):
        importlib.import_module(name)
    import torch

    from kernbench.judging.candidate import MODULE
    from kernbench.judging.judge import DEFAULT_MACHINES

    # It becomes the candidate: a simulation looks at all modules after a change of their table.
    sys.modules[MODULE] = ModuleType(MODULE)

    torch.set_num_threads(1)
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.always_compile = True
        rehearse(DEFAULT_MACHINES[0])
    gc.collect()
    gc.freeze()


def _be_ready(forking: Forking, first: dict[str, Any]) -> Never:
    """Get ready for requests like the first one, and answer each in a process of its own."""
    from kernbench.judging.requests import JudgeRequest, judge_next

    end_with_parent()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # A task that never comes to an end keeps none waiting but who asks for it.
    setitimer(ITIMER_REAL, min(float(first["total_s"]), 1e6))
    names = set(sys.modules)

    def request_of(value: dict[str, Any]) -> JudgeRequest:
        return JudgeRequest(
            folder=Path(value.get("folder", "")),
            candidate=Path(value["candidate"]),
            task=Path(value["task"]),
            machines=tuple(value["machines"]),
            limits=CandidateLimits(**value["limits"]),
            **value["options"],
        )

    def next_request() -> JudgeRequest:
        setitimer(ITIMER_REAL, 0)
        loaded = (getattr(sys.modules[name], "__file__", "") for name in set(sys.modules) - names)
        forking.say({path: _stamp(path) for path in filter(None, loaded)})
        request = request_of(forking.request())
        limit_judge(request.limits)
        return request

    def tell(verdict: Verdict) -> Never:
        forking.answer({"verdict": verdict.to_dict()})

    try:
        judge_next(request_of(first), next_request, tell)
    except KernbenchError as error:
        value = {"error": str(error)}
    except BaseException as error:
        value = {"internal": f"{type(error).__name__}: {error}"}
        if os.environ.get("KERNBENCH_JUDGE_DEBUG"):
            import traceback

            traceback.print_exc()
    if forking.asks is None:  # of the task, so that all get to know
        next_request()
    forking.answer(value)


if __name__ == "__main__":
    main()
