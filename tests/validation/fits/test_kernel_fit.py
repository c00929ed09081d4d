"""Constants of library kernels come back from the times that they were made with."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import read_rows
from kernbench.errors import UsageError
from kernbench.hardware import KernelConstants
from validation.fits.kernel_fit import family_as_text, fit_kernels
from validation.fits.lean import lean_library
from validation.kernels import load_library
from validation.predictors.attention import AttentionPredictor

HEAD = (
    "source,device,op,framework,kernel,attn_dtype,kv_dtype,batch,q_len,kv_len,heads,kv_heads,"
    "head_dim,window,causal,time_us"
)
KERNEL = "sglang_flash_attention_prefill"
TRUE = KernelConstants.model_validate(
    {"tensor_share": 0.6, "memory_share": 0.7, "trip_ns": 300, "tile_ns": 900, "fixed_us": 8,
     "source": "assumed: a test"}
)  # fmt: skip


def rows_of(tmp_path: Path, sizes: list[tuple[int, int, int]]) -> Path:
    path = tmp_path / "attention.csv"
    lines = [
        f"me,A100-SXM4-80GB,attention_prefill,sglang,flash_attention,bfloat16,bfloat16,{batch},"
        f"{length},{length},{heads},{heads},128,0,yes,1"
        for batch, length, heads in sizes
    ]
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return path


@pytest.mark.adr("0128-D3")
def test_a_fit_finds_the_constants_that_made_the_times(tmp_path: Path) -> None:
    sizes = [(b, n, h) for b in (1, 32, 256) for n in (16, 64, 512, 2048) for h in (4, 8, 32)]
    rows = read_rows([rows_of(tmp_path, sizes)])
    predictor = AttentionPredictor(presets())
    true = load_library("sm80").changed({KERNEL: TRUE})
    timed = [
        replace(row, time_us=predictor.measured(row).time_us(lambda name: true)) for row in rows
    ]
    kernels = fit_kernels("sm80", timed, [KERNEL])
    assert kernels.fitted.rows + kernels.apart.rows == len(sizes)
    assert kernels.apart.rows >= 3
    assert kernels.fitted.mape is not None
    assert kernels.fitted.mape < 1.0
    assert kernels.apart.mape is not None
    assert kernels.apart.mape < 1.5
    assert "fitted to" in kernels.library.constants(KERNEL).source


def test_a_constant_that_no_row_depends_on_stays_and_is_not_called_fitted(tmp_path: Path) -> None:
    # Long sequences: arithmetic hides all of what HBM does.
    sizes = [(b, n, h) for b in (1, 2, 4, 8) for n in (4096, 6144, 8192) for h in (8, 16, 32)]
    rows = read_rows([rows_of(tmp_path, sizes)])
    predictor = AttentionPredictor(presets())
    library = load_library("sm80")
    timed = [
        replace(row, time_us=predictor.measured(row).time_us(lambda name: library) * 1.2)
        for row in rows
    ]
    kernels = fit_kernels("sm80", timed, [KERNEL])
    before, after = (item.constants(KERNEL) for item in (library, kernels.library))
    assert after.tensor_share != before.tensor_share
    assert after.memory_share == before.memory_share
    assert "; assumed, as no row depends on it: memory_share" in after.source


@pytest.mark.adr("0128-D9")
def test_constants_that_change_no_time_are_left_out(tmp_path: Path) -> None:
    sizes = [(b, n, h) for b in (1, 4, 16) for n in (512, 1024, 2048) for h in (4, 8, 32)]
    rows = read_rows([rows_of(tmp_path, sizes)])
    predictor = AttentionPredictor(presets())
    entry = {"tensor_share": 0.4, "fixed_us": 12, "source": "assumed: a test"}
    true = load_library("sm80").changed({KERNEL: KernelConstants.model_validate(entry)})
    timed = [
        replace(row, time_us=predictor.measured(row).time_us(lambda name: true)) for row in rows
    ]
    lean = lean_library("sm80", timed, [KERNEL], 0.1)
    assert lean.library.constants(KERNEL).given == ["tensor_share", "fixed_us"]
    assert lean.fitted.mape is not None
    assert lean.fitted.mape < 1


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    rows = read_rows([rows_of(tmp_path, [(1, 64, 8)])])
    with pytest.raises(UsageError, match="need at least"):
        fit_kernels("sm80", rows, [KERNEL])


def test_a_written_family_reads_back() -> None:
    family = load_library("sm80").families["attention"]
    assert yaml.safe_load(family_as_text(family, "# x\n"))["kernels"].keys() == (
        family.kernels.keys()
    )
