"""Who waits too long gets an error, in simulated time; who looks again and again comes to it."""

from __future__ import annotations

import ast
import re

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import CollectiveTimeoutError, DeadlockError  # noqa: E402
from kernbench.runtime_api import RuntimeContext, SpawnException  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

PROGRAM = "timeouts.py"
CASES = {
    item.name: item.body
    for item in ast.parse((PROGRAMS / PROGRAM).read_text()).body
    if isinstance(item, ast.FunctionDef)
}


def at(case: str, index: int) -> str:
    """Return a pattern of the lines of a statement of a case."""
    node = CASES[case][index]
    assert node.end_lineno is not None
    lines = range(node.lineno, node.end_lineno + 1)
    return f"{PROGRAM}:({'|'.join(map(str, lines))})\\b"


def run(case: str, backend: str = "nccl", nprocs: int = 3) -> RuntimeContext:
    return simulated(PROGRAM, backend, case, nprocs=nprocs)


def error_of(case: str) -> Exception:
    with pytest.raises(Exception) as caught:
        run(case)
    error = caught.value
    return error.exceptions[0] if isinstance(error, SpawnException) else error


NEVER = {
    "a_poll": ["all_reduce #1 on group world timed out", "rank 0  finished at"],
    "a_poll_that_sleeps": ["all_reduce #1 on group world timed out", "rank 0  finished at"],
    "a_sleep": ["barrier #1 on group world timed out", "rank 0  time.sleep, since .*"],
    "a_look_at_a_key": ["barrier #1 on group world timed out", "rank 0  store.check, .*"],
    "a_look_at_a_clock": ["barrier #1 on group world timed out", "rank 0  reading the clock.*"],
    "a_receive": ["send #1 from rank 0 to rank 1 timed out", "rank 1  recv #1 .*"],
    "a_late_rank": ["timed out after 30 s, without rank 0", "rank 0  time.sleep"],
}
"""What is given up, and what one rank does then: at its first statement where that is asked."""


@pytest.mark.adr("0120-D1")
@pytest.mark.adr("0120-D3")
@pytest.mark.adr("0120-D4")
@pytest.mark.adr("0120-D5")
@pytest.mark.parametrize(
    "case",
    # A look at a clock looks at it for 30 simulated seconds.
    daily(*(NEVER.keys() - {"a_look_at_a_clock"}), of=NEVER),
)
def test_a_group_waits_as_long_as_its_timeout_for_who_never_comes(case: str) -> None:
    given_up, doing = NEVER[case]
    if doing.endswith(".*"):
        doing += at(case, 1 if case == "a_receive" else 0)
    error = error_of(case)
    if not isinstance(error, CollectiveTimeoutError):
        raise error
    for pattern in (given_up, doing, "timed out after 30 s", "rank 1  ", "rank 2  ", at(case, 1)):
        assert re.search(pattern, str(error)), (pattern, error)


@pytest.mark.adr("0120-D1")
def test_who_comes_in_time_is_no_error() -> None:
    assert run("in_time").run.simulation.now_ps < 30 * 10**12


@pytest.mark.adr("0120-D1")
def test_a_group_of_its_own_has_its_own_timeout() -> None:
    assert "timed out after 100 s" in str(error_of("group_of_its_own"))


@pytest.mark.adr("0120-D2")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_timeout_of_one_wait_is_raised_to_the_program(backend: str) -> None:
    run("waits_that_are_given_up", backend)


@pytest.mark.adr("0120-D2")
def test_a_wait_that_ends_in_time_goes_on() -> None:
    run("waits_that_end_in_time", "gloo")


@pytest.mark.adr("0120-D3")
def test_a_look_lets_others_do_what_it_looks_for() -> None:
    run("looks", "gloo", nprocs=2)


@pytest.mark.adr("0120-D4")
def test_looks_come_to_the_programs_own_deadline() -> None:
    run("own_deadline")


@pytest.mark.adr("0120-D4")
@pytest.mark.parametrize(
    "case", ["looks_at_an_event_for_ever", "looks_at_a_key_for_ever", "sleeps_for_ever"]
)
def test_looks_without_any_deadline_end_as_a_deadlock(case: str) -> None:
    error = error_of(case)
    assert isinstance(error, DeadlockError)
    assert "nothing happens any more" in str(error)
    assert re.search(at(case, -1), str(error))
    assert "rank 1  finished" in str(error)


def test_what_cannot_happen_is_a_deadlock_at_once() -> None:
    error = error_of("meeting_without_rank_0")
    assert isinstance(error, DeadlockError)
    assert "nothing can wake ranks 1 and 2 at 5.500 us" in str(error)


def test_the_master_of_a_store_waits_for_the_workers_that_it_is_told_of() -> None:
    simulated("stores.py", 0, nprocs=3)
    lines = (PROGRAMS / "stores.py").read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(lines) if "store = dist.TCPStore" in text)
    with pytest.raises(DeadlockError, match=rf"wait\('worker 4 of localhost.* stores\.py:{line}"):
        simulated("stores.py", 1, nprocs=3)
