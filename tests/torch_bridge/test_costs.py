"""What operations cost: kernbench's own kernels, bytes and vector classes, on one machine."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench import dtypes, ops  # noqa: E402
from kernbench.hardware import load_library, load_machine  # noqa: E402
from kernbench.library_kernels import (  # noqa: E402
    AttentionProblem,
    attention_kernels,
    flash_launches,
    time_kernel,
)
from kernbench.op_log import Limit, Template  # noqa: E402
from kernbench.report import kind_of  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.costs import OperationCosts  # noqa: E402
from kernbench.torch_bridge.costs.by_bytes import timing_by_bytes  # noqa: E402
from kernbench.torch_bridge.processes.float32 import Float32  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

aten = torch.ops.aten
MACHINE = load_machine("ahbm", 1)
SIP = MACHINE.sip
COSTS = OperationCosts(MACHINE, Float32())
HALF = torch.bfloat16


def empty(*shape: int, dtype: Any = HALF) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def template(func: Any, *args: Any, queued: bool = False, **kwargs: Any) -> Template:
    result = func(*args, **kwargs)
    return COSTS.timing(func, describe(func), args, kwargs, result, 0).template(queued)


def launched(work: Any) -> Any:
    """Return the templates of what kernbench's own functions launch."""
    context = RuntimeContext(machine="ahbm:1", data=False)
    with context:
        work(context)
    return [
        instance.template
        for instance in context.op_log.instances
        if instance.template.kind == "kernel"
    ]


def test_schedules_name_the_tensors_of_their_calls_and_equal_ones_are_one_object() -> None:
    shapes = ((4, 64), (8, 32), (4, 64))
    first, other, again = (template(aten.relu.default, empty(*shape)) for shape in shapes)
    assert first.launched_with == {"shapes": [[4, 64]], "dtypes": ["bfloat16"]}
    assert other.launched_with["shapes"] == [[8, 32]]
    assert first is again
    assert first.duration_ps == other.duration_ps
    pair = template(aten.cat.default, [empty(4, 64), empty(8, 64)])
    assert pair.launched_with["shapes"] == [[4, 64], [8, 64]]


@pytest.mark.adr("0064-D1")
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("m", [1, 96])
def test_a_product_takes_the_time_of_kernbenchs_own(batch: int, m: int) -> None:
    n, k = 128, 64
    entries = () if batch == 1 else (batch,)

    def work(context: RuntimeContext) -> None:
        a, b = (
            context.empty((*entries, *shape), dtype=dtypes.bfloat16) for shape in ((m, k), (k, n))
        )
        ops.matmul(a, b)

    (own,) = launched(work)
    func = aten.mm.default if batch == 1 else aten.bmm.default
    result = template(func, empty(*entries, m, k), empty(*entries, k, n))
    assert result.flops == own.flops >= 2 * batch * m * n * k
    assert result.duration_ps == pytest.approx(own.duration_ps, rel=0.05)


@pytest.mark.adr("0064-D1")
def test_all_forms_of_a_product_cost_the_same() -> None:
    a, b, bias = empty(64, 32), empty(32, 48), empty(48)
    plain = template(aten.mm.default, a, b)
    assert template(aten.addmm.default, bias, a, b).duration_ps == plain.duration_ps
    c, d = empty(2, 64, 32), empty(2, 32, 48)
    batched = template(aten.bmm.default, c, d)
    assert template(aten.baddbmm.default, empty(2, 64, 48), c, d).flops == batched.flops
    assert batched.flops == 2 * plain.flops


@pytest.mark.adr("0064-D1")
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_are_products_of_patches_and_weights(groups: int, transposed: bool) -> None:
    """Closed form: an output of c channels is a product with c_in k^2 / groups elements each."""
    result, value, kernel, size = 512, 256, 3, 20
    x = empty(2, value, size, size)
    channels = (value, result) if transposed else (result, value)
    weight = empty(channels[0], channels[1] // groups, kernel, kernel)
    rest = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)
    func = aten.convolution.default
    forward = template(func, x, weight, None, *rest)
    flops = 2 * 2 * size * size * result * value * kernel * kernel // groups
    assert flops <= forward.flops < 4 * flops  # tiles are padded
    grad = func(x, weight, None, *rest)
    back = aten.convolution_backward.default
    both = template(back, grad, x, weight, None, *rest, [True, True, False])
    one = template(back, grad, x, weight, None, *rest, [False, True, False])
    assert both.flops > one.flops >= flops
    assert both.duration_ps > one.duration_ps


