"""The judge: verdicts on small kernels, on tricks, and on candidates that misbehave."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import jsonschema
import pytest

from kernbench.errors import UsageError
from kernbench.judging import EXIT_CODES, CandidateLimits, Judge, Outcome, Verdict
from kernbench.report import ELSEWHERE, range_of
from tests.judging.conftest import Judged
from tests.judging.tricks import HEAD, HONEST, SMALL, TASKS, TRICKS
from tests.tiers import of_campaigns

pytest.importorskip("torch")

_SAMPLE = {
    "an answer by version": "the result of an earlier call|earlier call",
    "a list around the answer": "returns [a tensor], the reference a tensor",
    "the recorder's code": "replaces the recorder.launched",
    "patched by another name": "replaces torch.allclose",
    "numpy on the host": "does not depend on its inputs",
    "patched by ctypes": "replaces torch.cuda.Event.elapsed_time",
    "a signal by a queue to the worker": "OSError",
    "a dummy product in TF32": "the result is wrong",
    "the first answer behind a look at a value": "the result is wrong",
    "a signal by whoever owns a pipe": "OSError",
    "another module in the place of one": "replaces sys.modules.time",
}


_UNCENTERED = """
import torch
def solve(x):
    shifted = torch.exp(x {sign} x.max(-1, keepdim=True).values)
    return shifted / shifted.sum(-1, keepdim=True)
"""


@pytest.mark.adr("0256-D4")
@pytest.mark.parametrize(("sign", "outcome"), [("-", Outcome.RIGHT), ("+", Outcome.WRONG)])
def test_huge_values_are_tried_where_no_size_is_small(
    judged: Judged, sign: str, outcome: Outcome
) -> None:
    task = TASKS["softmax"].replace("[(8, 50), (16, 100)]", "['only']")
    verdict = judged(_UNCENTERED.format(sign=sign), task.replace("seed, size", "seed, (512, 128)"))
    assert verdict.outcome is outcome, verdict.why


_NOT_SEEN = {
    "a graph with the first inputs",
    "an operator of its own that computes on the host",
    "a verdict of its own in every open file",
    "less work at the size that is timed",
    "a kernel that knows the size that is timed",
    "fewer turns at the size that is timed",
    "one input by every second tile at the size that is timed",
    "memory of the host that operations write",
    "the answer for a few values behind a look at them",
    "fewer stores into kept memory at the size that is timed",
    "memory of the device as the host's by DLPack",
    "a tracer that changes what the recorder has",
    "numbers of a size that has no values",
}
"""Whose verdict is that it cannot be said: no work of theirs was executed with values."""


@pytest.mark.adr("0256-D4")
def test_a_right_kernel_is_timed_beside_eager_with_an_interval(judged: Judged) -> None:
    verdict = judged(
        HEAD + HONEST["softmax"], TASKS["softmax"].replace("(8, 50), ", ""), times=True
    )
    assert verdict.is_right, verdict.why
    assert any(
        "not contiguous, which the task does not ask" in remark for remark in verdict.remarks
    )
    assert {size.outcome for size in verdict.sizes} == {"right"}
    assert any("huge" in size.values for size in verdict.sizes)
    (time,) = verdict.times
    assert time.low_ns is not None
    assert time.high_ns is not None
    assert time.floor_ns < time.low_ns < time.time_ns < time.high_ns
    # It is of rows of GPUs like this one, not of all kinds of kernels on all machines.
    unlike = range_of(time.time_ns, {"": 1.0}, [ELSEWHERE])
    assert unlike is not None
    assert (time.low_ns, time.high_ns) != pytest.approx((unlike["low_ns"], unlike["high_ns"]))
    assert time.own_share == 1
    (kernel,) = time.kernels
    assert kernel.resources is not None
    # A block of four warps, as many of which an SM of H100 holds as it has room for: 64 / 4.
    assert kernel.resources.resident == 16
    assert kernel.resources.occupancy == 1
    assert kernel.lines[0].line.startswith("candidate.py:")
    assert 0 < kernel.ceiling_ns < time.time_ns
    # Both read 6,400 bytes once: neither is much faster.
    assert time.speed == "cannot say: measure"
    assert verdict.outcome is Outcome.RIGHT
    assert Verdict.of(json.loads(verdict.to_json())) == verdict
    jsonschema.validate(verdict.to_dict(), Verdict.json_schema())
    assert len(verdict.to_markdown().splitlines()) <= 40


@pytest.mark.adr("0256-D1", "0256-D5", "0281-D3")
@pytest.mark.parametrize("name", _SAMPLE)
def test_a_trick_is_found(name: str, judged: Judged) -> None:
    trick = TRICKS[name]
    verdict = judged(HEAD + trick.text, SMALL[trick.task])
    assert verdict.outcome in (Outcome.WRONG, Outcome.CHEAT)
    said = "; ".join([verdict.why, *verdict.tricks])
    assert any(word in said for word in _SAMPLE[name].split("|"))


@pytest.mark.adr("0256-D1")
def test_what_the_host_has_computed_is_a_cheat(judged: Judged) -> None:
    trick = TRICKS["the host's answer as numbers of launches"]
    verdict = judged(HEAD + trick.text, trick.task)
    assert verdict.outcome is Outcome.CHEAT
    assert "computed on the host" in verdict.why


@pytest.mark.campaign
@pytest.mark.adr("0256-D1")
@pytest.mark.parametrize("name", TRICKS)
def test_every_trick_is_found_and_its_twin_is_not_accused(name: str, judged: Judged) -> None:
    trick = TRICKS[name]
    verdict = judged(HEAD + trick.text, trick.task, times=trick.is_of_time)
    assert not verdict.is_right, verdict.why
    assert name in _NOT_SEEN or verdict.outcome is not Outcome.UNKNOWN, verdict.why
    twin = HEAD + (trick.twin or HONEST[trick.task])
    verdict = judged(twin, trick.task, times=trick.is_of_time)
    assert verdict.is_right, verdict.why
    assert not verdict.tricks


def test_what_is_timed_is_held_to_every_tile_of_what_it_writes(judged: Judged) -> None:
    trick = TRICKS["every second tile at the size that is timed"]
    task = TASKS["axpy"].replace("1000]", "1 << 20]")
    verdict = judged(HEAD + trick.text, task, values=False, times=True)
    assert verdict.outcome is Outcome.CHEAT
    assert "nothing writes bytes 512 to 1,024 of its result" in verdict.why
    assert judged(HEAD + trick.twin, task, values=False, times=True).outcome is Outcome.RIGHT


def test_what_is_timed_is_held_to_what_its_kernels_write(judged: Judged) -> None:
    text = HEAD + TRICKS["half of the tiles"].text
    task = TASKS["axpy"].replace("1000]", "512]")
    verdict = judged(text, task, values=False, times=True)
    assert verdict.outcome is Outcome.CHEAT
    assert "nothing writes bytes 1,024 to 2,048 of its result" in verdict.why


@pytest.mark.campaign
@pytest.mark.parametrize("large", ["x.numel() // 256", "0"])
def test_a_size_too_large_for_values_is_held_to_what_its_kernels_write(
    large: str, judged: Judged
) -> None:
    task = TASKS["axpy"].replace("1000]", "1 << 23]")
    text = (
        HEAD
        + """
