"""What programs ask of products of float32, and the time of convolutions."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.hardware import changed_machine, load_library, load_machine  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.processes.float32 import Float32, asked  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


def run(folder: Path, source: str, **options: object) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text(
        "import os, torch\nrank = int(os.environ['RANK'])\ntorch.cuda.set_device(rank)\n" + source
    )
    return simulated(path, **options)  # type: ignore[arg-type]


def times_ps(context: RuntimeContext, name: str, rank: int = 0) -> list[int]:
    """Return how long each launch of a rank took."""
    return [
        int(end - start)
        for instance in context.op_log.instances
        if instance.template.name == name
        for who, start, end in zip(
            instance.ranks, instance.starts_ps, instance.ends_ps, strict=True
        )
        if who == rank
    ]


WAYS = """
x = torch.zeros(4096, 4096, device="cuda")
layer = torch.nn.Linear(4096, 4096, bias=False, device="cuda")
backends = torch.backends
def all_of_them():
    x @ x
    layer(x)
all_of_them()
if rank == 0:
    torch.set_float32_matmul_precision("high"); all_of_them()
    torch.set_float32_matmul_precision("medium"); x @ x
    torch.set_float32_matmul_precision("highest"); x @ x
    backends.cuda.matmul.allow_tf32 = True; x @ x
    backends.cuda.matmul.allow_tf32 = False; x @ x
    backends.cuda.matmul.fp32_precision = "tf32"; x @ x
    y = x.bfloat16(); y @ y
    backends.cuda.matmul.fp32_precision = "ieee"; x @ x
    graph = torch.cuda.CUDAGraph()
    torch.set_float32_matmul_precision("high")
    with torch.cuda.graph(graph):
        x @ x
    torch.set_float32_matmul_precision("highest")
    graph.replay()
torch.cuda.synchronize()
torch.distributed.init_process_group("nccl")
torch.distributed.barrier()
x @ x
"""
TF32, FLOAT32, HALVES = "tf32", "float32", "bfloat16"
EXPECTED = [
    *(FLOAT32, FLOAT32, TF32, TF32, TF32, FLOAT32, TF32, FLOAT32, TF32, HALVES),
    *(FLOAT32, TF32, FLOAT32),
]


@pytest.mark.adr("0064-D5")
def test_what_a_rank_asks_for_decides_the_time_of_its_products(tmp_path: Path) -> None:
    """Closed form: a large product takes little longer than the machine's rate says."""
    before = asked()
    for _ in range(2):
        # A second run begins with PyTorch's defaults again.
        context = run(tmp_path, WAYS, nprocs=2, machine="h100-sxm:2", data=False)
        assert asked() == before == Float32()
        assert torch.get_float32_matmul_precision() == "highest"
    sip = load_machine("h100-sxm", 1).sip
    for rank, expected in enumerate((EXPECTED, [FLOAT32] * 3)):
        ps = times_ps(context, "aten.mm", rank)
        assert len(ps) == len(expected)
        for time_ps, dtype in zip(ps, expected, strict=True):
            rate = sip.gemm_flops_per_clock(dtype) * sip.num_pes * sip.clock_ghz / 1000
            assert 1 <= time_ps / (2 * 4096**3 / rate) < 1.8, dtype


@pytest.mark.adr("0064-D6")
def test_numbers_stay_those_of_float32_and_the_report_says_so(tmp_path: Path) -> None:
    source = """
x = torch.randn(64, 64)
torch.backends.cuda.matmul.allow_tf32 = {}
assert torch.equal((x.cuda() @ x.cuda()).cpu(), x @ x)
"""
    said = "their values are those of float32"
    for asks in (True, False):
        remarks = [
            item for make in run(tmp_path, source.format(asks)).run.remarks for item in make()
        ]
        assert any(said in remark for remark in remarks) == asks
    context = run(tmp_path, source.format(True).replace("assert", "# "), data=False)
    assert not any(said in item for make in context.run.remarks for item in make())


CONVOLUTIONS = """
def work(dtype, form):
    conv = torch.nn.Conv2d(128, 128, 3, padding=1, bias=False, device="cuda", dtype=dtype)
    x = torch.zeros(64, 128, 28, 28, device="cuda", dtype=dtype).to(memory_format=form)
    y = conv(x.requires_grad_())
    torch.autograd.grad(y, (x, conv.weight), torch.empty_like(y))
for form in (torch.contiguous_format, torch.channels_last):
    work(torch.float16, form)
    work(torch.float32, form)
    torch.backends.cudnn.allow_tf32 = False
    work(torch.float32, form)
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    work(torch.float32, form)
    torch.backends.cudnn.conv.fp32_precision = "tf32"
"""


