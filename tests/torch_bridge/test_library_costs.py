"""Operations on a machine that names a vendor library take the time of its kernels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.commands import Engine  # noqa: E402
from kernbench.errors import UsageError  # noqa: E402
from kernbench.hardware import changed_machine, load_library, load_machine  # noqa: E402
from kernbench.library_kernels import Product, product_kernels  # noqa: E402
from kernbench.op_log import Template  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.base.versions import KERNELS_VARIABLE  # noqa: E402
from kernbench.torch_bridge.costs import OperationCosts  # noqa: E402
from kernbench.torch_bridge.costs.scattered import spread_bytes, spread_of_copy  # noqa: E402
from kernbench.torch_bridge.processes.float32 import Float32  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

aten = torch.ops.aten
A100 = load_machine("a100-sxm-80g", 1)
V100 = load_machine("v100", 1)


def template(
    machine: Any, func: Any, *args: Any, precision: str = "ieee", queued: bool = True
) -> Template:
    costs = OperationCosts(machine, Float32(precision, precision, precision))
    result = func(*args)
    return costs.timing(func, describe(func), args, {}, result, 0).template(queued)


def empty(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.adr("0128-D6")
def test_a_product_takes_the_time_of_the_librarys_fastest_kernel() -> None:
    a, b = empty(512, 1024, dtype=torch.bfloat16), empty(1024, 256, dtype=torch.bfloat16)
    expected = product_kernels(Product(m=512, n=256, k=1024), A100.sip, load_library("sm80"))
    for queued, front_ps in ((False, A100.sip.front_end_ps), (True, A100.sip.queued_front_end_ps)):
        result = template(A100, aten.mm.default, a, b, queued=queued)
        others_ps = result.duration_ps - front_ps
        assert others_ps == pytest.approx(expected.total_us * 1e6 - A100.sip.front_end_ps, abs=2)
    assert result.flops == 2 * 512 * 1024 * 256
    rows = result.make_rows()
    assert sum(rows["flops"]) == result.flops
    assert sum(rows["bytes"]) == result.hbm_bytes


def test_how_operands_lie_counts_on_a_board_with_a_low_limit() -> None:
    """BLAS' ``tn``, of which linear layers are, costs the most power."""
    a, weight, bias = empty(4096, 4096), empty(4096, 4096), empty(4096)
    l4 = load_machine("l4", 1)
    for machine, is_limited in ((l4, True), (A100, False)):
        rows = template(machine, aten.mm.default, a, weight).duration_ps
        for func, args in (
            (aten.mm.default, (a, weight.t())),
            (aten.addmm.default, (bias, a, weight.t())),
            (aten.linear.default, (a, weight)),
        ):
            along_k = template(machine, func, *args).duration_ps
            assert (along_k > 1.3 * rows) == is_limited
        both = template(machine, aten.mm.default, a.t(), weight.t()).duration_ps
        assert both == pytest.approx(rows, rel=1e-3)
    batch = empty(8, 1024, 1024)
    alike = {template(l4, aten.bmm.default, batch, item).duration_ps for item in (batch, batch.mT)}
    assert len(alike) == 1


def test_a_board_with_a_low_limit_is_slower_where_threads_multiply() -> None:
    x, weight = empty(32, 128, 128, 256), empty(128, 1, 3, 7)
    of_groups = ([1, 1], [0, 0], [1, 1], False, [0, 0], 128)
    l4 = load_machine("l4", 1)
    cool = changed_machine(l4, {"sip.sustained.float32_clock_loss": 0})
    for func, args, is_slower in (
        (aten.convolution.default, (x, weight, None, *of_groups), True),
        (aten.max_pool2d_with_indices.default, (x, [3, 7], [1, 1]), False),
    ):
        limited, other = (template(item, func, *args).duration_ps for item in (l4, cool))
        assert (limited > 1.3 * other) == is_slower


