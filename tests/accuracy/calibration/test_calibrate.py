"""A device with other constants is measured, and calibration finds them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernbench.accuracy.calibration import calibrate, constants_of
from kernbench.accuracy.calibration.constants import rates_of
from kernbench.accuracy.calibration.rows import GemmRows, PredictedRows, modeled_rows
from kernbench.accuracy.predictors.gemm import GemmPredictor, problem_of
from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.forms import Category
from kernbench.accuracy.rows.predictor import OWN, part_of
from kernbench.accuracy.rows.reference import read_rows
from kernbench.cli.commands.calibrate import CalibrateOptions
from kernbench.cli.commands.calibrate import calibrate as calibrate_command
from kernbench.dtypes import bfloat16
from kernbench.errors import KernbenchError, UnknownNameError, UsageError
from kernbench.hardware import (
    changed_machine,
    edited,
    load_machine,
    machine_template,
    machine_text,
    parse_machine,
    source_of,
)
from kernbench.ops import GemmTile
from kernbench.plans.tiles import GemmTuner, Problem, tiles
from tests.cli.command_line import kernbench

NAMES = ("sip.front_end_us", "sip.pe.gemm.efficiency")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a device like an H100 whose launches take longer and whose engines are slower."""
    text = edited(machine_text("h100-sxm")[0], dict(zip(NAMES, (4.0, 0.6), strict=True)), {}, "x")
    device = parse_machine(text, "other", 1)
    tuner = GemmTuner()
    lines = ["device,op,dtype,m,n,k,bytes,time_us,source,impl"]
    for n in (512, 1024, 1536, 4096):
        for m in (16, 2048):
            best = tuner.tune(Problem(m, n, 1024, bfloat16), device)
            lines.append(f"H100-SXM-80GB,gemm,bf16,{m},{n},1024,1,{best.kernel_us},mine,triton")
    path = tmp_path_factory.mktemp("rows") / "gemm.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.adr("0261-D3")
@pytest.mark.slow
def test_constants_of_a_device_are_found_and_the_rows_kept_apart_are_answered(
    measured: Path,
) -> None:
    result = calibrate("h100-sxm", read_rows([measured]), parts=4, only=NAMES)
    (fit,) = result.errors
    after = {constant.key: constant.after for constant in result.constants}
    assert all(constant.is_known and len(constant.rows) > 1 for constant in result.constants)
    assert after == {NAMES[0]: pytest.approx(4.0, rel=0.03), NAMES[1]: pytest.approx(0.6, rel=0.03)}
    assert fit.apart_before.mape is not None
    assert fit.apart_after.mape is not None
    assert fit.apart_before.mape > 15
    assert fit.apart_after.mape < 1
    assert fit.fitted_after.rows + fit.apart_after.rows == 8
    machine = parse_machine(result.text, "new", 1)
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
    result = calibrate(
        "h100-sxm", read_rows([path]), only=["sip.pe.gemm.efficiency", unused], say=said.append
    )
    assert [constant.key for constant in result.constants if constant.deviation is None] == [unused]
    assert said[0].startswith("gemm: ")
    before, after = (
        parse_machine(text, "x", 1) for text in (machine_text("h100-sxm")[0], result.text)
    )
    assert after.sip.queued_front_end_us == before.sip.queued_front_end_us
    assert after.spec.sources[unused] == before.spec.sources[unused]
    assert after.spec.sources["sip.pe.gemm.efficiency"].startswith("fitted to ")


def test_hbm_and_the_cache_have_latencies_of_their_own() -> None:
    data = yaml.safe_load(machine_text("a100-sxm-80g")[0])
    result = {constant.key: constant.tied for constant in constants_of(Category.GEMM, data)}
    assert result["sip.cube.hbm_latency_ns"] == result["sip.cache.latency_ns"] == ()


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
    machine = parse_machine(text, "x", 1)
    modeled = GemmRows(rows, machine)
    assert 3 * len(rows) <= len(timed) < known / 2
    timed.clear()
    modeled.times_us(machine)
    assert len(rows) <= len(timed) < 2 * len(rows)


