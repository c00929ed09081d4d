"""The sanitizer on Triton kernels in PyTorch programs: each mistake, and its twin without."""

from __future__ import annotations

from functools import partial

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
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

run = partial(simulated, "checked_kernels.py", check=True)


def line_of(text: str) -> str:
    """Return where the program has a line."""
    lines = (PROGRAMS / "checked_kernels.py").read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return f"checked_kernels.py:{number}"


@pytest.mark.adr("0228-D4")
@pytest.mark.parametrize(
    "case",
    [
        "unwritten",
        "unwritten_beyond_what_a_kernel_wrote",
        "unwritten_for_a_kernel_that_decides_by_data",
        "unwritten_in_a_view",
    ],
)
def test_what_nothing_has_written_is_not_to_be_read(case: str) -> None:
    with pytest.raises(UninitializedReadError, match="which nothing has written"):
        run(case)
    run(case, check=False)


@pytest.mark.adr("0228-D4")
@pytest.mark.parametrize(
    "case",
    [
        "written_by_an_operation",
        "written_through_data",
        "written_in_parts",
        "written_by_a_kernel",
        "written_by_a_kernel_that_decides_by_data",
    ],
)
def test_what_was_written_is_read(case: str) -> None:
    context = run(case)
    assert {instance.template.name for instance in context.op_log.instances} & {"copy", "gather"}


def test_programs_of_a_launch_do_not_write_the_same_bytes() -> None:
    with pytest.raises(DataRaceError, match="programs of a launch run in no order"):
        run("programs_that_share", 128)
    run("programs_that_share", 0)


def test_the_first_nan_is_a_warning_with_its_line() -> None:
    with pytest.warns(NonFiniteWarning, match=line_of("tl.log(")):
        run("logarithms_of", -1)
    run("logarithms_of", 1, nan_is_error=True)


@pytest.mark.adr("0107-D1")
def test_lanes_of_a_store_do_not_write_different_values_to_one_element() -> None:
    with pytest.raises(DataRaceError, match=r"writes 0.0 and 1.0 .* lanes \(0,\) and \(1,\)"):
        run("lanes_that_share", 2)
    run("lanes_that_share", 1)


@pytest.mark.adr("0107-D2")
def test_masked_off_lanes_do_not_decide_a_branch() -> None:
    words = r"the branch at checked_kernels.py:\d+ .*tt.load at checked_kernels"
    with pytest.raises(UndefinedValueError, match=words):
        run("a_branch_by_some_lanes", 100)
    run("a_branch_by_some_lanes", 256)
    run("a_branch_by_some_lanes", 100, allow="masked-lanes")


@pytest.mark.adr("0108-D2")
def test_a_read_outside_of_a_storage_may_be_allowed() -> None:
    with pytest.raises(OutOfBoundsError, match="--allow out-of-bounds-reads"):
        run("a_read_outside_of_a_storage")
    words = f"tt.load at {line_of('tl.load(x + at, mask=at < n), mask=at < n)')}"
    for check in (False, True):
        with pytest.warns(OutOfBoundsWarning, match=words):
            run("a_read_outside_of_a_storage", check=check, allow="out-of-bounds-reads")
