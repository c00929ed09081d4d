"""Products that PyTorch has for GPUs only: halves into float32, scaled and grouped FP8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench import dtypes, ops  # noqa: E402
from kernbench.errors import MachineError  # noqa: E402
from kernbench.hardware import changed_machine, load_machine  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.base.refusals import (  # noqa: E402
    RefusedOperandsError,
    UnsupportedTorchError,
)
from tests.torch_bridge.running import simulated  # noqa: E402


def run(folder: Path, source: str, **options: Any) -> RuntimeContext:
    path = folder / "case.py"
    path.write_text(f"import torch\n{source}")
    return simulated(path, **options)


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("case", ["halves", "grouped"])
def test_products_are_those_of_float32_on_the_host(case: str, data: bool) -> None:
    simulated("products_for_gpus.py", "data" if data else "no data", case, data=data)


@pytest.mark.adr("0064-D1")
@pytest.mark.parametrize(
    ("source", "dtype", "out_dtype"),
    [
        ("torch.mm(a, b, out_dtype=torch.float32)", "bfloat16", "float32"),
        (
            "torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)",
            "float8_e4m3fn",
            "bfloat16",
        ),
    ],
)
def test_a_product_is_timed_by_its_operands_and_what_it_writes(
    source: str, dtype: str, out_dtype: str, tmp_path: Path
) -> None:
    m, n, k = 512, 768, 1024
    # Without a vendor's library products take the time of our own kernel.
    machine = changed_machine(load_machine("h100-sxm", 1), {"kernel_library": None})
    context = run(
        tmp_path,
        f"of = {{'device': 'cuda', 'dtype': torch.{dtype}}}\n"
        f"a, b = torch.empty({m}, {k}, **of), torch.empty({n}, {k}, **of).t()\n"
        f"one = torch.ones((), device='cuda')\ntorch.cuda.synchronize()\n{source}\n",
        data=False,
        machine=machine,
    )
    found = context.op_log.instances[-1].template
    own = RuntimeContext(machine=machine, ranks=1, data=False)
    of, into = getattr(dtypes, dtype), getattr(dtypes, out_dtype)
    with own:
        a, b = own.empty((m, k), dtype=of), own.empty((k, n), dtype=of)
        out = own.empty((m, n), dtype=into)
        ops.matmul(a, b, out=out)
    expected = own.op_log.instances[-1].template
    assert found.flops == expected.flops == 2 * m * n * k
    assert found.duration_ps == expected.duration_ps


@pytest.mark.parametrize(
    ("source", "error", "named"),
    [
        ("torch.mm(a, a, out_dtype=torch.int32)", RuntimeError, "out_dtype must be the same"),
        ("torch.mm(a, a.float(), out_dtype=torch.float32)", RuntimeError, "one dtype"),
        (
            "torch.addmm(a.double(), a, a, out_dtype=torch.float32)",
            RuntimeError,
            "self must have the type",
        ),
        (
            "torch._scaled_grouped_mm(*[a[None].to(torch.float8_e4m3fn)] * 2, "
            "*[torch.ones(1, 16, device='cuda').to(torch.float8_e8m0fnu)] * 2)",
            UnsupportedTorchError,
            "MX formats",
        ),
    ],
)
def test_products_that_a_gpu_refuses_are_refused(
    source: str, error: type[Exception], named: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=named):
        run(tmp_path, f"a = torch.ones(16, 16, dtype=torch.bfloat16, device='cuda')\n{source}")


def test_a_machine_without_fp8_says_so_where_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="no rate for float8_e4m3fn"):
        run(
            tmp_path,
            "a, one = torch.ones(16, 16).cuda().to(torch.float8_e4m3fn), torch.ones(()).cuda()\n"
            "torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)",
            machine="a100-sxm-80g",
        )


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ((16, 32, 32), r"self.size\(0\) needs to be greater than 16, but got 16; pad the rows"),
        ((17, 12, 32), r"self.size\(1\) needs to be .* a multiple of 8, but got 12"),
        ((17, 32, 12), r"mat2.size\(1\) needs to be .* a multiple of 8, but got 12"),
        ((17, 32, 24), ""),
    ],
)
def test_integers_are_multiplied_in_sizes_that_a_gpu_takes(
    sizes: tuple[int, int, int], named: str, tmp_path: Path
) -> None:
    m, k, n = sizes
    source = (
        f"a, b = torch.ones({m}, {k}).to(torch.int8), torch.ones({k}, {n}).to(torch.int8)\n"
        # On the host there is no such rule.
        "expected = torch._int_mm(a, b)\n"
        "assert torch._int_mm(a.cuda(), b.cuda()).cpu().equal(expected)"
    )
    if not named:
        run(tmp_path, source, machine="h100-sxm")
        # A machine without a vendor's library multiplies them by a kernel of kernbench.
        run(tmp_path, source, machine="ahbm")
        return
    with pytest.raises(RefusedOperandsError, match=named):
        run(tmp_path, source, machine="h100-sxm")


@pytest.mark.parametrize(
    ("operands", "machine", "named"),
    [
        ("a, b", "h100-sxm", r"mat2 must be col_major, got stride \(32, 1\).*pass mat2.t\(\)"),
        ("a.t(), b.t()", "h100-sxm", r"self must be row_major, got stride \(1, 32\)"),
        ("a[:, :24], b[:, :24].t()", "h100-sxm", r"mat1 shape: \(32x24\)"),
        ("a, b[:24].t()", "h100-sxm", r"mat2 shape \(32x24\) must be divisible by 16"),
        ("a, b", "rtx-5090", "mat2 must be col_major"),
        # Its library takes all layouts.
        ("a, b", "b200", ""),
        ("a, b.t()", "h100-sxm", ""),
    ],
)
def test_scaled_operands_lie_as_the_library_of_the_gpu_wants(
    operands: str, machine: str, named: str, tmp_path: Path
) -> None:
    source = (
        "one = torch.ones((), device='cuda')\n"
        "a, b = (torch.ones(32, 32, device='cuda').to(torch.float8_e4m3fn) for _ in range(2))\n"
        f"torch._scaled_mm({operands}, one, one, out_dtype=torch.bfloat16)"
    )
    if not named:
        run(tmp_path, source, machine=machine)
        return
    with pytest.raises(RefusedOperandsError, match=named):
        run(tmp_path, source, machine=machine)


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_a_product_without_a_rate_is_an_error_of_its_line_and_what_follows_runs(
    tmp_path: Path, data: bool
) -> None:
    program = tmp_path / "fallback.py"
    program.write_text(
        "import pytest\n"
        "import torch\n"
        "a = torch.ones(64, 64, dtype=torch.bfloat16, device='cuda')\n"
        "with pytest.raises(ValueError, match='no rate for bfloat16'):\n"
        "    a @ a\n"
        "torch.cuda.synchronize()\n"
        "b = a.half()\n"
        "b @ b\n"
    )
    log = simulated(program, machine="v100", data=data).op_log
    names = {each.template.name for each in log.instances}
    assert {"aten._to_copy", "aten.mm"} <= names


FOUR_BITS = """
a, b = (torch.zeros(2048, 1024, dtype=torch.uint8).cuda().view(torch.float4_e2m1fn_x2)
        for _ in range(2))