def test_a_strided_gradient_is_cheaper_where_windows_leave_out_positions() -> None:
    """A stride of 2 and a dilation of 2 reach every second position of each dim."""
    costs = OperationCosts(load_machine("a100-sxm-80g", 1), Float32())
    func, x = aten.convolution.default, empty(16, 32, 1 << 16, dtype=torch.float32)

    def duration_ps(dilation: int) -> int:
        args = (x, empty(32, 64, 3), None, [2], [dilation], [dilation], True, [1], 1)
        result = func(*args)
        timing = costs.timing(func, describe(func), args, {}, result, 0)
        return timing.template(queued=False).duration_ps

    # Of the five images that are moved, one is written and another read by half.
    assert 0.7 < duration_ps(2) / duration_ps(1) < 0.9


@pytest.mark.adr("0064-D2")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("stable", [False, True])
def test_a_sort_moves_keys_and_positions_once_for_each_byte_of_a_key(
    dtype: Any, stable: bool
) -> None:
    """Closed form of a radix sort of digits of 8 bits; the histogram reads the keys, too."""
    n, of_key = 1 << 20, dtype.itemsize
    func, args = (aten.sort.stable, ()) if stable else (aten.sort.default, (0,))
    value: dict[str, Any] = {"stable": True, "dim": 0} if stable else {}
    result = template(func, empty(n, 4, dtype=dtype), *args, **value)
    assert result.hbm_bytes == 4 * n * (of_key + 2 * of_key * (of_key + 8))
    # Rows of 4 are sorted by a block each: copied beside their positions, and sorted in place.
    short = template(aten.sort.default, empty(n, 4, dtype=dtype))
    assert short.hbm_bytes == 4 * n * (of_key + 3 * (of_key + 8))


def test_a_sort_is_as_fast_as_published() -> None:
    """29.4 billion keys of 4 bytes a second on an A100 (arXiv 2206.01784), alone.

    PyTorch's have positions of 8 bytes beside them, and so three times the bytes.
    """
    n = 1 << 26
    result = aten.sort.default(empty(n, dtype=torch.float32))
    args = (empty(n, dtype=torch.float32),)
    costs = OperationCosts(load_machine("a100-sxm-40g", 1), Float32())
    timing = costs.timing(aten.sort.default, describe(aten.sort.default), args, {}, result, 0)
    published_ps = n / 29.4e9 * 10**12
    assert published_ps < timing.template(True).duration_ps < 3 * published_ps


@pytest.mark.adr("0064-D2")
def test_a_choice_reads_its_keys_in_passes() -> None:
    """Closed form: four passes read n halves; values and positions are written."""
    n = 1 << 20
    assert template(aten.topk.default, empty(n), 8).hbm_bytes == 4 * 2 * n + (2 + 8) * 8


@pytest.mark.parametrize(
    ("dtype", "part"), [(torch.complex64, torch.float32), (torch.complex128, torch.float64)]
)
def test_a_complex_product_is_four_real_ones(dtype: Any, part: Any) -> None:
    n = 4096
    # Enough for all PEs.
    a, b, real = empty(n, n, dtype=dtype), empty(3, n, n, dtype=dtype), empty(n, n, dtype=part)
    one = template(aten.mm.default, real, real)
    result = template(aten.mm.default, a, a)
    assert result.flops == 4 * one.flops == 4 * 2 * n**3
    assert result.duration_ps > 3.5 * one.duration_ps
    assert template(aten.bmm.default, b, b).flops == 3 * result.flops
    assert template(aten.mv.default, a, a[0]).flops >= 4 * 2 * n * n
    assert not COSTS.unknown["aten.mm"]


@pytest.mark.parametrize(
    "model",
    daily(
        "convolution",
        "experts",
        "fsdp",
        of=("convolution", "generation", "experts", "transformer", "rotary", "fsdp"),
    ),
)
def test_no_operation_of_ordinary_models_is_unknown(model: str) -> None:
    remarks = [line for ask in simulated("costs.py", model).run.remarks for line in ask()]
    assert not [line for line in remarks if "bytes alone" in line]


