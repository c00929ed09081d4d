"""The report of a failed bench: root causes first, with lines of the user's code only."""

from __future__ import annotations

import ast
import dis
import errno
import inspect
import linecache
import re
import sys
import sysconfig
import traceback
from bdb import BdbQuit
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import kernbench
from kernbench.cli.programs.bench_file import shipped_folder
from kernbench.errors import CheckFailedError, InternalError, KernbenchError, is_host_exhausted

MOST_FRAMES = 6
MOST_CAUSES = 4

# A note that the runtime adds for tracebacks; here the rank is in the headline.
_RANK_NOTE = re.compile(r"in rank \d+ on SIP \d+")
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_OF_STORAGE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
_NUMBER = re.compile(r"\d+")


def describe_failure(error: BaseException) -> str:
    """Return the text for stderr: each root cause, on which ranks, and where in the user's code."""
    blocks: dict[str, _Block] = {}
    for rank, cause in _of_ranks(error):
        text = _block(cause)
        block = blocks.setdefault(_NUMBER.sub("N", text.message), _Block(text.message, [], []))
        if rank is not None:
            block.ranks.append(rank)
            block.is_one = block.is_one and text.message == block.message
        if text.where not in block.where:
            block.where.append(text.where)
    texts = [block.text() for block in list(blocks.values())[:MOST_CAUSES]]
    left = [rank for block in list(blocks.values())[MOST_CAUSES:] for rank in block.ranks]
    if left:
        texts.append(f"and other errors on {format_ranks(left)}; --debug shows all")
    return "\n".join(texts)


def root_causes(error: BaseException) -> Iterator[tuple[int | None, BaseException]]:
    """Yield the leaves of a failure, each with the rank that it came from, if it came from one."""
    for rank, base_exception in _of_ranks(error):
        if isinstance(base_exception, BaseExceptionGroup):
            for part in base_exception.exceptions:
                yield from ((rank if own is None else own, leaf) for own, leaf in root_causes(part))
        else:
            yield rank, base_exception


def _of_ranks(error: BaseException) -> Iterator[tuple[int | None, BaseException]]:
    """Yield a failure, of each rank that has one; groups that a program raises are one each."""
    by_rank = getattr(error, "errors", None)
    if not isinstance(error, BaseExceptionGroup) or not isinstance(by_rank, dict):
        yield None, error
        return
    for rank, value in by_rank.items():
        for inner, cause in _of_ranks(value):
            yield (rank if inner is None else inner), cause


def format_ranks(ranks: list[int]) -> str:
    """Return ranks as short text.

    >>> format_ranks([2]), format_ranks([3, 0, 1, 2, 7])
    ('rank 2', 'ranks 0-3, 7')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {', '.join(texts)}"


def is_broken_pipe(error: BaseException) -> bool:
    """Return whether stdout is a closed pipe to some rank, as behind `head`."""
    return any(isinstance(leaf, BrokenPipeError) for _, leaf in root_causes(error))


def is_interrupt(error: BaseException) -> bool:
    """Return whether the user ended the run, by Ctrl-C or from pdb, on any rank."""
    return any(isinstance(leaf, KeyboardInterrupt | BdbQuit) for _, leaf in root_causes(error))


class _Text(NamedTuple):
    """One failure in words."""

    message: str
    where: str
    """Where in the user's code it was raised, and on which other ranks."""


@dataclass(slots=True)
class _Block:
    """Failures with the same text but for numbers: ranks often differ only in their own number."""

    message: str
    ranks: list[int]
    where: list[str]
    is_one: bool = True

    def text(self) -> str:
        ranks = f" on {format_ranks(self.ranks)}" if self.ranks else ""
        whose = "" if self.is_one else f" (the words of rank {self.ranks[0]})"
        return "\n".join([f"error{ranks}{whose}: {self.message}", *filter(None, self.where)])


