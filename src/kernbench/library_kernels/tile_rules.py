"""Which tile a library's kernels take for a product, where its source says it by rule.

cuBLAS and tuned stacks try what is fastest. The CUTLASS kernels of serving engines do not: a list
of bounds on rows and columns names one tile, with the cluster that it runs in, whatever the device.
Where few rows are computed, A and B are swapped; a tile here is given as it lies on the result.
DeepGEMM takes the tile of least cycles by an estimate of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

from kernbench.inputs import shipped_yaml


@dataclass(frozen=True, slots=True)
class ProductTile:
    """One kernel of a library."""

    block_m: int
    block_n: int
    splits: tuple[int, ...] = (1,)
    """Into how many parts it may cut K."""
    slices: int = 1
    """Groups of warps in a block, each of which takes a part of every trip's K."""
    resident: int = 0
    """Its blocks that an SM holds; 0: as many as the registers do."""
    pes: int = 1
    """SMs that make a block together, each its rows, and load B once between them."""
    k_bytes: int = 128
    """Bytes of a row of A in one trip along K."""
    cluster_rows: int = 1
    """Blocks above each other that load B once between them; idle ones fill the last cluster."""
    cluster_columns: int = 1
    """Blocks beside each other that load A once between them."""
    in_waves: bool = False
    """Whether a block of threads does one tile (``KernelTmaWarpSpecialized``), and not several."""
    missed: float = 0.0
    """Share of trips with cold weights that wait for HBM: loads run ahead less than that takes."""
    overlap: float = inf
    """As in ``LibraryKernel``."""
    moves_per_result: float = 0.0
    """Moves of the vector engine per result and trip, where registers do not hold the sums."""

    @property
    def rows(self) -> int:
        """Rows of C that one SM makes."""
        return self.block_m // self.pes


_RULED = {"resident": 1, "overlap": 3.0}
"""What tiles have whose size a rule names: few of them are as good for a product as the fastest
would be, so that tiles, cache and HBM wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileRule:
    """A tile, and the largest product that takes it."""

    tile: ProductTile
    most_rows: float = inf
    most_columns: float = inf
    least_depth: int = 0
    """The least K that takes it."""

    def takes(self, m: int, n: int, k: int) -> bool:
        """Return whether the tile is taken for a result of ``m`` x ``n``, summed over K."""
        return m <= self.most_rows and n <= self.most_columns and k >= self.least_depth


@cache
def tile_rules() -> Mapping[tuple[str, str], Sequence[TileRule]]:
    """Return the rules by architecture and serving engine; the last of a list has no bounds."""
    return {
        (entry["architecture"], entry["engine"]): tuple(
            TileRule(**{**rule, "tile": ProductTile(**{**_RULED, **rule["tile"]})})
            for rule in entry["rules"]
        )
        for entry in shipped_yaml("kernbench.library_kernels", "tile_rules.yaml")
    }