def solve(x, y):
    if x.numel() < 1 << 20:
        return axpied(x, y)
    out = torch.empty_like(x)
    grid = GRID
    axpy[(grid or 1,)](x, y, out if grid else torch.empty_like(x), x.numel(), B=128)
    return out
"""
    )
    verdict = judged(text.replace("GRID", large), task, times=True)
    assert verdict.outcome is Outcome.CHEAT
    assert "which is timed" in verdict.why


@pytest.mark.adr("0267-D4")
def test_a_wrong_kernel_is_told_its_smallest_size_its_element_and_its_line(judged: Judged) -> None:
    text = HEAD + HONEST["axpy"].replace("axpied(x, y)", "axpied(x, x)")
    verdict = judged(text, "axpy")
    assert verdict.outcome is Outcome.WRONG
    assert verdict.failure is not None
    assert verdict.failure.size == min((size.size for size in verdict.sizes), key=float)
    assert "the result is wrong at [0]" in verdict.failure.says
    stored = next(n for n, line in enumerate(text.splitlines(), 1) if "tl.store(out + i, 2" in line)
    assert verdict.failure.line == f"candidate.py:{stored}"
    assert (
        f"program (0, 0, 0) in tt.store at {verdict.failure.line} stores it"
        in verdict.to_markdown()
    )


@pytest.mark.adr("0256-D3")
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("while True: pass", "did not end within 1 s"),
        ("ctypes.string_at(1)", "SIGSEGV"),
        ("open('/tmp/judged-out', 'w')", "may not write"),
        *(
            of_campaigns(*case)
            for case in (
                ("os._exit(7)", "Exit at candidate.py:2: 7"),
                ("sys.exit(3)", "SystemExit"),
                ("bytearray(1 << 40)", "MemoryError"),
                ("os.kill(os.getppid(), 9)", "may not call os.kill"),
                (
                    "[open(str(i), 'wb').write(bytes(1 << 22)) for i in range(999)]",
                    "its files have",
                ),
            )
        ),
    ],
)
def test_a_candidate_that_misbehaves_is_wrong_and_the_judge_goes_on(
    body: str, says: str, judged: Judged
) -> None:
    text = f"import ctypes, os, sys\ndef solve(x, y): {body}"
    if "while" in body:
        text = "def solve(x, y):\n    while True:\n        print('x' * 1000)"
    limits = CandidateLimits(seconds=1 if "while" in body else 60)
    verdict = judged(text, SMALL["axpy"], limits=limits)
    assert verdict.outcome is Outcome.WRONG
    assert says in verdict.why


def test_cuda_and_what_is_no_python_get_a_verdict_without_running(judged: Judged) -> None:
    verdict = judged("from torch.utils.cpp_extension import load_inline", "axpy")
    assert verdict.outcome is Outcome.UNKNOWN
    assert "CUDA C++ (load_inline)" in verdict.why
    assert judged("def solve(:", "axpy").outcome is Outcome.WRONG


def test_a_task_of_kernelbench_scales_its_sizes_and_shares_its_weights(judged: Judged) -> None:
    task = """
