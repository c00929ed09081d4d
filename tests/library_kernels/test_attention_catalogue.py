"""Structures and constants of attention kernels belong together."""

import re

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
