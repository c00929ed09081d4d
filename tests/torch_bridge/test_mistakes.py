"""Broken programs end at once, and the error names every rank's line."""

from __future__ import annotations

import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import CollectiveMismatchError, DeadlockError, KernbenchError  # noqa: E402
from kernbench.hardware import load_machine  # noqa: E402
from kernbench.runtime_api import SpawnException  # noqa: E402
from kernbench.torch_bridge.base.call_order import SwappedCallsWarning  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402


def fails(case: str, *args: object) -> Exception:
    """Run a program on three ranks and return the error, a rank's own one if ranks raised."""
    with pytest.raises(Exception) as caught:
        simulated("mistakes.py", case, *args, nprocs=3)
    error = caught.value
    return error.exceptions[0] if isinstance(error, SpawnException) else error


def line_of(case: str, nth: int = 1) -> str:
    """Return where the program has a line, the first below the name of a function by default."""
    lines = (PROGRAMS / "mistakes.py").read_text().splitlines()
    (start,) = (n for n, line in enumerate(lines, 1) if line.startswith(f"def {case}("))
    return f"mistakes.py:{start + nth}"


MISMATCHES = {
    "kinds": ["rank 0  all_gather of (4,) float32", "rank 1  all_reduce(sum) of (4,) float32"],
    "shapes": ["of (4,) float32", "of (3,)", "of (2,)"],
    "dtypes": ["float32", "rank 2", "float16"],
    "reductions": ["all_reduce(sum)", "all_reduce(max)"],
    "roots": ["from position 0", "from position 1"],
}


@pytest.mark.adr("0062-D4")
@pytest.mark.parametrize("what", MISMATCHES)
def test_calls_that_differ_are_listed_with_their_lines(what: str) -> None:
    error = fails(f"different_{what}")
    assert isinstance(error, CollectiveMismatchError)
    for word in MISMATCHES[what]:
        assert word in str(error)
    assert str(error).count(line_of(f"different_{what}")) == 3


DEADLOCKS = {
    "a_rank_is_missing": [
        "rank 2  finished",
        "rank 0  all_reduce #1 on group world, waits for rank 2",
    ],
    "groups_in_another_order": [
        "rank 0  all_reduce #1 on group 1, waits for rank 1",
        "on group 2, waits for rank 0",
    ],
    "both_receive": [
        "rank 0  recv #1 from rank 1, waits for rank 1",
        "rank 1  recv #1 from rank 0",
    ],
    "both_send": ["rank 0  send #1 to rank 1, waits for rank 1", "rank 1  send #1 to rank 0"],
    "a_key_that_never_comes": ["rank 0  store.wait('default_pg/0//never')", "rank 1  finished"],
    "inside_backward": [
        "rank 1  finished",
        "rank 0  all_reduce #1 on group world, waits for rank 1",
    ],
}


@pytest.mark.adr("0062-D4")
@pytest.mark.parametrize("case", DEADLOCKS)
def test_what_never_comes_is_a_deadlock_with_every_waiting_line(case: str) -> None:
    error = fails(case)
    assert isinstance(error, DeadlockError)
    for word in (*DEADLOCKS[case], "mistakes.py:"):
        assert word in str(error)