import torch
class Model(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = torch.nn.Linear(features, 8)
    def forward(self, x): return torch.relu(self.linear(x))
batch, features = 2049, 2048
def get_inputs(): return [torch.rand(batch, features)]
def get_init_inputs(): return [features]
"""
    verdict = judged(task.replace("Model", "ModelNew"), task)
    assert verdict.outcome is Outcome.RIGHT, verdict.why
    assert "as stated has 4,196,352 elements" in verdict.remarks[0]
    verdict = judged(task.replace("Model", "ModelNew").replace("torch.relu(", "("), task)
    assert verdict.outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("def reference(x): return x", "sizes must be a list of sizes"),
        (TASKS["axpy"].replace("2 * x + y", "1 / 0"), "the reference fails by itself"),
        ("x = 1", "it defines none of"),
    ],
)
def test_a_task_that_is_none_is_an_error_that_says_what_is_missing(
    task: str, says: str, judged: Judged
) -> None:
    with pytest.raises(UsageError, match=says):
        judged(HEAD + HONEST["axpy"], task)


def test_exit_codes_tell_verdicts_from_errors() -> None:
    codes = list(EXIT_CODES.values())
    assert len(set(codes)) == len(Outcome)
    assert not {1, 2, 130} & set(codes)


@pytest.mark.campaign
def test_a_judge_that_runs_out_of_time_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task.py").write_text(SMALL["axpy"])
    (tmp_path / "candidate.py").write_text("def solve(x, y):\n    while True: pass")
    own = tmp_path / "temporary"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    with Judge() as judge:
        verdict = judge(tmp_path / "candidate.py", tmp_path / "task.py", total_s=3.0)
        assert verdict.outcome is Outcome.UNKNOWN
        assert "not judged within 3 s" in verdict.why
        (tmp_path / "candidate.py").write_text(HEAD + HONEST["axpy"])
        assert judge(tmp_path / "candidate.py", tmp_path / "task.py", times=False).is_right
        # The worker clears up behind who has answered, and keeps a folder of its own.
        deadline = time.monotonic() + 60
        while len(left := list(own.rglob("kernbench-judge-*"))) > 1:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        assert len(left) == 1
    assert not list(own.iterdir())


_GLUON = """
import torch, triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

@gluon.jit
def axpy(x, y, out, n, B: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.program_id(0) * B + gl.arange(0, B, layout=layout)
    a = gl.load(x + i, mask=i < n, other=0.0)
    gl.store(out + i, 2 * a + gl.load(y + i, mask=i < n, other=0.0), mask=i < n)

def solve(x, y):
    out = torch.empty_like(x)
    axpy[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), B=128)
    return out
"""


@pytest.mark.campaign
def test_gluon_is_judged_and_what_is_not_installed_cannot_be(judged: Judged) -> None:
    assert judged(_GLUON, SMALL["axpy"]).is_right
    verdict = judged(_GLUON.replace("2 * a", "3 * a"), SMALL["axpy"])
    assert verdict.outcome is Outcome.WRONG
    assert verdict.failure is not None
    assert verdict.failure.line == "candidate.py:11"
    verdict = judged("import flurbish\n" + _GLUON, SMALL["axpy"])
    assert verdict.outcome is Outcome.UNKNOWN
    assert "a package that is not here: No module named 'flurbish'" in verdict.why
