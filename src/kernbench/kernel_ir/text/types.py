"""MLIR type text to :class:`Type`."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from kernbench.dtypes import DType, bool_, from_mlir, int64
from kernbench.errors import UnknownNameError
from kernbench.kernel_ir.text.ir import Type

_SHAPED = re.compile(r"((?:\d+x)*)(.+)", re.DOTALL)
_INTEGER = re.compile(r"[su]?i(\d+)$")


@functools.lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """Return the type that ``text`` spells, e.g. ``tensor<64x32x!tt.ptr<f16>>`` or ``i32``.

    An unknown spelling is a type without ``dtype``: only an op that computes with it fails.
    """
    if text.startswith("tensor<"):
        return _shaped(text, _strip_encoding(text[7:-1]))
    if text.startswith("!tt.ptr<"):
        inner = parse_type(_first(text[8:-1]))
        if inner.shape:
            # A block pointer: what it points to is a tile of a tensor in memory.
            return Type(text, inner.shape, inner.dtype, is_descriptor=True)
        return Type(text, (), inner.dtype, is_pointer=True)
    if text.startswith("!tt.tensordesc<"):
        inner_text = _strip_encoding(text[15:-1])
        if not inner_text.startswith("tensor<"):
            inner_text = f"tensor<{inner_text}>"
        inner = parse_type(inner_text)
        return Type(text, inner.shape, inner.dtype, is_descriptor=True)
    if text.startswith("!ttg.memdesc<"):
        inner = _shaped(text, _strip_encoding(text[13:-1]))
        return replace(inner, is_shared=True)
    if text == "index":
        return Type(text, (), int64)
    return Type(text, (), _element(text))


def with_dtype(type_: Type, dtype: DType) -> Type:
    """Return the type of the same shape whose elements are ``dtype``."""
    if not type_.shape:
        return Type(dtype.mlir, (), dtype)
    dims = "x".join(map(str, type_.shape))
    return Type(f"tensor<{dims}x{dtype.mlir}>", type_.shape, dtype)


def bool_like(type_: Type) -> Type:
    """Return the type of a comparison of two values of ``type_``."""
    return with_dtype(type_, bool_)


def element_of(type_: Type) -> Type:
    """Return the type of one element of a tensor."""
    if type_.dtype is None:
        return type_
    text = f"!tt.ptr<{type_.dtype.mlir}>" if type_.is_pointer else type_.dtype.mlir
    return Type(text, (), type_.dtype, type_.is_pointer)


def pointee(type_: Type) -> Type:
    """Return the type that a load through ``type_`` has."""
    return type_ if type_.dtype is None else with_dtype(type_, type_.dtype)


def _shaped(text: str, inner: str) -> Type:
    match = _SHAPED.match(inner)
    if match is None:
        return Type(text, (), None)
    shape = tuple(int(length) for length in match[1].split("x") if length)
    element = parse_type(match[2].strip())
    return Type(text, shape, element.dtype, element.is_pointer)


def _element(text: str) -> DType | None:
    try:
        return from_mlir(text)
    except UnknownNameError:
        match = _INTEGER.match(text)
        if match and text[0] in "su":
            return _element(text[1:])
        return None


def _first(text: str) -> str:
    """Return the part before a comma that is not inside angle brackets (an address space)."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            return text[:index].strip()
    return text


_strip_encoding = _first
