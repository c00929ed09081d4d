"""Files that users give, read whole: of known kind and size; YAML and JSON without traps.

What is no regular file could be read for ever, as a device, or keep its reader waiting, as a pipe
that nobody writes to. A text of a few lines may stand for more values than there is memory for, by
names of parts (YAML's anchors) that repeat others; and of a key that is there twice, parsers take
the last one.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import stat
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from importlib.util import decode_source
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from pydantic_core import from_json

from kernbench.errors import KernbenchError, UsageError

MOST_YAML_BYTES = 1 << 19
"""The longest text in YAML: Python takes some seconds to read it."""
MOST_JSON_BYTES = 16 << 20
MOST_CSV_BYTES = 256 << 20
_MOST_NODES = 200_000
"""Values of a YAML text whose parts are repeated by name."""
_MOST_DEPTH = 100
_MOST_DIGITS = 1000
_DESCRIPTOR = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/\d+")
"""What a shell puts in place of a file for the output of a command, ``<(...)``."""
_KINDS = {
    stat.S_IFDIR: "Is a directory",
    stat.S_IFCHR: "it is a device, not a file",
    stat.S_IFBLK: "it is a device, not a file",
    stat.S_IFIFO: "it is a pipe, not a file",
    stat.S_IFSOCK: "it is a socket, not a file",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Return a file that is open for reading; it is a regular one, or a link to one.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    _check_kind(Path(path).stat().st_mode, path)
    # Should it become a pipe just now, this does not wait.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = open(number, "rb")  # noqa: PTH123, SIM115 - the caller closes it
    try:
        _check_kind(os.fstat(number).st_mode, path)
    except OSError:
        file.close()
        raise
    return file


def _check_kind(mode: int, path: str | os.PathLike[str]) -> None:
    kind = stat.S_IFMT(mode)
    if kind != stat.S_IFREG:
        number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise OSError(number, _KINDS.get(kind, "it is no file"), os.fspath(path))


def read_text(path: str | os.PathLike[str], most_bytes: int) -> str:
    """Return the text of a file, or of what a shell has put in its place.

    Raises:
        OSError: It cannot be read, or has more than ``most_bytes``.
        UnicodeDecodeError: It is no text in UTF-8.
    """
    name = os.fspath(path)
    with Path(name).open("rb") if _DESCRIPTOR.fullmatch(name) else open_regular(name) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        said = f"it has more than the {most_bytes:,} bytes that are read of such a file"
        raise OSError(errno.EFBIG, said, name)
    return data.decode("utf-8")


_IN_OTHER_BASE = re.compile(r"[-+]?(0_*[0-9]|[^x]*:)")
"""Whole numbers that are not what they look like: ``0100`` is 64, and ``1:30`` is 90."""


class _GivenOnce(yaml.constructor.SafeConstructor):
    """YAML in which a key that is given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _wrong("a key must be a name", key_node)
            key = key_node.value
            if key in seen:
                raise _wrong(f"the key {key!r} is given twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Loader(_GivenOnce, yaml.SafeLoader):
    """YAML that a user has written: its values are counted before they are made."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and self.anchors_used:
            _count(node, {})
        return node

    anchors_used = False

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self.anchors_used = True
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > _MOST_DIGITS:
            raise _wrong(f"a number has more than {_MOST_DIGITS:,} digits", node)
        if _IN_OTHER_BASE.match(node.value):
            what = "in base 60" if ":" in node.value else "octal"
            raise _wrong(f"{node.value} is {what} in YAML; write it in decimal, or in quotes", node)
        return super().construct_yaml_int(node)

    def construct_yaml_float(self, node: Any) -> float:
        if ":" in node.value:
            raise _wrong(f"{node.value} is in base 60 in YAML; write it in decimal", node)
        return super().construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node stands for, with all that it names."""
    size = known.get(id(node))
    if size is not None:
        if not size:
            raise _wrong("a part that has a name contains itself", node)
        return size
    # Until it is known, whoever comes back to it is inside of it.
    known[id(node)] = 0
    size = 1
    parts = node.value if isinstance(node, yaml.CollectionNode) else ()
    for part in parts:
        size += sum(_count(item, known) for item in (part if isinstance(part, tuple) else (part,)))
        if size > _MOST_NODES:
            raise _wrong(f"it repeats parts by name, to more than {_MOST_NODES:,} values", node)
    known[id(node)] = size
    return size


def _wrong(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


SHIPPED_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML that ships with kernbench: eight times as fast in C, where PyYAML has it.

What users write is read in Python: text that is nested too deeply ends the process in C.
"""


class _ShippedLoader(_GivenOnce, SHIPPED_LOADER):  # type: ignore[misc] # PyYAML may lack it
    pass


def parse_yaml(
    text: str, origin: str, error: type[KernbenchError] = UsageError, *, is_shipped: bool = False
) -> Any:
    """Return what a YAML text says, in which no key is given twice.

    A text that ships with kernbench (``is_shipped``) is read faster.

    Raises:
        KernbenchError: An ``error``: it is no YAML; names ``origin`` and the line.
    """
    if len(text) > MOST_YAML_BYTES:
        raise error(f"{origin}: not valid YAML: of at most {MOST_YAML_BYTES:,} characters")
    try:
        # SafeLoaders that only add checks.
        data = yaml.load(text, Loader=_ShippedLoader if is_shipped else _Loader)
        _check_depth(data)
    except yaml.MarkedYAMLError as reason:
        mark = reason.problem_mark
        where = f" line {mark.line + 1}" if mark is not None else ""
        raise error(f"{origin}{where}: not valid YAML: {reason.problem}") from None
    except yaml.YAMLError as reason:
        raise error(f"{origin}: not valid YAML: {' '.join(str(reason).split())}") from None
    except RecursionError:
        raise error(f"{origin}: not valid YAML: nested too deeply") from None
    except (ValueError, TypeError, AttributeError):
        # PyYAML lets the errors of what it converts through.
        raise error(f"{origin}: not valid YAML: a value is not what its tag says") from None
    return data


def shipped_yaml(package: str, name: str) -> Any:
    """Return what a YAML file says that ships with kernbench, in the folder of a package."""
    text = (resources.files(package) / name).read_text(encoding="utf-8")
    return parse_yaml(text, name, is_shipped=True)


def _check_depth(value: Any, depth: int = 0) -> None:
    """Raise RecursionError if what reads the value would have to go too deep."""
    if isinstance(value, dict | list):
        if depth == _MOST_DEPTH:
            raise RecursionError
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth + 1)


def parse_json(text: str, origin: str, error: type[KernbenchError] = UsageError) -> Any:
    """Return what a JSON text says, in which no key is given twice and all numbers are finite.

    Raises:
        KernbenchError: An ``error``: it is no JSON; names ``origin`` and the line.
    """
    try:
        # It knows lines, and ends where nesting is too deep; but not which keys are there twice.
        from_json(text, allow_inf_nan=False)
        data = json.loads(text, object_pairs_hook=_once, parse_float=_finite)
        _check_depth(data)
    except RecursionError:
        raise error(f"{origin}: not valid JSON: nested too deeply") from None
    except _TwiceError as twice:
        raise error(f"{origin}{_line_of_twice(text)}: not valid JSON: {twice}") from None
    except (ValueError, TypeError) as reason:
        raise error(f"{origin}: not valid JSON: {reason}") from None
    return data


class _TwiceError(ValueError):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    once = dict(pairs)
    if len(once) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _TwiceError(f"the key {twice!r} is given twice")
    return once


def _line_of_twice(text: str) -> str:
    """Return where a key is given twice: JSON is YAML, whose parser keeps the lines."""
    if len(text) <= MOST_YAML_BYTES:
        try:
            yaml.load(text, Loader=_Loader)
        except yaml.MarkedYAMLError as reason:
            if reason.problem_mark is not None:
                return f" line {reason.problem_mark.line + 1}"
    return ""


def _finite(text: str) -> float:
    finite = float(text)
    if not math.isfinite(finite):
        raise ValueError(f"the number {text} is beyond those that a computer has")
    return finite


@contextmanager
def opened_csv(path: Path) -> Iterator[csv.DictReader[str]]:
    """Open a table of comma-separated values, whose columns differ in name.

    Raises:
        UsageError: It cannot be read, or is no such table; names the line.
    """
    try:
        text = read_text(path, MOST_CSV_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        names = list(reader.fieldnames or ())
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"{path.name}:1: the column {twice[0]} is there twice")
        yield reader
    except csv.Error as error:
        raise UsageError(f"{path.name}:{reader.line_num + 1}: cannot be read: {error}") from None


def source_texts(files: Iterable[str]) -> dict[str, str]:
    """Return the texts of source files, by path; without those that cannot be read."""
    texts: dict[str, str] = {}
    for path in sorted({*files} - {""}):
        with suppress(OSError, SyntaxError, UnicodeError):
            # As Python reads it: its first lines may say in which encoding it is.
            texts[path] = decode_source(Path(path).read_bytes())
    return texts
