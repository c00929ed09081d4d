"""Processes that a program starts before it belongs to a group are ranks of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import DeadlockError, UsageError  # noqa: E402
from tests.tiers import of_campaigns  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402


@pytest.mark.adr("0101-D1")
@pytest.mark.adr("0101-D2")
@pytest.mark.adr("0101-D3")
@pytest.mark.parametrize("method", [of_campaigns("spawn"), "fork"])
def test_started_processes_do_what_real_ones_do(
    tmp_path: Path, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = PROGRAMS / "started_processes.py"
    real = subprocess.run(
        [sys.executable, str(path), f"{tmp_path}/real", method, "cpu"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    context = simulated(path, f"{tmp_path}/simulated", method, "cuda")
    text = (tmp_path / "simulated").read_text()
    assert text == (tmp_path / "real").read_text()
    factor = 3 if method == "fork" else 1
    assert f"(0, 0, [10.0, 10.0], 'go', 1, {factor}, 'by the parent')" in text
    for printed in (real.stderr, capfd.readouterr().err):
        assert printed.count("ValueError: of a rank\n") == 1
    # Each on a device of its own, and nobody waits for what was ended.
    assert {instance.sips[0] for instance in context.op_log.instances} == {0, 1, 2, 3}
    assert context.run.simulation.now_ps < 10**12


@pytest.mark.adr("0101-D2")
@pytest.mark.parametrize(
    ("started", "size", "error", "says"),
    [
        (5, 5, UsageError, "4 processes were started .*--machine NAME:5"),
        (3, 4, DeadlockError, "rank 2 .* waits for rank 3"),
    ],
)
def test_more_processes_than_devices_and_too_few_for_a_group_end_at_once(
    started: int, size: int, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        simulated("few_processes.py", "group", started, size)


def test_processes_that_fail_leave_their_devices_to_the_next() -> None:
    simulated("few_processes.py", "failing")


@pytest.mark.adr("0127-D1")
@pytest.mark.adr("0127-D2")
def test_who_starts_processes_is_one_of_their_ranks(tmp_path: Path) -> None:
    name = f"kernbench-{os.getpid()}"
    context = simulated("served.py", f"{tmp_path}/seen", name, machine="h100-sxm:3")
    for rank in range(3):
        sums = [[item, item] for item in (10 + 11 + 12, 20 + 21 + 22)]
        expected = [(item, f"cuda:{rank}") for item in sums]
        assert torch.load(tmp_path / f"seen{rank}") == expected
    reduced = [
        instance for instance in context.op_log.instances if instance.template.name == "all_reduce"
    ]
    assert [tuple(item.ranks) for item in reduced] == [(0, 1, 2)] * 2
    assert context.run.world_size == 3


@pytest.mark.adr("0101-D3")
def test_they_know_their_parent_and_what_it_has_besides(tmp_path: Path) -> None:
    path = PROGRAMS / "started_after_a_pool.py"
    subprocess.run([sys.executable, str(path), f"{tmp_path}/real"], check=True, timeout=60)
    simulated(path, f"{tmp_path}/simulated")
    text = (tmp_path / "simulated").read_text()
    assert text == (tmp_path / "real").read_text() == "[4, 9] True True True True 3"


def test_a_forked_process_has_what_its_parent_alone_defines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "guarded.py"
    program.write_text(
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    import math\n"
        "    def half(number): return math.floor(number / 2)\n"
        "    def work(queue, *, number=9): queue.put(half(number))\n"
        "    queue = multiprocessing.Queue()\n"
        "    forked = multiprocessing.get_context('fork')\n"
        "    child = forked.Process(target=work, args=(queue,))\n"
        "    child.start()\n"
        "    print('got', queue.get())\n"
        "    child.join()\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work, args=(queue,))\n"
        "    child.start()\n"
        "    child.join()\n"
        "    print('spawned', child.exitcode)\n"
    )
    simulated(program)
    out, error = capfd.readouterr()
    assert out.splitlines() == ["got 4", "spawned 1"]
    assert "has no attribute 'work'" in error


@pytest.mark.adr("0283-D2")
def test_a_started_process_starts_those_with_the_devices(tmp_path: Path) -> None:
    simulated("started_by_started.py", tmp_path / "said", machine="ahbm:2")
    settings, first, second, codes = (tmp_path / "said").read_text().splitlines()
    # Of a class that both have imported: each finds its own.
    assert settings == "['of the server', True]"
    assert first == "[0, [3.0, 3.0], 0, True]"
    assert second == "[1, [3.0, 3.0], 1, True]"
    assert codes == "[0, 0]"


@pytest.mark.parametrize("machine", ["ahbm:2", "h100-sxm:2"])
def test_who_spins_on_shared_memory_gives_way_and_sees_what_is_written(
    tmp_path: Path, machine: str
) -> None:
    context = simulated("spinning.py", tmp_path / "said", "notice", machine=machine)
    rounds = [line.split() for line in (tmp_path / "said").read_text().splitlines()]
    assert len(rounds) == 3
    for late_s, num_laps in rounds:
        # Within two readings of a clock, after a few looks at what does not change for 20 ms.
        assert 0 < float(late_s) < 30e-6
        assert int(num_laps) < 1000
    assert context.run.simulation.now_ps < 65 * 10**9


@pytest.mark.adr("0101-D3")
def test_pipes_of_a_terminated_process_end_for_those_that_it_has_started(tmp_path: Path) -> None:
    context = simulated("spinning.py", tmp_path / "said", "orphan", machine="h100-sxm:4")
    assert (tmp_path / "said").read_text() == "its parent has ended"
    assert context.run.simulation.now_ps < 3 * 10**12


@pytest.mark.adr("0282-D1")
def test_servers_whose_peers_vanish_and_that_are_told_to_end_do_what_real_ones_do(
    capfd: pytest.CaptureFixture[str],
) -> None:
    simulated("servers_end.py", machine="ahbm:4")
    # As `python tests/torch_bridge/programs/servers_end.py` prints it.
    expected = ["up", "True", "its client has left", "-9", "down", "0", "refused"]
    assert capfd.readouterr().out.splitlines() == expected