def test_a_rank_waits_since_its_hosts_time_which_is_ahead_of_the_clock(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = fails("ranks_wait_late")
    first_us, second_us = (int(line[5:]) / 1000 for line in capsys.readouterr().out.splitlines())
    since = re.findall(r"waits for rank 2, since ([0-9.]+) us", str(error))
    launched_us = 50 * load_machine("ahbm").spec.sip.host_launch_us
    assert len(since) == 2
    for mine, theirs in zip(since, (first_us, second_us), strict=True):
        assert launched_us <= theirs <= float(mine) < theirs + launched_us


def test_a_rank_that_raises_ends_the_others_and_says_who_waited() -> None:
    error = fails("one_raises")
    assert isinstance(error, ValueError)
    notes = "\n".join(error.__notes__)
    assert "rank 0  all_reduce #1 on group world, waits for rank 2" in notes
    assert line_of("one_raises", 3) in notes


def test_a_rank_that_exits_early_is_named() -> None:
    error = fails("one_exits", 3)
    assert "rank 1 called sys.exit(3)" in str(error)
    assert any("rank 0  barrier #1" in note for note in error.__notes__)


def test_a_rank_that_ends_without_its_collective_is_named() -> None:
    error = fails("one_exits", 0)
    assert isinstance(error, DeadlockError)
    assert "rank 1  called sys.exit(0)" in str(error)


def test_a_rank_that_leaves_at_once_ends_no_other_unheard() -> None:
    cases: dict[str, tuple[str, ...]] = {
        "os._exit(3)": ("one_leaves_at_once",),
        "sys.exit(3)": ("one_exits", "3"),
    }
    for call, value in cases.items():
        error = fails(*value)
        assert f"rank 1 called {call}" in str(error)
        assert any("rank 2  barrier #1" in note for note in error.__notes__)


def test_a_device_beyond_the_machine_is_told_with_who_waits() -> None:
    case = "devices_beyond_the_machine"
    # Two launches of its host's: of a fill, and of the barrier.
    notes = "\n".join(fails(case).__notes__)
    waits = "rank 0  barrier #1 on group world, waits for rank 2, since 4.000 us"
    assert f"{waits}    {line_of(case, 2)}" in notes


def test_tensors_in_different_places_are_the_programs_mistake() -> None:
    error = fails("tensors_in_different_places")
    assert isinstance(error, KernbenchError)
    assert isinstance(error, RuntimeError)
    assert "found at least two devices, cuda:0 and cpu" in str(error)


def test_a_backend_for_each_place_takes_tensors_of_both() -> None:
    simulated("mistakes.py", "a_backend_for_each_place_takes_tensors_of_both", nprocs=3)


@pytest.mark.parametrize("what", ["device", "tensor"])
def test_a_device_beyond_the_machine_is_refused_with_how_many_there_are(what: str) -> None:
    error = fails(f"a_{what}_beyond_the_machine")
    # What PyTorch raises of the CUDA runtime, which programs catch and search.
    assert isinstance(error, torch.AcceleratorError)
    assert "CUDA error: invalid device ordinal" in str(error)
    assert "cuda:4 does not exist: machine ahbm has 4 devices (0 to 3)" in str(error)


def test_groups_of_other_ranks_under_one_name_are_refused() -> None:
    error = fails("groups_of_other_ranks")
    assert "every rank must make the same groups in the same order" in str(error)


@pytest.mark.parametrize("case", ["a_reduction_on_the_host", "a_message_of_the_host"])
def test_a_tensor_of_the_host_is_refused_by_a_group_of_devices(case: str) -> None:
    assert "No backend type associated with device type cpu" in str(fails(case))


def test_nccl_refuses_a_tensor_that_is_not_contiguous_and_names_the_fix() -> None:
    error = str(fails("a_reduction_of_a_transposed_tensor"))
    assert "(4, 2) float32 has strides (1, 4); call .contiguous() first" in error


@pytest.mark.adr("0121-D1")
@pytest.mark.parametrize("side", ["send", "recv"])
def test_nccl_refuses_a_message_with_gaps_between_its_elements(side: str) -> None:
    error = str(fails("a_message_with_gaps", side))
    assert error.startswith(f"{side}: NCCL moves the 8 elements that follow each other in memory")
    assert "(4, 2) float32 on, but the tensor's own have strides (4, 2)" in error


@pytest.mark.adr("0121-D5")
def test_a_message_that_would_arrive_in_another_order_is_refused_with_both_strides() -> None:
    error = str(fails("a_message_of_another_layout"))
    assert "the receiver (strides (2, 1)) gets the sender's elements (strides (1, 4))" in error
    for nth in (2, 4):
        assert line_of("a_message_of_another_layout", nth) in error


def test_nccl_takes_images_and_lists_of_any_layout() -> None:
    simulated("mistakes.py", "layouts_that_nccl_takes", nprocs=3)


def test_what_ddp_makes_itself_is_no_tensor_of_the_host() -> None:
    simulated("mistakes.py", "what_ddp_makes_itself_is_no_tensor_of_the_host", nprocs=3)


@pytest.mark.adr("0062-D4")
def test_receiving_from_any_rank_is_refused() -> None:
    error = fails("a_message_of_any_rank")
    assert isinstance(error, NotImplementedError)
    assert "name the rank with src=" in str(error)


@pytest.mark.adr("0068-D1")
def test_equal_calls_in_opposite_order_are_a_warning_with_both_lines() -> None:
    with pytest.warns(SwappedCallsWarning) as caught:
        simulated("mistakes.py", "equal_calls_in_opposite_order", nprocs=3)
    (warning,) = [item for item in caught if item.category is SwappedCallsWarning]
    first, second = line_of("first"), line_of("second")
    assert (
        f"all_reduce #1 on group world and all_reduce #2 on group world may be swapped: rank 0 "
        f"calls them at {first} and {second}, rank 2 at {second} and {first}"
    ) in str(warning.message)


@pytest.mark.adr("0068-D1")
def test_equal_calls_swapped_between_branches_are_a_warning() -> None:
    case = "equal_calls_swapped_between_branches"
    with pytest.warns(SwappedCallsWarning) as caught:
        simulated("mistakes.py", case, nprocs=3)
    said = [str(item.message) for item in caught if item.category is SwappedCallsWarning]
    lines = [line_of(case, nth) for nth in (3, 4, 6, 7)]
    assert len(said) == 1
    assert f"rank 0 calls them at {lines[0]} and {lines[1]}, rank 1 at {lines[2]}" in said[0]


@pytest.mark.adr("0068-D1")
def test_calls_from_different_lines_in_one_order_are_no_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        simulated("mistakes.py", "calls_from_different_lines_in_one_order", nprocs=3)
    assert not [item for item in caught if item.category is SwappedCallsWarning]


@pytest.mark.adr("0068-D2")
def test_forks_are_refused() -> None:
    error = fails("one_forks")
    assert isinstance(error, NotImplementedError)
    assert "start ranks with torch.multiprocessing.spawn, or work in threads" in str(error)
    assert any("rank 0  barrier #1" in note for note in error.__notes__)
    assert any(line_of("one_forks", 3) in note for note in error.__notes__)


@pytest.mark.adr("0126-D7")
def test_compiling_is_left_out_where_that_is_asked_for_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twin: a program that compiles nothing says nothing of it."""
    monkeypatch.setenv("KERNBENCH_COMPILE", "eager")
    for case, expected in (
        ("compiling_is_left_out", 1),
        ("calls_from_different_lines_in_one_order", 0),
    ):
        run = simulated("mistakes.py", case, nprocs=3).run
        lines = [line for ask in run.remarks for line in ask()]
        assert sum("torch.compile was left out" in line for line in lines) == expected


@pytest.mark.adr("0068-D3")
def test_an_interrupt_says_what_every_rank_was_at() -> None:
    case = "one_is_interrupted"
    with pytest.raises(KeyboardInterrupt) as caught:
        simulated("mistakes.py", case, nprocs=2)
    first, second = caught.value.__notes__
    assert first == f"rank 1  ran    {line_of(case, 2)}"
    assert "rank 0  all_reduce #1 on group world, waits for rank 1" in second
    assert line_of(case, 3) in second
