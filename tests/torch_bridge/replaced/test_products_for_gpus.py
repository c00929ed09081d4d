"""Products that PyTorch has for GPUs only: halves into float32, scaled and grouped FP8."""

from __future__ import annotations

from itertools import product
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
from tests.tiers import daily, of_campaigns  # noqa: E402
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
    template = context.op_log.instances[-1].template
    own = RuntimeContext(machine=machine, ranks=1, data=False)
    of, into = getattr(dtypes, dtype), getattr(dtypes, out_dtype)
    with own:
        a, b = own.empty((m, k), dtype=of), own.empty((k, n), dtype=of)
        out = own.empty((m, n), dtype=into)
        ops.matmul(a, b, out=out)
    expected = own.op_log.instances[-1].template
    assert template.flops == expected.flops == 2 * m * n * k
    assert template.duration_ps == expected.duration_ps


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
    # Without cuBLAS, which has kernels for it.
    machine = changed_machine(load_machine("v100", 1), {"kernel_library": None})
    log = simulated(program, machine=machine, data=data).op_log
    names = {instance.template.name for instance in log.instances}
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
        templates = [
            instance.template for instance in log.instances if "scaled_mm" in instance.template.name
        ]
        return templates[0].duration_ps, templates[0].flops

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
    templates = [instance.template for instance in log.instances if instance.template.name in names]
    assert [item.name for item in templates] == names
    assert len({(item.duration_ps, item.flops) for item in templates}) == 1
    assert templates[0].flops > 0


GROUPS = """
from torch.nn import functional as F

def of(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype, device="cuda")

def ends(sizes):
    return torch.tensor(sizes).cumsum(0).to(torch.int32).cuda()

a, b = of(2048, 1024), of(8, 1024, 2048)
row = F.ScalingType.RowWise
f8 = torch.float8_e4m3fn
a8, b8 = a.to(f8), b.transpose(1, 2).contiguous().to(f8).transpose(1, 2)
"""
CALLS = {
    "rows": "F.grouped_mm(a, b, offs={})",
    "columns": "F.grouped_mm(b[:, :, :1024], of(1024, 2048), offs={})",
    "K": "F.grouped_mm(of(1024, 2048), of(2048, 512), offs={})",
    "FP8": "torch._scaled_grouped_mm(a8, b8, of(2048).float(), of(8, 2048).float(), offs={})",
    "FP8 of PyTorch 2.10": "F.scaled_grouped_mm(a8, b8, of(2048).float(), row, "
    "of(8, 2048).float(), row, offs={})",
}
EVEN, SKEWED = (256,) * 8, (1900, 20, 0, 40, 33, 12, 22, 21)
MISSING = "torch.empty(8, dtype=torch.int32, device='cuda').random_()"


def grouped(
    folder: Path, *calls: str, machine: str = "h100-sxm", data: bool = True
) -> tuple[list[tuple[int, int]], list[str]]:
    """Return duration and FLOPs of each launch of groups, and the remarks of the run."""
    context = run(folder, GROUPS + "\n".join(calls), machine=machine, data=data)
    templates = [instance.template for instance in context.op_log.instances]
    result = [
        (template.duration_ps, template.flops)
        for template in templates
        if "grouped_mm" in template.name
    ]
    return result, [line for remarks in context.run.remarks for line in remarks()]


@pytest.mark.adr("0064-D9")
@pytest.mark.parametrize(
    "case",
    daily(
        ("rows", True),
        ("columns", False),
        ("K", False),
        ("FP8", False),
        of=product(CALLS, (True, False)),
    ),
    ids=str,
)
def test_groups_take_the_time_of_their_own_sizes(case: tuple[str, bool], tmp_path: Path) -> None:
    name, data = case
    call = CALLS[name]
    sizes = [EVEN, EVEN, SKEWED, (2048, *[0] * 7), (1024, *[0] * 7)]
    result, said = grouped(tmp_path, *(call.format(f"ends({size})") for size in sizes), data=data)
    (_, even, skewed, whole, half), flops = zip(*result, strict=True)
    assert len({even, skewed, whole, half}) == 4
    assert half < whole
    assert flops[0] == flops[2] == flops[3] == 2 * flops[4] > 0
    assert not any("equal size" in line for line in said)


@pytest.mark.adr("0064-D10")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_groups_whose_ends_nobody_knows_are_equal_and_the_report_says_so_once(
    call: str, tmp_path: Path
) -> None:
    # Each begins on an idle device, whatever the host does between them.
    alone = f"torch.cuda.synchronize(); {call}"
    calls = [alone.format(item) for item in (f"ends({EVEN})", MISSING, MISSING)]
    result, said = grouped(tmp_path, *calls, calls[0], data=False)
    assert result[1] == result[2] == result[3]
    assert sum("groups of equal size" in line and "grouped_mm" in line for line in said) == 1


@pytest.mark.adr("0064-D9")
def test_without_a_library_groups_take_the_time_of_their_own_sizes(tmp_path: Path) -> None:
    call = CALLS["rows"]
    result, _ = grouped(
        tmp_path, *(call.format(f"ends({item})") for item in (EVEN, SKEWED)), machine="ahbm"
    )
    assert result[0][0] < result[1][0]


