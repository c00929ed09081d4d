"""Matrix products as vendors' libraries do them: the fastest of a list of tiles, with split-K.

A library has kernels for some tiles and takes the one that it expects to be fastest; here that is
the one with the least modeled time, or, where its source says it, the one that its rule names. A
long K with few tiles of C is split among programs, whose float32 parts a second kernel adds up. A
product with one row or column needs no matrix engine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernbench.hardware import KernelLibrary, SipSpec
from kernbench.library_kernels.choice import KernelChoice, fastest
from kernbench.library_kernels.deepgemm_rule import deepgemm_tile
from kernbench.library_kernels.tile_rules import ProductTile, tile_rules
from kernbench.library_kernels.work import LibraryKernel, Tiles, Trip, merged

_LEAST_PART = 256
"""A part of a split K is at least this long."""
_HELD = 0.5
"""The largest share of the cache at which an operand is still read from HBM once."""
_COLUMNS = 8
"""Columns of C per program of a GEMV kernel."""
_ROWS_AT_A_TIME = 512
_VECTOR = "blas_vector"
"""The name of the constants of a product with one row or column."""
_WIDENING = 2.0
"""Dequantization operations per element of B: unpacking and scaling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """``C[b, m, n] = A[b, m, k] @ B[b, k, n]``."""

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bfloat16"
    """The dtype of the multiplication: a key of ``sip.pe.gemm.flops_per_clock``."""
    emulates: str = ""
    """The dtype of A and B where no unit multiplies it, so that the library has kernels for it that
    make each element one of ``dtype``; empty where a unit does."""
    itemsize: float = 2
    """Bytes of an element of A and B, with its share of a block's scale."""
    out_bytes: int = 2
    """Bytes per element of C."""
    a_bytes: float | None = None
    """Distinct bytes of A in all; its elements' when missing. Patches of an image overlap."""
    a_cold: float = 1.0
    """The share of A that no cache holds before."""
    b_cold: float = 1.0
    a_shared: bool = False
    """Whether all products of the batch have the same A (a stride of 0)."""
    b_shared: bool = False
    weight_bytes: float | None = None
    """Bytes per element of B, scales included, where it is narrower than it multiplies."""
    part_bytes: int = 4
    """Bytes per element of a part of C in split-K."""
    may_split: bool = True
    """Whether K may be cut."""
    access_bytes: int = 16
    """What all rows of A, B and C are multiples of: a library's kernels are built for one alignment
    of the three, and a lane cannot load more than it at a time."""
    library: str = "blas"
    """Whose kernels multiply: ``blas``, ``conv`` (cuDNN's), ``blocks`` (with scales of blocks:
    DeepGEMM's and its like), or the serving engine whose rule chooses among CUTLASS's."""
    along_k: bool = True
    """Whether A and B both lie along K (``tn``, in BLAS' words)."""

    @property
    def distinct(self) -> tuple[float, float, float]:
        """Bytes of A, B and C."""
        a = self._matrices(self.a_shared) * self.m * self.k * self.itemsize
        b = self._matrices(self.b_shared) * self.k * self.n * self.b_size
        c = self.batch * self.m * self.n * self.out_bytes
        return a if self.a_bytes is None else self.a_bytes, b, c

    @property
    def b_size(self) -> float:
        """Bytes of an element of B."""
        return self.itemsize if self.weight_bytes is None else self.weight_bytes

    def _matrices(self, shared: bool) -> int:
        return 1 if shared else self.batch


