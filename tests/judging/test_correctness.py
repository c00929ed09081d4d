"""What right means besides numbers: order, layout, NaN and infinity, memory of results."""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from kernbench.judging import Judge, Outcome, Verdict  # noqa: E402
from kernbench.judging.comparing import form_of, is_same, ordered_tensors  # noqa: E402
from kernbench.judging.evidence import shared_memory  # noqa: E402
from kernbench.judging.executing import turned  # noqa: E402
from kernbench.judging.record import Record, describe_tensor  # noqa: E402
from kernbench.judging.values import BESIDES, EXTREMES, SentTensor  # noqa: E402
from tests.judging.conftest import Judged  # noqa: E402
from tests.judging.tricks import HEAD, HONEST, SMALL, TASKS, TRICKS  # noqa: E402

_TICKETS = """
@triton.jit
def ticketed(x, out, tickets, n, B: tl.constexpr):
    k = tl.atomic_add(tickets, 1)
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + i, i < n, 0.0)
    tl.store(out + PLACE, tl.sum(v, 0) / n)
def solve(x):
    out = torch.empty(x.shape[0], device=x.device)
    tickets = torch.zeros(1, dtype=torch.int32, device=x.device)
    B = triton.next_power_of_2(x.shape[1])
    ticketed[(x.shape[0],)](x, out, tickets, x.shape[1], B=B)
    return out
"""


@pytest.mark.adr("0267-D2")
def test_a_result_that_hangs_on_the_order_of_programs_is_wrong(judged: Judged) -> None:
    verdict = judged(HEAD + _TICKETS.replace("PLACE", "k"), SMALL["mean"])
    assert verdict.outcome is Outcome.WRONG
    assert "in another order of its programs the result is wrong at [0]" in verdict.why


@pytest.mark.campaign
@pytest.mark.adr("0267-D2")
def test_sums_whose_order_is_open_are_right_and_called_so(judged: Judged) -> None:
    assert not judged(HEAD + _TICKETS.replace("PLACE", "tl.program_id(0)"), "mean").failure
    verdict = judged(HEAD + TRICKS["programs that race"].twin, "mean")
    assert verdict.is_right
    assert any(remark.startswith("non-deterministic") for remark in verdict.remarks)


def test_programs_in_another_order_do_each_others_work() -> None:
    ttir = "    %pid = tt.get_program_id x : i32 loc(#loc1)\n    %9 = tt.get_program_id y : i32\n"
    lines = turned(ttir).splitlines()
    assert len(lines) == 10
    assert lines[4] == "    %pid = arith.subi %turned.0.last, %turned.0.at : i32 loc(#loc1)"
    for line, after in pairwise(lines[:4]):
        assert line.split()[0] in after or after.split()[2].startswith(("tt.", "arith.constant"))


@pytest.mark.adr("0267-D1")
def test_layouts_that_a_task_asks_for_must_be_right(judged: Judged) -> None:
    strict = SMALL["softmax"] + "besides = ('strided', 'infinite', 'nan')\n"
    verdict = judged(HEAD + HONEST["softmax"], strict)
    assert verdict.outcome is Outcome.WRONG
    assert verdict.failure is not None
    assert verdict.failure.values == "strided"


@pytest.mark.campaign
def test_a_kernel_of_any_layout_is_right_where_the_task_asks(judged: Judged) -> None:
    strict = TASKS["softmax"] + "besides = ('strided', 'infinite', 'nan')\n"
    twin = HEAD + HONEST["softmax"].replace("(x)", "(x.contiguous())").replace(
        "solve(x.contiguous())", "solve(x)"
    )
    assert judged(twin, strict).is_right
    with pytest.raises(UsageError, match="besides must name some of infinite, nan, strided"):
        judged(twin, TASKS["softmax"] + "besides = ['backwards']\n")


@pytest.mark.adr("0267-D3")
def test_a_result_in_the_memory_of_an_input_is_wrong(
    judged: Judged,
) -> None:
    copies = SMALL["axpy"].replace("2 * x + y", "x.clone()")
    verdict = judged("def solve(x, y): return x", copies)
    assert verdict.outcome is Outcome.WRONG
    assert "a result lies in the memory of an input" in verdict.why


@pytest.mark.campaign
@pytest.mark.adr("0267-D3")
def test_a_result_may_be_where_the_references_is(judged: Judged) -> None:
    same = TASKS["axpy"].replace("2 * x + y", "x")
    assert judged("def solve(x, y): return x", same).is_right
    twice = TASKS["axpy"].replace("2 * x + y", "x + y, x + y")
    text = "def solve(x, y):\n    z = x + y\n    return z, z"
    assert "in the memory of another result" in judged(text, twice).why
    assert judged(text, twice.replace("x + y, x + y", "(x + y,) * 2")).is_right


