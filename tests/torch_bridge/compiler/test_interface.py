"""The compiler knows the devices of the run that it compiles for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kernbench.hardware import load_machine
from tests.forked import COMPILER, run_forked
from tests.torch_bridge.running import simulated
from validation.programs import Program, ProgramRunner

ROOT = Path(__file__).parents[3]
_TEXT = """
import torch

def norm(x):
    times = 2 if torch.compiler.is_compiling() else 1
    return torch.nn.functional.layer_norm(x, (4096,)).expand(times, 64, 4096)

x = torch.ones(64, 4096, device="cuda")
if torch.compile(norm)(x).shape[0] == 1:
    print("step 0 ms")
from torch._inductor.runtime.hints import DeviceProperties
print(f"step {DeviceProperties.create(x.device).multi_processor_count} ms")
"""


@pytest.mark.campaign
@pytest.mark.slow
def test_programs_of_one_process_compile_each_for_its_machine(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_TEXT)
    # A library has imported the compiler before the first run.
    program = Program(
        script=script, needs=("torch._dynamo.device_interface",), unit_us=1, is_compiled=True
    )
    runner = ProgramRunner()
    try:
        assert runner.step_us(program, load_machine("a100-sxm-80g")) == 108
        assert runner.step_us(program, load_machine("h200")) == 132
        assert runner.step_us(replace(program, is_compiled=False), load_machine("h200")) == 0
    finally:
        runner.close()


@pytest.mark.campaign
@pytest.mark.slow
def test_what_a_run_has_compiled_is_not_the_next_ones() -> None:
    done = run_forked(
        "tests.torch_bridge.programs.captured_in_turns",
        imports=COMPILER,
        cwd=ROOT,
        env=os.environ | {"KERNBENCH_COMPILE": ""},
    )
    assert done.returncode == 0, done.stderr
    first, other, again = (float(line.split()[1]) for line in done.stdout.splitlines())
    assert first == again
    assert other > 1.5 * first


def test_a_compiler_is_put_in_place_for_all_ranks() -> None:
    simulated("compiler_for_all.py", nprocs=2, machine="h100-sxm:2")


def test_modules_that_a_program_puts_in_place_leave_the_compiler_shared() -> None:
    simulated("stand_ins_in_modules.py", nprocs=2, machine="h100-sxm:2")