@pytest.mark.adr("0064-D1")
@pytest.mark.parametrize(
    "func",
    [
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    ],
)
def test_attention_is_one_operation_with_a_flash_kernel(func: Any) -> None:
    """Closed form: causal attention does at least half of 4 B H S^2 D flops, and no S^2 bytes."""
    q, k = empty(1, 8, 1024, 64), empty(1, 2, 1024, 64)
    full = 4 * 8 * 1024 * 1024 * 64
    causal = COSTS.timing(func, describe(func), (q, k, k, 0.0, True), {}, q, 0).template(False)
    whole = COSTS.timing(func, describe(func), (q, k, k, 0.0, False), {}, q, 0).template(False)
    assert full <= whole.flops < 1.01 * full
    assert full / 2 <= causal.flops < 0.7 * full
    assert causal.duration_ps < whole.duration_ps
    assert whole.hbm_bytes < 8 * (2 * q.nbytes + 2 * k.nbytes)


@pytest.mark.adr("0064-D1")
def test_the_backward_of_attention_is_its_kernels_one_after_another() -> None:
    func = aten._scaled_dot_product_flash_attention_backward.default
    q = empty(1, 4, 256, 64)
    args = (q, q, q, q, q, None, None, None, 256, 256, 0.0, True)
    template = COSTS.timing(func, describe(func), args, {}, (q, q, q), 0).template(False)

    def work(context: RuntimeContext) -> None:
        contexts = [context.empty((1, 4, 256, 64), dtype=dtypes.bfloat16) for _ in range(5)]
        lse = context.empty((1, 4, 256), dtype=dtypes.float32)
        grad, q, k, v, out = contexts
        ops.attention_backward(grad, q, k, v, out, lse, causal=True, query_offset=0)

    own = launched(work)
    assert template.flops == sum(item.flops for item in own)
    rows = template.make_rows()
    assert len({len(column) for column in rows.values()}) == 1
    assert max(rows["end_ps"]) == template.duration_ps


@pytest.mark.adr("0064-D2")
def test_streams_take_the_time_of_their_bytes() -> None:
    """Closed form: an add of n halves moves 6n bytes."""
    n = 1 << 24
    result = template(aten.add.Tensor, empty(n), empty(n))
    assert result.hbm_bytes == 6 * n
    stream_ps = SIP.hbm_stream_ps(6 * n)
    assert result.duration_ps == SIP.front_end_ps + SIP.hbm_latency_ps + stream_ps
    assert template(aten.add_.Tensor, empty(n), empty(n)).hbm_bytes == 6 * n
    assert template(aten.copy_.default, empty(n), empty(n)).hbm_bytes == 4 * n
    assert template(aten.zero_.default, empty(n)).hbm_bytes == 2 * n
    lists = [empty(n), empty(n)]
    assert template(aten._foreach_add_.List, lists, lists).hbm_bytes == 12 * n


@pytest.mark.adr("0064-D2")
def test_what_only_loads_takes_what_loads_alone_reach() -> None:
    sip = load_machine("a100-sxm-80g", 1).sip
    loaded = timing_by_bytes("sum", sip, 1 << 30, 4).template(True).limits_ps[Limit.HBM]
    copied = timing_by_bytes("copy", sip, 1 << 29, 1 << 29).template(True).limits_ps[Limit.HBM]
    assert loaded / copied == pytest.approx(0.88 / 0.79, rel=1e-6)


def test_an_expanded_operand_is_read_once() -> None:
    """Closed form: scales of 16 x 512 planes beside an image of 32 x 32, read and written."""
    image, scale = empty(16, 512, 32, 32), empty(16, 512, 1, 1)
    expected = 2 * image.nbytes + scale.nbytes
    for value in (scale, scale.expand_as(image)):
        assert template(aten.mul.Tensor, image, value).hbm_bytes == expected


