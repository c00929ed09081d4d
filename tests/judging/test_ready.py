"""Who is ready for a task judges each candidate in a fork that knows nothing of the others."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kernbench.judging import Judge, Outcome
from tests.judging.conftest import Judged
from tests.judging.tricks import HEAD, HONEST, SMALL, TASKS

pytest.importorskip("torch")

_TIME = {"values": False, "times": True}


@pytest.mark.adr("0295-D1")
def test_a_reference_that_is_timed_once_takes_what_it_takes_beside_values(judged: Judged) -> None:
    text, task = HEAD + HONEST["softmax"], TASKS["softmax"]
    (beside,) = judged(text, task, times=True).times
    first, second = (judged(text, task, **_TIME) for _ in range(2))
    assert first.times == second.times == [beside]


@pytest.mark.adr("0295-D1")
def test_what_one_candidate_leaves_the_next_does_not_find(judged: Judged) -> None:
    text = f"{HEAD}\ntorch.left, tl.left = 1, 1\n{HONEST['axpy']}"
    assert len(judged(text, SMALL["axpy"], **_TIME).times) == 1
    text = f"{HEAD}\nassert not hasattr(torch, 'left') and not hasattr(tl, 'left')"
    assert len(judged(f"{text}\n{HONEST['axpy']}", SMALL["axpy"], **_TIME).times) == 1


@pytest.mark.adr("0295-D1")
@pytest.mark.parametrize("is_imported", [False, True])
def test_a_task_that_changed_is_loaded_anew(
    is_imported: bool, judge: Judge, tmp_path: Path
) -> None:
    candidate, task = tmp_path / "candidate.py", tmp_path / "task.py"
    candidate.write_text(HEAD + HONEST["axpy"])
    sizes = tmp_path / "sizes_of_task.py" if is_imported else task
    load = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from sizes_of_task import sizes\n"
    for size in (640, 1280):
        stated = f"sizes = [{size}]"
        if is_imported:
            task.write_text(load + TASKS["axpy"].replace("sizes = [100, 1000]", ""))
            sizes.write_text(stated)
        else:
            task.write_text(TASKS["axpy"].replace("sizes = [100, 1000]", stated))
        (timed,) = judge(candidate, task, seed=1, values=False).times
        assert timed.size == str(size)


@pytest.mark.adr("0295-D2")
def test_a_seed_that_nobody_named_is_not_in_a_candidates_process(judged: Judged) -> None:
    look = """
def solve(x, y):
    try:
        1 / 0
    except ZeroDivisionError as error:
        frame, seeds = error.__traceback__.tb_frame, []
    while frame is not None:
        seeds += [getattr(getattr(v, 'verdict', v), 'seed', '') for v in frame.f_locals.values()]
        frame = frame.f_back
    raise ValueError(f'seeds {seeds}')
"""
    verdict = judged(HEAD + look, SMALL["axpy"], seed=None)
    assert "seeds" in verdict.why
    assert str(verdict.seed) not in verdict.why
    assert "7654321" in judged(HEAD + look, SMALL["axpy"], seed=7654321).why


@pytest.mark.adr("0295-D3")
def test_a_task_that_never_ends_keeps_nobody_waiting(judged: Judged) -> None:
    endless = TASKS["axpy"].replace("return 2", "\n    while True: pass\n    return 2")
    verdict = judged(HEAD + HONEST["axpy"], endless, **_TIME, total_s=2.0)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "not judged within 2 s" in verdict.why
    assert len(judged(HEAD + HONEST["axpy"], SMALL["axpy"], **_TIME).times) == 1


@pytest.mark.adr("0295-D1")
def test_who_is_ready_for_an_earlier_task_ends(tmp_path: Path) -> None:
    """Three stay; each forked process has what its parent listened to then, and has to close it."""
    (tmp_path / "candidate.py").write_text(HEAD + HONEST["axpy"])
    with Judge() as judge:
        for number in range(5):
            task = tmp_path / f"task{number}.py"
            task.write_text(
                TASKS["axpy"].replace("sizes = [100, 1000]", f"sizes = [{64 + number}]")
            )
            assert judge(tmp_path / "candidate.py", task, values=False).times
            if number == 2:
                most = len(descendants(os.getpid()))
        until = time.monotonic() + 20
        while len(descendants(os.getpid())) > most and time.monotonic() < until:
            time.sleep(0.05)
        assert len(descendants(os.getpid())) <= most


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    tasks = Path(f"/proc/{pid}/task")
    with suppress(FileNotFoundError, ProcessLookupError):
        started = [(task / "children").read_text().split() for task in tasks.iterdir()]
        children = [int(child) for texts in started for child in texts]
        return [*children, *(other for child in children for other in descendants(child))]
    return []
