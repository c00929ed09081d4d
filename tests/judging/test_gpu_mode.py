"""Tasks of GPU MODE: room for results, checks of their own, objects, sizes, several ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.errors import UsageError
from kernbench.judging import Judge, Outcome, Verdict

pytest.importorskip("torch")

JudgedFolder = Callable[..., Verdict]

_HEAD = """
import torch, triton
import triton.language as tl

@triton.jit
def doubled(x, out, n, B: tl.constexpr, T: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, (2 * tl.load(x + i, i < n, 0.0).to(T)).to(tl.float32), i < n)

def launched(x, out, B=64, T=tl.float32):
    doubled[(triton.cdiv(x.numel(), B),)](x, out, x.numel(), B=B, T=T)
    return out
"""
_DOUBLE = """
import torch

def generate_input(size, seed):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return torch.randn(size, device="cuda", generator=gen), torch.empty(size, device="cuda")

def ref_kernel(data):
    return (2 * data[0].double())

def check_implementation(data, output):
    expected = ref_kernel(data)
    if output.shape != expected.shape:
        return False, "SIZE MISMATCH"
    return torch.allclose(output.double(), expected, rtol=RTOL, atol=0), "mismatch"
"""
_TESTS = "tests: [{size: 128, seed: 3}, {size: 320, seed: 4}]\nbenchmarks: [{size: 512, seed: 5}]\n"


@pytest.fixture
def judged(judge: Judge, tmp_path: Path) -> JudgedFolder:
    """Return what judges a candidate's text against a task's files."""

    def call(body: str, reference: str, tests: str = _TESTS, **options: Any) -> Verdict:
        (tmp_path / "task.yml").write_text(tests)
        (tmp_path / "reference.py").write_text(reference)
        (tmp_path / "candidate.py").write_text(_HEAD + body)
        return judge(tmp_path / "candidate.py", tmp_path, **{"times": False, "seed": 1, **options})

    return call


@pytest.mark.adr("0301-D1", "0301-D2")
@pytest.mark.parametrize(
    ("body", "outcome", "says"),
    [
        ("launched(*data)", Outcome.RIGHT, ""),
        ("launched(data[0], torch.empty_like(data[0]))", Outcome.RIGHT, ""),
        ("data[1]", Outcome.WRONG, "the result is wrong|float32"),
        ("launched(data[0], data[0])", Outcome.WRONG, "it writes input 0"),
        ("launched(data[0][:-1], data[1])", Outcome.WRONG, ""),
        ("launched(*data, T=tl.bfloat16)", Outcome.WRONG, "float32, the reference's of"),
    ],
)
def test_results_lie_where_the_task_has_room_and_are_held_to_its_own_check(
    judged: JudgedFolder, body: str, outcome: Outcome, says: str
) -> None:
    text = f"def custom_kernel(data):\n    return {body}"
    verdict = judged(text, _DOUBLE.replace("RTOL", "1e-5"))
    assert verdict.outcome is outcome, verdict.why
    assert any(part in verdict.why for part in says.split("|"))
    if verdict.is_right:
        # All stated ones are multiples of 64, on which this kernel counts.
        sizes = [int(size.size.removeprefix("size=")) for size in verdict.sizes]
        assert len(sizes) > 3
        assert not any(size % 64 for size in sizes)
        assert all("huge" in size.values for size in verdict.sizes[-2:])


@pytest.mark.adr("0301-D2")
def test_fewer_bits_are_right_where_the_tasks_own_check_takes_them(judged: JudgedFolder) -> None:
    text = "def custom_kernel(data):\n    return launched(*data, T=tl.bfloat16)"
    verdict = judged(text, _DOUBLE.replace("RTOL", "2e-2"))
    assert verdict.is_right, verdict.why
    assert any("bf16 in kernel doubled, which the task's own" in e for e in verdict.remarks)
    halves = _DOUBLE.replace("generator=gen)", "generator=gen).half()")
    halves = halves.replace("(2 * data[0].double())", "2 * data[0]").replace(
        "output.double()", "output"
    )
    text = "def custom_kernel(data):\n    return (2 * data[0].bfloat16()).half()"
    verdict = judged(text, halves.replace("RTOL", "1e-4"))
    assert verdict.outcome is Outcome.CHEAT
    assert "fewer bits than the task's types have: bfloat16" in verdict.why


@pytest.mark.adr("0301-D1")
def test_what_is_timed_writes_all_of_its_room(judged: JudgedFolder) -> None:
    large = _TESTS.replace("512", str(1 << 23))
    task = _DOUBLE.replace("RTOL", "1e-5")
    text = (
        "def custom_kernel(data):\n    x, out = data\n"
        "    n = x.numel() if x.numel() < 1 << 20 else x.numel() // 2\n"
        "    doubled[(triton.cdiv(n, 1024),)](x, out, n, B=1024, T=tl.float32)\n    return out"
    )
    verdict = judged(text, task, large, times=True)
    assert verdict.outcome is Outcome.CHEAT
    assert "nothing writes bytes" in verdict.why
    assert judged(text.replace("// 2", "// 1"), task, large, times=True).is_right


_GROWS = """
import torch
class Cache:
    def __init__(self, data):
        self.data, self.length = data, 0
    def add(self, x):
        self.data[self.length : self.length + len(x)] = x
        self.length += len(x)
        return self.data[: self.length]
