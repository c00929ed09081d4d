"""``torch.autocast("cuda")`` on simulated devices; PyTorch's own lists say what CUDA casts."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.base.refusals import UnsupportedTorchError  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

run = partial(simulated, "autocast.py")


@pytest.mark.slow
@pytest.mark.adr("0077-D8")
@pytest.mark.parametrize("data", [True, False])
def test_what_pytorch_lists_for_cuda_is_cast(data: bool) -> None:
    run("what_pytorch_lists_for_cuda_is_cast", "data" if data else "no data", data=data)


@pytest.mark.adr("0077-D8")
@pytest.mark.parametrize("data", [True, False])
def test_only_tensors_of_devices_are_cast_and_only_inside(data: bool) -> None:
    run("only_tensors_of_devices_are_cast_and_only_inside", data=data)


@pytest.mark.parametrize("data", [True, False])
def test_softmax_of_float16_is_one_operation(data: bool) -> None:
    log = run(
        "softmax_of_float16_is_one_operation",
        "data" if data else "no data",
        machine="a100-sxm-80g",
        data=data,
    ).op_log
    names = Counter(instance.template.name for instance in log.instances)
    assert names["aten._softmax"] == 3 + 1
    assert names["aten._log_softmax_backward_data"] == 3
    assert "aten._to_copy" not in names


@pytest.mark.adr("0077-D9")
def test_training_under_autocast_casts_the_same_without_data() -> None:
    def operations(data: bool) -> Counter[str]:
        log = run("training", 2, data=data).op_log
        return Counter(instance.template.name for instance in log.instances)

    result = operations(data=False)
    assert result == operations(data=True)
    # Two weights, two biases and the input, the inner results, and their gradients.
    once = run("training", 1, data=False).op_log
    fewer = Counter(instance.template.name for instance in once.instances)
    assert 0 < result["aten._to_copy"] - fewer["aten._to_copy"] <= 2 * 4


@pytest.mark.adr("0077-D8")
def test_what_cuda_refuses_under_autocast_is_refused() -> None:
    with pytest.raises(UnsupportedTorchError, match="binary_cross_entropy_with_logits"):
        run("what_cuda_refuses_under_autocast_is_refused")


@pytest.mark.adr("0077-D8")
def test_after_a_run_pytorch_has_its_own_kernels() -> None:
    run("after_a_run_pytorch_has_its_own_kernels")
    assert "autocast.py" not in torch._C._dispatch_dump("aten::mm")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16