@pytest.mark.adr("0064-D5")
@pytest.mark.adr("0064-D7")
@pytest.mark.adr("0064-D8")
def test_convolutions_run_near_the_rate_of_their_engine_in_both_directions(tmp_path: Path) -> None:
    # A host that is ahead of its device, so that all kernels wait in its queue.
    machine = changed_machine(load_machine("a100-sxm-80g", 1), {"host": None})
    context = run(tmp_path, CONVOLUTIONS, machine=machine, data=False)
    forward, backward = (times_ps(context, f"aten.convolution{name}") for name in ("", "_backward"))
    half, tf32, legacy, exact = range(4)
    last = 4
    flops = 2 * 64 * 28 * 28 * 128 * 128 * 9
    rates = {half: "float16", tf32: "tf32", legacy: "float32", exact: "float32"}
    for kind, dtype in rates.items():
        peak = machine.sip.gemm_flops_per_clock(dtype) * machine.sip.num_pes
        best_ps = flops / (peak * machine.sip.clock_ghz / 1000)
        least_ps, most = best_ps, 2.5
        if dtype == "float32":
            # By Winograd's transforms of 4 x 4, which gradients of weights do not use (ADR-0128).
            least_ps, most = best_ps * 4 / 9, 1 + 9 / 4
        assert least_ps < forward[last + kind] < 3 * best_ps
        # Two products, neither far from the forward's rate.
        assert 2 * least_ps < backward[last + kind] < most * forward[last + kind]
    assert forward[legacy] == forward[exact] > 2 * forward[tf32]
    assert machine.spec.kernel_library is not None
    library = load_library(machine.spec.kernel_library)
    # Matrix engines want channels side by side, float32 wants them apart.
    for kind, itemsize, sign in ((half, 2, 1), (tf32, 4, 1), (exact, 4, -1)):
        constants = library.constants(f"conv_rearrange{'_half' * (kind == half)}")
        gbps = machine.sip.cube.hbm_bandwidth_gbps * constants.memory_share
        start_ps = machine.sip.hbm_latency_ps + machine.sip.queued_front_end_ps
        start_ps += int(constants.fixed_us * 1_000_000)
        image = 64 * 28 * 28 * 128 * itemsize
        # Kernels of tf32 store what a forward pass makes as it is asked for.
        for times, images in ((forward, 1 if kind == tf32 else 2), (backward, 4)):
            more_ps = sign * (times[kind] - times[last + kind])
            expected_ps = images * (start_ps + 2 * image * 1000 / gbps)
            if kind == half:
                # Kernels for planar images are taken where they are faster
                # (docs/model/convolutions.md).
                assert 0 < more_ps < 1.001 * expected_ps
            elif images == 1:
                # They store after their loops: three parts that overlap by the norm of power 3.
                slower_ps = forward[last + kind] * (3 ** (1 / 3) - 1)
                assert expected_ps < more_ps < expected_ps + slower_ps
            else:
                assert more_ps == pytest.approx(float(expected_ps), rel=0.02)


OVERRIDDEN = """
import os
conv = torch.nn.Conv2d(64, 64, 3, device="cuda")
image = torch.zeros(8, 64, 64, 64, device="cuda")
def both():
    x @ x; conv(image)
both()
os.environ["NVIDIA_TF32_OVERRIDE"] = "1"; both()
torch.set_float32_matmul_precision("high")
os.environ["NVIDIA_TF32_OVERRIDE"] = "0"; both()
del os.environ["NVIDIA_TF32_OVERRIDE"]; both()
"""


@pytest.mark.adr("0064-D5")
def test_the_variable_of_nvidias_libraries_overrides_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "x = torch.zeros(4096, 4096, device='cuda')\n" + OVERRIDDEN
    context = run(tmp_path, source, machine="a100-sxm-80g:1", data=False)
    products = times_ps(context, "aten.mm", 0)
    assert [product < products[0] / 2 for product in products] == [False, True, False, True]
    convolved = times_ps(context, "aten.convolution", 0)
    assert convolved[2] == max(convolved) > min(convolved) == convolved[1]
    # It is there from the start.
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    context = run(
        tmp_path,
        "x = torch.zeros(4096, 4096, device='cuda'); x @ x",
        machine="a100-sxm-80g:1",
        data=False,
    )
    assert times_ps(context, "aten.mm", 0)[0] < products[0] / 2
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    assert asked() == Float32()


SUMS = """
a = torch.zeros(64, 16384, device="cuda", dtype=torch.float16)
b = torch.zeros(16384, 512, device="cuda", dtype=torch.float16)
torch.zeros(1 << 29, device="cuda").zero_()  # what follows waits in the queue
a @ b
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
a @ b
a.bfloat16() @ b.bfloat16()
"""


@pytest.mark.adr("0064-D5")
def test_parts_of_k_are_added_in_the_dtype_that_the_program_allows(tmp_path: Path) -> None:
    context = run(tmp_path, SUMS, machine="a100-sxm-80g:1", data=False)
    reduced, wide, bfloat16 = times_ps(context, "aten.mm", 0)
    assert wide > reduced
    assert bfloat16 == pytest.approx(reduced, rel=0.05)
    assert asked() == Float32()
