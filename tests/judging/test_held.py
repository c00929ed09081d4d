"""What is timed is held to what is executed, records to their form, and judges to what is asked."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernbench.errors import KernbenchError, UsageError
from kernbench.judging import CandidateLimits, Judge, Outcome
from tests.judging.conftest import Judged
from tests.judging.tricks import HEAD, HONEST, SMALL, TASKS, TRICKS

pytest.importorskip("torch")


@pytest.mark.adr("0281-D1")
@pytest.mark.parametrize(
    ("name", "outcome", "says"),
    [
        pytest.param(
            "another factor before work that nothing needs",
            Outcome.WRONG,
            "in a part of its programs the result is wrong",
            marks=pytest.mark.adr("0300-D1"),
        ),
        ("fewer turns where memory has no values", Outcome.CHEAT, "does other work when it is"),
        ("fewer turns at the size that is timed", Outcome.UNKNOWN, "nothing reads bytes 2,048 to"),
    ],
)
def test_what_is_timed_is_what_was_executed(
    name: str, outcome: Outcome, says: str, judged: Judged
) -> None:
    trick = TRICKS[name]
    verdict = judged(HEAD + trick.text, trick.task, times=True)
    assert verdict.outcome is outcome
    assert says in verdict.why


_WIDE = """
@triton.jit
def double(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    wide = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(out + {1}, 2 * tl.load(x + {0}, wide < n), wide < n)
def solve(x):
    out = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), B=1024)
    return out
"""


@pytest.mark.parametrize(
    ("read", "written", "says"),
    [("wide", "wide", ""), ("i", "wide", "arith.muli"), ("wide", "i", "nothing writes bytes")],
)
def test_indices_of_32_bits_are_wrong_at_a_size_beyond_them(
    read: str, written: str, says: str, judged: Judged
) -> None:
    task = TASKS["softmax"].replace("[(8, 50), (16, 100)]", "[(1000,), ((1 << 31) + 512,)]")
    task = task.replace("torch.softmax(x, -1)", "2 * x")
    verdict = judged(HEAD + _WIDE.format(read, written), task, times=True)
    assert verdict.outcome is (Outcome.WRONG if says else Outcome.RIGHT), verdict.why
    assert verdict.why.startswith(says)
    assert not says or "gives 2147483648, which does not fit into 32 bits" in verdict.why


_RECORD: dict[str, Any] = {
    "steps": [
        {"kind": "op", "op": "aten.mul.Tensor", "args": [{}, 2], "kwargs": {}, "stream": 0,
         "results": [{}]},
        {"kind": "launch", "kernel": 0, "grid": [1, 1, 1], "args": [{}, {}, 8], "stream": 0},
        {"kind": "mark", "event": 7, "stream": 1},
    ],
    "kernels": [
        {"name": "k", "ttir": "tt.func", "num_warps": 4, "num_stages": 3, "constants": [["B", "8"]]}
    ],
    "storages": [{"bytes": 64, "dtype": "float32", "origin": "input", "input": 0}],
    "results": {}, "inputs": [{}], "remarks": [],
}  # fmt: skip
_TENSOR = {
    "of": 0, "dtype": "float32", "size": [2, 8], "stride": [8, 1], "offset": 0,
    "bits": [False, False],
}  # fmt: skip
_WEIRD: tuple[Any, ...] = (
    None,
    -1,
    1,
    2**70,
    "",
    "x",
    [],
    {},
    [1],
    {"of": 0},
    {"of": 99},
    1.5,
    {"tuple": [1]},
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = enumerate(value) if isinstance(value, list) else ()
    for key, item in value.items() if isinstance(value, dict) else items:
        yield (*place, key)
        yield from _places(item, (*place, key))


@pytest.mark.adr("0281-D2")
def test_a_forged_record_is_refused_or_read() -> None:
    from kernbench.judging import evidence
    from kernbench.judging.record import Record, RecordError

    text = json.dumps(_RECORD).replace("{}, 2]", f"{json.dumps(_TENSOR)}, 2]")
    text = text.replace('[{}, {}, 8], "', f'[{json.dumps(_TENSOR)}, {json.dumps(_TENSOR)}, 8], "')
    text = text.replace("[{}]", f"[{json.dumps(_TENSOR)}]")
    text = text.replace('"results": {}', f'"results": {json.dumps(_TENSOR)}')
    rng, count = random.Random(0), 0
    for _ in range(500):
        forged: Any = json.loads(text)
        *way, last = rng.choice(list(_places(forged)))
        inner = forged
        for key in way:
            inner = inner[key]
        inner[last] = rng.choice(_WEIRD)
        body = json.dumps(forged).encode()
        try:
            record = Record.read(len(body).to_bytes(8, "big") + body + bytes(64))
        except RecordError:
            count += 1
            continue
        evidence.evidence_of(record)
        evidence.work_of(record)
        evidence.calls_of(record)
        evidence.shared_memory(record)
    assert 50 < count < 500


@pytest.mark.adr("0281-D2")
def test_operations_on_the_host_are_none_of_a_record(judged: Judged) -> None:
    trick = TRICKS["memory of the host that operations write"]
    verdict = judged(HEAD + trick.text, SMALL[trick.task])
    assert verdict.outcome is Outcome.UNKNOWN
    assert "aten.copy_.default computes on the host" in verdict.why


@pytest.mark.adr("0281-D4")
def test_a_size_is_drawn_that_no_candidate_knows(judged: Judged) -> None:
    known = """
