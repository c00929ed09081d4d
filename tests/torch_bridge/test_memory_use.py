"""What a run notes of the memory of a PyTorch program: closed forms, and PyTorch's own viewer."""

from __future__ import annotations

import gc
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.analysis import memory_use  # noqa: E402
from kernbench.errors import UsageError  # noqa: E402
from kernbench.memory import NEVER, Allocation, Phase  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.placement.roles import Roles  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.programs.memory_use import (  # noqa: E402
    CLASSES,
    HIDDEN,
    LAYERS,
    TOKENS,
    WIDTH,
    Net,
)
from tests.torch_bridge.running import simulated  # noqa: E402

WEIGHTS = sum(parameter.numel() * 4 for parameter in Net().parameters())
F32 = 4
X = TOKENS * WIDTH * F32
INNER = TOKENS * HIDDEN * F32
OF_BLOCK = 2 * X + 2 * TOKENS * F32 + INNER
"""The input of its norm, two numbers of each row, the input of up, and ReLU's result, which is
the input of down."""
OF_HEAD = X + TOKENS * CLASSES * F32 + TOKENS * 8 + F32
"""The head's input, the logarithms of probabilities, the targets, and the sum of their weights."""


@cache
def run(case: str, nprocs: int = 1) -> RuntimeContext:
    return simulated("memory_use.py", case, nprocs=nprocs, data=False, record_memory=True)


def entries_of(context: RuntimeContext) -> list[Allocation]:
    assert context.op_log.allocations is not None
    return context.op_log.allocations.entries


def alive_at(entries: list[Allocation], event: int) -> Counter[Phase]:
    alive: Counter[Phase] = Counter()
    for entry in entries:
        if entry.begin <= event and (entry.end == NEVER or entry.end > event):
            alive[entry.phase] += entry.asked_bytes
    return alive


def at_the_losses(entries: list[Allocation]) -> list[Counter[Phase]]:
    """Return what is alive after each of the two results of each loss."""
    losses = [entry for entry in entries if entry.name == "aten.nll_loss_forward"]
    return [alive_at(entries, loss.begin) for loss in losses]


def phases(context: RuntimeContext, rank: int | None = None) -> dict[str, int]:
    peak = memory_use(context.op_log, rank)["peak"]
    return {item["name"]: item["bytes"] for item in peak["phases"]}


@pytest.mark.adr("0157-D2")
def test_phases_of_training_have_their_closed_forms() -> None:
    entries = entries_of(run("training"))
    _, first, _, second = at_the_losses(entries)
    assert first[Phase.WEIGHTS] == second[Phase.WEIGHTS] == WEIGHTS
    assert first[Phase.OPTIMIZER_STATE] == 0
    assert second[Phase.OPTIMIZER_STATE] == 2 * WEIGHTS
    assert first[Phase.ACTIVATIONS] == LAYERS * OF_BLOCK + OF_HEAD
    assert second[Phase.ACTIVATIONS] == first[Phase.ACTIVATIONS]
    assert first[Phase.GRADIENTS] == second[Phase.GRADIENTS] == 0
    states = [entry for entry in entries if entry.phase is Phase.OPTIMIZER_STATE]
    assert {state.name for state in states if "blocks.1.up.weight" in state.name} == {
        "exp_avg of Net.blocks.1.up.weight",
        "exp_avg_sq of Net.blocks.1.up.weight",
    }
    gradients = [entry for entry in entries if entry.phase is Phase.GRADIENTS]
    assert sum(gradient.asked_bytes for gradient in gradients) == 2 * WEIGHTS  # in two steps
    assert {str(gradient.module) for gradient in gradients} == {
        "Net.head",
        *[f"Net.blocks.{n}.{name}" for n in range(LAYERS) for name in ("norm", "up", "down")],
    }