_MATRIX_TILES = (
    ProductTile(64, 32, (1, 8)),
    ProductTile(64, 64, (1, 4, 8, 16)),
    ProductTile(64, 128, (1, 6)),
    ProductTile(128, 64, (1, 4)),
    ProductTile(128, 128, (1, 3, 6)),
    ProductTile(128, 256, (1, 2, 3, 4)),
    ProductTile(256, 128, (1, 2, 3, 4)),
)
_WIDE_TILES = tuple(ProductTile(128, columns) for columns in (96, 160, 192, 224))
_PAIR_TILES = (
    *(ProductTile(256, columns, pes=2) for columns in (64, 128, 192, 256)),
    *(ProductTile(rows, 256, pes=2) for rows in (64, 128, 192)),
)
"""Those of two SMs that load one operand between them, either way round: clusters of Hopper, and
instructions of Blackwell's servers that two issue together."""
_BLOCK_SCALED_TILES = (ProductTile(128, 128, resident=1),)
_BLOCK_SCALED_WIDE_TILES = (
    *(ProductTile(128, columns, resident=1) for columns in (64, 192, 256)),
    *(ProductTile(256, columns, resident=1, pes=2) for columns in (64, 128, 192, 256)),
)
"""Tiles of 4-bit floats, whose instructions take 128 rows and scales of blocks; those of a whole K
alone are known. The second ones are of Blackwell's servers."""
_LARGE_TILE = ProductTile(256, 256)
_LARGE_KIB = 512
"""The registers that hold its sums beside its operands: those of a CU (AMD)."""
_NARROW_TILES = tuple(ProductTile(128, columns) for columns in (8, 16))
"""The tiles of convolutions in groups, whose kernels fill tiles with one instruction's columns."""
_VERY_LONG, _MORE_SPLITS = 1 << 18, (32, 64, 128, 256)
"""The K from which a product with a small C is split until its parts keep all PEs busy, and the
split-K factors tried: gradients of weights of 3 x 4 and 4 x 4 from 10 to 20 million rows (CaiT,
ConViT) do not take milliseconds."""
_LONG, _LONG_SPLITS = 8192, (1, 4, 8, 11, 16, 32)
"""Gradients of a convolution's weights are sums over so many positions, cut as PEs are free."""
_SLICED = ProductTile(32, 32, slices=4)
_VECTOR_TILES = (
    _SLICED,
    ProductTile(64, 64, (1, 4)),
    ProductTile(32, 128),
    ProductTile(128, 64, (1, 3)),
    ProductTile(128, 128, (1, 3)),
)
_WAVE_TILE = ProductTile(128, 128, (1, 3), resident=2)
"""That of float32 on Hopper and later: products of neusight-linear and KernelBench on H100s take
whole waves of two an SM. What is narrower, or is held by all SMs at once, takes others."""
_CUT_WAVE = 0.6
"""The share of a wave from which on its tiles are whole: 128 of the 228 of an H100 PCIe are cut
along K (KernelBench level2/66), 169 of the 264 of an H100 are not (1600 x 1600 x 8192)."""
_BY_VECTOR = frozenset({"float32", "float64"})
"""Their kernels load an element at a time in any case."""
_FAMILIES = {
    "float32": "float32",
    "tf32": "tf32",
    "float64": "float64",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float4_e2m1fn": "fp4",
}
_CUTLASS = frozenset({"vllm", "sglang", "sglang_before"})
_CUTS = frozenset({"blas", "conv"})
"""Libraries that cut K."""
_SPARED = 0.5
"""The share of ``float32_clock_loss`` of a product whose operands do not both lie along K, and that
is no batch, not split and not emulated: KernelBench level1/10 reaches 44, 21, 12.5 and 4.6 TFLOP/s
on L40S, RTX A6000, L4 and T4, linear layers 32, 17, 9.3 and 3.4. Boards below their limit make no
difference. T4's 4.3 at 8192 cubed asks for more, L40S for less."""


def family_of(dtype: str) -> str:
    """Return which kernels of the library multiply a dtype: those with equal structure."""
    return _FAMILIES.get(dtype, "half")


def constants_of(product: Product, library: KernelLibrary) -> str:
    """Return the name of a product's constants: those of BLAS where its library has none there."""
    whose = "cutlass" if product.library in _CUTLASS else product.library
    family = product.emulates or family_of(product.dtype)
    own = f"{whose}_{family}"
    return own if whose == "conv" or own in library.names() else f"blas_{family}"


def product_kernels(product: Product, sip: SipSpec, library: KernelLibrary) -> KernelChoice:
    """Return the launches of a product and their time.

    Raises:
        UnknownNameError: The architecture has no such kernels.
        MachineError: The machine has no rate for the dtype.
    """
    return fastest(product_candidates(product, sip, library), sip, library)


def product_candidates(
    product: Product, sip: SipSpec, library: KernelLibrary
) -> tuple[tuple[LibraryKernel, ...], ...]:
    """Return the launches of a product for each tile and number of parts of K."""
    return tuple(_candidates(product, sip, library))


def grouped_kernels(
    products: Sequence[Product], sip: SipSpec, library: KernelLibrary
) -> KernelChoice:
    """Return the launch of groups with sizes of their own, products of one dtype, and its time.

    One launch goes over the tiles of all groups, which have one shape; K is whole.

    Raises:
        UnknownNameError: The architecture has no such kernels.
        MachineError: The machine has no rate for the dtype.
    """
    if len(products) == 1:
        return product_kernels(products[0], sip, library)
    by_group = [
        [
            kernel
            for (kernel,) in product_candidates(replace(product, may_split=False), sip, library)
            if kernel.name != _VECTOR
        ]
        for product in products
    ]
    by_tile = zip(*by_group, strict=True)
    return fastest(((_one_launch(kernels),) for kernels in by_tile), sip, library)


