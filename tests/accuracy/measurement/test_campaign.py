"""A campaign on a modeled device: which rows it writes, and that they are what it measured."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernbench import RuntimeContext
from kernbench.accuracy.measurement import (
    GemmShape,
    Measured,
    NoDeviceError,
    RowShape,
    default_shapes,
    measure,
    read_shapes,
    write_rows,
)
from kernbench.accuracy.measurement.campaign import LEAST_RUNS
from kernbench.accuracy.rows.reference import read_rows
from kernbench.accuracy.score import answer_rows
from kernbench.cli.commands.measure import MeasureOptions
from kernbench.cli.commands.measure import measure as measure_command
from kernbench.dtypes import DType, bfloat16, float32
from kernbench.errors import UnknownNameError, UsageError
from kernbench.hardware import load_machine
from kernbench.ops import ELEMENTWISE_OPS, ROW_OPS, KernelCall, ProbePointer, elementwise_call
from kernbench.triton_backend import activate
from tests.accuracy.measurement.modeled_device import ModeledDevice
from tests.triton_backend.recording import RecordingLauncher

H100 = load_machine("h100-sxm", 1)
SMALL = GemmShape(16, 256, 512)


def options(tmp_path: Path, **changed: Any) -> MeasureOptions:
    value = {"device": None, "dtype": "bfloat16", "gemm": (), "shapes": ()}
    return MeasureOptions(out=str(tmp_path / "out"), **{**value, **changed})


@pytest.mark.adr("0047-D1")
@pytest.mark.slow
def test_what_a_campaign_writes_is_what_validate_reads_and_the_model_answers(
    tmp_path: Path,
) -> None:
    """The device is the model, so the vendor's rows have no error at all."""
    device = ModeledDevice(H100)
    shapes: list[Any] = [SMALL, RowShape("add", 2048, 1024), RowShape("rmsnorm", 64, 1024)]
    files = write_rows(tmp_path, device.name, measure(device, shapes, bfloat16))
    assert [path.name for path in files] == ["gemm.csv", "membound.csv"]
    scored = answer_rows(read_rows(files))
    assert [item.row.source for item in scored] == ["measure-vendor", *["measure-triton"] * 3]
    vendor, triton, *others = scored
    assert vendor.error == pytest.approx(0, abs=1e-4)
    # The tiles of a campaign have the default stages, those of the model as many as fit.
    assert triton.error is not None
    assert triton.error <= 0
    assert [item.error for item in others] == pytest.approx([0, 0], abs=1e-4)


def test_a_row_says_how_it_was_measured(tmp_path: Path) -> None:
    device = ModeledDevice(H100, noise=(1.0, 1.1, 0.9))
    write_rows(tmp_path, "mine", measure(device, [SMALL], bfloat16))
    with (tmp_path / "gemm.csv").open() as file:
        vendor, triton = csv.DictReader(file)
    assert vendor["device"] == "mine"
    assert (vendor["impl"], vendor["dtype"], vendor["clock_mhz"]) == ("vendor", "bf16", "1755")
    assert int(vendor["bytes"]) == 2 * (16 * 512 + 512 * 256 + 16 * 256)
    assert int(vendor["n_runs"]) >= LEAST_RUNS
    # The middle of 0.9, 1 and 1.1 times the same; deciles lie at the ends.
    assert float(vendor["spread_pct"]) == pytest.approx(20, rel=1e-3)
    rate = 2 * 16 * 256 * 512 / float(vendor["time_us"]) / 1e6
    assert float(vendor["tflops"]) == pytest.approx(rate, rel=1e-3)
    assert triton["impl"].startswith("kernbench Triton ")


@pytest.mark.adr("0047-D1")
def test_tiles_that_do_not_fit_are_left_out_and_none_that_fits_is_an_error() -> None:
    device = ModeledDevice(load_machine("l40s", 1))
    measured = list(measure(device, [GemmShape(512, 512, 512)], bfloat16))
    assert "128x256" not in measured[1].impl
    assert {call.options["BLOCK_N"] for call in device.launched} >= {32, 64, 128}

    class Full(ModeledDevice):
        def run(self, call: KernelCall) -> None:
            raise LookupError("out of resource")

    with pytest.raises(UsageError, match=r"no tile of a GEMM of torch\.bfloat16 fits on H100"):
        list(measure(Full(H100), [SMALL], bfloat16))


class Numbers:
    """A device with numbers and no time: tensors of a run, launched on its machine."""

    name = "numbers"

    def __init__(self, torch: RuntimeContext) -> None:
        self.torch = torch
        self.tensors: list[Any] = []
        self.rng = np.random.default_rng(0)

    def clock_mhz(self) -> int | None:
        return None

    def tensor(self, rows: int, cols: int, dtype: DType) -> Any:
        values = self.rng.standard_normal((rows, cols)).astype(np.float32)
        self.tensors.append(self.torch.tensor(values, dtype=dtype))
        return self.tensors[-1]

    def run(self, call: KernelCall) -> None:
        self.torch.launch("x", call.kernel, *call.args, grid=call.grid, **call.options)

    def run_product(self, a: Any, b: Any, out: Any) -> None:
        out.copy_(a @ b)

    def times_us(self, work: Any, runs: int) -> list[float]:
        work()
        return [1.0] * runs


