"""Programs without tensor data: shapes, time and memory are those of a run with data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import NoDataError  # noqa: E402
from kernbench.hardware import machine_text  # noqa: E402
from kernbench.runtime_api import RuntimeContext  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.dispatch.shapes import Shapes  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


def run(*case: object, data: bool = False, **options: Any) -> RuntimeContext:
    return simulated("without_data.py", *case, data=data, **options)


@pytest.mark.adr("0098-D11")
def test_tensors_of_devices_have_no_memory_on_this_machine(tmp_path: Path) -> None:
    machine = tmp_path / "large.yaml"
    machine.write_text(re.sub(r"hbm_gib: [\d.]+", "hbm_gib: 4096", machine_text("ahbm")[0]))
    run("large_tensors", machine=str(machine))


@pytest.mark.adr("0098-D11")
def test_a_training_step_has_the_operations_and_the_time_of_one_with_data() -> None:
    def operations(data: bool) -> list[tuple[str, int]]:
        log = run("training", data=data).op_log
        return [(instance.template.name, instance.starts_ps[0]) for instance in log.instances]

    assert operations(data=False) == operations(data=True)


@pytest.mark.adr("0098-D11")
def test_what_the_host_reads_is_in_the_log_with_data_and_without() -> None:
    def logged(data: bool) -> list[tuple[str, int, int]]:
        log = run("reads", data=data).op_log
        return [
            (instance.template.name, instance.template.duration_ps, instance.starts_ps[0])
            for instance in log.instances
        ]

    with_data = logged(data=True)
    assert logged(data=False) == with_data
    assert sum(name == "copy_to_host" for name, *_ in with_data) >= 20


@pytest.mark.adr("0098-D11")
@pytest.mark.parametrize("data", [True, False])
def test_the_host_waits_for_what_it_prints(data: bool) -> None:
    run("prints", data=data)


@pytest.mark.adr("0098-D11")
def test_what_is_loaded_onto_a_device_leaves_its_data_behind() -> None:
    run("loads")


@pytest.mark.adr("0098-D11")
def test_a_parameter_of_the_host_may_be_given_data_of_a_device() -> None:
    run("moved_parameters", nprocs=2)


@pytest.mark.adr("0098-D11")
def test_collectives_take_their_time_and_objects_keep_their_values() -> None:
    def collectives(data: bool) -> list[tuple[str, int]]:
        log = run("collectives", data=data, nprocs=2).op_log
        return [
            (instance.template.name, instance.template.message_bytes)
            for instance in log.instances
            if instance.template.kind == "collective"
        ]

    result = collectives(data=False)
    assert result == collectives(data=True)
    assert len(result) >= 5


@pytest.mark.adr("0098-D11")
@pytest.mark.parametrize(
    "model",
    daily(
        "ddp",
        "fsdp2",
        "fsdp of gradients",
        of=(
            "ddp",
            "ddp with unused",
            "fsdp",
            "fsdp of gradients",
            "fsdp of fsdp",
            "fsdp2",
        ),
    ),
)
def test_data_parallel_training_has_the_collectives_of_one_with_data(model: str) -> None:
    def collectives(data: bool) -> list[tuple[str, int]]:
        log = run("wrapped", model, data=data, nprocs=2).op_log
        return sorted(
            (instance.template.name, instance.template.message_bytes)
            for instance in log.instances
            if instance.template.kind == "collective"
        )

    result = collectives(data=False)
    assert result == collectives(data=True)
    assert len(result) > 3


@pytest.mark.adr("0098-D11")
@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_one_operation_forward_and_one_backward(causal: bool) -> None:
    names = {instance.template.name for instance in run("attention", causal).op_log.instances}
    assert {name for name in names if "attention" in name} == {
        "aten._scaled_dot_product_flash_attention",
        "aten._scaled_dot_product_flash_attention_backward",
    }
    assert "aten.bmm" not in names


@pytest.mark.adr("0098-D13")
def test_equal_operations_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = Shapes()
    func = torch.ops.aten.add.Tensor
    x = torch.empty(4, 6, device="meta")
    first, known = shapes.execute(func, describe(func), (x, x.T.contiguous().T), {"alpha": 2})
    again, same = shapes.execute(func, describe(func), (x, x.T.contiguous().T), {"alpha": 2})
    assert known is same is not None
    assert again is not first
    assert (again.shape, again.stride(), again.dtype) == (first.shape, first.stride(), first.dtype)
    _, other = shapes.execute(func, describe(func), (x, x), {"alpha": 2})
    assert other is not known
    func = torch.ops.aten.mul_.Tensor
    result, _ = shapes.execute(func, describe(func), (x, x), {})
    assert result is x
    result, _ = shapes.execute(func, describe(func), (x, x), {})
    assert result is x


@pytest.mark.parametrize("data", [False, True])
def test_what_is_written_where_the_program_says_has_its_shape(data: bool) -> None:
    run("written", data=data)


def test_what_is_written_by_data_is_refused() -> None:
    with pytest.raises(NoDataError, match="depends on data"):
        run("written_by_data")


@pytest.mark.adr("0098-D11")
def test_numbers_with_a_fraction_size_a_range() -> None:
    run("ranges")


@pytest.mark.parametrize("data", [False, True])
def test_parameters_that_move_stay_themselves_and_tied(data: bool) -> None:
    run("tied", data=data)
