"""PyTorch numbers 128 devices: more ranks are refused at once, more devices are not shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from kernbench.cli.app import app  # noqa: E402
from kernbench.errors import UsageError  # noqa: E402
from kernbench.torch_bridge.base.device_limit import MOST_DEVICES  # noqa: E402
from tests.tiers import of_campaigns  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

TOO_MANY = MOST_DEVICES + 1


def test_the_limit_is_that_of_pytorch() -> None:
    assert torch.device("cuda", MOST_DEVICES - 1).index == MOST_DEVICES - 1
    assert torch.device("cuda", MOST_DEVICES).index < 0


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


def test_more_ranks_are_refused_before_anything_runs(program: Path) -> None:
    program.write_text("raise AssertionError('it ran')")
    machine = f"ahbm:{TOO_MANY}"
    for number in (str(TOO_MANY), "gpu"):
        options = ["--machine", machine, "--nproc-per-node", number]
        done = CliRunner().invoke(app, ["torchrun", *options, str(program)])
        said = done.stderr
        assert done.exit_code == 2
        assert f"--nproc-per-node {number} asks for {TOO_MANY} ranks" in said
        assert "at most 128 ranks" in said
        assert "kernbench run" in said
    with pytest.raises(UsageError, match="at most 128 ranks"):
        simulated(program, nprocs=TOO_MANY, machine=machine)


def test_a_program_that_spawns_more_is_refused_before_they_run(program: Path) -> None:
    program.write_text(
        "import torch\n"
        "def work(rank): raise AssertionError('it ran')\n"
        "if __name__ == '__main__':\n"
        f"    torch.multiprocessing.spawn(work, nprocs={TOO_MANY})\n"
    )
    with pytest.raises(UsageError, match=rf"spawn\(nprocs={TOO_MANY}\) asks for {TOO_MANY} ranks"):
        simulated(program, machine=f"ahbm:{TOO_MANY}")


def test_as_many_ranks_as_pytorch_numbers_have_a_device_each(program: Path) -> None:
    program.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "rank = dist.get_rank()\n"
        "torch.cuda.set_device(rank)\n"
        "x = torch.full((2,), float(rank), device='cuda')\n"
        "assert x.device.index == rank\n"
        "dist.all_reduce(x)\n"
        f"assert x.tolist() == [sum(range({MOST_DEVICES}))] * 2\n"
    )
    simulated(program, nprocs=MOST_DEVICES, machine=f"ahbm:{MOST_DEVICES}")


def test_a_larger_machine_shows_as_many_devices_as_pytorch_numbers_and_says_so(
    program: Path,
) -> None:
    program.write_text(
        "import torch\n"
        f"assert torch.cuda.device_count() == torch.accelerator.device_count() == {MOST_DEVICES}\n"
        f"assert torch.ones(1, device='cuda:{MOST_DEVICES - 1}').item() == 1\n"
        f"for name in (300, 'cuda:300', {MOST_DEVICES}):\n"
        "    for call in (torch.cuda.set_device, torch.ones(1).cuda, torch.cuda.synchronize):\n"
        "        try:\n"
        "            call(name)\n"
        "        except ValueError as error:\n"
        "            assert '300 devices of machine ahbm PyTorch can number 128' in str(error)\n"
        "        else:\n"
        "            raise AssertionError(name)\n"
    )
    context = simulated(program, machine="ahbm:300")
    (said,) = [line for remark in context.run.remarks for line in remark() if "can number" in line]
    assert "machine ahbm has 300 devices, of which the program sees the 128" in said


@pytest.mark.adr("0062-D7")
@pytest.mark.parametrize("machine", ["ahbm:300", of_campaigns("ahbm:4")])
def test_no_number_that_pytorch_cuts_is_another_device(program: Path, machine: str) -> None:
    """Cut to 8 bits, 256 is 0, which exists, and 300 is 44."""
    program.write_text(
        "import torch\n"
        "layer, ones = torch.nn.Linear(2, 2), torch.ones(2)\n"
        "for number in (128, 130, 256, 300):\n"
        "    name = f'cuda:{number}'\n"
        "    for call in (\n"
        "        lambda: ones.to(name),\n"
        "        lambda: ones.to(device=name),\n"
        "        lambda: ones.cuda(number),\n"
        "        lambda: layer.to(name),\n"
        "        lambda: layer.to(device=name),\n"
        "        lambda: layer.cuda(number),\n"
        "        lambda: torch.zeros(2, device=name),\n"
        "        lambda: torch.zeros(2, device=number),\n"
        "        lambda: torch.arange(2, device=name),\n"
        "        lambda: torch.tensor([1.0], device=name),\n"
        "        lambda: torch.zeros_like(ones, device=name),\n"
        "        lambda: ones.new_zeros(2, device=name),\n"
        "        lambda: torch.nn.Linear(2, 2, device=name),\n"
        "        lambda: torch.set_default_device(name),\n"
        "        lambda: torch.cuda.set_device(name),\n"
        "        lambda: torch.cuda.Stream(name),\n"
        "        lambda: torch.cuda.get_device_properties(number),\n"
        "        lambda: torch.Generator(name),\n"
        "    ):\n"
        "        try:\n"
        "            call()\n"
        "        except ValueError as error:\n"
        "            assert f'cuda:{number} does not exist' in str(error), error\n"
        "            assert 'devices (0 to' in str(error) or 'number 128 (0' in str(error), error\n"
        "        else:\n"
        "            raise AssertionError(call)\n"
        "try:\n"
        "    torch.zeros(2, device=torch.device('cuda', 130))\n"
        "except ValueError as error:\n"
        "    assert 'what torch.device makes of cuda:130' in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    simulated(program, machine=machine)