@pytest.mark.parametrize("rows", [7, 64])
def test_flops_of_a_product_are_those_that_it_is_asked_for(rows: int) -> None:
    a = empty(4096, rows, 96, dtype=torch.float16)
    result = template(A100, aten.bmm.default, a, empty(4096, 96, 288, dtype=torch.float16))
    assert result.flops == 2 * 4096 * rows * 96 * 288
    # What fills up tiles keeps the engine busy all the same.
    full = template(
        A100,
        aten.bmm.default,
        empty(4096, 64, 96, dtype=torch.float16),
        empty(4096, 96, 288, dtype=torch.float16),
    )
    assert result.engine_busy_ps[Engine.GEMM] > 0.8 * full.engine_busy_ps[Engine.GEMM]
    x, weight = empty(8, 3, 64, 64, dtype=torch.float16), empty(5, 3, 3, 3, dtype=torch.float16)
    plain = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    convolved = template(A100, aten.convolution.default, x, weight, *plain)
    assert convolved.flops == 2 * 8 * 5 * 64 * 64 * 3 * 9


def test_older_releases_folded_batches_that_share_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    a = empty(4096, 7, 96, dtype=torch.float16)
    weight = empty(96, 288, dtype=torch.float16)
    folded = template(A100, aten.mm.default, a.view(-1, 96), weight)

    def batched(weights: Any) -> Template:
        return template(A100, aten.bmm.default, a, weights)

    shared, many = weight.expand(4096, 96, 288), empty(4096, 96, 288, dtype=torch.float16)
    monkeypatch.setenv(KERNELS_VARIABLE, "2.0")
    newer, apart = batched(shared), batched(many)
    assert newer.duration_ps > 3 * folded.duration_ps
    monkeypatch.setenv(KERNELS_VARIABLE, "1.13")
    assert batched(shared).duration_ps == folded.duration_ps
    assert batched(many).duration_ps == apart.duration_ps


def test_a_row_of_a_layer_norm_takes_a_block_however_short_it_is() -> None:
    def norm(rows: int, columns: int, machine: Any = A100) -> Template:
        x = empty(rows, columns, dtype=torch.float16)
        of_row = empty(columns, dtype=torch.float16)
        return template(machine, aten.native_layer_norm.default, x, [columns], of_row, of_row, 1e-5)

    rows = 1 << 20
    short, longer, wide = (norm(rows, columns) for columns in (40, 320, 4096))
    # Issuing and the bytes of HBM overlap, though not perfectly.
    assert 3 * short.bound_ps < short.duration_ps <= longer.duration_ps < 1.02 * short.duration_ps
    # As many blocks as an SM of an RTX 3090 issues in a clock: timm's ConvNeXt-Atto-OLS.
    cycles = (short.duration_ps - A100.sip.front_end_ps) * 1410e6 / 1e12 / rows * 108
    assert 350 < cycles < 400
    # Long rows go by their bytes, but for the waits of two passes of eight trips each.
    assert wide.bound_ps > 0.85 * (wide.duration_ps - A100.sip.front_end_ps)
    twice = norm(2 * rows, 40).duration_ps - short.duration_ps
    assert twice == pytest.approx(short.duration_ps, rel=0.01)
    # kernbench's own machines have no kernels of a vendor.
    own = load_machine("ahbm", 1)
    assert norm(rows, 320, own).duration_ps > 3 * norm(rows, 40, own).duration_ps


def test_tf32_takes_the_time_of_its_engine_where_the_machine_has_one() -> None:
    a, b = empty(4096, 4096), empty(4096, 4096)
    slow, fast = (
        template(A100, aten.mm.default, a, b, precision=name).duration_ps
        for name in ("ieee", "tf32")
    )
    assert 6 < slow / fast < 10
    same = {
        template(V100, aten.mm.default, a, b, precision=name).duration_ps
        for name in ("ieee", "tf32")
    }
    assert len(same) == 1


def test_batches_and_transposed_products_are_one_launch() -> None:
    a, b = empty(192, 1024, 64, dtype=torch.bfloat16), empty(192, 64, 1024, dtype=torch.bfloat16)
    result = template(A100, aten.bmm.default, a, b)
    # Bound by the 403 MB of scores, which no form of the product avoids.
    assert result.duration_ps / 1e6 > result.hbm_bytes / 2039e3
    assert result.flops >= 2 * 192 * 1024 * 1024 * 64


