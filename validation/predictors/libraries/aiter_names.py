"""What the names of AITER's kernels say: whose they are, and their tiles.

A row of AITER's tuned products gives the kernel that was fastest by its full name. Those of
Composable Kernel name a block of threads, the tile and its K; those in assembly the tile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernbench.library_kernels import ProductTile

_MAKERS = (
    ("asm", r"_ZN5aiter|\basm\b"),
    ("flydsl", r"flydsl"),
    ("opus", r"opus"),
    ("triton", r"triton"),
    ("torch", r"torch"),
    ("cktile", r"cktile"),
    ("ck_bpreshuffle", r"bpreshuffle"),
    ("ck", ""),
)
"""What a name shows of its maker, the first that matches."""

_TILES = (
    r"cktile_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_",
    # Scales of 1x128 and 128x128, threads, tile.
    r"_1x128x128_\d+x(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_",
    r"_\d+x(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_",
    r"_(?P<m>\d+)x(?P<n>\d+)E",
)
_DEFAULT_K_BYTES = 128


@dataclass(frozen=True, slots=True)
class TileShares:
    """How tiles of a maker share a compute unit, and K."""

    resident: int = 1
    """Tiles on a unit at a time."""
    splits: tuple[int, ...] = (1,)
    """Into how many parts K may be cut."""


_SHARES = {
    "aiter_fp8_blockscale_ck": TileShares(2, (1, 2, 4, 8, 16)),
    "aiter_fp8_blockscale_ck_bpreshuffle": TileShares(4),
    "aiter_fp8_blockscale_cktile": TileShares(2),
    "aiter_fp4_asm": TileShares(),
    "aiter_fp4_ck": TileShares(2),
}
"""Shares, by the name of the constants; all others take the fastest of a list."""


def maker_of(impl: str) -> str:
    """Return whose a kernel is.

    >>> maker_of("ck a8w8_blockscale_cktile_192x256x128_4x2x1_16x16x128_intr")
    'cktile'
    """
    return next(name for name, shown in _MAKERS if re.search(shown, impl))


def named_tiles(
    impl: str, constants: str, item_bytes: float
) -> tuple[ProductTile, tuple[int, ...]] | None:
    """Return the tile that a kernel's name gives, and into how many parts K may be cut.

    None if it gives none, or if its ``constants`` are those of kernels that are not named so.

    >>> tile, splits = named_tiles("f4gemm_BpreShuffle_32x128E", "aiter_fp4_asm", 0.5)
    >>> (tile.block_m, tile.block_n, tile.k_bytes, splits)
    (32, 128, 128, (1,))
    """
    shares = _SHARES.get(constants)
    result = next(filter(None, (re.search(tile, impl) for tile in _TILES)), None)
    if result is None or shares is None:
        return None
    sizes = {key: int(value) for key, value in result.groupdict().items()}
    # Scales are bytes beside: half a byte is what an element of 4 bits takes.
    k_bytes = round(sizes["k"] * (0.5 if item_bytes < 1 else item_bytes)) if "k" in sizes else 0
    tile = ProductTile(
        sizes["m"], sizes["n"], resident=shares.resident, k_bytes=k_bytes or _DEFAULT_K_BYTES
    )
    return tile, shares.splits