scales = torch.zeros(2048 * 128, dtype=torch.float8_e4m3fn).cuda()
torch._scaled_mm(a, b.t(), scales, scales, out_dtype=torch.bfloat16)
"""
EIGHT_BITS = """
a, b = (torch.zeros(2048, 2048, dtype=torch.float8_e4m3fn).cuda() for _ in range(2))
scales = torch.zeros(2048 * 64, dtype=torch.float8_e8m0fnu).cuda()
torch._scaled_mm(a, b.t(), scales, scales, out_dtype=torch.bfloat16)
"""


def test_products_of_blocks_take_the_time_of_the_engine_for_their_bits(tmp_path: Path) -> None:
    def took(source: str) -> tuple[int, int]:
        log = run(tmp_path, source, machine="b200", data=False).op_log
        made = [each.template for each in log.instances if "scaled_mm" in each.template.name]
        return made[0].duration_ps, made[0].flops

    four, of_four = took(FOUR_BITS)
    eight, of_eight = took(EIGHT_BITS)
    assert of_four == of_eight == 2 * 2048**3
    sip = load_machine("b200", 1).sip
    assert float(2 * 2048**3 / sip.peak_flops_per_s("float4_e2m1fn")) * 1e12 < four < eight


@pytest.mark.parametrize(
    ("source", "error", "named"),
    [
        (FOUR_BITS, MachineError, "no rate for float4_e2m1fn"),
        (EIGHT_BITS, RefusedOperandsError, "compute capability 10.0 or later"),
        ("x = torch.ones(4, 4).int().cuda(); x @ x", RefusedOperandsError, "\"addmm_cuda\".*'Int'"),
        ("x = torch.ones(4, 4).bool().cuda(); x[None] @ x[None]", RefusedOperandsError, "'Bool'"),
        ("x = torch.ones(4).long().cuda(); x @ x", RefusedOperandsError, "\"dot\".*'Long'"),
    ],
)
def test_products_that_hopper_lacks_are_refused(
    source: str, error: type[Exception], named: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=named):
        run(tmp_path, source, machine="h100-sxm", data=False)


CONVOLVED = """
import torch

x, w, b = torch.randn(2, 8, 9, 9), torch.randn(6, 4, 3, 3), torch.randn(6)
there = [each.cuda() for each in (x, w, b)]
how = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
found = torch.cudnn_convolution_relu(*there, *how.values())
plain = torch.cudnn_convolution(
    *there[:2], how["padding"], how["stride"], how["dilation"], 2, True, False, True
)
apart = torch.nn.functional.conv2d(*there[:2], **how)
expected = torch.nn.functional.conv2d(x, w, **how)
assert found.shape == plain.shape == expected.shape
if DATA:
    torch.testing.assert_close(plain.cpu(), expected)
    torch.testing.assert_close(found.cpu(), (expected + b.view(1, -1, 1, 1)).relu())
"""


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_a_convolution_with_its_activation_takes_the_time_of_one_without(
    data: bool, tmp_path: Path
) -> None:
    source = CONVOLVED.replace("DATA", str(data))
    log = run(tmp_path, source, machine="a100-sxm-80g", data=data).op_log
    names = [
        "aten.cudnn_convolution_relu",
        "aten.cudnn_convolution",
        "aten.convolution",
    ]
    made = [each.template for each in log.instances if each.template.name in names]
    assert [each.name for each in made] == names
    assert len({(each.duration_ps, each.flops) for each in made}) == 1
    assert made[0].flops > 0