def test_a_thread_for_each_position_takes_one_plane_after_another() -> None:
    """Closed form: 64 x 64 threads wait for HBM once for each of 4096 planes."""
    small = empty(16, 256, 32, 32, dtype=torch.float32)
    result = template(aten.upsample_bilinear2d.default, small, [64, 64], False)
    assert result.duration_ps == SIP.front_end_ps + (1 + 16 * 256) * SIP.hbm_latency_ps
    assert result.limits_ps[Limit.LATENCY] == 16 * 256 * SIP.hbm_latency_ps
    # With the channels of a position side by side, each element has a thread.
    last = small.to(memory_format=torch.channels_last)
    fast = template(aten.upsample_bilinear2d.default, last, [64, 64], False)
    assert fast.hbm_bytes == result.hbm_bytes
    assert fast.duration_ps < result.duration_ps / 2


@pytest.mark.adr("0064-D2")
def test_a_selection_reads_what_it_gives_and_not_the_whole_table() -> None:
    table, tokens = empty(100_000, 64), empty(16, dtype=torch.int64)
    result = template(aten.embedding.default, table, tokens)
    assert result.hbm_bytes == 2 * 16 * 64 * 2 + tokens.nbytes


@pytest.mark.adr("0064-D2")
def test_arithmetic_counts_where_it_takes_longer_than_the_bytes() -> None:
    """Closed form: gelu's backward is one transcendental and five simple ones per element."""
    n = 1 << 24
    result = template(aten.gelu_backward.default, empty(n), empty(n))
    rates = SIP.pe.math.elements_per_clock
    per_pe = n / SIP.num_pes
    cycles = per_pe / rates.transcendental + 5 * per_pe / rates.simple
    assert result.limits_ps[Limit.MATH] == pytest.approx(SIP.cycles_ps(round(cycles)), rel=0.01)
    assert result.duration_ps - SIP.front_end_ps - SIP.hbm_latency_ps == max(
        result.limits_ps[Limit.MATH], result.limits_ps[Limit.HBM]
    )


@pytest.mark.adr("0064-D3")
def test_operations_of_unknown_arithmetic_are_counted_and_listed() -> None:
    context = simulated("costs.py", "unknown_arithmetic")
    remarks = [line for ask in context.run.remarks for line in ask()]
    (listed,) = [line for line in remarks if "bytes alone" in line]
    assert listed.endswith("is not modeled: aten._fft_r2c (2)")


@pytest.mark.adr("0265-D1")
@pytest.mark.parametrize(
    ("func", "args", "kind"),
    [
        (aten._fft_r2c.default, (empty(8, 64, dtype=torch.float32), [1], 0, True), ""),
        (aten.histc.default, (empty(64, dtype=torch.float32), 10), ""),
        (aten.trace.default, (empty(64, 64),), ""),
        (aten.im2col.default, (empty(2, 3, 9, 9), [3, 3], [1, 1], [0, 0], [1, 1]), ""),
        (aten.renorm.default, (empty(64, 64, dtype=torch.float32), 2, 0, 1.0), ""),
        (aten.linalg_qr.default, (empty(64, 64, dtype=torch.float32),), ""),
        (aten.roll.default, (empty(64, 64), [5], [0]), "elementwise"),
        (aten.sum.default, (empty(64, 64),), "reductions"),
    ],
)
def test_kernels_without_a_structure_are_said_to_be_timed_by_bytes_alone(
    func: Any, args: Any, kind: str
) -> None:
    # In a report's range no kind of kernels that were measured stands for them.
    assert kind_of(template(func, *args)) == (kind or "by bytes alone")


@pytest.mark.adr("0064-D4")
def test_a_small_model_is_bound_by_launches() -> None:
    context = simulated("costs.py", "small_products")
    launches_ps = 101 * SIP.host_launch_ps
    last = context.op_log.instances[-1]
    busy_ps = sum(instance.template.duration_ps for instance in context.op_log.instances)
    assert busy_ps < launches_ps <= last.ends_ps[0] < launches_ps + 2 * last.template.duration_ps


A100 = load_machine("a100-sxm-80g", 1)
ON_A100 = OperationCosts(A100, Float32())
FLASH = aten._scaled_dot_product_flash_attention.default


def attention_on_a100(func: Any, *args: Any, dtype: Any = HALF, **kwargs: Any) -> Template:
    q = empty(2, 8, 512, 64, dtype=dtype)
    timing = ON_A100.timing(func, describe(func), (q, q, q, *args), kwargs, q, 0)
    return timing.template(True)


