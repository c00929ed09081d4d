"""Launches: both ways in, what they refuse, and what they cost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from kernbench.errors import BadPointerError, OutOfBoundsError, UsageError
from kernbench.hardware import load_machine
from kernbench.policy import DPPolicy
from kernbench.runtime_api import LaunchAttributes, RuntimeContext
from tests.runtime_api.runtime_kernels import (
    add_one,
    add_one_unmasked,
    copy_out,
    scale,
    store_before,
)


@pytest.fixture
def torch():
    with RuntimeContext(ranks=2) as context:
        yield context


def test_the_log_names_grid_and_arguments_of_every_launch(torch) -> None:
    x, y = torch.arange(250, dtype="f32"), torch.empty(250)
    for size in (250, 200, 250):
        add_one[(4,)](x, y, size, BLOCK=64, num_warps=2)
    torch.ahbm.synchronize()
    instances = [instance.template.launched_with for instance in torch.op_log.instances[-3:]]
    assert [item["arguments"]["n"] for item in instances] == [250, 200, 250]
    assert instances[0]["arguments"]["BLOCK"] == "64"
    assert (instances[0]["grid"], instances[0]["num_warps"]) == ([4, 1, 1], 2)


def test_host_code_reads_the_memory_bandwidth_of_the_data_sheet() -> None:
    """NVIDIA, "H100 Tensor Core GPU datasheet": 3.35 TB/s for SXM."""
    with RuntimeContext(machine=load_machine("h100-sxm:1"), ranks=1):
        assert triton.testing.get_dram_gbps() == pytest.approx(3350, rel=1e-3)


@pytest.mark.adr("0024-D2")
@pytest.mark.parametrize(
    "launch",
    [
        lambda torch, x, y: add_one[(4,)](x, y, 250, BLOCK=64),
        lambda torch, x, y: torch.launch("inc", add_one, x, y, 250, grid=(4,), BLOCK=64),
        lambda torch, x, y: torch.launch("inc", add_one, x, y, 250, grid=4, BLOCK=64),
        lambda torch, x, y: torch.launch("inc", add_one, x, y, 250, grid=[4, 1], BLOCK=64),
        lambda torch, x, y: torch.launch(
            "inc",
            add_one,
            x,
            y,
            250,
            grid=lambda meta: (triton.cdiv(250, meta["BLOCK"]),),
            BLOCK=64,
        ),
        lambda torch, x, y: torch.launch("inc", add_one, x, y, 250, BLOCK=256),
    ],
)
def test_every_way_to_launch_gives_the_same_numbers(torch, launch) -> None:
    x, y = torch.arange(250, dtype="f32"), torch.empty(250)
    launch(torch, x, y)
    assert y.tolist() == list(range(1, 251))


@pytest.mark.adr("0024-D2")
def test_both_ways_take_the_same_time() -> None:
    ends = []
    for way in range(2):
        with RuntimeContext(data=False) as torch:
            x, y = torch.empty(250), torch.empty(250)
            if way:
                torch.launch("add_one", add_one, x, y, 250, grid=(4,), BLOCK=64)
            else:
                add_one[(4,)](x, y, 250, BLOCK=64)
            torch.drain()
            (entry,) = torch.op_log.instances
            ends.append((entry.template.name, entry.starts_ps, entry.ends_ps, entry.addresses))
    assert ends[0] == ends[1]


@pytest.mark.adr("0024-D3")
@pytest.mark.unchecked("reads an empty tensor")
def test_a_launch_costs_host_time_and_does_not_block(torch) -> None:
    x, y = torch.empty(64), torch.empty(64)
    before = torch.run.simulation.now_ps
    handles = [torch.launch("k", add_one, x, y, 64, BLOCK=64) for _ in range(3)]
    host_ps = torch.machine.sip.host_launch_ps
    assert torch.run.simulation.now_ps == before + 3 * host_ps
    torch.wait(handles[-1])
    starts = [handle.start_ps for handle in handles]
    assert starts[0] == before + host_ps
    for earlier, later in pairwise(handles):
        assert later.start_ps >= earlier.end_ps


def test_float_arguments_and_names_reach_the_kernel(torch) -> None:
    x, y = torch.ones(64), torch.empty(64)
    handle = torch.launch("times", scale, x, y, 2.5, 64, BLOCK=64)
    torch.wait(handle)
    assert y.tolist() == [2.5] * 64
    assert torch.op_log.instances[-2].template.name == "times"
    assert "kernel times on SIP 0 (rank 0)" in handle.describe()


@pytest.mark.adr("0002-D3")
def test_records_bind_buffers_not_addresses() -> None:
    """A tensor is freed while its kernel is queued, and its range is given out again."""
    with RuntimeContext(ranks=1) as torch:
        x, middle, out = torch.ones(64), torch.empty(64), torch.empty(64)
        add_one[(1,)](x, middle, 64, BLOCK=64)
        add_one[(1,)](middle, out, 64, BLOCK=64)
        address = middle.data_ptr()
        del middle
        other = torch.full((64,), 100.0)
        assert other.data_ptr() == address
        assert out.tolist() == [3.0] * 64
        assert other.tolist() == [100.0] * 64


@pytest.mark.adr("0012-D5")
def test_kernels_that_follow_each_other_never_see_each_others_tcm() -> None:
    """The same TCM is used again before anything is replayed (design 4, the memory rules)."""
    with RuntimeContext(ranks=1) as torch:
        inputs = [torch.full((64,), float(i)) for i in range(8)]
        outputs = [torch.empty(64) for _ in range(8)]
        for x, out in zip(inputs, outputs, strict=True):
            copy_out[(1,)](x, out, BLOCK=64)
        # Nothing has been computed when the first kernel's TCM has been reused seven times.
        torch.ahbm.synchronize()
        assert len(torch.run.replay_queue) >= 8
        for index, out in reversed(list(enumerate(outputs))):
            assert out.tolist() == [float(index)] * 64


@pytest.mark.adr("0002-D2")
@pytest.mark.unchecked("looks at when bytes are first allocated")
def test_nothing_is_computed_until_somebody_reads(torch) -> None:
    x, y = torch.ones(64), torch.empty(64)
    add_one[(1,)](x, y, 64, BLOCK=64)
    torch.ahbm.synchronize()
    assert y.buffer._bytes is None
    assert x.tolist() == [1.0] * 64
    assert y.buffer._bytes is not None


@pytest.mark.adr("0002-D1")
def test_times_are_the_same_with_and_without_data() -> None:
    def run(data: bool) -> list[Any]:
        with RuntimeContext(ranks=2, data=data) as torch:

            def worker(rank: int) -> None:
                torch.distributed.init_process_group()
                x, y = torch.randn(256), torch.empty(256)
                add_one[(4,)](x, y, 256, BLOCK=64)
                torch.distributed.all_reduce(y)
                if data:
                    repr(y)

            torch.multiprocessing.spawn(worker, nprocs=2)
            return [(i.template.name, i.starts_ps, i.ends_ps) for i in torch.op_log.instances]

    assert run(True) == run(False)


def test_the_bounds_of_a_view_are_those_of_the_memory_around_it(torch) -> None:
    x, y = torch.ones(100, name="x"), torch.empty(128, name="y")
    with pytest.raises(OutOfBoundsError) as caught:
        add_one_unmasked[(1,)](x[40:], y, BLOCK=64)
    text = str(caught.value)
    assert "reads 4 bytes at x+240" in text
    assert "the memory of x (60,) float32, a view, is bytes -160 to 240 from there" in text
    add_one_unmasked[(1,)](x[:10], y, BLOCK=64)


def test_a_grid_of_four_dimensions_is_refused_where_triton_would_drop_one(torch) -> None:
    with pytest.raises(UsageError, match=r"one to three sizes, but got \(1, 1, 1, 2\)"):
        torch.launch("add", add_one, torch.ones(4), torch.ones(4), 4, BLOCK=4, grid=(1, 1, 1, 2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ranks": "two"}, "ranks must be at least 1, but got 'two'"),
        ({"ranks": 0}, "ranks must be at least 1, but got 0"),
        ({"data": "no"}, "data must be True or False, but got 'no'"),
        ({"seed": 1.5}, "seed must be an integer, but got 1.5"),
        ({"machine": 3}, "machine must be a preset's name"),
    ],
)
def test_wrong_arguments_of_a_run_are_named(wrong, message) -> None:
    with pytest.raises(UsageError, match=message):
        RuntimeContext(**wrong)


def test_runs_in_threads_launch_each_to_its_own() -> None:
    both_entered = threading.Barrier(2, timeout=30)

    def run(value: float) -> tuple[list[float], int]:
        with RuntimeContext("ahbm", ranks=2) as torch:
            both_entered.wait()

            def worker(rank: int) -> None:
                torch.ahbm.set_device(rank)
                x, y = torch.full((4,), value + rank), torch.empty(4)
                add_one[(1,)](x, y, 4, BLOCK=4)
                results.append(y.tolist()[0])

            results: list[float] = []
            torch.multiprocessing.spawn(worker, nprocs=2)
            return sorted(results), torch.report()["kernels"][0]["launches"]

    with ThreadPoolExecutor(2) as pool:
        numbers = list(pool.map(run, [0.0, 10.0]))
    assert numbers == [([1.0, 2.0], 2), ([11.0, 12.0], 2)]


def test_what_the_torch_of_a_run_lacks_is_named_with_the_nearest_that_it_has(torch) -> None:
    with pytest.raises(AttributeError, match="has no zeroes; did you mean zeros"):
        torch.zeroes(3)
    assert not hasattr(torch, "nn")


@pytest.mark.adr("0024-D7")
def test_a_read_outside_names_tensor_byte_program_line_and_rank(torch) -> None:
    x, y = torch.ones(100, name="x"), torch.empty(128, name="y")
    with pytest.raises(OutOfBoundsError) as caught:
        add_one_unmasked[(2,)](x, y, BLOCK=64)
    text = str(caught.value)
    assert text.startswith("tt.load at runtime_kernels.py:")
    assert "reads 4 bytes at x+400 (rank 0, kernel add_one_unmasked, program (1, 0, 0))" in text
    assert text.endswith(
        "but x (100,) float32 is 400 bytes; mask the load, "
        "or read zeros there (--allow out-of-bounds-reads)"
    )
    assert isinstance(caught.value, IndexError)
    assert not torch.ahbm.synchronize()


@pytest.mark.adr("0024-D7")
def test_a_write_before_a_tensor_is_refused_and_inside_its_buffer_is_not(torch) -> None:
    x = torch.zeros(20, name="x")
    with pytest.raises(OutOfBoundsError, match=r"tt.store at .* writes 4 bytes at x-16 "):
        store_before[(1,)](x, BLOCK=16)
    store_before[(1,)](x[4:], BLOCK=16)
    assert x.tolist() == [1.0] * 16 + [0.0] * 4


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        (
            lambda t: Pretender(),
            BadPointerError,
            "a Pretender, points to address 0x1000, which belongs to no live tensor of this run",
        ),
        (lambda t: t.ones(64, device="ahbm:1"), BadPointerError, "lies on SIP 1, but rank 0"),
        (
            lambda t: np.ones(64, np.float32),
            UsageError,
            "argument x of kernel add_one is a numpy array",
        ),
    ],
)
def test_what_is_no_pointer_of_this_rank_is_refused(torch, argument, error, message: str) -> None:
    with pytest.raises(error, match=message):
        torch.launch("k", add_one, argument(torch), torch.empty(64), 64, BLOCK=64)


class Pretender:
    """Has what Triton asks of a tensor, and is none of ours."""

    dtype = "fp32"

    def data_ptr(self) -> int:
        return 4096


def test_a_tensor_of_another_run_is_refused() -> None:
    with RuntimeContext() as first:
        x = first.ones(64)
        with RuntimeContext() as second, pytest.raises(BadPointerError, match="another run"):
            second.launch("k", add_one, x, second.empty(64), 64, BLOCK=64)


def test_a_run_that_has_ended_takes_no_launch() -> None:
    with RuntimeContext() as torch:
        x = torch.ones(64)
    with pytest.raises(UsageError, match="the run has ended"):
        torch.launch("k", add_one, x, x, 64, BLOCK=64)
    with pytest.raises(UsageError, match="the run has ended"):
        torch.zeros(3)
    with pytest.raises(UsageError, match="the run has ended"):
        torch.multiprocessing.spawn(print)
    with pytest.raises(UsageError, match="make a new one"), torch:
        pass
    assert x.tolist() == [1.0] * 64


@pytest.mark.parametrize("kernel", [print, 3, None])
def test_what_is_no_kernel_is_refused(torch, kernel) -> None:
    with pytest.raises(UsageError, match="decorate it with @triton"):
        torch.launch("k", kernel)


@pytest.mark.unchecked("reads an empty tensor")
def test_benchmarking_leaves_no_trace(torch) -> None:
    x, y = torch.ones(64), torch.empty(64)
    torch.drain()
    state = (torch.run.simulation.now_ps, len(torch.op_log), len(torch.run.replay_queue))
    milliseconds = torch.launcher.benchmark_ms(
        lambda: (y.zero_(), add_one[(1,)](x, y, 64, BLOCK=64))
    )
    assert state == (torch.run.simulation.now_ps, len(torch.op_log), len(torch.run.replay_queue))
    assert y.tolist() == [0.0] * 64
    before = torch.run.simulation.now_ps
    torch.run.devices.sip(0).cache.touch(0, 1 << 32)  # as a benchmark finds it
    handle = torch.launch("k", add_one, x, y, 64, BLOCK=64)
    torch.wait(handle)
    kernel_ps = handle.end_ps - handle.start_ps
    fill_ps = torch.run.transfers.build("fill", 0, 256).duration_ps
    assert milliseconds == (kernel_ps + fill_ps) / 1e9
    assert torch.run.simulation.now_ps > before


def test_autotune_chooses_by_modeled_time_and_computes_once(torch) -> None:
    tuned = triton.autotune(
        [triton.Config({"BLOCK": block}) for block in (16, 1024)], key=["n"], reset_to_zero=["out"]
    )(add_one)
    x, y = torch.ones(4096), torch.empty(4096)
    tuned[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](x, y, 4096)
    torch.launch("tuned", tuned, x, y, 4096, grid=lambda meta: (triton.cdiv(4096, meta["BLOCK"]),))
    torch.ahbm.synchronize()
    assert tuned.best_config.kwargs == {"BLOCK": 1024}
    kernels = [i.template.name for i in torch.op_log.instances if i.template.kind == "kernel"]
    assert kernels == ["add_one", "tuned"]
    assert y.tolist() == [2.0] * 4096


def test_configurations_that_differ_in_num_warps_are_planned_and_scheduled_once(
    torch, monkeypatch
) -> None:
    engine, calls = torch.launcher.engine, []
    for name in ("evaluate", "schedule"):
        plain = getattr(engine, name)

        def counted(*args, name=name, plain=plain):
            calls.append(name)
            return plain(*args)

        monkeypatch.setattr(engine, name, counted)
    configs = [
        triton.Config({"BLOCK": 64}, num_warps=warps, num_stages=stages)
        for warps, stages in ((2, 2), (4, 2), (4, 3), (8, 2))
    ]
    tuned = triton.autotune(configs, key=["n"])(add_one)
    x, y = torch.ones(256), torch.empty(256)
    tuned[(4,)](x, y, 256)
    assert y.tolist() == [2.0] * 256
    # One for each num_stages; the launch itself meets another state of the machine.
    assert calls == ["evaluate", "schedule", "evaluate", "schedule", "schedule"]
    assert len(tuned.configs_timings) == len(configs)


def test_a_placement_that_the_sip_has_not_is_refused_when_the_tensor_is_made(torch) -> None:
    with pytest.raises(UsageError, match=r"num_cubes is 99"):
        torch.empty(4, dp=DPPolicy(num_cubes=99))


@pytest.mark.unchecked("reads an empty tensor")
def test_a_placement_on_fewer_cubes_is_slower(torch) -> None:
    def time_of(dp) -> int:
        x, y = (torch.empty(1 << 18, dp=dp) for _ in range(2))
        handle = torch.launch("k", add_one, x, y, 1 << 18, grid=(256,), BLOCK=1024)
        torch.wait(handle)
        return handle.end_ps - handle.start_ps

    assert time_of(DPPolicy(num_cubes=1)) > time_of(None)


def test_the_error_of_a_kernel_that_nobody_waited_for_is_raised_at_the_end(monkeypatch) -> None:
    def late(self) -> None:
        raise ZeroDivisionError("late")

    def run() -> None:
        with RuntimeContext(data=False) as torch:
            x = torch.empty(64)
            handle = torch.launch("k", add_one, x, x, 64, BLOCK=64)
            monkeypatch.setattr(type(handle), "finish", late)

    with pytest.raises(ZeroDivisionError, match="late"):
        run()


def _durations(machine: str, attributes: LaunchAttributes | None) -> int:
    with RuntimeContext(machine=machine, ranks=1, data=False) as torch:
        x, out = torch.empty(1 << 20), torch.empty(1 << 20)
        grid = (1 << 10,)
        torch.launch("inc", add_one, x, out, 1 << 20, grid=grid, attributes=attributes, BLOCK=1024)
        torch.ahbm.synchronize()
        (launch,) = [
            instance for instance in torch.op_log.instances if instance.template.name == "inc"
        ]
    return launch.template.duration_ps


@pytest.mark.adr("0014-D8")
def test_launch_attributes_change_what_the_device_meets() -> None:
    plain = _durations("a100-sxm-80g", None)
    assert _durations("a100-sxm-80g", LaunchAttributes()) == plain
    sip = load_machine("a100-sxm-80g").sip
    follows = _durations("a100-sxm-80g", LaunchAttributes(follows=True))
    assert plain - follows == sip.front_end_ps - sip.queued_front_end_ps
    cached = LaunchAttributes(cached=(("x", Fraction(1)), ("out", Fraction(1))))
    assert _durations("a100-sxm-80g", cached) < plain
    # What is only stored, and stored or read again soon, stays in the cache.
    assert _durations("a100-sxm-80g", LaunchAttributes(cached=(("out", Fraction(1)),))) < plain
    with pytest.raises(UsageError, match="add_one has no parameter y"):
        _durations("a100-sxm-80g", LaunchAttributes(cached=(("y", Fraction(1)),)))
    with pytest.raises(UsageError, match="must be from 0 to 1, but got 2"):
        LaunchAttributes(cached=(("x", Fraction(2)),))


STEP = tl.constexpr(1)


@triton.jit
def step_from(x_ptr, y_ptr, n, start, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(y_ptr + offsets, x + start * STEP, mask=offsets < n)


def test_a_warm_launch_never_runs_what_was_compiled_for_other_arguments(
    torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        (types, shift, n, start, block, options)
        for types in (("f32", "f32"), ("f16", "f32"))
        for shift in (0, 1)  # a pointer that is a multiple of 16 bytes, and one that is not
        for n, start in ((16, 1), (15, 16), (1, -5), (16, (1 << 40) if types[0] == "f32" else 3))
        for block, options in ((16, {}), (32, {}), (16, {"num_warps": 8}), (16, {"debug": True}))
    ]
    for _ in range(2):
        for types, shift, n, start, block, options in cases:
            x = torch.arange(33, dtype=types[0])[shift:]
            y = torch.zeros(33, dtype=types[1])[shift:]
            step_from[(1,)](x, y, n, start, BLOCK=block, **options)
            count = min(n, block)
            expected = np.zeros(33 - shift)
            expected[:count] = np.arange(shift, shift + count, dtype=np.float32) + np.float32(start)
            np.testing.assert_array_equal(y.numpy(), expected.astype(y.numpy().dtype))
    monkeypatch.setitem(globals(), "STEP", tl.constexpr(2))
    with pytest.raises(RuntimeError, match="STEP has changed"):
        step_from[(1,)](x, y, 16, 1, BLOCK=16)


def test_a_warm_launch_passes_the_hooks_of_its_kernel(torch) -> None:
    x, y, seen = torch.arange(16, dtype="f32"), torch.zeros(16), []
    hooked = triton.jit(step_from.fn)
    for _ in range(2):
        hooked[(1,)](x, y, 16, 1, BLOCK=16)
    hooked.add_pre_run_hook(lambda *args, **options: seen.append(options["BLOCK"]))
    hooked[(1,)](x, y, 16, 1, BLOCK=16)
    assert seen == [16]