@pytest.mark.parametrize(
    ("slices", "shared"),
    [
        ([slice(0, 4), slice(4, 8)], ""),
        ([slice(0, 8, 2), slice(1, 8, 2)], ""),
        ([slice(0, 5), slice(4, 8)], "another result"),
        ([slice(0, 0), slice(0, 8)], ""),
    ],
)
def test_results_share_memory_by_element(slices: list[slice], shared: str) -> None:
    whole = torch.arange(8.0)
    record = Record(results=[describe_tensor(whole[item], 0) for item in slices])
    assert shared_memory(record) == shared
    record.inputs = [describe_tensor(whole, 0)]
    assert shared_memory(record) == "an input"


def test_copies_on_the_host_lie_as_they_did() -> None:
    for shape in [(5, 7), (3, 4, 5), (6,)]:
        tensor = torch.randn(*shape)
        changed = BESIDES["strided"](tensor)
        assert torch.equal(changed, tensor)
        sent = SentTensor(changed).on_host()
        assert sent.stride() == changed.stride() != tensor.stride()
        assert torch.equal(sent, tensor)
    repeated = torch.ones(1, 1).expand(2, 3)
    assert torch.equal(SentTensor(repeated).on_host(), repeated)


def test_numbers_of_8_bits_are_sent_and_scaled_within_their_range() -> None:
    tensor = torch.randn(40, 3).clamp(-2, 2).to(torch.float8_e4m3fn)
    assert is_same(SentTensor(tensor).on_host(), tensor)
    huge = EXTREMES["huge"](tensor)
    assert huge.dtype is tensor.dtype
    assert huge.float().isfinite().all()
    assert not is_same(huge, tensor)


@pytest.mark.parametrize(
    ("returned", "form"),
    [
        (torch.ones(1), "a tensor of the host"),
        ((torch.ones(1), 2), "[a tensor of the host, 2]"),
        (
            {"b": torch.ones(1), "a": [None, 0.5, "x"]},
            "{a: [NoneType, 0.5, 'x'], b: a tensor of the host}",
        ),
    ],
)
def test_how_a_result_is_built_is_said(returned: object, form: str) -> None:
    assert form_of(returned, has_numbers=True) == form
    assert [tensor.item() for tensor in ordered_tensors(returned)] == [1.0]


_SQUARED = """
import torch, triton
import triton.language as tl

@triton.jit
def squared(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, v * v, mask=i < n)

def square(x):
    out = torch.empty_like(x)
    squared[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), B=64)
    return out
"""
_SQUARED_PERF = """
import torch
from TritonBench_v1.square import square
from performance_utils import Performance_Metrics

class performance_metrics(Performance_Metrics):
    def get_input_tensors(self):
        self.input_tensors = []
        for size in (64, 128):
            self.input_tensors.append(torch.rand(size, 2))

    def to_cuda(self, input_tensor):
        return input_tensor.cuda()

    def call_op(self, input_tensor):
        return square(input_tensor)
"""


def test_masks_that_fit_all_inputs_of_a_benchmark_are_tried_one_beside(
    judge: Judge, tmp_path: Path
) -> None:
    golden = tmp_path / "data" / "TritonBench_G_v1" / "square.py"
    golden.parent.mkdir(parents=True)
    golden.write_text(_SQUARED)
    task = tmp_path / "square_perf.py"
    task.write_text(_SQUARED_PERF)
    verdict = judge(golden, task, times=False, seed=1)
    assert verdict.is_right
    candidate = tmp_path / "square.py"
    candidate.write_text(
        _SQUARED.replace("mask=i < n)\n    tl.store", "mask=i <= n)\n    tl.store")
    )
    wrong = judge(candidate, task, times=False, seed=1)
    assert wrong.outcome is Outcome.WRONG
    assert wrong.failure is not None
    assert wrong.failure.size == "input 1, 127 for 128"
    golden.write_text(candidate.read_text())
    verdict = judge(candidate, task, times=False, seed=1)
    assert verdict.is_right
    assert all(size.is_stated for size in verdict.sizes)


