"""Where the running program defines the functions of a kernel compiled by an earlier one.

Triton keeps a kernel by its text, and in the text of its TTIR the files that it stood in then. The
same text in another folder, or in a copy of the file, is that kernel too, but in other files.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from triton.runtime.jit import JITCallable

_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')

Lines = tuple[int, int]
"""The first and the last line."""


@dataclass(frozen=True, slots=True)
class _Function:
    file: str
    first: int
    last: int


def files_of(ttir: str) -> dict[str, Lines]:
    """Return the files that a TTIR text names, and the lines between which its operations are."""
    files: dict[str, Lines] = {}
    for file, line, _ in _PLACE.findall(ttir):
        low, high = files.get(file, (int(line), int(line)))
        files[file] = min(low, int(line)), max(high, int(line))
    return files


def moved_files(files: Mapping[str, Sequence[int]], function: Any) -> dict[str, str]:
    """Return the files that have moved since, by their old paths.

    ``function`` is the kernel there; a file that holds none of its functions stays what it is.
    """
    functions = list(_functions(function))
    here = {function.file for function in functions}
    values = {}
    for file, (first, last) in files.items():
        if file in here:
            continue
        # The text and the first line of each function are the same: they are part of the key.
        candidates = [
            name
            for name in dict.fromkeys(function.file for function in functions)
            if all(
                any(at.file == name and at.first <= line <= at.last for at in functions)
                for line in (first, last)
            )
        ]
        if candidates:
            values[file] = max(candidates, key=lambda name: _common_end(name, file))
    return values


def with_files(ttir: str, moved: Mapping[str, str]) -> str:
    """Return a TTIR text with its operations' locations in the files of today."""
    if not moved:
        return ttir

    def put(match: re.Match[str]) -> str:
        return f'"{moved.get(match[1], match[1])}":{match[2]}:{match[3]}'

    return _PLACE.sub(put, ttir)


def _common_end(a: str, b: str) -> int:
    """Return how many trailing parts of two paths are the same."""
    count = 0
    for one, other in zip(reversed(a.split("/")), reversed(b.split("/")), strict=False):
        if one != other:
            break
        count += 1
    return count


def _functions(kernel: Any) -> Iterator[_Function]:
    """Yield the places of a kernel and of the functions that it may call, the kernel first."""
    pending, seen = [kernel], set()
    while pending:
        function = pending.pop(0)
        if id(function) in seen or not isinstance(function, JITCallable):
            continue
        seen.add(id(function))
        first = function.starting_line_number
        last = first + len(function.raw_src) - 1
        yield _Function(function.fn.__code__.co_filename, first, last)
        pending += _named_by(function.fn)


def _named_by(function: Any) -> list[Any]:
    """Return what the names in a function's text stand for, also those behind a module's."""
    names = function.__code__.co_names
    scope = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    result = [scope[name] for name in names if name in scope]
    modules = [module for module in result if isinstance(module, ModuleType)]
    return result + [getattr(module, name, None) for module in modules for name in names]