def library_us(name: str, **kwargs: Any) -> float:
    """Return the time of a kernel of the A100's library, by the engine itself."""
    problem = AttentionProblem(
        batch=2, q_len=512, kv_len=512, heads=8, kv_heads=8, head_dim=64, **kwargs
    )
    library = load_library("sm80")
    launches = flash_launches(problem, attention_kernels("sm80")[name], A100.sip.num_pes)
    return sum(
        time_kernel(launch, A100.sip, library.constants(launch.name)).total_us
        for launch in launches
    )


def test_attention_takes_the_time_of_the_kernel_that_pytorch_ships_with() -> None:
    attention = attention_on_a100(FLASH, 0.0, True)
    assert attention.duration_ps / 1e6 == pytest.approx(library_us("flash2_forward", causal=True))
    assert sum(attention.limits_ps.values()) >= attention.duration_ps
    assert attention.bound_ps <= attention.duration_ps
    # A causal pass does half of 4 B H S^2 D, and up to a tile more in each row of tiles.
    half = 2 * 2 * 8 * 512 * 512 * 64
    assert half <= attention.flops <= 1.5 * half


def test_what_flash_attention_does_not_take_runs_the_memory_efficient_kernel() -> None:
    wide = attention_on_a100(FLASH, dtype=torch.float32)
    efficient = library_us("efficient_forward", dtype="tf32", q_bytes=4, kv_bytes=4)
    assert wide.duration_ps / 1e6 == pytest.approx(efficient)
    masked = attention_on_a100(
        aten._scaled_dot_product_flash_attention_for_cpu.default, attn_mask=empty(512, 512)
    )
    assert masked.duration_ps / 1e6 == pytest.approx(library_us("efficient_forward"))


def test_a_query_of_a_step_reads_its_keys_from_memory() -> None:
    q, k = empty(1, 8, 1, 64), empty(1, 8, 8192, 64)
    timing = ON_A100.timing(FLASH, describe(FLASH), (q, k, k), {}, q, 0)
    kv_us = 2 * 8 * 8192 * 64 * 2 / 2039e3
    assert timing.template(True).limits_ps[Limit.HBM] / 1e6 >= kv_us


def test_losses_touch_one_element_of_a_row() -> None:
    scores, target = empty(1024, 50000, dtype=torch.float32), empty(1024, dtype=torch.int64)
    args = (scores, target, None, 1, -100)
    assert template(aten.nll_loss_forward.default, *args).hbm_bytes < scores.nbytes / 100
    mean, weight = empty(dtype=torch.float32), empty(dtype=torch.float32)
    back = template(aten.nll_loss_backward.default, mean, *args, weight)
    assert back.hbm_bytes == pytest.approx(scores.nbytes, rel=0.01)


def test_gradients_of_a_norms_weights_read_its_inputs_again() -> None:
    x, row, mean = empty(4096, 1024), empty(1024), empty(4096, 1)
    args = (x, x, [1024], mean, mean, row, row)
    both = template(aten.native_layer_norm_backward.default, *args, [True, True, True])
    alone = template(aten.native_layer_norm_backward.default, *args, [True, False, False])
    assert both.hbm_bytes - alone.hbm_bytes == pytest.approx(2 * x.nbytes, rel=0.01)


@pytest.mark.adr("0064-D2")
def test_samples_of_planes_are_loaded_by_sectors() -> None:
    """Positions come with the data: each sample loads a sector in each of two rows."""
    costs, func = OperationCosts(A100, Float32()), aten.grid_sampler_2d.default
    grid = empty(8, 512, 8, 2, dtype=torch.float32)
    planes = empty(8, 64, 32, 32, dtype=torch.float32)
    last = planes.to(memory_format=torch.channels_last)
    result = empty(8, 64, 512, 8, dtype=torch.float32)
    answer, beside = (
        costs.timing(func, describe(func), (plane, grid, 0, 0, False), {}, result, 0).template(True)
        for plane in (planes, last)
    )
    assert answer.hbm_bytes == beside.hbm_bytes == planes.nbytes + grid.nbytes + 8 * 64 * 4096 * 4
    assert answer.duration_ps > 2 * beside.duration_ps
    assert max(answer.limits_ps, key=answer.limits_ps.__getitem__) is Limit.CACHE
