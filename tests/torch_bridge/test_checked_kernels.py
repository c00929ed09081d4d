"""The sanitizer on Triton kernels in PyTorch programs: each mistake, and its twin without."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import (  # noqa: E402
    DataRaceError,
    NonFiniteWarning,
    OutOfBoundsError,
    OutOfBoundsWarning,
    UndefinedValueError,
    UninitializedReadError,
)
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge import run_torchrun  # noqa: E402

START = """
import torch, triton, triton.language as tl

@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)

@triton.jit
def add(x, y, SHARE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * SHARE + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) + tl.program_id(0))

@triton.jit
def logarithm(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.log(tl.load(x + at)))

@triton.jit
def gather(x, index, y, BLOCK: tl.constexpr):
    at = tl.load(index + tl.program_id(0))
    columns = tl.arange(0, BLOCK)
    while at >= 0:
        tl.store(y + tl.program_id(0) * BLOCK + columns, tl.load(x + at * BLOCK + columns))
        at -= 1000

x = torch.empty(256, device="cuda")
y = torch.empty(256, device="cuda")
index = torch.tensor([1, 0], device="cuda")
"""


def run(
    folder: Path,
    source: str,
    check: bool | None = True,
    allow: str = "",
    nan_is_error: bool | None = None,
) -> None:
    path = folder / "program.py"
    path.write_text(START + source)
    with RuntimeContext(
        machine="ahbm:4", ranks=1, check=check, allow=allow, nan_is_error=nan_is_error
    ) as context:
        run_torchrun(context, path, compile(path.read_text(), str(path), "exec"), [str(path)], 1)


UNWRITTEN = {
    "never": "copy[(2,)](x, y, 256, BLOCK=128)",
    "beyond what a kernel wrote": """
copy[(1,)](torch.ones(256, device="cuda"), x, 100, BLOCK=128)
copy[(1,)](x, y, 101, BLOCK=128)
""",
    "by a kernel that decides by data": "gather[(2,)](x, index, y, BLOCK=128)",
    "in a view": "copy[(1,)](x[128:], y, 128, BLOCK=128)",
}
WRITTEN = {
    "by an operation": "x.normal_()\ncopy[(2,)](x, y, 256, BLOCK=128)",
    "through data": "x.data.fill_(3.0)\ncopy[(2,)](x, y, 256, BLOCK=128)",
    "in parts": "x[:] = 1\nx[3] = 2\ncopy[(2,)](x, y, 256, BLOCK=128)",
    "by a kernel": """
copy[(1,)](torch.ones(256, device="cuda"), x, 100, BLOCK=128)
copy[(1,)](x, y, 100, BLOCK=128)
assert y[:100].sum().item() == 100
""",
    "by a kernel that decides by data": """
gather[(2,)](torch.ones(256, device="cuda"), index, x, BLOCK=128)
copy[(2,)](x, y, 256, BLOCK=128)
""",
}


@pytest.mark.adr("0087-D1")
@pytest.mark.parametrize("how", UNWRITTEN)
def test_what_nothing_has_written_is_not_to_be_read(how: str, tmp_path: Path) -> None:
    with pytest.raises(UninitializedReadError, match="which nothing has written"):
        run(tmp_path, UNWRITTEN[how])
    run(tmp_path, UNWRITTEN[how], check=False)


@pytest.mark.adr("0087-D1")
@pytest.mark.parametrize("how", WRITTEN)
def test_what_was_written_is_read(how: str, tmp_path: Path) -> None:
    run(tmp_path, WRITTEN[how])


def test_programs_of_a_launch_do_not_write_the_same_bytes(tmp_path: Path) -> None:
    with pytest.raises(DataRaceError, match="programs of a launch run in no order"):
        run(tmp_path, "x.zero_()\nadd[(2,)](x, y, SHARE=0, BLOCK=128)")
    run(tmp_path, "x.zero_()\nadd[(2,)](x, y, SHARE=128, BLOCK=128)")


def test_the_first_nan_is_a_warning_with_its_line(tmp_path: Path) -> None:
    with pytest.warns(NonFiniteWarning, match="program.py:17"):
        run(tmp_path, "x.fill_(-1.0)\nlogarithm[(1,)](x, y, BLOCK=256)")
    run(tmp_path, "x.fill_(1.0)\nlogarithm[(1,)](x, y, BLOCK=256)", nan_is_error=True)


COLLIDE = """
@triton.jit
def scatter(index, x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + tl.load(index + at), at)

scatter[(1,)](torch.arange(8, device="cuda") // {share}, y, BLOCK=8)
"""


@pytest.mark.adr("0107-D1")
def test_lanes_of_a_store_do_not_write_different_values_to_one_element(tmp_path: Path) -> None:
    with pytest.raises(DataRaceError, match=r"writes 0.0 and 1.0 .* lanes \(0,\) and \(1,\)"):
        run(tmp_path, COLLIDE.format(share=2))
    run(tmp_path, COLLIDE.format(share=1))


BRANCH = """
@triton.jit
def branch(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if tl.sum(tl.load(x + at, mask=at < n)) > 3:
        tl.store(y + at, at)

x.fill_(1)
branch[(1,)](x, y, {n}, BLOCK=256)
assert y[:4].tolist() == [0, 1, 2, 3]
"""


@pytest.mark.adr("0107-D2")
def test_masked_off_lanes_do_not_decide_a_branch(tmp_path: Path) -> None:
    with pytest.raises(
        UndefinedValueError, match=r"the branch at program.py:\d+ .*tt.load at prog"
    ):
        run(tmp_path, BRANCH.format(n=100))
    run(tmp_path, BRANCH.format(n=256))
    run(tmp_path, BRANCH.format(n=100), allow="masked-lanes")


@pytest.mark.adr("0108-D2")
def test_a_read_outside_of_a_storage_may_be_allowed(tmp_path: Path) -> None:
    source = "x.fill_(1)\ncopy[(1,)](x[200:], y, 100, BLOCK=128)\n"
    source += "assert y[:100].sum().item() == 56"
    with pytest.raises(OutOfBoundsError, match="--allow out-of-bounds-reads"):
        run(tmp_path, source)
    for check in (False, True):
        with pytest.warns(OutOfBoundsWarning, match=r"tt.load at program.py:7"):
            run(tmp_path, source, check=check, allow="out-of-bounds-reads")
