"""``torch.compile`` on simulated devices: PyTorch's compiler, its kernels, values and time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.forked import COMPILER, run_forked
from tests.tiers import of_campaigns

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parents[1] / "programs"


def run_compiled(tmp_path: Path, *args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program as ``start_compiled`` starts it, to its end."""
    command, environment = compiled_command(tmp_path, *args, **options)
    return run_forked(*command, env=environment, imports=COMPILER, timeout=300)


def start_compiled(tmp_path: Path, *args: Any, **options: Any) -> subprocess.Popen[str]:
    """Start a program in a process of its own, as the compiler stays in one that imports it."""
    command, environment = compiled_command(tmp_path, *args, **options)
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def compiled_command(
    tmp_path: Path,
    program: str,
    *options: str,
    compiler: str = "",
    machine: str = "h100-sxm",
    args: Sequence[str] = (),
    **environment: str,
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a program which compiles, and its environment."""
    command = ["kernbench", "torchrun", "--machine", machine, *options]
    kept = {
        "KERNBENCH_COMPILE": compiler,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "OMP_NUM_THREADS": "1",
    }
    return [*command, str(PROGRAMS / program), *args], os.environ | kept | environment


@pytest.mark.slow
@pytest.mark.adr("0126-D1")
@pytest.mark.adr("0126-D2")
@pytest.mark.adr("0126-D3")
@pytest.mark.adr("0126-D6")
def test_what_is_compiled_computes_as_the_host_in_kernels_that_the_report_names(
    tmp_path: Path,
) -> None:
    report = tmp_path / "report.json"
    done = run_compiled(tmp_path, "inductor.py", "--json", str(report))
    assert done.returncode == 0, done.stderr
    names = {item["name"] for item in json.loads(report.read_text())["kernels"]}
    assert "triton_per_fused_add_gelu_mean_mul_pow_rsqrt_0" in names


@pytest.mark.slow
def test_graphs_with_control_flow_run_without_a_compiler_of_kernels(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "control_flow.py", args=["graphs_that_python_runs"])
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_is_exported_computes_as_the_host(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "exported.py")
    assert "as on the host" in done.stdout, done.stderr


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0126-D1")
def test_kernels_are_tried_while_they_are_compiled(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "tuned_when_compiled.py")
    assert "as on the host" in done.stdout, done.stderr


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0126-D1")
def test_a_function_is_compiled_ahead_of_its_first_call(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "ahead_of_time.py", args=[str(tmp_path / "made.pt2")])
    assert "as in eager mode" in done.stdout, done.stderr


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0126-D4")
def test_ranks_compile_each_for_themselves(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "inductor_ranks.py", "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    assert "asked for collectives in symmetric memory, as async tensor" in done.stdout


@pytest.mark.slow
@pytest.mark.adr("0126-D4")
@pytest.mark.adr("0126-D9")
@pytest.mark.adr("0126-D10")
def test_ranks_share_what_they_compile_alike(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "inductor_sharing.py", "--nproc-per-node", "3")
    assert done.returncode == 0, done.stderr
    assert "recompile_limit" not in done.stderr


@pytest.mark.campaign
@pytest.mark.slow
def test_what_programs_put_beside_tensors_into_compiled_functions_is_right(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run_compiled(tmp_path, "inductor_parts.py", "--json", str(report))
    assert done.returncode == 0, done.stderr
    # What the compiler tries runs, and nothing of it is in the run: a trial is called triton_.
    assert "Failed during launch" not in done.stderr
    assert "triton_" not in {item["name"] for item in json.loads(report.read_text())["kernels"]}


@pytest.mark.campaign
@pytest.mark.slow
def test_attention_by_blocks_is_tuned_and_right(tmp_path: Path) -> None:
    # PyTorch's kernel looks one block ahead of the last, masked, and goes on from what it finds.
    done = run_compiled(tmp_path, "inductor_attention.py", "--allow", "masked-lanes")
    assert done.returncode == 0, done.stderr


@pytest.mark.campaign
@pytest.mark.slow
def test_convolutions_are_compiled_in_the_layouts_of_their_results(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "inductor_convolutions.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.adr("0126-D8")
def test_what_cannot_be_compiled_is_an_error_with_its_line_and_what_to_do(tmp_path: Path) -> None:
    """The twin of the first case has a compiler: the programs above."""
    program = "inductor_failing.py"
    only_python = str(Path(sys.executable).parent)
    done = run_compiled(tmp_path, program, args=("on_the_host",), CXX="g++", PATH=only_python)
    assert done.returncode == 1
    assert "No working C++ compiler found" in done.stderr
    line = 1 + (PROGRAMS / program).read_text().split("torch.ones(40)")[0].count("\n")
    assert f"{program}:{line} in on_the_host" in done.stderr
    assert "KERNBENCH_COMPILE=eager runs the program operation by operation" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0126-D8")
def test_a_rank_or_a_kernel_that_cannot_be_compiled_is_an_error_with_its_line(
    tmp_path: Path,
) -> None:
    program = "inductor_failing.py"
    done = run_compiled(tmp_path, program, "--nproc-per-node", "2", args=("one_rank_breaks",))
    assert done.returncode == 1
    assert "error on rank 1: Unsupported: Failed to trace builtin operator" in done.stderr
    assert "function(torch.ones(3" in done.stderr
    done = run_compiled(tmp_path, program, args=("a_kernel_that_does_not_run",))
    assert done.returncode == 1
    assert "tt.elementwise_inline_asm in kernel assembly_kernel" in done.stderr
    assert "torch.compile(call)(torch.ones(10" in done.stderr
    assert "in a kernel of what torch.compile made; KERNBENCH_COMPILE=eager" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_compiler_is_refused(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "inductor.py", compiler="inducter")
    assert done.returncode == 1
    assert "KERNBENCH_COMPILE=inducter" in done.stderr
    assert "inductor" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.campaign
def test_what_trials_copy_to_the_host_takes_no_memory_without_data(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "trial_copies.py", "--no-data")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("backend", [of_campaigns("inductor"), "aot_eager"])
def test_results_that_are_copied_to_the_host_are_there(tmp_path: Path, backend: str) -> None:
    ended = run_compiled(tmp_path, "compiled_to_host.py", args=[backend])
    assert ended.returncode == 0, ended.stderr


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_functions_are_recorded_with_the_devices_that_they_name(tmp_path: Path, mode: str) -> None:
    case = "functions_are_recorded_with_the_devices_that_they_name"
    done = run_compiled(tmp_path, "devices.py", args=(case, mode))
    assert done.returncode == 0, done.stderr
