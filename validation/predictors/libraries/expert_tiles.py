"""The tiles that serving stacks' Triton kernels of experts take for shapes that nobody tuned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTile:
    """A tile of a product of experts, as its kernel is compiled."""

    rows: int
    columns: int
    depth: int
    """Elements of the inner dimension in a trip."""
    resident: int
    """Tiles whose registers and shared memory a PE has room for."""
    name: str = ""
    """What is appended to the name of the kernel's constants: the shape of the tile decides how
    busy it keeps a matrix engine."""


_FEW = ExpertTile(rows=16, columns=32, depth=64, resident=8, name="_few")
_MANY = ExpertTile(rows=64, columns=64, depth=32, resident=5)
_SCALED = ExpertTile(rows=64, columns=128, depth=128, resident=3)


def untuned_tile(tokens: int, experts: int, *, scaled: bool) -> ExpertTile:
    """Return the tile of vLLM's first and of SGLang's default configuration.

    ``scaled`` says whether weights have a scale per block of 128 x 128.

    Source: ``get_default_config`` of both projects.

    >>> untuned_tile(tokens=8, experts=16, scaled=False).rows
    16
    """
    if scaled:
        return _SCALED
    return _FEW if tokens <= experts else _MANY


def untuned_tile_by_tokens(tokens: int, *, element_bytes: float, scaled: bool) -> ExpertTile:
    """Return the tile of vLLM's later default configuration.

    Source: ``get_default_config`` of vLLM.
    """
    if scaled:
        return ExpertTile(rows=16 if tokens <= 64 else 64, columns=128, depth=128, resident=3)
    limits = ((32, 16), (96, 32), (512, 64))
    rows = next((rows for most, rows in limits if tokens <= most), 128)
    columns = 64 if tokens <= 64 else 128
    depth = 128 if tokens <= 64 or element_bytes < 2 else 64
    resident = 4 if tokens <= 64 else 2
    name = "_few" if rows <= 16 else "_later"
    return ExpertTile(rows=rows, columns=columns, depth=depth, resident=resident, name=name)