@pytest.mark.adr("0157-D1")
def test_the_peak_is_pytorchs_and_its_parts_add_up(capfd: pytest.CaptureFixture[str]) -> None:
    for case, nprocs in (("training", 1), ("sharded", 2)):
        run.cache_clear()
        context = run(case, nprocs)
        said = [int(word) for word in capfd.readouterr().out.split()]
        use = memory_use(context.op_log)
        assert [item["peak_bytes"] for item in use["ranks"]] == said
        for rank in range(nprocs):
            peak: Any = memory_use(context.op_log, rank)["peak"]
            for parts in ("phases", "modules", "lines"):
                assert sum(item["bytes"] for item in peak[parts]) == said[rank]
            rounding = peak["phases"][-1]
            assert rounding["name"] == "rounding"
            assert sum(item["bytes"] for item in peak["tensors"]) + rounding["bytes"] == said[rank]


def test_lines_and_modules_of_backward_passes_are_those_of_their_forward() -> None:
    entries = entries_of(run("training"))
    products = [entry for entry in entries if entry.name == "aten.mm"]
    assert len(products) > LAYERS
    source = (Path(__file__).parent / "programs/memory_use.py").read_text().splitlines()
    for product in products:
        assert Path(product.file).name == "memory_use.py"
        assert str(product.module).startswith("Net.")
        expected = "self.head(x)" if str(product.module) == "Net.head" else "self.down("
        assert expected in source[product.line - 1]


@pytest.mark.adr("0157-D2")
def test_checkpoints_keep_the_inputs_of_blocks_only() -> None:
    entries = entries_of(run("training_with_checkpoints"))
    kept = at_the_losses(entries)[1][Phase.ACTIVATIONS]
    # A block's input is kept by the function that computes it again, not for a node; that of the
    # first one is the program's own.
    assert kept == (LAYERS - 1) * X + OF_HEAD


def test_gradients_are_known_if_nothing_else_is_allocated_before_they_go() -> None:
    entries = entries_of(run("training_without_state"))
    gradients = [entry for entry in entries if entry.phase is Phase.GRADIENTS]
    assert sum(gradient.asked_bytes for gradient in gradients) == 2 * WEIGHTS
    assert not [entry for entry in entries if entry.phase is Phase.OPTIMIZER_STATE]


@pytest.mark.adr("0157-D3")
def test_what_is_not_known_is_other_and_caches_are_known_by_name() -> None:
    context = run("serving")
    result = phases(context)
    cached = 4 * TOKENS * WIDTH * F32
    assert result == {
        "other": (64 << 20) * F32,
        "KV cache": cached + TOKENS * WIDTH * F32,  # the program's own, and the module's buffer
        "weights": WIDTH * WIDTH * F32,
        "buffers": WIDTH * F32,
    }
    passing = Counter(entry.phase for entry in entries_of(context))
    assert passing[Phase.TEMPORARIES] > 8


def test_buckets_and_gathered_weights_are_communication() -> None:
    entries = [entry for entry in entries_of(run("parallel", 2)) if entry.rank == 1]
    buckets = [entry for entry in entries if entry.name == "buckets of DDP"]
    assert buckets
    assert {bucket.phase for bucket in buckets} == {Phase.COMMUNICATION}
    assert at_the_losses(entries)[-1][Phase.WEIGHTS] == WEIGHTS
    sharded = [entry for entry in entries_of(run("sharded", 2)) if entry.rank == 1]
    second = at_the_losses(sharded)[-1]
    # No dim here is odd but the classes', of which a rank has half.
    assert second[Phase.WEIGHTS] == WEIGHTS // 2
    assert second[Phase.OPTIMIZER_STATE] == WEIGHTS
    gathered = [item for item in sharded if item.phase is Phase.COMMUNICATION]
    assert sum(item.asked_bytes for item in gathered) >= 2 * WEIGHTS


def test_modules_that_list_others_than_their_own_have_names() -> None:
    hidden, root = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    root.modules = lambda: iter([root, hidden])
    hidden.named_modules = lambda: iter(())
    roles = Roles()
    roles.look_at_module(root)
    assert str(roles.name_of(hidden, root)) == "Linear"
    assert roles.name_of(None, root) == ""


