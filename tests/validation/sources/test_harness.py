"""What a source's way of measuring, or its own software, changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.accuracy.rows.devices import presets
from kernbench.accuracy.rows.reference import read_rows
from kernbench.dtypes import float16
from kernbench.hardware import changed_machine, load_machine
from kernbench.plans.tiles import GemmTuner, Problem
from validation.predictors.collectives import CollectivePredictor
from validation.predictors.gemm import GemmPredictor
from validation.predictors.membound import MemboundPredictor
from validation.sources.harness import Harness, gemm_harness, membound_harness
from validation.sources.peers import PEERS, PeerKernel
from validation.sources.repeated import repeated_kernels
from validation.sources.stacks import stack_of

COLLECTIVES = "device,op,dtype,n_ranks,n_nodes,bytes,time_us,impl,source\n"


def test_a_source_that_runs_little_keeps_the_clock() -> None:
    machine = load_machine("a100-sxm-80g", 1)
    cool = gemm_harness("llmcompass-fig5ab", machine.name).met(machine)
    assert machine.sip.sustained is not None
    assert cool.sip.sustained is None
    assert Harness().met(machine) is machine
    problem = Problem(2048, 4096, 4096, float16)
    tuner = GemmTuner()
    lost = tuner.tune(problem, machine).kernel_us
    kept = tuner.tune(problem, cool).kernel_us
    loss = float(machine.sip.sustained.clock_loss)
    assert kept < lost <= kept * (1 + loss)


MEMBOUND = "device,op,dtype,rows,cols,n_ranks,bytes,time_us,impl,source\n"


def test_do_bench_times_an_event_with_each_launch(tmp_path: Path) -> None:
    """As Liger published it for an H100, whose event_us is of an empty kernel of another source."""
    line = "H100-SXM-80GB,relu_squared,bf16,4096,{},1,{},{},triton,{}"
    for columns, us in ((256, 7.392), (512, 8.48), (1024, 11.264)):
        text = MEMBOUND + line.format(columns, 4096 * columns * 4, us, "liger-bench")
        (tmp_path / "rows.csv").write_text(text)
        (row,) = read_rows([tmp_path / "rows.csv"])
        answer = MemboundPredictor(presets()).predict(row)
        assert answer.time_us == pytest.approx(us, rel=0.1)
    machine = load_machine("h100-sxm", 1)
    assert membound_harness("vidur-mlp", machine.name, "add").time_us(10.0, machine) == 10


GEMMS = "device,op,dtype,m,n,k,bytes,time_us,impl,source\n"


def test_a_product_meets_the_clock_that_its_layer_leaves(tmp_path: Path) -> None:
    line = 'A100-80GB,gemm,fp16,2048,{n},{k},1,900,"BLAS ({part})",{source}\n'
    asked = [
        (8192, 28672, "mlp_down_proj, tp1", "vidur-mlp"),
        (8192, 7168, "mlp_down_proj, tp4", "vidur-mlp"),
        (8192, 28672, "mlp_down_proj, tp1", "mine"),
        (8192, 28672, "mlp_up_proj, tp1", "vidur-mlp"),
    ]
    path = tmp_path / "rows.csv"
    path.write_text(
        GEMMS + "".join(line.format(n=n, k=k, part=part, source=s) for n, k, part, s in asked)
    )
    rows = read_rows([path])
    # Llama-2-70B: queries, keys and values; output; gate and up; down.
    weights = 8192 * 10240 + 8192 * 8192 + 8192 * 2 * 28672 + 28672 * 8192
    alone = weights / (28672 * 8192)
    kernels = [repeated_kernels(row) for row in rows]
    assert kernels == [pytest.approx(alone), pytest.approx(alone), 1, 1]
    machine = load_machine("a100-sxm-80g", 1)
    hotter = Harness().met(machine, alone)
    assert machine.sip.sustained is not None
    assert hotter.sip.sustained is not None
    half_us, shorter_us = (
        float(item.sip.sustained.half_time_us) for item in (machine, hotter) if item.sip.sustained
    )
    assert shorter_us == pytest.approx(half_us / alone, rel=1e-3)
    predictor = GemmPredictor(presets())
    in_a_layer, _, by_itself, _ = (predictor.predict(row).time_us or 0 for row in rows)
    loss = float(machine.sip.sustained.clock_loss)
    assert by_itself < in_a_layer <= by_itself * (1 + loss)


def test_stacks_differ_in_their_own_all_reduces_and_not_in_the_librarys(tmp_path: Path) -> None:
    line = "A100-SXM4-80GB,{op},bf16,2,1,8192,9,{impl},aic-custom-ar\n"
    path = tmp_path / "rows.csv"
    asked = [
        ("all_reduce_custom", "vllm kernel"), ("all_reduce_custom", "trtllm kernel"),
        ("all_reduce", "vllm kernel"), ("all_reduce", "trtllm kernel"),
    ]  # fmt: skip
    path.write_text(COLLECTIVES + "".join(line.format(op=op, impl=impl) for op, impl in asked))
    predictor = CollectivePredictor(presets())
    times = [predictor.predict(row).time_us for row in read_rows([path])]
    assert times[0] != times[1]
    assert times[2] == times[3]


@pytest.mark.parametrize(("stack", "name", "ranks"), PEERS)
def test_what_a_stack_changes_are_keys_of_its_machine(stack: str, name: str, ranks: int) -> None:
    machine = load_machine(name, 2)
    changes = PeerKernel(f"{stack} kernel", name, ranks).changes()
    assert changes
    changed = changed_machine(machine, changes).spec.collectives
    assert changed is not None
    assert machine.spec.collectives is not None
    assert changed.peer != machine.spec.collectives.peer
    assert PeerKernel("nobodys kernel", name, ranks).changes() == {}


@pytest.mark.parametrize(
    ("kernel", "size", "algorithms"),
    [
        # vLLM's rule: in one shot always with 2 ranks, below 512 KiB with 4, 256 KiB with 8.
        (PeerKernel("vllm graph", "h200", 2), 4 << 20, ("one_shot",)),
        (PeerKernel("vllm graph", "h200", 4), (512 << 10) - 2, ("one_shot",)),
        (PeerKernel("sglang graph", "h200", 4), 512 << 10, ("two_shot",)),
        (PeerKernel("vllm graph", "h200", 8), 256 << 10, ("two_shot",)),
        (PeerKernel("trtllm", "h200", 8), 256 << 10, ("one_shot", "two_shot")),
        (PeerKernel("vllm graph", "h200", 4), 8 << 20, ("auto",)),
        (PeerKernel("vllm graph", "b200", 4), 8 << 20, ("two_shot",)),
        (PeerKernel("vllm graph", "rtx-pro-6000", 2), 1 << 30, ("one_shot",)),
    ],
)
def test_a_stack_takes_one_shot_two_or_the_library_by_size(
    kernel: PeerKernel, size: int, algorithms: tuple[str, ...]
) -> None:
    assert kernel.algorithms(size) == algorithms


def test_ranks_out_of_step_add_the_same_to_every_collective(tmp_path: Path) -> None:
    line = "A100-SXM4-80GB,all_reduce,fp32,8,1,{size},9,,{source}\n"
    path = tmp_path / "rows.csv"
    path.write_text(
        COLLECTIVES
        + "".join(
            line.format(size=size, source=source)
            for size in (4096, 65536)
            for source in ("mine", "mleng-net")
        )
    )
    predictor = CollectivePredictor(presets())
    times = [predictor.predict(row).time_us or 0 for row in read_rows([path])]
    added = stack_of("mleng-net").collective_us
    assert times[1] - times[0] == pytest.approx(added)
    assert times[3] - times[2] == pytest.approx(added)
