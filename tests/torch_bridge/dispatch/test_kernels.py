"""Triton kernels on tensors of simulated devices, inside PyTorch programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import UsageError  # noqa: E402
from kernbench.runtime_api import SpawnException  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.running import cases_of, results, simulated  # noqa: E402

run = partial(simulated, "kernels.py")


@pytest.mark.slow
@pytest.mark.adr("0067-D1")
def test_a_llama_of_triton_kernels_learns_what_its_twin_of_operations_does(tmp_path: Path) -> None:
    context = simulated("triton_llama.py", tmp_path, nprocs=2)
    result = results(tmp_path)
    assert len(result) == 2
    for item in result:
        kernels, plain = item["Kernels"], item["Plain"]
        assert kernels.keys() == plain.keys()
        for name, expected in plain.items():
            torch.testing.assert_close(kernels[name], expected, rtol=1e-4, atol=1e-6, msg=name)
        assert all(value.abs().max() > 0 for value in plain.values())
    launches: dict[str, int] = {}
    for instance in context.op_log.instances:
        name = instance.template.name
        launches[name] = launches.get(name, 0) + len(instance.ranks)
    norms = 2 * (2 * 2 + 1)
    assert launches["rms_norm_forward"] == launches["rms_norm_backward"] == norms
    assert launches["rope_kernel"] == 2 * (2 * 2 * 2)
    assert launches["swiglu_forward"] == launches["swiglu_backward"] == 2 * 2
    assert launches["cross_entropy_kernel"] == 2


@pytest.mark.adr("0067-D1")
def test_a_kernel_takes_its_modeled_time_in_the_order_of_its_stream() -> None:
    context = run("a_kernel_takes_its_modeled_time_in_the_order_of_its_stream")
    names = ("aten.add_", "double")
    before, kernel, after = (
        instance for instance in context.op_log.instances if instance.template.name in names
    )
    assert kernel.template.name == "double"
    assert before.ends_ps[0] <= kernel.starts_ps[0]
    assert kernel.ends_ps[0] <= after.starts_ps[0]
    # What it reads is in the cache still (docs/model/cache.md).
    assert kernel.template.hbm_bytes == 4 * (1 << 16)


@pytest.mark.adr("0050-D1")
def test_operations_and_graphs_are_benchmarked_without_a_trace() -> None:
    context = run("operations_and_graphs_are_benchmarked_without_a_trace")
    names = [instance.template.name for instance in context.op_log.instances]
    assert names.count("aten.add") == 1


@pytest.mark.adr("0067-D1")
def test_a_kernel_that_decides_by_data_sees_what_came_before() -> None:
    context = run("a_kernel_that_decides_by_data_sees_what_came_before")
    assert "gather" in {instance.template.name for instance in context.op_log.instances}


MARKED = (
    (pytest.mark.adr("0067-D3"), ("triton_and_torch_name_the_same_kind_of_device",)),
    (pytest.mark.adr("0067-D2"), ("arguments_that_a_kernel_cannot_have_are_refused",)),
)
OTHER = (
    "a_kernel_takes_its_modeled_time_in_the_order_of_its_stream",
    "a_kernel_that_decides_by_data_sees_what_came_before",
    "operations_and_graphs_are_benchmarked_without_a_trace",
    "a_machine_that_is_cudas_says_so_to_pytorch_and_to_kernels",
    "a_kernel_on_a_tensor_of_a_collective_under_way_is_refused",
)
"""Cases that other tests run."""


@pytest.mark.parametrize("case", cases_of("kernels.py", MARKED, OTHER))
def test_kernels_do_what_is_said(case: str) -> None:
    run(case)


@pytest.mark.adr("0006-D6")
@pytest.mark.adr("0006-D8")
def test_a_machine_that_is_cudas_says_so_to_pytorch_and_to_kernels() -> None:
    run("a_machine_that_is_cudas_says_so_to_pytorch_and_to_kernels", machine="a100-sxm-80g")


@pytest.mark.adr("0067-D2")
def test_a_kernel_on_a_tensor_of_a_collective_under_way_is_refused() -> None:
    with pytest.raises(SpawnException) as caught:
        run("a_kernel_on_a_tensor_of_a_collective_under_way_is_refused", nprocs=2)
    (error, *_) = caught.value.exceptions
    assert isinstance(error, UsageError)
    assert "argument x of kernel double reads a tensor" in str(error)
    assert "in use by all_reduce #1" in str(error)


@pytest.mark.adr("0067-D1")
@pytest.mark.parametrize("devices", ["all", "cuda"])
@pytest.mark.parametrize("data", [True, False])
def test_operations_of_the_program_are_its_kernels(devices: str, data: bool) -> None:
    case = "operations_of_the_program_are_its_kernels"
    context = run(case, devices, "data" if data else "no data", data=data)
    names = [instance.template.name for instance in context.op_log.instances]
    assert names.count("double") == 3 + data
    assert not any(name.startswith("kernbench_tests") for name in names)


@pytest.mark.adr("0100-D4")
@pytest.mark.parametrize("data", daily(False, of=(True, False)))
def test_a_lookup_costs_no_more_than_its_table_and_its_assumption_is_said(data: bool) -> None:
    moved, said = {}, {}
    for entries in (16, 1 << 24):
        context = run("a_lookup", entries, machine="h100-sxm", data=data)
        (kernel,) = [item for item in context.report()["kernels"] if item["name"] == "decode"]
        moved[entries] = kernel["bytes"]
        said[entries] = [
            line for ask in context.run.remarks for line in ask() if "far apart" in line
        ]
    # The codes are in the cache (docs/model/cache.md).
    results = 4 * (1 << 20)
    assert results < moved[16] < 1.01 * results
    # A table that the cache cannot keep: a burst of 64 bytes for each number.
    assert moved[1 << 24] == results + 64 * (1 << 20)
    assert said[16] == []
    (line,) = said[1 << 24]
    assert "decode (kernels.py:" in line