@pytest.mark.adr("0047-D1")
@pytest.mark.slow
def test_the_launches_of_a_campaign_compute_what_they_say() -> None:
    with RuntimeContext(machine="h100-sxm", ranks=1) as torch:
        device = Numbers(torch)
        list(measure(device, [GemmShape(20, 40, 1100)], float32))
        a, b, out, *parts = (tensor.numpy() for tensor in device.tensors)
        np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)
        # Every split-K tile was run: its parts add up to the product.
        assert len(parts) == 4
        for part in parts:
            total = part.reshape(-1, 20, 40).sum(0)
            np.testing.assert_allclose(total, a @ b, rtol=1e-4, atol=1e-4)
        for op in sorted(ELEMENTWISE_OPS | ROW_OPS):
            device.tensors.clear()
            list(measure(device, [RowShape(op, 12, 48)], float32))
            out, x, y, *rest = (tensor.numpy() for tensor in device.tensors)
            np.testing.assert_allclose(out, expected(op, x, y, rest), rtol=2e-4, atol=2e-4)


def expected(op: str, x: Any, y: Any, rest: list[Any]) -> Any:
    def rms(rows: Any) -> Any:
        return rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-5) * rest[0]

    if op in ("softmax", "layernorm"):
        shifted = x - (x.max(1, keepdims=True) if op == "softmax" else x.mean(1, keepdims=True))
        if op == "softmax":
            return np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
        return shifted / np.sqrt(x.var(1, keepdims=True) + 1e-5) * rest[0] + rest[1]
    return {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "relu": lambda: np.maximum(x, 0),
        "relu_squared": lambda: np.maximum(x, 0) ** 2,
        "gelu": lambda: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "silu_mul": lambda: x / (1 + np.exp(-x)) * y,
        "rmsnorm": lambda: rms(x),
        # The sum goes where the input was: x is it already.
        "add_rmsnorm": lambda: rms(x),
    }[op]()


def test_a_gpu_compiles_the_same_function_specialized_on_its_sizes() -> None:
    launcher = RecordingLauncher()
    call = elementwise_call(
        "add", ProbePointer(float32), (ProbePointer(float32),) * 2, float32, 4096
    )
    with activate(launcher):
        call.kernel[call.grid](*call.args, **call.options)
        call.on_device()
    plain, specialized = (binary.ttir for binary, _, _ in launcher.launches)
    assert "divisibility = 16" not in plain
    assert "divisibility = 16" in specialized


def test_the_command_without_a_gpu_says_so_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoDeviceError, match="measuring needs a GPU") as caught:
        measure_command(options(tmp_path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_command_measures_what_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "shapes.csv"
    listed.write_text("op,rows,cols\nadd,128,256\nadd,128,256\n")
    value = options(tmp_path, gemm=("16,256,512",), shapes=(str(listed),))
    measure_command(value, lambda: ModeledDevice(H100))
    assert capsys.readouterr().out.count("wrote ") == 2
    rows = read_rows([tmp_path / "out" / "gemm.csv", tmp_path / "out" / "membound.csv"])
    assert [str(row) for row in rows] == [
        *["H100-SXM-80GB gemm bf16 m=16 n=256 k=512"] * 2,
        "H100-SXM-80GB add bf16 rows=128 cols=256",
    ]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"dtype": "float17"}, UnknownNameError, "unknown dtype 'float17'"),
        ({"gemm": ("16,x,512",)}, UsageError, "M,N,K must be whole numbers above 0"),
        ({"gemm": ("16,0,512",)}, UsageError, "M,N,K must be whole numbers above 0"),
        ({"shapes": ("none.csv",)}, UsageError, r"none\.csv: cannot be read"),
    ],
)
def test_wrong_options_are_refused_before_a_gpu_is_looked_for(
    tmp_path: Path, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        measure_command(options(tmp_path, **changed))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"shapes\.csv: a list of shapes has the columns"),
        ("m,n,k\n1,2\n", r"shapes\.csv:2: m,n,k must be whole numbers above 0, but got '1,2,'"),
        ("m,n,k\n1,2,-3\n", r"shapes\.csv:2: m,n,k must be whole numbers"),
        (f"m,n,k\n1,2,{'3' * 200_000}\n", r"shapes\.csv:2: cannot be read: field larger than"),
        ("op,rows,cols\nsinh,1,2\n", r"shapes\.csv:2: no kernel for op 'sinh'; known: add, "),
    ],
)
def test_a_wrong_list_of_shapes_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_shapes(path)


def test_an_interrupted_campaign_keeps_what_it_has(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Measured]:
        yield from measure(ModeledDevice(H100), [RowShape("add", 64, 64)], float32)
        raise KeyboardInterrupt

    earlier = tmp_path / "membound.csv"
    earlier.write_text("a campaign that came to its end")
    partial = tmp_path / "membound.partial.csv"
    with pytest.raises(KeyboardInterrupt) as error:
        write_rows(tmp_path, "mine", interrupted())
    assert error.value.__notes__ == [f"what was measured is in {partial}"]
    (row,) = read_rows([partial])
    assert row.device == "mine"
    assert earlier.read_text() == "a campaign that came to its end"
    assert sorted(tmp_path.iterdir()) == [earlier, partial]


def test_shapes_are_not_overwritten_by_their_times(tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text("m,n,k\n64,64,64\n")
    rows = measure(ModeledDevice(H100), [SMALL], bfloat16)
    with pytest.raises(UsageError, match=r"gemm\.csv is .*, which this command reads"):
        write_rows(tmp_path, "mine", rows, [tmp_path / "gemm.csv"])


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rows = measure(ModeledDevice(H100), [RowShape("add", 64, 64)], float32)
    with pytest.raises(UsageError, match="cannot be written"):
        write_rows(tmp_path / "file" / "below", "mine", rows)


def test_the_default_list_has_every_op_and_decode_and_prefill() -> None:
    shapes = default_shapes()
    assert len(shapes) == len(set(shapes))
    assert {
        shape.op for shape in shapes if isinstance(shape, RowShape)
    } == ELEMENTWISE_OPS | ROW_OPS
    assert {1, 4096} <= {shape.m for shape in shapes if isinstance(shape, GemmShape)}
