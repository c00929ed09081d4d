"""Programs that time themselves find modeled time."""

from __future__ import annotations

import datetime
import json
import runpy
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.processes.host import READING_PS  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, cases_of, simulated  # noqa: E402

run = partial(simulated, "clocks.py")


MARKED = (
    (
        pytest.mark.adr("0119-D1"),
        (
            "a_step_takes_what_the_device_says",
            "a_clock_is_found_by_its_module_and_name",
            "benchmarks_of_pytorch_say_modeled_time",
        ),
    ),
    (pytest.mark.adr("0119-D7"), ("sleep_is_no_work_of_the_processor",)),
    (pytest.mark.adr("0119-D3"), ("pythons_own_modules_wait_for_what_is_outside",)),
    (pytest.mark.adr("0119-D4"), ("threads_of_a_process_sleep_side_by_side",)),
    (pytest.mark.adr("0119-D5"), ("measurements_end_when_blocks_take_equal_times",)),
)
OTHER = (
    "what_says_the_present_date_is_modeled",
    "a_run_begins_at_the_real_time_and_each_rank_has_its_own",
    "waits_that_nobody_ends_take_their_timeout",
)
"""Cases that other tests run."""


@pytest.mark.parametrize("case", cases_of("clocks.py", MARKED, OTHER))
def test_clocks_do_what_is_said(case: str) -> None:
    run(case)


@pytest.mark.adr("0119-D1")
def test_what_says_the_present_date_is_modeled() -> None:
    before = datetime.datetime.now
    run("what_says_the_present_date_is_modeled")
    assert before() <= datetime.datetime.now() < before() + datetime.timedelta(seconds=60)


@pytest.mark.adr("0119-D6")
def test_clocks_begin_alike_in_every_run(tmp_path: Path) -> None:
    result = []
    for name in ("first", "second"):
        run("clocks_begin_alike_in_every_run", tmp_path / name)
        result.append(json.loads((tmp_path / name).read_text()))
        time.sleep(0.01)
    assert result[0] == result[1]
    assert len(result[0]) == 9


@pytest.mark.adr("0119-D1")
def test_a_run_begins_at_the_real_time_and_each_rank_has_its_own() -> None:
    before = time.time()
    context = run("a_run_begins_at_the_real_time_and_each_rank_has_its_own", nprocs=2)
    assert time.time() - before < 500
    assert context.run.simulation.now_ps >= 1000 * 10**12


@pytest.mark.adr("0119-D2")
def test_looking_takes_time() -> None:
    run("looking_takes_time", READING_PS // 1000)


@pytest.mark.adr("0119-D3")
def test_waits_that_nobody_ends_take_their_timeout() -> None:
    context = run("waits_that_nobody_ends_take_their_timeout")
    assert 18 <= context.run.simulation.now_ps / 10**12 < 18.001


@pytest.mark.adr("0119-D1")
def test_what_a_program_has_taken_is_the_real_clock_again_after_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import builtins\nfrom time import time\nbuiltins.keep(time)\n")
    before = time.time
    import builtins

    taken: list[Any] = []
    # What it would assign to a shared module, or put into a list there, is forgotten with it.
    builtins.keep = lambda clock: taken.append(clock)  # type: ignore[attr-defined]
    try:
        simulated(program)
        (kept,) = taken
        assert time.time is before is not kept
        assert abs(kept() - time.time()) < 60
    finally:
        vars(builtins).pop("keep", None)


def test_what_pythons_clocks_refuse_is_refused_in_pythons_words(tmp_path: Path) -> None:
    program = runpy.run_path(str(PROGRAMS / "clocks.py"))
    program["refused"](tmp_path / "real")
    run("refused", tmp_path / "simulated")
    assert (tmp_path / "simulated").read_text() == (tmp_path / "real").read_text()