def _one_launch(kernels: Sequence[LibraryKernel]) -> LibraryKernel:
    """Return a launch of the tiles of several, of which those that do the same are counted once."""
    launch = merged(kernels)
    counts = Counter[Tiles]()
    for tile in launch.tiles:
        counts[replace(tile, count=1)] += tile.count
    alike = (replace(name, count=count) for name, count in counts.items())
    return replace(launch, tiles=tuple(alike))


def _candidates(
    product: Product, sip: SipSpec, library: KernelLibrary
) -> Iterator[tuple[LibraryKernel, ...]]:
    name = constants_of(product, library)
    ruled = _ruled_tile(product, sip, library.architecture)
    if ruled is not None:
        yield tiled_product(product, ruled, 1, name, sip)
        return
    if min(product.m, product.n) == 1:
        yield (_one_row(product),)
    may_split = product.may_split and product.batch == 1 and product.library in _CUTS
    for tile in _tiles_for(product, sip):
        for split in dict.fromkeys(_splits(product, tile, sip)):
            if split == 1 or (may_split and product.k >= split * _LEAST_PART):
                yield tiled_product(product, tile, split, name, sip)


def _ruled_tile(product: Product, sip: SipSpec, architecture: str) -> ProductTile | None:
    """Return the tile that a rule names; None where the fastest is taken."""
    m, n, k = product.m, product.n, product.k
    if family_of(product.dtype) != "fp8":
        return None
    if (product.library, architecture) == ("blocks", "sm90"):
        return deepgemm_tile(m, n, k, sip.num_pes)
    if product.library not in _CUTLASS:
        return None
    rules = tile_rules()
    # An engine took over vLLM's rule where it has none of its own.
    for_engine = rules.get((architecture, product.library), rules.get((architecture, "vllm"), ()))
    return next((rule.tile for rule in for_engine if rule.takes(m, n, k)), None)


def _tiles_for(product: Product, sip: SipSpec) -> tuple[ProductTile, ...]:
    """Return the tiles that a library has for a product."""
    is_plain, is_wide = product.a_bytes is None, sip.pe.gemm.native_m >= 64
    if product.dtype in _BY_VECTOR:
        of_waves = is_wide and is_plain and product.dtype == "float32" and product.may_split
        if not of_waves or min(product.m, product.n) < _WAVE_TILE.block_m:
            return _VECTOR_TILES
        fits = product.batch * _count(product, _SLICED) <= sip.num_pes * _resident(_SLICED)
        return (_SLICED, _WAVE_TILE) if fits else (_WAVE_TILE,)
    if family_of(product.dtype) == "fp4" and sip.pe.register_kib < _LARGE_KIB:
        return _BLOCK_SCALED_TILES + (_BLOCK_SCALED_WIDE_TILES if is_wide else ())
    tiles = _MATRIX_TILES + _WIDE_TILES if is_wide else _MATRIX_TILES
    if is_wide and is_plain:
        tiles += _PAIR_TILES
    if sip.pe.register_kib >= _LARGE_KIB:
        tiles += (_LARGE_TILE,)
    return tiles + _NARROW_TILES if product.batch > 1 and not is_plain else tiles