MM = "aten.mm"
IN_TURN = """
import torch
from torch.nn import functional as F

dtype, data, sizes, rows = torch.DTYPE, DATA, SIZES, slice(0, 48)
torch.manual_seed(0)
a, b = torch.randn(48, 32).to(dtype), torch.randn(4, 32, 16).to(dtype)
ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
offs = ends.cuda() if KNOWN else torch.empty(4, dtype=torch.int32, device="cuda").random_()
spans = [slice(start, end) for start, end in zip([0, *ends.tolist()], ends.tolist())]
x, w = a.cuda().requires_grad_(), b.cuda().requires_grad_()
y = F.grouped_mm(x, w, offs=offs)
assert (y.shape, y.dtype, y.device.type) == ((48, 16), dtype, "cuda")
(y * y).sum().backward()
z = F.grouped_mm(w.detach(), torch.ones(16, 48, dtype=dtype, device="cuda"), offs=offs)
if data:
    made = torch.cat([a[each] @ b[number] for number, each in enumerate(spans)])
    torch.testing.assert_close(y.detach().cpu(), made)
    grad = torch.stack([a[each].T @ (2 * made[each]) for each in spans])
    torch.testing.assert_close(w.grad.cpu(), grad, rtol=2e-2, atol=2e-2)
"""


@pytest.mark.adr("0064-D11")
@pytest.mark.parametrize(
    ("machine", "dtype", "in_turn"),
    [
        ("a100-sxm-80g", "bfloat16", True),
        of_campaigns("h100-sxm", "bfloat16", False),
        ("h100-sxm", "float16", True),
        of_campaigns("rtx-5090", "bfloat16", True),
        ("b200", "bfloat16", False),
    ],
)
@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
def test_without_a_kernel_of_groups_the_host_reads_where_they_end(
    machine: str, dtype: str, in_turn: bool, data: bool, tmp_path: Path
) -> None:
    source = IN_TURN
    for name, value in (("DTYPE", dtype), ("DATA", data), ("SIZES", (20, 0, 24, 4)), ("KNOWN", 1)):
        source = source.replace(name, str(value))
    log = run(tmp_path, source, machine=machine, data=data).op_log
    instances = [
        instance.template.launched_with["shapes"]
        for instance in log.instances
        if instance.template.name == MM
    ]
    rows = [shapes[0][0] for shapes in instances][:3]
    assert rows == ([20, 24, 4] if in_turn else [])
    reads = [instance for instance in log.instances if instance.template.name == "copy_to_host"]
    assert len(reads) >= 4 * in_turn
    assert any("grouped_mm" in instance.template.name for instance in log.instances) != in_turn


@pytest.mark.adr("0064-D10", "0064-D11")
def test_groups_in_turn_whose_ends_nobody_knows_are_equal(tmp_path: Path) -> None:
    source = IN_TURN
    for name, value in (
        ("DTYPE", "bfloat16"), ("DATA", False), ("SIZES", (20, 0, 24, 4)), ("KNOWN", 0),
    ):  # fmt: skip
        source = source.replace(name, str(value))
    context = run(tmp_path, source, machine="a100-sxm-80g", data=False)
    log = context.op_log
    instances = [
        instance.template.launched_with["shapes"]
        for instance in log.instances
        if instance.template.name == MM
    ]
    assert [shapes[0][0] for shapes in instances][:4] == [12] * 4
    said = [line for remarks in context.run.remarks for line in remarks()]
    assert sum("groups of equal size" in line for line in said) == 1


@pytest.mark.parametrize(
    ("operands", "named"),
    [
        ("a, b", "multiple of 16 bytes"),
        ("a[:1].expand(48, 30), b", "Invalid strides/sizes"),
    ],
)
def test_groups_in_turn_are_refused_as_pytorch_refuses_them(
    operands: str, named: str, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=named):
        run(
            tmp_path,
            "a, b = (torch.ones(*each, device='cuda').bfloat16() for each in "
            "((48, 30), (4, 30, 16)))\n"
            "offs = torch.tensor([8, 9, 40, 48], dtype=torch.int32).cuda()\n"
            f"torch.nn.functional.grouped_mm({operands}, offs=offs)",
            machine="a100-sxm-80g",
        )


# TFLOP/s of torch.mm, square matrices of bfloat16 and of float32.
# Source: github.com/zzc0721/torch-performance-test-data, issue 140, and database.md for T4.
MEASURED = {
    "v100": {2048: (8.99, 12.71), 4096: (10.53, 13.85), 8192: (10.65, 14.38)},
    "t4": {8192: (2.37, 4.3)},
}


@pytest.mark.parametrize("machine", MEASURED)
def test_bfloat16_is_emulated_where_no_unit_multiplies_it(machine: str, tmp_path: Path) -> None:
    for size, measured in MEASURED[machine].items():
        context = run(
            tmp_path,
            f"for dtype in (torch.bfloat16, torch.float32):\n"
            f"    a = torch.empty({size}, {size}, dtype=dtype, device='cuda')\n"
            "    a @ a\n",
            data=False,
            machine=machine,
        )
        templates = [
            instance.template
            for instance in context.op_log.instances
            if instance.template.name == MM
        ]
        flops = [item.flops / item.duration_ps for item in templates]
        assert flops == pytest.approx(measured, rel=0.12)
        said = [line for remarks in context.run.remarks for line in remarks()]
        assert sum("multiplies no bfloat16: aten.mm" in line for line in said) == 1


def test_bfloat16_is_emulated_in_all_products(tmp_path: Path) -> None:
    context = run(
        tmp_path,
        "of = {'device': 'cuda', 'dtype': torch.bfloat16}\n"
        "layer, x = torch.nn.Linear(64, 32, **of), torch.ones(16, 64, **of)\n"
        "layer(x).sum().backward()\n"
        "torch.bmm(x[None], layer.weight.t()[None])\n"
        "with torch.autocast('cuda', torch.bfloat16):\n"
        "    torch.nn.Linear(64, 32, device='cuda')(x.float()).sum().backward()\n"
        "torch.nn.functional.scaled_dot_product_attention(*[x[None, None]] * 3)\n",
        machine="v100",
    )
    names = {instance.template.name for instance in context.op_log.instances}
    assert {"aten.addmm", "aten.bmm", MM} <= names