def _block(error: BaseException) -> _Text:
    """Return one cause: what led to it first, then its message, then the user's lines."""
    before = error.__cause__
    if before is None and not error.__suppress_context__:
        before = error.__context__
    message, where = _one(error)
    if (
        before is not None
        and not isinstance(before, KeyboardInterrupt | SystemExit)
        and _words(before) not in message
    ):
        message = "\n".join([*filter(None, _one(before)), "then:", message])
    if isinstance(error, BaseExceptionGroup):
        where = "\n".join([where, *_parts(error)])
    elif isinstance(error, InternalError):
        where += "\nthis is a bug in kernbench; run again with --debug and report the traceback"
    elif (line := _line_of_ours(error)) is not None:
        where += (
            f"\nraised at {line} of kernbench: a bug of ours if your call is right; see --debug"
        )
    elif _asks_for_gpu(error):
        where += (
            "\nPyTorch itself was asked for a GPU, or for other ranks; kernbench run FILE runs "
            "PyTorch programs on simulated devices, and a bench uses the torch that run() is given"
        )
    elif isinstance(error, ModuleNotFoundError) and error.name == "torch":
        where += (
            '\nPyTorch is not installed: pip install "kernbench[torch]"; a bench needs none, it '
            "uses the torch that run() is given"
        )
    return _Text(message, where.lstrip("\n"))


def _parts(group: BaseExceptionGroup[BaseException]) -> Iterator[str]:
    """Yield the lines of each exception of a group, further in than its own."""
    for number, exception in enumerate(group.exceptions[:MOST_CAUSES], 1):
        text = _block(exception)
        lines = [f"{number}. {text.message}", *text.where.splitlines()]
        yield from (f"  {line}" for line in lines)
    if len(group.exceptions) > MOST_CAUSES:
        yield f"  and {len(group.exceptions) - MOST_CAUSES} more; --debug shows all"


def _one(error: BaseException) -> _Text:
    lines = []
    frames = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_users(frame.f_code.co_filename)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        line = f":{error.lineno}" if error.lineno else ""
        lines.append(f"  {_short(error.filename)}{line}")
        if error.text:
            lines.append(f"    {error.text.strip()}")
    if len(frames) > MOST_FRAMES:
        lines.append(f"  ... {len(frames) - MOST_FRAMES} calls before")
    for code, number in frames[-MOST_FRAMES:]:
        lines.append(f"  {_short(code.co_filename)}:{number} in {code.co_name}")
        if source := linecache.getline(code.co_filename, number).strip():
            lines.append(f"    {source}")
    notes = [note for note in getattr(error, "__notes__", ()) if not _RANK_NOTE.fullmatch(note)]
    lines += [f"  {note}" for note in notes]
    return _Text(_headline(error), "\n".join(lines))


def _headline(error: BaseException) -> str:
    name = type(error).__name__
    text = error.msg if isinstance(error, SyntaxError) else _words(error)
    if isinstance(error, CheckFailedError) or (type(error) is AssertionError and _is_bench(error)):
        return f"check failed: {text}" if text else "check failed"
    return f"{name}: {text}" if text else name


