"""PyTorch programs on machines with noise, and whose ranks die."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from kernbench import RuntimeContext
from kernbench.errors import RankDiedError
from kernbench.hardware import Machine, load_machine, set_keys
from kernbench.runtime_api import SpawnException
from kernbench.saved import load_run
from kernbench.torch_bridge import run_torchrun
from tests.retiming.retiming import assert_same, retime, save
from tests.torch_bridge.running import PROGRAMS, assert_same_bits, results

PROGRAM = PROGRAMS / "resuming.py"
STEPS = 6


def on(machine: Machine, folder: Path, *, data: bool = True, **options: object) -> RuntimeContext:
    folder.mkdir(exist_ok=True)
    context = RuntimeContext(machine, 2, data=data, check=False)
    if options.pop("keeps", False):
        context.keep_actions()
    code = compile(PROGRAM.read_text(), str(PROGRAM), "exec")
    with context:
        argv = [str(PROGRAM), str(folder), str(STEPS)]
        run_torchrun(context, PROGRAM, code, argv, 2, **options)  # type: ignore[arg-type]
    return context


def changed(*settings: str, name: str = "ahbm:2") -> Machine:
    return set_keys(load_machine(name), [f"scenario.{setting}" for setting in settings])[0]


@pytest.mark.adr("0176-D5")
def test_a_program_whose_rank_dies_ends_with_the_weights_of_one_that_was_not_disturbed(
    tmp_path: Path,
) -> None:
    usual = on(load_machine("ahbm:2"), tmp_path / "usual")
    at_s = usual.op_log.end_ps * 0.6 / 10**12
    machine = changed(f"deaths=[{{rank: 1, at_s: {at_s:.6f}}}]", "restart_s=3")
    result = on(machine, tmp_path / "found", max_restarts=2)
    assert_same_bits(results(tmp_path / "found"), results(tmp_path / "usual"))
    assert (tmp_path / "usual" / "started1").read_text() == "0 0 0\n"
    first, second = (tmp_path / "found" / "started1").read_text().splitlines()
    assert first == "0 2 0"
    assert second.startswith("1 2 ")
    assert 0 < int(second.split()[2]) < STEPS
    assert 3 * 10**12 < result.op_log.end_ps < 3 * 10**12 + 2 * usual.op_log.end_ps
    with pytest.raises(SpawnException) as raised:
        on(machine, tmp_path / "dead")
    assert isinstance(raised.value.errors[1], RankDiedError)


@pytest.mark.adr("0176-D2")
@pytest.mark.parametrize("name", ["h100-sxm:2", "ahbm:2"])
def test_hosts_are_interrupted_whether_a_run_is_kept_or_not_and_when_it_is_retimed(
    name: str, tmp_path: Path
) -> None:
    machine = changed("host_jitter.per_s=5000", "slow_devices.count=1", name=name)
    kept = on(machine, tmp_path, data=False, keeps=True)
    save(kept, tmp_path / "run")
    assert_same(retime(load_run(tmp_path / "run")).op_log, kept.op_log)
    if name == "ahbm:2":
        # Hosts of others take time for what libraries do once.
        assert_same(on(machine, tmp_path / "again", data=False).op_log, kept.op_log)
    lost_ps = sum(host_span.end_ps - host_span.start_ps for host_span in kept.op_log.host_spans
                  if host_span.kind == "interruption")  # fmt: skip
    assert lost_ps >= 25 * 10**6
