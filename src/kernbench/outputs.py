"""Files that commands write: each whole or not at all, by one writer at a time (ADR-0110).

A file is written beside its target under a name of its own, and takes the target's place when all
of it is on the disk. That name is locked meanwhile, by a lock that ends with the process. What is
no regular file, a pipe or a device, is written straight, opened once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TextIO

from kernbench.errors import OutputError
from kernbench.interrupts import unbroken
from kernbench.logs import logger

_LOG = logger("files")

SUFFIX = ".kernbench"
"""The suffix of the hidden file beside a target that becomes the target; a process that is killed
leaves it, and the next one that writes the same target takes it away."""
PATIENCE_S = 10.0
"""How long a single file waits for another writer, which needs far less."""
_LONGEST_NAME = 255
_MOST_LINKS = 40
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|thread-self|\d+))/fd/(\d+)")

_TAKEN: set[_Target] = set()
"""What this process must take away when a signal ends it; signals are the process's, too."""


class Outputs:
    """The files of one command, by what asks for them: taken before its work, published after it.

    A context manager. At its end, whatever was not published is as it was before.
    """

    def __init__(
        self,
        asked: Mapping[str, str | os.PathLike[str] | None],
        inputs: Iterable[str | os.PathLike[str]] = (),
        *,
        patience_s: float = 0.0,
        makes_folders: bool = True,
    ) -> None:
        """Take the files that are not None, and make their folders unless told not to.

        ``inputs`` are files that the command reads. Another process that has taken one of the
        files is waited for ``patience_s`` seconds.

        Raises:
            OutputError: There is no place for a file, it is an input or another output, or another
                process is writing it.
        """
        self._targets: dict[str, _Target] = {}
        self._inputs: dict[str, os.stat_result | None] = {}
        paths = {option: path for option, path in asked.items() if path is not None}
        try:
            for option, path in paths.items():
                self._add(option, _target(option, path))
            self.refuse(inputs)
            for target in self._targets.values():
                if makes_folders:
                    target.make_folder()
                target.take(patience_s)
        except BaseException:
            self.release()
            raise

    def _add(self, option: str, target: _Target) -> None:
        for other, earlier in self._targets.items():
            if earlier.is_same(target):
                raise OutputError(f"{other} and {option} both name {target.text}; take two files")
        self._targets[option] = target

    def refuse(self, inputs: Iterable[str | os.PathLike[str]]) -> None:
        """Refuse outputs that a command, or the program that it has run, has read.

        Raises:
            OutputError: One of them is one of the ``inputs``, under whatever name, or a program.
        """
        # Programs have thousands of modules, which are asked for twice. What is not there yet is
        # none of them.
        targets = [target for target in self._targets.values() if target.is_there]
        if not targets:
            return
        for name in inputs:
            path = os.fspath(name)
            if path not in self._inputs:
                self._inputs[path] = _status(path)
        for target in targets:
            for path, result in self._inputs.items():
                if result is not None and target.is_file(result):
                    raise OutputError(
                        f"{target.said} is {path}, which this command reads; name another file"
                    )
            if target.text.endswith(".py"):
                raise OutputError(f"{target.said} is a program; name another file")

    def __contains__(self, option: str) -> bool:
        return option in self._targets

    def __len__(self) -> int:
        return len(self._targets)

    def path_of(self, option: str) -> str:
        """Return the path of an output as it was given."""
        return self._targets[option].text

    @contextlib.contextmanager
    def writing(self, option: str) -> Iterator[BinaryIO]:
        """Yield a file to write one of the outputs to; it may be read and sought.

        Raises:
            OutputError: It cannot be written: the disk is full, say.
        """
        target = self._targets[option]
        with target.naming_errors():
            file = target.open()
            begun_s = time.perf_counter()
            yield file
            file.flush()
            _LOG.info("%s is made, in %.3f s", target.said, time.perf_counter() - begun_s)

    def publish(self) -> None:
        """Put every file that has been written in its place.

        Raises:
            OutputError: One cannot be written: the disk is full, say. Then no file has changed,
                unless it is a pipe that failed.
        """
        written = [target for target in self._targets.values() if target.is_written]
        for target in written:
            with target.naming_errors():
                target.settle()
        for target in written:
            with target.naming_errors():
                target.publish()

    def release(self) -> None:
        """Take away what was not published. Twice is the same as once."""
        for target in self._targets.values():
            target.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of ``path`` when the block ends, and not if it raises.

    Raises:
        OutputError: It cannot be written, or another process does not cease to write it.
    """
    name = os.fspath(path)
    with Outputs({name: name}, patience_s=PATIENCE_S, makes_folders=False) as outputs:
        with outputs.writing(name) as file:
            yield file
        outputs.publish()


@contextlib.contextmanager
def as_text(file: BinaryIO) -> Iterator[TextIO]:
    """Yield the same file for text, in UTF-8 and with line ends as they are written."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        yield text
        text.flush()
    finally:
        with contextlib.suppress(OSError):  # the block has raised it
            text.detach()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, whole.

    Raises:
        OutputError: It cannot be written.
    """
    with whole_file(path) as file:
        file.write(text.encode())


def name_of(file: BinaryIO) -> str:
    """Return a name of an open file, for writers that open what they write themselves."""
    return f"/proc/self/fd/{file.fileno()}"


def take_away() -> None:
    """Take away what no command of this process can publish any more: a signal ends it."""
    for target in list(_TAKEN):
        target.release()


def _target(option: str, path: str | os.PathLike[str]) -> _Target:
    target = os.fspath(path)
    said = target if target == option else f"{option} {target}"
    if not target:
        raise OutputError(f"{option or 'an output'} has an empty name; name a file")
    if target == "-" != option:
        raise OutputError(f"{option} takes a file, and - is none (./- would be)")
    try:
        number = _own_descriptor(target)
        status = _status(target) if number is None else os.fstat(number)
    except OSError as error:
        raise OutputError(f"{said}: cannot be written: {error.strerror}") from None
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise OutputError(f"{said} is a folder; name a file in it")
    if number is not None or (status is not None and not stat.S_ISREG(status.st_mode)):
        return _Straight(said, target, status, number)
    for stream in (sys.__stdout__, sys.__stderr__):
        if status is not None and _is_stream(status, stream):
            raise OutputError(f"{said} is where the command prints to; name another file")
    return _Beside(said, target, status)


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - of thousands of files: a Path takes as long again
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_stream(result: os.stat_result, stream: TextIO | None) -> bool:
    try:
        return stream is not None and os.path.samestat(result, os.fstat(stream.fileno()))
    except (OSError, ValueError):  # of a closed one
        return False


def _own_descriptor(path: str) -> int | None:
    """Return which descriptor of this process a name like ``/dev/stdout`` stands for."""
    link = Path(path).absolute()
    for _ in range(_MOST_LINKS):
        match = _DESCRIPTOR.fullmatch(str(link))
        if match is not None:
            return int(match[1])
        try:
            link = link.parent / link.readlink()
        except OSError:
            return None
    return None


class _Target:
    """Where one output goes."""

    def __init__(self, said: str, text: str, result: os.stat_result | None) -> None:
        self.said = said
        self.text = text
        self._found = result
        self._file: BinaryIO | None = None
        self.is_written = False

    @contextlib.contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Name the output in the errors of the block."""
        try:
            yield
        except OutputError:
            raise
        except OSError as error:
            raise OutputError(
                f"{self.said}: cannot be written: {error.strerror or error}"
            ) from None

    @property
    def is_there(self) -> bool:
        """Whether there was something under its name when it was taken."""
        return self._found is not None

    def is_file(self, result: os.stat_result) -> bool:
        """Return whether this is an existing file that another name leads to."""
        return self._found is not None and os.path.samestat(self._found, result)

    def is_same(self, other: _Target) -> bool:
        """Return whether two outputs would be in each other's way."""
        return other._found is not None and self.is_file(other._found)

    def make_folder(self) -> None:
        """Make the folder that it lies in."""

    def take(self, patience_s: float) -> None:
        """Make sure that nobody else writes it."""

    def open(self) -> BinaryIO:
        """Return what the output is written to."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let all of it be on the disk."""

    def publish(self) -> None:
        """Show what was written under the target's name."""
        raise NotImplementedError

    def release(self) -> None:
        """Take away what was not published."""
        raise NotImplementedError


