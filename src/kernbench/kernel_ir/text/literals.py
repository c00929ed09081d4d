"""Numbers as MLIR prints them: integers, decimals, and bit patterns of floats in hexadecimal."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from kernbench.dtypes import DType
from kernbench.errors import KernelParseError

_NUMBER = re.compile(r"-?(?:0x[0-9A-Fa-f]+|\d+\.?\d*(?:[eE][+-]?\d+)?)|true|false")
_STRING = re.compile(r'"0x([0-9A-Fa-f]*)"$')


def parse_number(text: str) -> int | float:
    """Return an integer for ``12`` and ``0x1F``, else a float."""
    if text.startswith(("0x", "-0x")):
        return int(text, 16)
    try:
        return int(text)
    except ValueError:
        return float(text)


def parse_scalar_array(text: str) -> tuple[int | float | bool, ...] | str:
    """Return the elements of ``array<i32: 1, 0>``; other literals stay text."""
    if not text.startswith("array<"):
        return text
    _, _, body = text[6:-1].partition(":")
    return tuple(
        item == "true" if item in ("true", "false") else parse_number(item)
        for item in _NUMBER.findall(body)
    )


def scalar(text: str, dtype: DType) -> int | float | bool:
    """Return one element as a Python number; hexadecimal text of a float type is its bits."""
    if text in ("true", "false"):
        return text == "true"
    if not dtype.is_floating_point:
        return int(parse_number(text))
    if text.startswith("0x"):
        width = dtype.itemsize
        bits = int(text, 16)
        if bits >> (8 * width):
            raise KernelParseError(f"the bits {text} must fit in {dtype.mlir}")
        return float(np.frombuffer(bits.to_bytes(width, "little"), dtype=dtype.numpy)[0])
    return float(text)


def dense(text: str, dtype: DType, shape: tuple[int, ...]) -> Any:
    """Return ``dense<...>`` as a Python number (a splat) or an array of ``shape``."""
    body = text[6:-1].strip()
    if match := _STRING.match(body):
        raw = bytes.fromhex(match[1])
        storage = np.dtype(np.bool_) if dtype.name == "bool" else dtype.numpy
        values = np.frombuffer(raw, dtype=storage)
        if values.size == 1:
            return values[0].item()
    elif body.startswith("["):
        elements = [scalar(item, dtype) for item in _NUMBER.findall(body)]
        values = np.array(elements).astype(dtype.numpy)
    else:
        return scalar(body, dtype)
    if values.size != int(np.prod(shape)):
        raise KernelParseError(
            f"a dense constant of shape {shape} must have {int(np.prod(shape))} elements, "
            f"but got {values.size}"
        )
    return values.reshape(shape)
