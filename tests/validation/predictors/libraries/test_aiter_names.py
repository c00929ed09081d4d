"""Names of AITER's kernels: their maker, and the tile that is taken."""

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import read_rows
from validation.predictors.gemm import GemmPredictor
from validation.predictors.libraries.aiter_names import maker_of, named_tiles

SCALES = "a8w8_blockscale_1x128x128"
HEADER = "source,device,dtype,m,n,k,batch,time_us,impl\n"


@pytest.mark.parametrize(
    ("impl", "item_bytes", "maker", "tile"),
    [
        (f"ck {SCALES}_256x128x64x256_16x16_32x32_2x2", 1.0, "ck", (128, 64, 256)),
        (
            "ck a8w8_blockscale_bpreshuffle_1x128x128_256x16x64x256_16x16", 1.0,
            "ck_bpreshuffle", (16, 64, 256),
        ),
        ("cktile a8w8_blockscale_cktile_192x256x128_4x2x1_16x16", 1.0, "cktile", (192, 256, 128)),
        ("asm _ZN5aiter41f4gemm_bf16_per1x32Fp4_BpreShuffle_96x128E", 0.53, "asm", (96, 128, 128)),
        # 256 elements of 4 bits; their scales are not in a row of shared memory.
        ("ck a4w4_256x64x128x256_16x16", 0.53, "ck", (64, 128, 128)),
    ],
)  # fmt: skip
def test_a_name_gives_maker_and_tile(
    impl: str, item_bytes: float, maker: str, tile: tuple[int, int, int]
) -> None:
    assert maker_of(impl) == maker
    named = named_tiles(impl, "aiter_fp4_asm", item_bytes)
    assert named is not None
    result, _ = named
    assert (result.block_m, result.block_n, result.k_bytes) == tile


def test_a_name_without_a_tile_takes_one_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    line = "aiter-gemm-2,MI355X,fp4,64,512,4096,1,5,asm _ZN5aiter{}\n"
    path.write_text(HEADER + line.format("_BpreShuffle_32x128E") + line.format("_nameless"))
    predictor = GemmPredictor(presets())
    named, listed = (predictor.measured(row) for row in read_rows([path]))
    assert named_tiles("asm _ZN5aiter_nameless", "aiter_fp4_asm", 0.5) is None
    assert len(named.choices) == 1 < len(listed.choices)