def test_a_matrix_that_a_whole_batch_shares_is_read_once() -> None:
    """``torch.matmul`` of rows that do not merge expands the weight over the batch."""
    rows, weight = (
        empty(4096, 7, 1152, dtype=torch.float16),
        empty(1152, 384, dtype=torch.float16),
    )
    shared = template(A100, aten.bmm.default, rows, weight.expand(4096, -1, -1))
    own = template(A100, aten.bmm.default, rows, empty(4096, 1152, 384, dtype=torch.float16))
    result = 4096 * 7 * 384 * 2
    assert shared.hbm_bytes == pytest.approx(rows.nbytes + weight.nbytes + result)
    assert own.hbm_bytes - shared.hbm_bytes == pytest.approx(4095 * weight.nbytes)
    flipped = template(
        A100, aten.bmm.default, weight.t().expand(4096, -1, -1), rows.transpose(1, 2)
    )
    assert flipped.hbm_bytes == shared.hbm_bytes
    assert shared.duration_ps < own.duration_ps / 2


CONV = aten.convolution.default


def convolution(*args: Any, **options: Any) -> Template:
    x, weight, bias = (*args, None)[:3] if len(args) == 2 else args
    plain = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return template(A100, CONV, x, weight, bias, *plain, **options)


@pytest.mark.adr("0128-D8")
def test_a_convolution_costs_its_layout_and_its_bias() -> None:
    x = empty(32, 64, 56, 56, dtype=torch.float16)
    weight, bias = empty(64, 64, 3, 3, dtype=torch.float16), empty(64, dtype=torch.float16)
    last = x.to(memory_format=torch.channels_last)
    result = convolution(last, weight)
    stream_ps = 2 * x.nbytes / 2039e9 * 1e12
    # Of float32 it is the other way round, and the kernels of cuDNN take planar images only.
    planar, moved = (convolution(item, weight.float()) for item in (x.float(), last.float()))
    assert moved.duration_ps - planar.duration_ps >= 4 * stream_ps
    assert convolution(last, weight, bias).duration_ps - result.duration_ps >= stream_ps


def test_an_image_in_the_other_layout_than_the_weight_is_copied() -> None:
    """PyTorch runs a convolution channels-last if its weight is, whatever the image is."""
    x = empty(32, 64, 56, 56, dtype=torch.float16)
    weight = empty(64, 64, 3, 3, dtype=torch.float16)
    last = [item.to(memory_format=torch.channels_last) for item in (x, weight)]
    (plain,) = {convolution(last[0], item).hbm_bytes for item in (weight, last[1])}
    copied = convolution(x, last[1])
    assert copied.hbm_bytes - plain == 2 * x.nbytes
    share = float(load_library("sm80").constants("conv_copy").memory_share)
    copy_ps = 2 * x.nbytes / (2039e9 * share) * 1e12
    assert copied.duration_ps - convolution(*last).duration_ps >= copy_ps
    # The layout of a weight of 1 x 1 is that of its strides, not what it might be.
    narrow = empty(64, 64, 1, 1, dtype=torch.float16)
    no_pad = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    both = [
        template(A100, CONV, x, item, None, *no_pad).hbm_bytes
        for item in (narrow, narrow.to(memory_format=torch.channels_last))
    ]
    assert both[1] > both[0] or both[0] >= 3 * x.nbytes


