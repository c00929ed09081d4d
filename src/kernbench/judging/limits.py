"""What a candidate's process may use: time, memory, files in one folder, no network, no processes.

Its result is judged by its record alone, so that these keep a candidate from harm, not from lies.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.errors import UsageError
from kernbench.judging.sandbox import seal

PREFIX = "kernbench-judge-"
"""How names of folders of candidates and their workers begin."""
_PR_SET_PDEATHSIG = 1
_BLOCK_BYTES = 4096
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_REFUSED = frozenset(
    (
        "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system", "os.kill",
        "os.killpg", "subprocess.Popen", "socket.connect", "socket.bind", "socket.sendto",
        "socket.getaddrinfo", "signal.pthread_kill", "pty.spawn",
    )
)  # fmt: skip
_CHANGES = frozenset(
    (
        "os.remove", "os.rmdir", "os.rename", "os.mkdir", "os.link", "os.symlink", "os.truncate",
        "os.chmod", "os.chown", "os.utime", "shutil.rmtree", "shutil.move",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CandidateLimits:
    """What one candidate may use.

    ``seconds``: of wall time for one call, compiling included. ``memory_mib``: beyond what its
    process begins with. ``file_mib``: of all its files.
    """

    seconds: float = 120.0
    memory_mib: int = 8192
    file_mib: int = 64

    def __post_init__(self) -> None:
        for name, most in (("seconds", 1e6), ("memory_mib", 1 << 24), ("file_mib", 1 << 24)):
            if not 0 < getattr(self, name) <= most:
                raise UsageError(f"{name} must be above 0, but got {getattr(self, name)}")


def size_of_folder(folder: Path) -> int:
    """Return about how many bytes a folder takes; an empty file or folder takes a block."""
    size, folders = 0, [os.fspath(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                size += _BLOCK_BYTES + entry.stat(follow_symlinks=False).st_size
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return size


def remove_folder(folder: str | Path) -> None:
    """Remove a folder, however deep those in it are."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def end_with_parent() -> None:
    """Have the calling process end with the one that forked it, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _memory_bytes() -> int:
    """Return how much memory the calling process has asked for."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit_judge(limits: CandidateLimits) -> None:
    """Limit the memory in which the calling process executes records: twice a candidate's."""
    most = _memory_bytes() + (limits.memory_mib << 21)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def confine(limits: CandidateLimits, folder: Path, also: tuple[Path, ...] = ()) -> None:
    """Confine the calling process for good; it may write below ``folder`` and ``also``."""
    _leave_network()
    for what, most in (
        (resource.RLIMIT_AS, _memory_bytes() + (limits.memory_mib << 20)),
        (resource.RLIMIT_FSIZE, limits.file_mib << 20),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(limits.seconds * 20) + 1),
    ):
        resource.setrlimit(what, (most, most))
    roots = tuple(os.path.realpath(path) + os.sep for path in (folder, *also))

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in _REFUSED:
            raise PermissionError(f"a candidate may not call {event}")
        if event == "open":
            path, mode, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
                _check(path, roots)
        elif event in _CHANGES:
            _check(args[0], roots)

    sys.addaudithook(watch)
    # What does not go through Python, as a call of the C library by ctypes, ends here.
    seal((folder, *also))


def _check(path: Any, roots: tuple[str, ...]) -> None:
    if isinstance(path, int):
        return
    real = os.path.realpath(os.fsdecode(path))
    if not (real + os.sep).startswith(roots) and real != os.devnull:
        raise PermissionError(f"a candidate may not write {real}")


def _leave_network() -> None:
    """Move the process to a network of its own without devices, where the system lets it."""
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNET):
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