@pytest.mark.adr("0128-D6")
def test_products_are_fitted_by_the_kernels_that_answer_them(measured: Path) -> None:
    text = measured.read_text()
    path = measured.with_name("library.csv")
    path.write_text(text.replace(",triton", ",mine"))
    machine = load_machine("h100-sxm", 1)
    of_library = modeled_rows(Category.GEMM, read_rows([path]), machine, OWN)
    predictor = GemmPredictor(presets())
    assert of_library.times_us(machine).tolist() == [
        predictor.predict(row).time_us for row in of_library.rows
    ]
    assert isinstance(modeled_rows(Category.GEMM, read_rows([measured]), machine, OWN), GemmRows)
    without = changed_machine(machine, {"kernel_library": None})
    assert isinstance(modeled_rows(Category.GEMM, read_rows([path]), without, OWN), GemmRows)


def test_a_fit_that_no_row_determines_says_so_and_changes_nothing(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured.with_name("library.csv")
    path.write_text(measured.read_text().replace(",triton", ",mine"))
    asked = options(path, tmp_path, only=["sip.pe.gemm.efficiency"])
    calibrate_command(asked)
    assert "no row tells, and they stay: sip.pe.gemm.efficiency" in capsys.readouterr().out


@pytest.mark.adr("0047-D3")
def test_rows_of_one_shape_are_never_on_both_sides(measured: Path) -> None:
    rows = read_rows([measured])
    sides: dict[str, set[int]] = {}
    for row in rows:
        sides.setdefault(f"{row.fields['n']}x{row.fields['k']}", set()).add(part_of(row, 4))
    assert all(len(side) == 1 for side in sides.values())
    assert {0} < {part for side in sides.values() for part in side}


def options(measured: Path, tmp_path: Path, **changed: Any) -> CalibrateOptions:
    value = {"machine": "h100-sxm", "out": str(tmp_path / "new.yaml"), "only": NAMES[:1],
             "source": ["mine"], "rows": 120, "parts": 4}  # fmt: skip
    return CalibrateOptions(data=[str(measured)], **{**value, **changed})


@pytest.mark.adr("0047-D3")
@pytest.mark.slow
def test_the_command_prints_both_errors_and_writes_a_machine(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrate_command(options(measured, tmp_path))
    printed = capsys.readouterr().out
    assert "sip.front_end_us" in printed
    assert "gemm fitted to, " in printed
    assert "gemm kept apart, " in printed
    assert load_machine(tmp_path / "new.yaml", 1).sip.front_end_us > 2.5


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"machine": "h1000"}, UnknownNameError, "unknown machine 'h1000'"),
        ({"machine": "l4"}, UsageError, "no row is of a device of l4: its devices are L4, "
                                        "NVIDIA L4; the rows are of H100-SXM-80GB"),
        ({"only": ("sip.front_end",)}, UnknownNameError, "did you mean sip.front_end_us"),
        ({"source": ["aic"]}, UsageError, "no row is of source 'aic'; the rows are of mine"),
        ({"parts": 1}, UsageError, "parts must be at least 2"),
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


HIDDEN = {
    "sip.cube.hbm_bandwidth_gbps": 1500,
    "sip.pe.gemm.flops_per_clock.bfloat16": 1600,
    "sip.front_end_us": 6,
    "links.bandwidth_gbps": 120,
}
FILES: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {
    "device,op,dtype,m,n,k,time_us,source": (
        PredictedRows,
        [("gemm", dtype, m, n, 1024) for dtype, m, n in [
            ("bfloat16", 16, 512), ("BF16", 4096, 2048), ("torch.bfloat16", 16, 4096),
            ("bf16", 4096, 1024), ("bf16", 2048, 4096), ("bf16", 64, 1536),
        ]],
    ),
    "device,op,dtype,rows,cols,time_us,source": (
        PredictedRows,
        [(op, dtype, rows, 4096) for op, dtype, rows in [
            ("add", "half", 64), ("add", "float16", 16384), ("gelu", "fp16", 8192),
            ("rmsnorm", "float32", 4096), ("softmax", "torch.float32", 2048),
        ]],
    ),
    "device,op,dtype,n_ranks,bytes,time_us,source": (
        PredictedRows,
        [("all_reduce", dtype, ranks, size) for dtype, ranks, size in [
            ("half", 8, 1 << 27), ("bfloat16", 4, 1 << 25), ("float32", 8, 1 << 14),
            ("float", 2, 1 << 26),
        ]],
    ),
}  # fmt: skip
"""Columns, who answers their rows, and rows: operation, dtype as people write it, shape."""