def test_a_norm_over_the_batch_reads_it_twice_to_train() -> None:
    """Closed form: sums need all of a batch before its first element can be written."""
    x, of_channel = empty(32, 64, 56, 56), empty(64)
    channels = (of_channel, of_channel, of_channel, of_channel)

    def streams(machine: Any, train: bool) -> tuple[int, ...]:
        forward = template(machine, aten.native_batch_norm.default, x, *channels, train, 0.1, 1e-5)
        func = aten.native_batch_norm_backward.default
        wanted = (*channels, of_channel, train, 1e-5, [True, True, True])
        backward = template(machine, func, x, x, *wanted)
        return tuple(round(item.hbm_bytes / x.nbytes) for item in (forward, backward))

    for machine in (A100, load_machine("ahbm", 1)):
        assert streams(machine, train=True) == (3, 5)
        assert streams(machine, train=False) == (2, 3)
    func = aten.native_group_norm.default
    result = template(A100, func, x, of_channel, of_channel, 32, 64, 56 * 56, 8, 1e-5)
    assert round(result.hbm_bytes / x.nbytes) == 3


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_norms_over_the_batch_reach_a_share_of_their_own(layout: Any, trains: bool) -> None:
    machine, library = load_machine("rtx-3090", 1), load_library("sm86")
    x = empty(256, 64, 56, 56, dtype=torch.float16).to(memory_format=layout)
    func = aten.native_batch_norm.default
    result = template(machine, func, x, *(empty(64) for _ in range(4)), trains, 0.1, 1e-5)
    share = float(machine.sip.cube.hbm_efficiency)
    if trains or layout is torch.contiguous_format:
        planar = "_planar" if layout is torch.contiguous_format else ""
        kernel = f"batch_norm{'_train' if trains else ''}{planar}"
        share = float(library.constants(kernel).memory_share)
    stream_ps = (2 + trains) * x.nbytes / (936e9 * share) * 1e12
    assert result.duration_ps == pytest.approx(stream_ps, rel=0.02)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_norms_in_training_reach_most_of_hbms_bandwidth(layout: Any) -> None:
    x = empty(128, 1024, 28, 28, dtype=torch.float16).to(memory_format=layout)
    func = aten.native_batch_norm.default

    def reached(name: str) -> float:
        machine = load_machine(name, 1)
        result = template(machine, func, x, *(empty(1024) for _ in range(4)), True, 0.1, 1e-5)
        bytes_per_ps = float(machine.sip.cube.hbm_bandwidth_gbps) * machine.sip.num_cubes / 1e3
        return float(result.hbm_bytes / result.duration_ps / bytes_per_ps)

    assert all(reached(name) > 0.7 for name in ("a100-sxm-80g", "v100", "h100-sxm"))
    assert reached("rtx-3090") < 0.6


def test_the_release_of_kernels_decides_gradients_of_depthwise_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def backward(wanted: list[bool]) -> Template:
        image = torch.empty(64, 96, 56, 56, dtype=torch.float16, device="meta")
        image = image.to(memory_format=torch.channels_last)
        weight = torch.empty(96, 1, 3, 3, dtype=torch.float16, device="meta")
        func = aten.convolution_backward.default
        same = ([1, 1], [1, 1], [1, 1], False, [0, 0], 96)
        return template(A100, func, image, image, weight, None, *same, wanted)

    of_weight, of_input = [False, True, False], [True, False, False]
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    newer = backward(of_weight).duration_ps, backward(of_input).duration_ps
    monkeypatch.setenv(KERNELS_VARIABLE, "1.9")
    assert backward(of_weight).duration_ps > 3 * newer[0]
    assert backward(of_input).duration_ps == newer[1]


@pytest.mark.parametrize("channels", [4, 8, 16])
def test_a_norm_of_few_channels_keeps_few_pes_busy(channels: int) -> None:
    """Closed form: a block for each channel, with 4 KiB under way for the latency of a load."""
    machine, library = load_machine("rtx-3090", 1), load_library("sm86")
    x = empty(512, channels, 64, 64, dtype=torch.float16)
    indices = [empty(channels) for _ in range(4)]
    result = template(machine, aten.native_batch_norm.default, x, *indices, True, 0.1, 1e-5)
    wait_ps = float(library.constants("batch_norm_train_planar").trip_ns) * 1e3
    assert result.duration_ps == pytest.approx(3 * x.nbytes / channels / 4096 * wait_ps, rel=0.02)
    last = x.to(memory_format=torch.channels_last)
    if channels > 1:
        func = aten.native_batch_norm.default
        assert (
            template(machine, func, last, *indices, True, 0.1, 1e-5).duration_ps
            < result.duration_ps
        )