class _Straight(_Target):
    """A pipe or a device, or a descriptor that this process has been given."""

    def __init__(
        self, said: str, text: str, result: os.stat_result | None, number: int | None
    ) -> None:
        super().__init__(said, text, result)
        self._number = number
        if number is None and not os.access(text, os.W_OK):
            raise OutputError(f"{said}: cannot be written: Permission denied")

    def is_same(self, other: _Target) -> bool:
        is_device = self._found is not None and stat.S_ISCHR(self._found.st_mode)
        return not is_device and super().is_same(other)

    def open(self) -> BinaryIO:
        if self._file is None:
            # Writers seek; so it goes elsewhere first, and nowhere if the writer fails.
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            self.is_written = True
        return self._file

    def publish(self) -> None:
        assert self._file is not None
        self._file.seek(0)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        try:
            if self._number is None:
                number = os.open(self.text, os.O_WRONLY)
            else:
                number = os.dup(self._number)
            with open(number, "wb") as out:  # noqa: PTH123
                shutil.copyfileobj(self._file, out, 1 << 16)
        except BrokenPipeError:
            pass  # its reader has seen enough

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Beside(_Target):
    """A regular file, there or not; links lead to it and stay."""

    def __init__(self, said: str, text: str, result: os.stat_result | None) -> None:
        super().__init__(said, text, result)
        self._owner = os.getpid()
        self._lock = -1
        with self.naming_errors():
            self.path = Path(text).resolve()  # also where a dangling link leads
            self._beside = self.path.with_name(_name_beside(self.path.name))
            if result is not None and not os.access(self.path, os.W_OK):
                raise OutputError(f"{said}: cannot be written: Permission denied")

    def is_same(self, other: _Target) -> bool:
        return super().is_same(other) or (isinstance(other, _Beside) and self.path == other.path)

    def make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{self.said}: cannot be written: no folder can be made: {error.strerror}"
            ) from None

    def take(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        with self.naming_errors():
            _TAKEN.add(self)
            while (holder := self._try_to_take()) is not None:
                if time.monotonic() >= deadline:
                    raise OutputError(
                        f"{self.said} is being written by {holder}; wait for it, or name another "
                        "file"
                    )
                time.sleep(0.02)

    @unbroken
    def _try_to_take(self) -> str | None:
        """Make and lock the file beside the target; return who has done so before, if anybody."""
        while True:
            number, is_new = self._open_beside()
            if number < 0:
                continue
            try:
                with contextlib.suppress(_NoLocksError):
                    _lock(number)
                if not self._is_beside(number):
                    continue
                if is_new:
                    self._lock, number = number, -1
                    return None
                # Left by a process that was killed.
                self._beside.unlink()
            except BlockingIOError:
                return _holder_of(number)
            finally:
                if number >= 0:
                    os.close(number)

    def _open_beside(self) -> tuple[int, bool]:
        """Open the file beside the target; say whether it is new. It may go away meanwhile."""
        try:
            return os.open(self._beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
        except FileExistsError:
            pass
        except OSError as error:
            raise OutputError(
                f"{self.said}: cannot be written: no file can be made in {self.path.parent}: "
                f"{error.strerror}"
            ) from None
        try:
            return os.open(self._beside, os.O_RDONLY | os.O_NOFOLLOW), False
        except FileNotFoundError:
            return -1, False

    def _is_beside(self, number: int) -> bool:
        """Return whether the file that is open is still the one beside the target."""
        status = _status(self._beside)
        return status is not None and os.path.samestat(status, os.fstat(number))

    def open(self) -> BinaryIO:
        if self._file is None:
            self._file = open(self._lock, "w+b", closefd=False)  # noqa: SIM115
            self.is_written = True
        return self._file

    def settle(self) -> None:
        assert self._file is not None
        self._file.flush()
        if not self._is_beside(self._lock):
            raise OutputError(
                f"{self.said}: cannot be written: another process took {self._beside}"
            )
        before = _status(self.path)
        if before is not None:
            for owner in ((before.st_uid, before.st_gid), (-1, before.st_gid)):
                with contextlib.suppress(PermissionError):
                    os.fchown(self._lock, *owner)
                    break
            os.fchmod(self._lock, stat.S_IMODE(before.st_mode))
        os.fsync(self._lock)

    @unbroken
    def publish(self) -> None:
        self._beside.replace(self.path)
        self.is_written = False
        self._let_go()

    @unbroken
    def release(self) -> None:
        # A process that this one has forked has the same files open, but they are not its own.
        if self._lock >= 0 and self._owner == os.getpid() and self._is_beside(self._lock):
            with contextlib.suppress(OSError):
                self._beside.unlink()
        self._let_go()

    def _let_go(self) -> None:
        _TAKEN.discard(self)
        lock, self._lock = self._lock, -1
        if self._file is not None:
            with contextlib.suppress(OSError):  # what is left to write to a full disk
                self._file.close()
            self._file = None
        if lock >= 0:
            if self._owner == os.getpid():
                with contextlib.suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_UN)  # also for processes that it has forked
            os.close(lock)


class _NoLocksError(Exception):
    """A file system without locks: then nobody is waited for."""


def _lock(number: int) -> None:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        raise _NoLocksError from None


def _name_beside(name: str) -> str:
    beside = f".{name}{SUFFIX}"
    if len(os.fsencode(beside)) <= _LONGEST_NAME:
        return beside
    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}{SUFFIX}"


def _holder_of(number: int) -> str:
    """Return which process has locked the file that is open here, as far as Linux tells."""
    inode = os.fstat(number).st_ino
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[-3].endswith(f":{inode}") and int(words[-4]) > 0:
                return f"process {words[-4]}"
    return "another process"