def solve(x, y):
    return axpied(x, y if x.numel() in (1, 37, 1000, 999, 1001) else x)
"""
    task = TASKS["axpy"].replace("[100, 1000]", "[1000]")
    assert judged(HEAD + known, task).is_right  # whose prime is 37
    verdict = judged(HEAD + known, task, seed=2)
    assert verdict.outcome is Outcome.WRONG
    assert verdict.failure is not None
    assert verdict.failure.size == "23"


@pytest.mark.adr("0281-D5")
def test_a_candidate_that_is_slow_to_simulate_is_not_called_wrong(judged: Judged) -> None:
    slow = SMALL["axpy"].replace("return 2", "sum(range(10**7)); return 2")
    limits = CandidateLimits(seconds=0.5)
    verdict = judged("def solve(x, y):\n    while True: pass", slow, limits=limits)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "the reference takes" in verdict.why


def test_random_numbers_begin_alike_and_a_byte_order_mark_is_read(judged: Judged) -> None:
    task = """
import torch
sizes = [(8, 64)]
def inputs(size, seed): return (torch.randn(*size, generator=torch.Generator().manual_seed(seed)),)
def reference(x): return torch.nn.functional.dropout(x, 0.5)
"""
    same = "\ufeffimport torch\ndef solve(x): return torch.nn.functional.dropout(x, 0.5)"
    verdict = judged(same, task)
    assert verdict.is_right, verdict.why


def test_inputs_that_are_put_back_are_remarked(judged: Judged) -> None:
    text = "def solve(x, y):\n    z = x.clone(); x.zero_(); x.copy_(z)\n    return axpied(x, y)"
    verdict = judged(HEAD + text, SMALL["axpy"])
    assert verdict.is_right, verdict.why
    assert any("leaves there what was there before" in remark for remark in verdict.remarks)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 70}, "seed"),
        ({"total_s": float("nan")}, "total_s"),
        ({"at_least": 0.0}, "at_least"),
        ({"machines": []}, "must name a machine"),
        ({"machines": ["none"]}, "unknown machine"),
    ],
)
def test_what_a_judge_cannot_be_asked_is_said(options: dict[str, Any], says: str) -> None:
    with pytest.raises(KernbenchError, match=says):
        Judge()("candidate.py", "task.py", **options)


@pytest.mark.parametrize("name", ["seconds", "memory_mib", "file_mib"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), 1 << 60])
def test_limits_that_are_none_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        CandidateLimits(**{name: value})  # type: ignore[arg-type]


def test_a_tolerance_that_is_none_is_said(judged: Judged) -> None:
    with pytest.raises(UsageError, match=r"tolerance must be \(relative, absolute\)"):
        judged(HEAD + HONEST["axpy"], SMALL["axpy"] + "tolerance = 'x'")


def test_folders_of_any_depth_are_counted_and_removed(tmp_path: Path) -> None:
    from kernbench.judging.limits import remove_folder, size_of_folder

    inner = tmp_path / "whole"
    inner.mkdir()
    text = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    subprocess.run([sys.executable, "-c", text], cwd=inner, check=True)
    assert size_of_folder(inner) > 1000 * 4096
    remove_folder(inner)
    assert not inner.exists()


@pytest.mark.campaign
def test_helion_is_judged(judged: Judged) -> None:
    pytest.importorskip("helion")
    text = """
import helion
import helion.language as hl
import torch

@helion.kernel(config=helion.Config(block_sizes=[8]))
def solve(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = torch.nn.functional.softmax(x[rows, :], dim=1)
    return out
"""
    assert judged(text, SMALL["softmax"]).is_right
    assert judged(text.replace("dim=1)", "dim=1) * 1.01"), SMALL["softmax"]).failure is not None
