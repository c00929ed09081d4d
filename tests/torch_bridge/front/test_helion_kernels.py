"""Kernels written in Helion run as the Triton kernels that it writes."""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402


@pytest.mark.filterwarnings("ignore")
def test_kernels_of_helion_compute_and_compile_in_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("helion") is None:
        pytest.skip("helion is not installed")
    # It uses parts of PyTorch's compiler, with the properties of the device.
    monkeypatch.setenv("KERNBENCH_COMPILE", "inductor")
    context = simulated("helion_kernels.py", "main", machine="h100-sxm:1")
    names = {instance.template.name for instance in context.op_log.instances}
    assert {"_helion_matmul", "_helion_softmax"} <= names
    # It traces with tensors of the device, also where it takes their shapes as constants.
    assert "WrongDevice" not in capsys.readouterr().err


@pytest.mark.adr("0097-D3", "0097-D4")
@pytest.mark.filterwarnings("ignore")
def test_the_autotuner_of_helion_measures_in_modeled_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("helion", "sklearn", "cloudpickle"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    # The more generations, the better: one of them shows that the search works.
    monkeypatch.setenv("HELION_AUTOTUNE_MAX_GENERATIONS", "1")
    monkeypatch.setenv("HELION_AUTOTUNE_RANDOM_SEED", "1")
    monkeypatch.setenv("HELION_FORCE_AUTOTUNE", "1")
    context = simulated("helion_kernels.py", "tuned", machine="h100-sxm:1")
    names = {instance.template.name for instance in context.op_log.instances}
    assert "_helion_scaled_sum" in names
