"""What Linux itself refuses a process: files beyond some folders, other processes, the network.

By Landlock and seccomp, which need no privilege and which nothing in the process can undo.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from os import getpid
from pathlib import Path

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_WRITES = 2 | 16 | 32 | 64 | 128 | 256 | 512 | 1024 | 2048 | 4096
"""Writing, removing and making files and folders. Source: ``linux/landlock.h``."""
_WRITE_FILE, _REFER, _TRUNCATE = 2, 1 << 13, 1 << 14
_CLONE_THREAD = 0x10000
_ARCHITECTURES = {
    "x86_64": (
        0xC000003E,
        {"clone": 56, "kill": 62, "tgkill": 234, "prlimit64": 302},
        # socket, connect, sendto, bind, listen; fork, vfork, execve, execveat, ptrace, unshare,
        # setns, process_vm_readv and _writev, bpf, mount, reboot, add_key;
        # tkill, rt_sigqueueinfo, rt_tgsigqueueinfo; shmget, semget, msgget, mq_open;
        # chmod, fchmod, fchmodat, chown, fchown, lchown, fchownat, setxattr, lsetxattr, fsetxattr;
        # setpriority, ioprio_set, migrate_pages, move_pages, sched_setparam, _setscheduler,
        # _setaffinity, _setattr
        (
            *(41, 42, 44, 49, 50), *(57, 58, 59, 322, 101, 272, 308, 310, 311, 321, 165, 169, 248),
            *(200, 129, 297), *(29, 64, 68, 240), *(90, 91, 268, 92, 93, 94, 260, 188, 189, 190),
            *(141, 251, 256, 279, 142, 144, 203, 314),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        {"clone": 220, "kill": 129, "tgkill": 131, "prlimit64": 261},
        (
            *(198, 203, 206, 200, 201), *(221, 281, 117, 97, 268, 270, 271, 280, 40, 142, 217),
            *(130, 138, 240), *(194, 190, 186, 180), *(52, 53, 55, 54, 5, 6, 7),
            *(140, 30, 238, 239, 118, 119, 122, 274),
        ),
    ),
}  # fmt: skip
"""By machine: what the kernel calls it, numbers of system calls that are looked at, and of those
that are refused. Source: ``linux/audit.h`` and the tables of system calls."""
_SET_CAPABILITIES = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_VERSION, _READS_ALL_FILES = 0x20080522, 1 << 2
_REFUSED_EVERYWHERE = (424, 425, 438, 452)
"""pidfd_send_signal, io_uring_setup, pidfd_getfd, fchmodat2."""
_CLONE3 = 435
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
    if platform.machine() not in _ARCHITECTURES:
        return False
    architecture, looked_at, refused = _ARCHITECTURES[platform.machine()]
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        refuse,
        (_LOAD, 0, 0, _NUMBER),
        # Numbers of x32, which are no others' on other machines.
        (_AT_LEAST, 0, 1, 0x40000000),
        refuse,
    ]
    for number in (*refused, *_REFUSED_EVERYWHERE):
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
            (_EQUAL, 0, 4, looked_at[name]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (test, 0, 1, value),
            (_RETURN, 0, 0, _ALLOW),
            refuse,
        ]
    program.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("HBBI", *item) for item in program)
    text = ctypes.create_string_buffer(code, len(code))
    string_buffer = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program), ctypes.addressof(text)), 16
    )
    return not libc.prctl(_SET_SECCOMP, _FILTER, string_buffer, 0, 0)