def test_operands_in_another_order_are_loaded_by_sectors() -> None:
    x = empty(64, 192, 24, 24, dtype=torch.float16)
    last = x.to(memory_format=torch.channels_last)
    y = last.contiguous()
    func = aten.add.Tensor
    alike, unlike = (template(A100, func, x, item).duration_ps for item in (y, last))
    assert unlike > 1.5 * alike
    # What is beside each other in both is not slower: heads of attention, apart.
    heads = empty(64, 12, 196, 64)
    turned = heads.transpose(1, 2)
    into = empty(*turned.shape)
    alike, unlike = (
        template(A100, aten.copy_.default, into, item).duration_ps for item in (into, turned)
    )
    assert unlike < 1.5 * alike
    # A thousand elements beside each other in the result are in so many sectors of 32 bytes.
    for shape, order in (((8, 96, 32, 32), (0, 2, 3, 1)), ((4, 300, 40), (0, 2, 1))):
        permute = empty(*shape, dtype=torch.float16).permute(order)
        count = min(permute.numel(), 512)
        first = (permute.numel() - count) // 2
        places = torch.arange(math.prod(shape)).view(shape).permute(order).flatten()
        sectors = len({int(place) * 2 // 32 for place in places[first : first + count]})
        expected = (sectors * 32 - count * 2) / count * permute.numel()
        assert spread_of_copy(permute) == round(expected)
        assert spread_bytes([permute], permute.contiguous()) == round(expected)
        assert spread_bytes([permute], permute) == 0


def test_norms_of_rows_make_their_operands_contiguous_first() -> None:
    rows = empty(64, 196, 1536, dtype=torch.float16)
    planes = empty(64, 1536, 196, dtype=torch.float16).transpose(1, 2)
    of_row = empty(1536, dtype=torch.float16)
    func = aten.native_layer_norm.default
    plain, copied = (
        template(A100, func, item, [1536], of_row, of_row, 1e-5) for item in (rows, planes)
    )
    assert copied.hbm_bytes - plain.hbm_bytes == 2 * rows.nbytes
    assert copied.duration_ps > 2 * plain.duration_ps
    func, stats = aten.native_layer_norm_backward.default, empty(64, 196, 1)
    wanted = ([1536], stats, stats, of_row, of_row, [True, True, True])
    plain, copied = (template(A100, func, rows, item, *wanted) for item in (rows, planes))
    assert copied.hbm_bytes - plain.hbm_bytes == 2 * rows.nbytes


def test_older_releases_summed_gradients_of_norms_by_few_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def backward(rows: int, wanted: list[bool]) -> Template:
        x, stats, of_row = empty(rows, 192), empty(rows, 1), empty(192)
        func = aten.native_layer_norm_backward.default
        return template(A100, func, x, x, [192], stats, stats, of_row, of_row, wanted)

    every, rows = [True, True, True], 512 * 197
    monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
    newer, of_input = backward(rows, every), backward(rows, [True, False, False])
    monkeypatch.setenv(KERNELS_VARIABLE, "1.12")
    older = backward(rows, every)
    assert older.hbm_bytes == pytest.approx(newer.hbm_bytes, rel=0.01)
    # 394 times 256 rows wait for each other, beside the gradient of the input.
    wait_ps = rows / 256 * float(load_library("sm80").constants("aten_norm_weights").trip_ns) * 1e3
    assert older.duration_ps - of_input.duration_ps == pytest.approx(wait_ps, rel=0.1)
    assert older.duration_ps > 2 * newer.duration_ps
    assert backward(rows, [True, False, False]).duration_ps == of_input.duration_ps
    few = backward(256, every).duration_ps
    monkeypatch.setenv(KERNELS_VARIABLE, "2.0.1")
    assert backward(rows, every).duration_ps == newer.duration_ps
    assert backward(256, every).duration_ps == few
    monkeypatch.setenv(KERNELS_VARIABLE, "new")
    with pytest.raises(UsageError, match="KERNBENCH_TORCH_KERNELS=new is no release"):
        backward(rows, every)


def test_the_gradient_of_a_bias_reads_that_of_the_result() -> None:
    x = empty(32, 64, 56, 56, dtype=torch.float16)
    weight = empty(64, 64, 3, 3, dtype=torch.float16)
    plain = ([64], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    func = aten.convolution_backward.default
    without, with_bias = (
        template(A100, func, x, x, weight, *plain, [True, True, wanted]) for wanted in (False, True)
    )
    assert with_bias.hbm_bytes - without.hbm_bytes == x.nbytes
    assert with_bias.duration_ps - without.duration_ps >= x.nbytes / 2039e9 * 1e12


@pytest.mark.adr("0128-D7")
def test_gradients_of_a_convolution_are_two_more_products() -> None:
    x = empty(32, 64, 56, 56, dtype=torch.float16).to(memory_format=torch.channels_last)
    weight = empty(64, 64, 3, 3, dtype=torch.float16)
    forward = convolution(x, weight)
    plain = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def backward(wanted: list[bool]) -> int:
        func = aten.convolution_backward.default
        return template(A100, func, x, x, weight, *plain, wanted).duration_ps

    both, *item = (
        backward([*wanted, False]) for wanted in ([True, True], [True, False], [False, True])
    )
    assert both == pytest.approx(sum(item), rel=0.05)
    assert item[0] == pytest.approx(forward.duration_ps, rel=0.1)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_gradients_of_depthwise_planes_of_float32_have_a_time(is_transposed: bool) -> None:
    image, weight = empty(2, 8, 16, 16), empty(8, 1, 3, 3)
    how = (None, [1, 1], [1, 1], [1, 1], is_transposed, [0, 0], 8)
    grad = aten.convolution.default(image, weight, *how)
    _, *rest = how
    result = template(
        A100,
        aten.convolution_backward.default,
        grad,
        image,
        weight,
        [0],
        *rest,
        [True, True, False],
    )
    assert result.duration_ps > A100.sip.queued_front_end_ps


def test_a_product_with_an_odd_vocabulary_loads_narrowly() -> None:
    x = empty(4096, 768, dtype=torch.bfloat16)

    def ps(weight: Any) -> int:
        return template(A100, aten.mm.default, x, weight).duration_ps

    odd, padded = (empty(768, number, dtype=torch.bfloat16) for number in (50257, 50304))
    assert ps(odd) > 2 * ps(padded)
    # Transposed, the rows are of 768; those of the result are not.
    assert ps(empty(50257, 768, dtype=torch.bfloat16).t()) == ps(odd)
    # An odd number of tokens is not the length of any row.
    tokens = template(A100, aten.mm.default, empty(4095, 768, dtype=torch.bfloat16), padded)
    assert tokens.duration_ps <= ps(padded)


def test_rows_are_found_by_layout_in_runs_with_data(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "x = torch.zeros(64, 1000, device='cuda', dtype=torch.bfloat16)\n"
        "wide = torch.zeros(1000, 1001, device='cuda', dtype=torch.bfloat16)[:, :1000]\n"
        "for weight in (wide, wide.contiguous(), wide): x @ weight\n"
    )
    log = simulated(program, machine="a100-sxm-80g:1").op_log
    templates = [
        instance.template for instance in log.instances if instance.template.name == "aten.mm"
    ]
    narrow, wide, again = (item.duration_ps for item in templates)
    assert narrow > wide
    assert abs(again - narrow) < 3e6


def test_unlike_operands_are_loaded_an_element_at_a_time() -> None:
    half, single = empty(1 << 26, dtype=torch.bfloat16), empty(1 << 26)
    alike = template(A100, aten.add.Tensor, half, half)
    cast = template(A100, aten.add.Tensor, half, single)
    bytes_of = [item.duration_ps / item.hbm_bytes for item in (alike, cast)]
    assert bytes_of[1] > 1.05 * bytes_of[0]
    scores, mask = empty(64, 1024, 1024, dtype=torch.bfloat16), empty(1024, 1024) != 0
    in_place = template(A100, aten.masked_fill_.Scalar, scores, mask, 0)
    moved = template(A100, aten.mul.Tensor, scores, 1.0)
    assert in_place.duration_ps > 1.2 * moved.duration_ps
    # The form that makes a result copies the scores first.
    both = template(A100, aten.masked_fill.Scalar, scores, mask, 0)
    assert both.duration_ps == pytest.approx(in_place.duration_ps + moved.duration_ps, rel=0.02)


@pytest.mark.parametrize(("columns", "reads"), [(1024, 1), (12288, 1), (50304, 3)])
def test_softmax_reads_rows_again_that_no_block_holds(columns: int, reads: int) -> None:
    x = empty(4096, columns)
    result = template(A100, aten._log_softmax.default, x, 1, False)
    assert result.hbm_bytes == (reads + 1) * x.nbytes
    back = template(A100, aten._log_softmax_backward_data.default, x, x, 1, torch.float32)
    # The gradient twice, as its sum is needed first; the result once.
    assert back.hbm_bytes == (2 + (reads > 1) + 1) * x.nbytes
