"""Structures and constants of attention kernels belong together."""

import re
from dataclasses import replace

import pytest

from kernbench.hardware import known_libraries, load_library
from kernbench.library_kernels import (
    AttentionProblem,
    attention_kernels,
    flash_backward_launches,
    flash_launches,
)

_BESIDE = {"flash_combine", "flash_copy", "flash_prepare", "flash_convert"}


@pytest.mark.parametrize("architecture", known_libraries())
def test_each_structure_has_constants_and_each_constant_a_structure(architecture: str) -> None:
    problems = [
        AttentionProblem(
            batch=batch, q_len=q_len, kv_len=8192, heads=8, kv_heads=kv_heads, head_dim=64
        )
        for batch, q_len, kv_heads in ((1, 1, 2), (1, 512, 2), (1, 1, 8))
    ]
    library = load_library(architecture)
    described = attention_kernels(architecture)
    for kernel in described.values():
        for problem in problems:
            launches = (
                flash_backward_launches(problem, kernel)
                if kernel.name.endswith("_backward")
                else flash_launches(problem, kernel, num_pes=132)
            )
            for launch in launches:
                library.constants(launch.name)
    assert set(library.families["attention"].kernels) - _BESIDE == set(described)


@pytest.mark.parametrize("architecture", known_libraries())
def test_a_kernel_of_few_rows_names_the_few_constants_that_were_fitted(architecture: str) -> None:
    library = load_library(architecture)
    for name in library.families["attention"].kernels:
        constants = library.constants(name)
        said = re.match(
            r"fitted to (\d+) rows of [^:]*: ([\w, ]+); the others as", constants.source
        )
        if said is not None:
            fitted = said[2].split(", ")
            assert 3 * len(fitted) <= int(said[1]), name
            assert set(fitted) <= constants.model_fields_set, name


def test_an_architecture_that_nobody_described_has_none() -> None:
    assert not attention_kernels("sm00")


@pytest.mark.parametrize(
    ("name", "head_dim", "window", "causal", "block"),
    [
        ("flash3_forward", 64, 0, False, (192, 192)),
        ("flash3_forward", 64, 0, True, (192, 128)),
        ("flash3_forward", 80, 0, False, (192, 144)),
        ("flash3_forward", 128, 0, False, (128, 176)),
        ("flash3_forward", 128, 0, True, (128, 128)),
        ("flash3_paged", 128, 0, True, (128, 128)),
        ("flash3_paged", 192, 0, True, (128, 96)),
        ("flash3_paged", 256, 0, True, (128, 80)),
        ("flash3_paged", 256, 1024, True, (128, 64)),
        ("flash3_paged_fp8", 64, 0, True, (192, 160)),
        ("flash3_paged_fp8", 128, 128, True, (128, 160)),
        ("flash3_paged_fp8", 256, 0, True, (128, 128)),
        ("flash3_paged_fp8", 256, 1024, True, (128, 64)),
    ],
)
def test_flash_attention_3_has_the_tiles_that_its_source_says(
    name: str, head_dim: int, window: int, causal: bool, block: tuple[int, int]
) -> None:
    # Dao-AILab/flash-attention, hopper/tile_size.h: tile_size_fwd_sm90.
    problem = AttentionProblem(
        batch=1, q_len=4096, kv_len=4096, heads=8, kv_heads=8, head_dim=head_dim, window=window,
        causal=causal,
    )  # fmt: skip
    kernel = attention_kernels("sm90")[name]
    assert kernel.block_of(problem, problem.q_len) == block
    # So many keys are loaded and multiplied with so many queries.
    whole = replace(problem, causal=False, window=0)
    rows, keys = kernel.block_of(whole, problem.q_len)
    (launch,) = flash_launches(whole, kernel, num_pes=132)
    assert launch.num_tiles == 8 * -(-4096 // rows)
    assert all(tile.trips == -(-4096 // keys) for tile in launch.tiles)