def test_inputs_of_a_benchmark_grow_beyond_one_block(judge: Judge, tmp_path: Path) -> None:
    golden = tmp_path / "data" / "TritonBench_G_v1" / "square.py"
    golden.parent.mkdir(parents=True)
    golden.write_text(_SQUARED)
    task = tmp_path / "square_perf.py"
    task.write_text(_SQUARED_PERF.replace("(64, 128)", "[2**i for i in range(12)]"))
    assert judge(golden, task, times=False, seed=1).is_right
    candidate = tmp_path / "square.py"
    candidate.write_text(_SQUARED.replace("tl.program_id(0)", "tl.program_id(1)"))
    wrong = judge(candidate, task, times=False, seed=1)
    assert wrong.outcome is Outcome.WRONG
    assert wrong.failure is not None
    assert wrong.failure.size.startswith("input 2")


_HALF = """
import torch
sizes = [(8, 64), (16, 128)]
def inputs(size, seed):
    return (torch.randn(*size, generator=torch.Generator().manual_seed(seed)).half(),)
def reference(x):
    return (x.float() ** 2).mean(-1).sqrt()
"""
_HALF_KERNEL = """
import torch, triton
import triton.language as tl
@triton.jit
def norm(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + i, i < n, 0.0).to(tl.{})
    tl.store(out + tl.program_id(0), tl.sqrt(tl.sum((v * v).to(tl.float32), 0) / n))
def solve(x):
    out = torch.empty(x.shape[0], device=x.device)
    norm[(x.shape[0],)](x, out, x.shape[1], B=triton.next_power_of_2(x.shape[1]))
    return out
"""


@pytest.mark.parametrize(("dtype", "values"), [("float32", ""), ("float16", "huge")])
def test_squares_that_a_half_cannot_hold_are_wrong(judged: Judged, dtype: str, values: str) -> None:
    verdict = judged(_HALF_KERNEL.format(dtype), _HALF + "tolerance = 1e-2, 0\n")
    assert (verdict.failure.values if verdict.failure is not None else "") == values


_OUTER = """
import torch
sizes = ["only"]
def inputs(size, seed):
    return (torch.randn(40000, generator=torch.Generator().manual_seed(seed)),)
def reference(x):
    return torch.outer(x, x)
"""


def test_results_of_gigabytes_are_not_executed(judged: Judged) -> None:
    verdict = judged("import torch\ndef solve(x): return x[:, None] * x", _OUTER)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "size only has 1,600,000,000 elements of results and was not executed with values" in (
        verdict.remarks
    )


def test_extreme_values_are_tried_at_a_size_that_the_reference_takes(judged: Judged) -> None:
    task = TASKS["softmax"].replace("[(8, 50), (16, 100)]", "[(512, 128)]")
    task += """
def reference(x):
    if tuple(x.shape) != (512, 128):
        raise ValueError("no")
    return torch.softmax(x, -1)
"""
    verdict = judged("import torch\ndef solve(x): return x.exp() / x.exp().sum(-1, True)", task)
    assert verdict.failure is not None
    assert verdict.failure.values == "huge"


_POSITIVE = """
import torch
sizes = [64]
def inputs(size, seed):
    return (torch.rand(size, generator=torch.Generator().manual_seed(seed)),)
def reference(x):
    return x * float(torch.rand(()))
"""


def test_numbers_are_tried_with_both_signs_and_as_the_reference_draws_them(judged: Judged) -> None:
    assert judged(
        "import torch\ndef solve(x): return x * float(torch.rand(()))", _POSITIVE
    ).is_right
    verdict = judged(
        "import torch\ndef solve(x): return x.abs() * float(torch.rand(()))", _POSITIVE
    )
    assert verdict.outcome is Outcome.WRONG
    assert verdict.failure is not None
    assert verdict.failure.values == "signed"


def test_calls_of_one_judge_run_side_by_side(judge: Judge, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opened = os.open(gate, os.O_RDWR)
    for name, wait in (("now", ""), ("waits", f"os.read(os.open({str(gate)!r}, os.O_RDONLY), 1)")):
        (tmp_path / f"{name}.py").write_text(f"import os\n{wait}\n" + SMALL["axpy"])
    candidate = tmp_path / "candidate.py"
    candidate.write_text(HEAD + HONEST["axpy"])
    verdicts: list[Verdict] = []

    def ask() -> None:
        verdicts.append(judge(candidate, tmp_path / "waits.py", times=False, total_s=60.0))

    waiting = threading.Thread(target=ask)
    waiting.start()
    assert judge(candidate, tmp_path / "now.py", times=False, total_s=60.0).is_right
    assert not verdicts
    os.write(opened, b"!" * 64)  # one for each time that it is loaded
    waiting.join()
    os.close(opened)
    assert verdicts[0].is_right