def _splits(product: Product, tile: ProductTile, sip: SipSpec) -> tuple[int, ...]:
    """Return into how many parts K may be cut for a tile."""
    by_vector = product.dtype in _BY_VECTOR
    is_long = product.a_bytes is not None and product.k >= _LONG
    count, places = _count(product, tile), sip.num_pes * _resident(tile)
    if tile == _WAVE_TILE and count > _CUT_WAVE * places:
        return (1,)
    splits = _LONG_SPLITS if is_long else tile.splits
    if by_vector and count < sip.num_pes:
        # All PEs hold as many as they can: one tile waits for its loads, several take turns.
        splits += (places // count,)
    is_very_long = not by_vector and product.k >= _VERY_LONG and not is_long
    if is_very_long and max(product.m, product.n) <= tile.block_m == tile.block_n:
        splits += _MORE_SPLITS
    return splits


def _count(product: Product, tile: ProductTile) -> int:
    return math.ceil(product.m / tile.block_m) * math.ceil(product.n / tile.block_n)


def _resident(tile: ProductTile) -> int:
    return tile.resident or min(8, 128 * 128 // (tile.rows * tile.block_n)) or 1


def tiled_product(
    product: Product, tile: ProductTile, split: int, name: str, sip: SipSpec
) -> tuple[LibraryKernel, ...]:
    """Return the launches of a product by one tile and so many parts of K.

    ``name`` is that of the constants.
    """
    m, n, size = tile.rows, tile.block_n, product.itemsize
    rows = _filled(product.m, tile.block_m, tile.cluster_rows)
    columns = _filled(product.n, n, tile.cluster_columns)
    by_vector = product.dtype in _BY_VECTOR
    depth = 8 if by_vector else max(1 << round(math.log2(tile.k_bytes / size)), 32)
    depth *= tile.slices
    trips = math.ceil(math.ceil(product.k / split) / depth)
    out_bytes = product.part_bytes if split > 1 else product.out_bytes
    a, b, c = product.distinct
    loads = min(m, product.m) * size / tile.cluster_columns
    loads += min(n, product.n) * product.b_size / (tile.pes * tile.cluster_rows)
    widened = 0.0 if product.weight_bytes is None else _WIDENING * n * depth
    share = float(sip.sustained.half_share) if sip.sustained and name == "blas_half" else 1.0
    trip = Trip(
        flops=2.0 * m * n * depth / share,
        dtype=product.dtype,
        simple=widened + tile.moves_per_result * m * n,
        loaded_bytes=loads * depth,
        access_bytes=16 if by_vector else product.access_bytes,
        missed=tile.missed * product.b_cold,
        pipelined=True,
    )
    is_spared = split * product.batch == 1 and not (product.along_k or product.emulates)
    stored = min(m, product.m) * min(n, product.n) * out_bytes
    count = rows * columns * split * product.batch * tile.pes
    a_read, b_read = _reads(product, tile, rows, columns, split, sip)
    main = LibraryKernel(
        name=name,
        tiles=(Tiles(count=count, trips=trips, trip=trip, stored_bytes=stored),),
        resident=_resident(tile),
        hbm_read_bytes=a * product.a_cold * a_read + b * product.b_cold * b_read,
        hbm_written_bytes=c if split == 1 else 0.0,
        stores_last=by_vector and split == 1 and product.a_bytes is None,
        in_waves=tile.in_waves,
        overlap=tile.overlap,
        loss_share=_SPARED if is_spared else 1.0,
    )
    return (main,) if split == 1 else (main, _sum_parts(product, split, sip))


def _filled(size: int, tile: int, cluster: int) -> int:
    """Return how many tiles cover a size, in whole clusters."""
    return math.ceil(math.ceil(size / tile) / cluster) * cluster


def _reads(
    product: Product, tile: ProductTile, rows: int, columns: int, split: int, sip: SipSpec
) -> tuple[float, float]:
    """Return how often A and B are read from HBM, with programs in groups as square as can be."""
    a, b = (number / product.batch for number in product.distinct[:2])
    held = 0.0 if sip.cache is None else float(sip.cache.capacity_mib) * 2**20 * _HELD
    at_once = max(min(rows * columns, sip.num_pes // (split * tile.pes)), 1)
    high = min(max(round(math.sqrt(at_once * tile.block_n / tile.block_m)), 1), rows)
    groups = math.ceil(rows / high)
    b_reads = 1 if b <= held else groups
    of_group = high * tile.block_m * product.k * product.itemsize
    if a + b <= held or of_group <= held:
        return 1.0, b_reads
    return max(1.0, rows * columns / at_once / groups), b_reads


def _sum_parts(product: Product, split: int, sip: SipSpec) -> LibraryKernel:
    """Return the kernel that adds up the parts of C, which come from the cache if they fit."""
    size = product.m * product.n
    read = float(product.part_bytes * split * size)
    held = 0.0 if sip.cache is None else float(sip.cache.capacity_mib) * 2**20 * _HELD
    block = 1024
    trip = Trip(simple=block, loaded_bytes=product.part_bytes * block)
    count = math.ceil(size / block)
    tiles = Tiles(count=count, trips=split, trip=trip, stored_bytes=product.out_bytes * block)
    return LibraryKernel(
        name="conv_sum_parts" if product.library == "conv" else "blas_sum_parts",
        tiles=(tiles,),
        resident=8,
        hbm_read_bytes=0.0 if read <= held else 2 * read,
        hbm_written_bytes=float(product.out_bytes * size),
    )


def _one_row(product: Product) -> LibraryKernel:
    """Return a product whose programs each make a few elements of C on the vector engine."""
    columns = max(product.m, product.n)
    widened = 0.0 if product.weight_bytes is None else _WIDENING
    size = product.b_size if product.m == 1 else product.itemsize
    trip = Trip(
        simple=(1 + widened) * _COLUMNS * _ROWS_AT_A_TIME,
        loaded_bytes=_COLUMNS * _ROWS_AT_A_TIME * size,
    )
    tiles = Tiles(
        count=math.ceil(columns / _COLUMNS) * product.batch,
        trips=max(product.k / _ROWS_AT_A_TIME, 1.0),
        trip=trip,
        stored_bytes=_COLUMNS * product.out_bytes,
    )
    a, b, c = product.distinct
    return LibraryKernel(
        name=_VECTOR,
        tiles=(tiles,),
        resident=8,
        hbm_read_bytes=a * product.a_cold + b * product.b_cold,
        hbm_written_bytes=c,
    )
