"""Ranks that use several devices each: copies between them, their gradients, DDP over them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

MOVED = {
    "device to device": ("cuda:0", "cuda:1"),
    "host to device": ("cpu", "cuda:1"),
    "device to host": ("cuda:1", "cpu"),
}


@pytest.fixture
def run(tmp_path: Path):
    def run(source: str, **options):
        path = tmp_path / "case.py"
        path.write_text("import torch\nimport torch.distributed as dist\n" + source)
        return simulated(path, **options)

    return run


@pytest.mark.adr("0063-D9")
@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("ways", MOVED.values(), ids=MOVED)
def test_the_gradient_of_a_copy_is_where_the_copied_tensor_is(ways, data: bool) -> None:
    simulated("several_devices.py", "gradient_of_a_copy", *ways, data, data=data)


def test_second_derivatives_cross_devices() -> None:
    simulated("several_devices.py", "second_derivatives")


@pytest.mark.adr("0063-D9")
def test_a_model_over_two_devices_trains_as_on_the_host() -> None:
    simulated("several_devices.py", "model_over_two_devices")


@pytest.mark.adr("0063-D10")
@pytest.mark.adr("0063-D11")
@pytest.mark.parametrize("views", [False, True])
def test_ddp_over_two_devices_of_each_rank_averages_as_one_process_would(views) -> None:
    context = simulated(
        "several_devices.py",
        "ddp_over_two_devices",
        views,
        nprocs=2,
    )
    reduced = [
        instance for instance in context.op_log.instances if instance.template.name == "all_reduce"
    ]
    assert {item.sips for item in reduced} == {(0, 2), (1, 3)}


@pytest.mark.adr("0063-D10")
def test_a_collective_is_on_the_device_of_its_tensors() -> None:
    simulated(
        "several_devices.py",
        "devices_of_tensors",
        nprocs=2,
    )


@pytest.mark.adr("0063-D10")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            'dist.all_reduce(torch.ones(4, device="cuda:0"))',
            "rank 0 and of rank 1 both are on cuda:0",
        ),
        (
            'dist.all_gather([torch.ones(4, device=f"cuda:{each}") for each in range(2)], '
            'torch.ones(4, device="cuda:0"))',
            "on cuda:0 and on cuda:1; all tensors of a collective must be on one device",
        ),
    ],
)
def test_ranks_that_share_a_device_or_mix_devices_are_refused(run, source, words) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        run("dist.init_process_group('nccl')\n" + source, nprocs=2)
    for error in caught.value.exceptions:
        assert isinstance(error, UsageError)
        assert words in str(error)


def test_the_report_names_the_devices_of_a_rank_that_uses_several(run) -> None:
    context = run("x, y = (torch.ones(2**20, device=f'cuda:{each}') for each in range(2))")
    lines = [line.partition(" in tensors")[0] for ask in context.run.remarks for line in ask()]
    assert lines == [f"peak memory of rank 0 on cuda:{index}: 4.00 MiB" for index in range(2)]