def generate_input(size, seed):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(size, device="cuda", generator=gen)
    return x, Cache(torch.zeros(2 * size, device="cuda"))
def ref_kernel(data):
    return 2 * data[1].add(data[0])
"""


@pytest.mark.adr("0301-D3")
def test_objects_among_inputs_are_as_new_in_each_call(judged: JudgedFolder) -> None:
    text = "def custom_kernel(data):\n    x = data[1].add(data[0])\n    return launched(x, {})"
    verdict = judged(text.format("torch.empty_like(x)"), _GROWS)
    assert verdict.is_right, verdict.why
    verdict = judged(text.replace(".add(data[0])", ".data[:len(data[0])]").format("x + 0"), _GROWS)
    assert verdict.outcome is Outcome.WRONG


_SPLIT = """
import torch
import torch.distributed as dist
def generate_input(rank, world_size, size, seed):
    gen = torch.Generator(device=f"cuda:{rank}")
    gen.manual_seed(seed + rank)
    return torch.randn(size, device=f"cuda:{rank}", generator=gen)
def ref_kernel(data):
    out = data + 0
    dist.all_reduce(out)
    return out
"""


def test_a_task_of_several_ranks_is_judged_on_them(judged: JudgedFolder) -> None:
    tests = "tests: [{world_size: 2, size: 8, seed: 3}]\n"
    text = (
        "import torch.distributed as dist\ndef custom_kernel(data):\n"
        "    out = launched(data, torch.empty_like(data)) / 2\n    {}\n    return out"
    )
    assert judged(text.format("dist.all_reduce(out)"), _SPLIT, tests).is_right
    verdict = judged(text.format("pass"), _SPLIT, tests)
    assert verdict.outcome is Outcome.WRONG
    assert ": the result is wrong" in verdict.why
    with pytest.raises(UsageError, match="world_size must be one number from 1 to 16"):
        judged(text, _SPLIT, tests.replace("2,", "32,"))
    with pytest.raises(UsageError, match="it defines no ref_kernel"):
        judged(text, _SPLIT.replace("ref_kernel", "reference"), tests)


def test_kernels_for_some_sizes_beside_a_library_are_no_cheat(judged: JudgedFolder) -> None:
    text = (
        "def custom_kernel(data):\n    return launched(*data) if len(data[0]) {} else 2 * data[0]"
    )
    task = _DOUBLE.replace("RTOL", "1e-5")
    assert judged(text.format("== 128"), task).is_right
    verdict = judged(text.format("< 0"), task)
    assert verdict.outcome is Outcome.CHEAT
    assert "from PyTorch's operations alone" in verdict.why


_ROUTED = """
import torch
def generate_input(size, seed):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return [torch.randn(rows, size, device="cuda", generator=gen) for rows in (16, 4)]
def ref_kernel(data):
    x, experts = data
    return x * experts[(x @ experts.T).argmax(-1)]
"""


@pytest.mark.adr("0301-D4")
def test_a_host_that_routes_a_few_rows_computes_no_result(judged: JudgedFolder) -> None:
    text = (
        "def custom_kernel(data):\n    x, experts = data\n    out = torch.empty_like(x)\n"
        "    for row, e in enumerate((x @ experts.T).argmax(-1).tolist()):\n"
        "        out[row] = x[row] * experts[e]\n    return launched(out, x + 0) / 2"
    )
    verdict = judged(text, _ROUTED, "tests: [{size: 1, seed: 3}, {size: 64, seed: 4}]\n")
    assert verdict.is_right, verdict.why
