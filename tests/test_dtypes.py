from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy, deepcopy

import ml_dtypes
import numpy as np
import pytest

import kernbench
from kernbench import dtypes
from kernbench.errors import UnknownNameError


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_every_name_of_a_dtype_finds_it(dtype: dtypes.DType) -> None:
    for name in (dtype.name, dtype.mlir, dtype.triton, str(dtype), *dtype.aliases):
        assert dtypes.as_dtype(name) is dtype
    assert dtypes.as_dtype(dtype.numpy) is dtype
    assert dtypes.as_dtype(dtype) is dtype


def test_the_names_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    names = {n: d for n, d in vars(dtypes.TorchNames).items() if isinstance(d, dtypes.DType)}
    assert set(names.values()) == set(dtypes.ALL)
    assert {name: str(getattr(torch, name)) for name in names} == {
        n: str(d) for n, d in names.items()
    }
    for name, dtype in names.items():
        assert getattr(kernbench.RuntimeContext, name) is dtypes.as_dtype(name) is dtype


@pytest.mark.parametrize("copied", [copy, deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_a_copy_of_a_dtype_is_the_dtype(copied: Callable[[dtypes.DType], dtypes.DType]) -> None:
    assert [copied(item) for item in dtypes.ALL] == list(dtypes.ALL)


def test_the_text_is_torchs_and_bits_are_significant_bits() -> None:
    assert str(dtypes.float16) == "torch.float16"
    assert (dtypes.bool_.bits, dtypes.bfloat16.bits, dtypes.int64.bits) == (1, 16, 64)


def test_bfloat16_is_a_real_bfloat16() -> None:
    assert dtypes.bfloat16.numpy == np.dtype(ml_dtypes.bfloat16)
    # 1 + 2**-8 lies between two bfloat16 values and rounds to the even one.
    assert float(np.float32(1 + 2**-8).astype(dtypes.bfloat16.numpy)) == 1.0


@pytest.mark.parametrize("given", ["flaot16", "torch.float17", object(), "complex64"])
def test_an_unknown_dtype_is_refused_by_name(given: object) -> None:
    with pytest.raises(UnknownNameError, match="unknown dtype"):
        dtypes.as_dtype(given)


def test_the_nearest_dtype_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean float16"):
        dtypes.as_dtype("flaot16")