@pytest.mark.parametrize(
    ("program", "case"),
    [
        ("lacking_parts.py", "sparse_and_nested_tensors_of_a_device_run"),
        ("lacking_parts.py", "tensors_of_several_shapes_compute_as_on_the_host"),
        ("graphs.py", "memory_of_a_capture_is_the_graphs_until_it_is_gone"),
    ],
)
def test_tensors_of_any_kind_are_noted(program: str, case: str) -> None:
    context = simulated(program, case, record_memory=True)
    assert memory_use(context.op_log)["peak"]["bytes"] > 0


@pytest.mark.adr("0157-D4")
@pytest.mark.parametrize(
    "case", daily("training", of=("training", "serving", "training_with_checkpoints"))
)
def test_noting_memory_changes_no_time(case: str) -> None:
    # What PyTorch does once in a process takes its first runs longer.
    *_, noted, plain = [
        simulated("memory_use.py", case, machine="h100-sxm", data=False, record_memory=record)
        for record in (False, False, False, True, False)
    ]
    assert plain.op_log.allocations is None
    assert noted.op_log.host_spans == plain.op_log.host_spans
    assert noted.op_log.end_ps == plain.op_log.end_ps


@pytest.mark.adr("0157-D5")
@pytest.mark.parametrize("record", [True, False])
def test_snapshots_are_pytorchs_and_its_viewer_reads_them(tmp_path: Path, record: bool) -> None:
    import pickle

    import torch.cuda._memory_viz as viewer

    path = tmp_path / "snapshot.pickle"
    simulated("memory_use.py", "snapshot", path, data=False, record_memory=record)
    data = pickle.loads(path.read_bytes())
    assert "total_allocated" in viewer.segsum(data)
    assert "cudaMalloc" in viewer.trace(data)
    for plot in (viewer.trace_plot, viewer.segment_plot):
        assert "snapshot.pickle" in plot(data)
    # As a flame graph's input: a stack and bytes on each line.
    lines = viewer.memory(data, format_flamegraph=str).splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == sum(
        item["total_size"] for item in data["segments"]
    )
    assert any("Net;" in line or "memory_use.py" in line for line in lines)
    assert viewer.compare(data["segments"], data["segments"], format_flamegraph=str) == ""


@pytest.mark.adr("0157-D5")
def test_a_history_has_the_events_that_were_asked_for() -> None:
    simulated("memory_use.py", "the_latest_events_only", data=False)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("enabled", "'yes'", "enabled must be one of None, 'state', 'all', but got 'yes'"),
        ("context", "'nope'", "context must be one of"),
        ("stacks", "'c'", "stacks must be one of 'python', 'all'"),
        ("max_entries", "-1", "max_entries must be a number of events, but got -1"),
        ("skip_actions", "['frees']", "there is no action frees to skip"),
    ],
)
def test_histories_that_pytorch_does_not_know_are_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        simulated("memory_use.py", "wrong", name, value, data=False)


@pytest.mark.usefixtures("collects_own")
def test_what_is_found_after_the_programs_end_is_not_freed_in_it(tmp_path: Path) -> None:
    program = tmp_path / "cycles.py"
    program.write_text(
        "import threading\n"
        "import torch\n"
        "worker = threading.Thread(target=lambda: torch.ones(4, device='cuda'))\n"
        "worker.start()\n"
        "worker.join()\n"
        "freed = torch.ones(8, device='cuda')\n"
        "del freed\n"
        "kept = [torch.ones(16, device='cuda')]\n"
        "kept.append(kept)\n"
    )
    context = simulated(program, data=False, record_memory=True)
    # The program's names go with its process; only Python's search finds the list.
    gc.collect()
    ends = {entry.shape: entry.end != NEVER for entry in entries_of(context)}
    assert ends == {(4,): True, (8,): True, (16,): False}
