"""What a shared object says of itself: what it needs, and which operators it registers.

Source: the ELF-64 specification (header, section headers); ``torch/library.h``, whose macros name
their variables after namespaces.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator
from functools import cache, partial
from itertools import count
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

import torch

_ELF64 = b"\x7fELF\x02\x01"
_NEEDS_CUDA = re.compile(rb"\0lib(cudart|cuda|torch_cuda|c10_cuda)\.so")
_REGISTERS = re.compile(rb"TORCH_LIBRARY(?:_FRAGMENT|_IMPL)?_(?:static_)?init_(\w+)")
_KEY = re.compile(r"_(?:CUDA|CPU|Meta|Composite\w+|Undefined|Autograd\w*)(?:_?\d+)?$|_\d+$")
_SCHEMA = re.compile(r"(?:(\w+)::)?([A-Za-z_]\w*(?:\.\w+)?)\s*(\(.*\)\s*->.+)", re.DOTALL)
_WRITTEN = re.compile(r"\bTensor\s*!")
_HEADER_BYTES = 64
_NO_BYTES = 8
"""The type of sections that have no bytes in the file."""


class RegisteredOperators(NamedTuple):
    """What a shared object registers with PyTorch's dispatcher."""

    namespaces: tuple[str, ...]
    schemas: tuple[tuple[str | None, str], ...]
    """The namespace of each schema, if the text says it, and the schema, as PyTorch parses it."""


def needs_cuda(path: Path) -> bool:
    """Return whether a shared object is linked with libraries of CUDA; False if it is none."""
    return _NEEDS_CUDA.search(_sections(path).get(".dynstr", b"")) is not None


@cache
def operators_of(path: Path) -> RegisteredOperators:
    """Return the operators whose schemas a shared object has as text."""
    sections = _sections(path)
    matches = _REGISTERS.findall(sections.get(".strtab", b""))
    text = sections.get(".rodata", b"")
    # A name of a namespace is a text, too; other names go on with a key, a number, or types.
    names = {_KEY.sub("", item.decode()) for item in matches} & {
        word.decode("latin-1") for word in text.split(b"\0")
    }
    schemas = tuple(dict.fromkeys(_schemas(text)))
    return RegisteredOperators(tuple(sorted(names)) or tuple(_called_like(path)), schemas)


def _called_like(path: Path) -> Iterator[str]:
    """Yield what namespaces may be called whose names were stripped: like a module, or package."""
    yield path.name.partition(".")[0]
    # The folder that it is imported from is the deepest of those that have it.
    folders = [name for name in sys.path if name and path.is_relative_to(name)]
    if folders:
        yield path.relative_to(max(folders, key=len)).parts[0].partition(".")[0]


def _schemas(text: bytes) -> Iterator[tuple[str | None, str]]:
    for word in text.split(b"\0"):
        if b"->" not in word or not word.isascii():
            continue
        parts = _SCHEMA.fullmatch(word.decode().strip())
        if parts is None:
            continue
        arguments = _WRITTEN.sub(partial(_numbered, count()), parts[3])
        schema = parts[2] + " ".join(re.sub(r"\bint!", "int", arguments).split())
        try:
            torch._C.parse_schema(schema)
        except RuntimeError:
            # Other texts have arrows, too.
            continue
        yield parts[1], schema


def _numbered(numbers: Iterator[int], written: re.Match[str]) -> str:
    """Name what is written as PyTorch's own schemas do: each tensor by another letter."""
    return f"Tensor(w{next(numbers)}!)"


def _sections(path: Path) -> dict[str, bytes]:
    """Return the sections of an ELF file with names, texts and constants; none of another file."""
    wanted = {b".dynstr", b".strtab", b".rodata"}
    with path.open("rb") as file:
        if file.read(len(_ELF64)) != _ELF64 or path.stat().st_size < _HEADER_BYTES:
            return {}
        with mmap(file.fileno(), 0, access=ACCESS_READ) as whole:
            try:
                (first,) = struct.unpack_from("<Q", whole, 40)
                size, number, of_names = struct.unpack_from("<HHH", whole, 58)
                headers = [
                    struct.unpack_from("<IIQQQQ", whole, first + index * size)
                    for index in range(number)
                ]
                names = headers[of_names][4]
            except (struct.error, IndexError):
                # It was cut off.
                return {}
            sections = {}
            for name_at, kind, _, _, at, length in headers:
                name = whole[names + name_at : whole.find(b"\0", names + name_at)]
                if name in wanted and kind != _NO_BYTES:
                    sections[name.decode()] = whole[at : at + length]
            return sections
