"""A device with other constants is measured, and calibration finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kernbench.accuracy.calibration import calibrate, constants_of
from kernbench.accuracy.calibration.rows import GemmRows
from kernbench.accuracy.predictors.gemm import problem_of
from kernbench.accuracy.rows.forms import Category
from kernbench.accuracy.rows.parts import part_of
from kernbench.accuracy.rows.reference import read_rows
from kernbench.cli.commands.calibrate import CalibrateOptions
from kernbench.cli.commands.calibrate import calibrate as calibrate_command
from kernbench.dtypes import bfloat16
from kernbench.errors import KernbenchError, UnknownNameError, UsageError
from kernbench.hardware import edited, load_machine, machine_text, parse_machine
from kernbench.ops import GemmTile
from kernbench.plans.problem import Problem
from kernbench.plans.tiles import GemmTuner, tiles

NAMES = ("sip.front_end_us", "sip.pe.gemm.efficiency")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a device like an H100 whose launches take longer and whose engines are slower."""
    text = edited(machine_text("h100-sxm")[0], dict(zip(NAMES, (4.0, 0.6), strict=True)), {}, "x")
    device = parse_machine(text, "other", 1)
    tuner = GemmTuner()
    lines = ["device,op,dtype,m,n,k,bytes,time_us,source"]
    for n in (512, 1024, 1536, 4096):
        for m in (16, 2048):
            best = tuner.tune(Problem(m, n, 1024, bfloat16), device)
            lines.append(f"H100-SXM-80GB,gemm,bf16,{m},{n},1024,1,{best.kernel_us},mine")
    path = tmp_path_factory.mktemp("rows") / "gemm.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.adr("0047-D2")
@pytest.mark.slow
def test_constants_of_a_device_are_found_and_the_rows_kept_apart_are_answered(
    measured: Path,
) -> None:
    found = calibrate("h100-sxm", read_rows([measured]), parts=4, only=NAMES)
    (fit,) = found.fits
    after = {key: new for key, _, new in fit.constants}
    assert after == {NAMES[0]: pytest.approx(4.0, rel=0.03), NAMES[1]: pytest.approx(0.6, rel=0.03)}
    assert fit.apart_before.mape is not None
    assert fit.apart_after.mape is not None
    assert fit.apart_before.mape > 15
    assert fit.apart_after.mape < 1
    assert fit.fitted_after.rows + fit.apart_after.rows == 8
    machine = parse_machine(found.text, "new", 1)
    assert float(machine.sip.front_end_us) == pytest.approx(4.0, rel=0.03)
    assert machine.spec.sources[NAMES[0]].startswith("fitted to ")
    # What was not asked for stays.
    before = load_machine("h100-sxm", 1).sip
    assert machine.sip.cube == before.cube
    assert machine.sip.cache == before.cache


@pytest.mark.slow
def test_a_constant_that_no_row_depends_on_is_left_with_its_source(
    measured: Path, tmp_path: Path
) -> None:
    # Large products alone: K is not cut, so that no second kernel is launched.
    lines = measured.read_text().splitlines()
    path = tmp_path / "large.csv"
    kept = [line for line in lines if ",2048," in line]
    path.write_text("\n".join([lines[0], *kept, *kept]) + "\n")
    unused = "sip.queued_front_end_us"
    said: list[str] = []
    found = calibrate(
        "h100-sxm", read_rows([path]), only=["sip.pe.gemm.efficiency", unused], say=said.append
    )
    (fit,) = found.fits
    assert fit.undetermined == (unused,)
    assert any(f"{unused} moves no row" in line for line in said)
    before, after = (
        parse_machine(text, "x", 1) for text in (machine_text("h100-sxm")[0], found.text)
    )
    assert after.sip.queued_front_end_us == before.sip.queued_front_end_us
    assert after.spec.sources[unused] == before.spec.sources[unused]
    assert after.spec.sources["sip.pe.gemm.efficiency"].startswith("fitted to ")


def test_hbm_and_the_cache_have_latencies_of_their_own() -> None:
    data = yaml.safe_load(machine_text("a100-sxm-80g")[0])
    found = {each.key: each.tied for each in constants_of(Category.GEMM, data)}
    assert found["sip.cube.hbm_latency_ns"] == found["sip.cache.latency_ns"] == ()


def test_a_fit_does_not_time_what_cannot_be_fastest(
    measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[GemmTile] = []
    time_ps = GemmTuner.time_ps

    def counted(tuner: GemmTuner, problem: Problem, tile: GemmTile, *rest: Any) -> int:
        timed.append(tile)
        return time_ps(tuner, problem, tile, *rest)

    monkeypatch.setattr(GemmTuner, "time_ps", counted)
    rows, text = read_rows([measured]), machine_text("h100-sxm")[0]
    sip = load_machine("h100-sxm", 1).sip
    known = sum(len(list(tiles(problem_of(row, bfloat16), sip))) for row in rows)
    modeled = GemmRows(rows, text)
    assert 3 * len(rows) <= len(timed) < known / 2
    timed.clear()
    modeled.times_us(text)
    assert len(rows) <= len(timed) < 2 * len(rows)


@pytest.mark.adr("0047-D3")
def test_rows_of_one_shape_are_never_on_both_sides(measured: Path) -> None:
    rows = read_rows([measured])
    sides: dict[str, set[int]] = {}
    for row in rows:
        sides.setdefault(f"{row.fields['n']}x{row.fields['k']}", set()).add(part_of(row, 4))
    assert all(len(side) == 1 for side in sides.values())
    assert {0} < {part for side in sides.values() for part in side}


def options(measured: Path, tmp_path: Path, **changed: Any) -> CalibrateOptions:
    given = {"machine": "h100-sxm", "out": str(tmp_path / "new.yaml"), "only": NAMES[:1],
             "sources": ("mine",), "rows": 120, "parts": 4}  # fmt: skip
    return CalibrateOptions(data=(str(measured),), **{**given, **changed})


@pytest.mark.adr("0047-D3")
@pytest.mark.slow
def test_the_command_prints_both_errors_and_writes_a_machine(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrate_command(options(measured, tmp_path))
    printed = capsys.readouterr().out
    assert "sip.front_end_us" in printed
    assert "fitted to, " in printed
    assert "kept apart, " in printed
    assert load_machine(tmp_path / "new.yaml", 1).sip.front_end_us > 2.5


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"machine": "h1000"}, UnknownNameError, "unknown machine 'h1000'"),
        ({"machine": "l4"}, UsageError, "no row is of a device of l4: its devices are L4, "
                                        "NVIDIA L4; the rows are of H100-SXM-80GB"),
        ({"only": ("sip.front_end",)}, UnknownNameError, "did you mean sip.front_end_us"),
        ({"only": ()}, UsageError, "8 constants of gemm need at least 24 rows"),
        ({"sources": ("aic",)}, UsageError, "no row is of source 'aic'; the rows are of mine"),
        ({"parts": 1}, UsageError, "parts must be at least 2"),
        ({"only": ("sip.cube.hbm_efficiency",)}, UsageError, "nothing to fit: no row is of"),
        ({"out": "/dev/null/at/all.yaml"}, UsageError, "cannot be written"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_says_why(
    measured: Path,
    tmp_path: Path,
    changed: dict[str, Any],
    error: type[KernbenchError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        calibrate_command(options(measured, tmp_path, **changed))
