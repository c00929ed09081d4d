"""TTIR texts from disk, and a trace's accesses spelled out element by element."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    Access,
    DmaRead,
    DmaWrite,
    KernelTrace,
    Predicate,
    ProgramGroup,
    axis_dim,
    walk,
)
from kernbench.kernel_ir import Module, evaluate, parse_module

TTIR = Path(__file__).parent / "ttir"
TEXTS = sorted(TTIR.glob("*/*.ttir"))
VERSIONS = sorted(path.name for path in TTIR.iterdir() if path.is_dir())


def text(name: str, version: str = "3.9") -> str:
    return (TTIR / version / f"{name}.ttir").read_text()


@functools.cache
def module(name: str, version: str = "3.9") -> Module:
    return parse_module(text(name, version))


def trace(
    name: str,
    grid: tuple[int, int, int],
    ints: Mapping[int, int],
    *,
    num_stages: int = 3,
    version: str = "3.9",
) -> KernelTrace:
    return evaluate(module(name, version), grid, ints, num_warps=4, num_stages=num_stages)


def kernel(body: str, params: str = "%x: !tt.ptr<f32>") -> Module:
    """Return a module of one kernel with this body; the line of `body` n is n + 2."""
    return parse_module(
        f"module {{\n  tt.func public @k({params}) {{\n{body}\n    tt.return\n  }}\n}}\n"
    )


def dma(group: ProgramGroup) -> Iterator[tuple[DmaRead | DmaWrite, Access, Any]]:
    for command in walk(group.body):
        if isinstance(command, DmaRead):
            yield command, command.source, command.mask
        elif isinstance(command, DmaWrite):
            yield command, command.dest, command.mask


def spelled_out(
    access: Access, mask: Predicate, lengths: Mapping[int, int]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return offsets and mask as full arrays: dims of ``lengths`` first, then the tile's axes."""
    axes = [axis_dim(axis) for axis in range(len(access.shape))]
    dims = (*sorted(lengths), *axes)
    full = (*(lengths[dim] for dim in sorted(lengths)), *access.shape)
    return (
        np.broadcast_to(access.offset.dense(dims), full),
        np.broadcast_to(mask.dense(dims), full),
    )