def _is_bench(error: BaseException) -> bool:
    """Return whether an error comes from a bench and its checks, not from a program run as one."""
    return not _asks_for_gpu(error) and not any(
        frame.f_globals.get("__name__") in ("__main__", "__mp_main__")
        and is_users(frame.f_code.co_filename)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _asks_for_gpu(error: BaseException) -> bool:
    """Return whether PyTorch itself, without the bridge, was asked for a GPU or for other ranks."""
    if "kernbench.torch_bridge.front.programs" in sys.modules:
        return False
    modules = [
        str(frame.f_globals.get("__name__", ""))
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return any(module.startswith(("torch.cuda", "torch.distributed")) for module in modules) or (
        any(module.partition(".")[0] == "torch" for module in modules)
        and any(word in _words(error) for word in ("CUDA", "NVIDIA", "cuda"))
    )


def _words(error: BaseException) -> str:
    """Return the message of an error, even where its own ``__str__`` fails."""
    try:
        return str(error)
    except Exception as another:
        return f"(its __str__ raised {type(another).__name__})"


def _line_of_ours(error: BaseException) -> str | None:
    """Return the line of kernbench whose mistake an error may be, or None.

    Errors of kernbench's own kinds are no mistakes, nor is what stands in for Python's and
    PyTorch's objects: ``os.environ``, ``sys.argv``, ``time.sleep`` and the like fail as those do.
    A full disk behind stdout is nobody's, and so is memory of this machine that has run out.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    is_of_storage = isinstance(error, OSError) and error.errno in _OF_STORAGE
    is_nobodys = is_of_storage or is_host_exhausted(error)
    if isinstance(error, KernbenchError) or is_nobodys or last is None:
        return None
    filename = last.tb_frame.f_code.co_filename
    if is_users(filename):
        return None
    path = Path(filename).resolve()
    package = Path(kernbench.__file__).resolve().parent
    if not path.is_relative_to(package) or _is_raised(error, last) or _is_handed_on(last):
        return None
    return f"{path.relative_to(package)}:{last.tb_lineno}"


def _is_raised(error: BaseException, last: TracebackType) -> bool:
    """Return whether an explicit ``raise`` statement raised it, for the program to see."""
    if isinstance(error, AssertionError | NotImplementedError):
        return False
    opcode = last.tb_frame.f_code.co_code[last.tb_lasti]
    return dis.opname[opcode] in ("RAISE_VARARGS", "RERAISE")


def _is_handed_on(last: TracebackType) -> bool:
    """Return whether a function failed inside the one that it wraps, which has no frame.

    That is a method of the same name, ``super().__getitem__(index)`` in ``__getitem__`` say, what
    is given all of the function's own ``*args``, or of a parameter that holds them, or what is
    itself a parameter, of the function or of the one around it: an operation of PyTorch, which the
    program called.
    """
    code = last.tb_frame.f_code
    line, end_line, column, end_column = [*code.co_positions()][last.tb_lasti // 2]
    if line is None or end_line is None or column is None or end_column is None:
        return False
    lines = linecache.getlines(code.co_filename)[line - 1 : end_line]
    if len(lines) != end_line - line + 1:
        return False
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][:end_column]
    encoded[0] = encoded[0][column:]
    try:
        failed = ast.parse(b"".join(encoded), mode="eval").body
    except SyntaxError:
        return False
    if not isinstance(failed, ast.Call):
        return False
    if isinstance(failed.func, ast.Attribute) and failed.func.attr == code.co_name:
        return True
    passed = {ast.unparse(arg.value) for arg in failed.args if isinstance(arg, ast.Starred)}
    number = code.co_argcount + code.co_kwonlyargcount
    number += bool(code.co_flags & inspect.CO_VARARGS)
    own = code.co_varnames[:number]
    is_wrapped = ast.unparse(failed.func) in (*own, *code.co_freevars)
    return is_wrapped or not passed.isdisjoint(own)


@cache
def is_users(filename: str) -> bool:
    """Return whether a source file is the user's: not ours, not a library's, not Python's."""
    path = Path(filename)
    # Extension modules name their sources as they were on the machine that built them.
    if filename.startswith("<") or not path.is_file():
        return False
    path = path.resolve()
    if path.is_relative_to(shipped_folder().resolve()):
        return True
    # Of whichever environment: one may show the packages of another.
    if not _PACKAGES.isdisjoint(path.parts):
        return False
    package = Path(kernbench.__file__).resolve().parent
    library = [Path(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib", "platlib")]
    return not any(path.is_relative_to(item.resolve()) for item in (package, *library))


def _short(filename: str) -> str:
    """Return the path as the user would type it from the working directory."""
    path = Path(filename)
    try:
        here = Path.cwd()
    except FileNotFoundError:  # a program may remove the folder that it is in
        return str(path)
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def print_traceback(error: BaseException) -> None:
    """Print the whole traceback, ours included, to stderr."""
    traceback.print_exception(error, file=sys.stderr)