@pytest.mark.campaign
@pytest.mark.adr("0261-D3")
def test_a_chip_of_ones_own_is_found_from_a_few_rows(
    tmp_path: Path,
) -> None:
    """Constants that only the writer of the rows knows: rows that were held out are answered."""
    own = tmp_path / "mine.yaml"
    own.write_text(machine_template("mine", "h100-sxm"))
    truth = changed_machine(load_machine(own), HIDDEN)
    files = []
    for number, (head, (answers, rows)) in enumerate(FILES.items()):
        path = tmp_path / f"{number}.csv"
        lines = [f"mine,{','.join(map(str, row))}" for row in rows]
        path.write_text("\n".join([head, *(f"{line},1,lab" for line in lines)]))
        modeled = answers(read_rows([path]), truth)
        assert not modeled.refused
        times = modeled.times_us(truth)
        noisy = [time * (1.02 if n % 2 else 0.98) for n, time in enumerate(times)]
        answered = [f"{line},{time:.4f},lab" for line, time in zip(lines, noisy, strict=True)]
        path.write_text("\n".join([head, *answered]) + "\n")
        files.append(path)
    bad = tmp_path / "bad.csv"
    bad.write_text(f"{[*FILES][1]}\nmine,sinh,bf16,8,8,3,lab\nother,add,bf16,8,8,3,lab\n")
    out = tmp_path / "fitted.yaml"
    words: list[str | Path] = ["calibrate", own, *files, bad, "--out", out, "--parts", "3"]
    done = kernbench(*words)
    assert done.exit_code == 0, done.output
    printed = done.output
    assert "not used: bad.csv:2: no kernel for op sinh" in printed
    assert "not used: bad.csv:3: of other, no device of mine" in printed
    assert re.search(r"sip\.front_end_us +2\.1989 +[56]\.\d+ +\d+\.\d %", printed)
    silent = printed[printed.index("no row tells, and they stay: ") :].splitlines()[0]
    assert "collectives.peer." in silent
    assert "sip.pe.gemm.flops_per_clock.{" in silent
    bandwidth = "sip.cube.hbm_efficiency times sip.cube.hbm_bandwidth_gbps"
    assert re.search(rf"known together alone, to \d+\.\d %: {re.escape(bandwidth)}", printed)
    for result in re.findall(r"kept apart, (\d+) rows +(\d+)\S+ +(\d+)", printed):
        assert int(result[2]) < 15, printed
    fitted = load_machine(out).spec
    sip = fitted.sip
    assert float(sip.cube.hbm_bandwidth_gbps * sip.cube.hbm_efficiency) == pytest.approx(
        1500 * 0.9, rel=0.1
    )
    assert (source_of(fitted, "sip.front_end_us") or "").startswith("fitted to ")
    assert (source_of(fitted, "sip.pe.gemm.flops_per_clock.int8") or "").startswith("assumed")


@pytest.mark.adr("0261-D2")
def test_rates_that_a_source_states_stay_unless_they_are_named() -> None:
    spec = load_machine("h100-sxm").spec
    free, stated = rates_of(spec)
    assert "sip.cube.hbm_bandwidth_gbps" in stated
    assert "sip.cube.hbm_bandwidth_gbps" not in {item.key for item in free}
    mine = parse_machine(machine_template("mine", "h100-sxm"), "mine").spec
    assert {item.key for item in rates_of(mine)[0]} >= stated.keys()
    assert rates_of(mine)[1] == {}
