"""What a candidate's process may use: time, memory, files in one folder, no network, no processes.

Its result is judged by its record alone, so that these keep a candidate from harm, not from lies.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from os import getpid
from pathlib import Path
from typing import Any

from kernbench.errors import UsageError
from kernbench.inputs import shipped_yaml

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_WRITES = 2 | 16 | 32 | 64 | 128 | 256 | 512 | 1024 | 2048 | 4096
"""Writing, removing and making files and folders. Source: ``linux/landlock.h``."""
_WRITE_FILE, _REFER, _TRUNCATE = 2, 1 << 13, 1 << 14
_CLONE_THREAD = 0x10000
_SYSTEM_CALLS = shipped_yaml("kernbench.judging", "system_calls.yaml")
_SET_CAPABILITIES = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_VERSION, _READS_ALL_FILES = 0x20080522, 1 << 2
_REFUSED_EVERYWHERE = (424, 425, 438, 452)
"""pidfd_send_signal, io_uring_setup, pidfd_getfd, fchmodat2."""
_CLONE3 = 435
_OWNING = (("fcntl", 8), ("fcntl", 10), ("fcntl", 15), ("ioctl", 0x8901), ("ioctl", 0x8902))
"""F_SETOWN, F_SETSIG, F_SETOWN_EX, FIOSETOWN and SIOCSPGRP: whom a file sends which signal."""
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


def seal(folders: Iterable[Path]) -> bool:
    """Seal the calling process, of one thread; it may write below ``folders``.

    Returns whether Linux has done both; without, only Python's own checks hold.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return False
    # Of what root may do it keeps reading, as its own file may be another user's.
    kept = struct.pack("6I", _READS_ALL_FILES, _READS_ALL_FILES, 0, 0, 0, 0)
    if os.geteuid() == 0 and platform.machine() in _SET_CAPABILITIES:
        head = struct.pack("Ii", _CAPABILITIES_VERSION, 0)
        libc.syscall(_SET_CAPABILITIES[platform.machine()], head, kept)
    is_closed = _close_files(libc, folders)
    return _refuse_calls(libc) and is_closed


def _close_files(libc: ctypes.CDLL, folders: Iterable[Path]) -> bool:
    version = libc.syscall(_CREATE_RULESET, None, 0, _VERSION)
    if version < 1:
        return False
    writes = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = ctypes.create_string_buffer(struct.pack("Q", writes), 8)
    rules = libc.syscall(_CREATE_RULESET, handled, 8, 0)
    if rules < 0:
        return False
    try:
        file_rights = _WRITE_FILE | (writes & _TRUNCATE)
        for path, rights in [
            *((folder, writes) for folder in folders),
            (Path(os.devnull), file_rights),
        ]:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place), 12)
            failed = libc.syscall(_ADD_RULE, rules, _BENEATH, rule, 0)
            os.close(place)
            if failed:
                return False
        return not libc.syscall(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _refuse_calls(libc: ctypes.CDLL) -> bool:
    calls = _SYSTEM_CALLS.get(platform.machine())
    if calls is None:
        return False
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, calls["audit"]),
        refuse,
        (_LOAD, 0, 0, _NUMBER),
        # Numbers of x32, which are no others' on other machines.
        (_AT_LEAST, 0, 1, 0x40000000),
        refuse,
    ]
    for number in (*calls["refused"].values(), *_REFUSED_EVERYWHERE):
        program += [(_EQUAL, 0, 1, number), refuse]
    # Without clone3 the C library calls clone, whose flags can be seen.
    program += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for name, test, value in (
        ("clone", _ANY_BIT, _CLONE_THREAD),
        ("kill", _EQUAL, getpid()),
        ("tgkill", _EQUAL, getpid()),
        ("prlimit64", _EQUAL, 0),  # its own
    ):
        program += [
            (_EQUAL, 0, 4, calls["looked_at"][name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (test, 0, 1, value),
            (_RETURN, 0, 0, _ALLOW),
            refuse,
        ]
    for name, command in _OWNING:
        program += [
            (_EQUAL, 0, 4, calls["looked_at"][name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT + 8),
            (_EQUAL, 0, 1, command),
            refuse,
            (_LOAD, 0, 0, _NUMBER),
        ]
    program.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("HBBI", *item) for item in program)
    text = ctypes.create_string_buffer(code, len(code))
    string_buffer = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program), ctypes.addressof(text)), 16
    )
    return not libc.prctl(_SET_SECCOMP, _FILTER, string_buffer, 0, 0)


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
            # Libraries that ask a program for its version can do without.
            kind = FileNotFoundError if event == "subprocess.Popen" else PermissionError
            raise kind(f"a candidate may not call {event}")
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
