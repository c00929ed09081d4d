"""Operands on a host and on a device are refused where CUDA refuses them, as fake tensors do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402

from tests.torch_bridge.programs.mixed_devices import ASSIGNED, CASES, outcome  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

KNOWN = {
    # CUDA takes indices from the host ("indices should be either on cpu or on the same device as
    # the indexed tensor"), fake tensors do not.
    "index_of_device": ["cuda", "cpu"],
    "mask_of_host": ["cuda", "cpu"],
    "index_of_host": ["refused", "cpu"],
    # "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same".
    "convolution": ["refused", "cpu"],
    # Of unknown size there; CUDA's dispatch checks all operands that native_functions.yaml does not
    # except.
    "masked_select": ["refused", "cpu"],
    # TensorIterator takes a host's tensor without dims, "&& !op.is_output"; ``fill_`` (Fill.cpp)
    # takes ``value.item()`` where devices differ. Fake tensors stop at their own check of both.
    "total": ["refused", "cpu"],
    "filled": ["cpu", "cpu"],
    "filled_total": ["cpu", "cpu"],
    # Fake tensors take a host's number everywhere; a CUDA build does where native_functions.yaml
    # has ``device_check: NoCheck`` (tests/torch_bridge/base/test_operations.py).
    "stack_of_numbers": ["refused", "cpu"],
    "index_of_number": ["refused", "cpu"],
    # They have no values to compare.
    "all_close": ["refused", "cpu"],
    # "'lengths' argument should be a 1D CPU int64 tensor" (PackedSequence.cpp); "Expected a 'cuda'
    # device type for generator but found 'cpu'" (core/Generator.h): CUDA's alone run there.
    "lengths": ["refused", "cpu"],
    "generator_of_host": ["refused", "cpu"],
    "generator_of_device": ["refused", "cpu"],
    "filled_by_host": ["refused", "cpu"],
    "generator_without_data": ["meta", "cpu"],
    "generators": ["cuda", "cpu"],
    # Of these PyTorch documents where the result is; on fake tensors they do not run.
    "copy_into_views": ["cpu", "cpu"],
    "powers": ["cuda", "cpu"],
    "counted_to_device": ["cuda", "cpu"],
    "unpacked": ["cuda", "cpu"],
    "padded": ["cuda", "cpu"],
    # Its targets are moved ("targets.to(log_probs.device())", LossCTC.cpp).
    "targets": ["cuda", "cpu"],
    # "assigned grad has data located on a different device" (python_variable.cpp).
    "gradient": ["refused", "cpu"],
    "gradient_of_host": ["refused", "cpu"],
    # "tensor_split expected tensor_indices_or_sections to be on cpu".
    "split": ["refused", "cpu"],
    # Lists of several devices are computed one tensor after another ("slow path when tensor are on
    # different devices", native_functions.yaml), scattered slices are copied (``NoCheck``).
    "sums_on_host": ["cpu", "cpu"],
    "into_host": ["cpu", "cpu"],
    "into_device": ["cuda", "cpu"],
    # "p.to(kCUDA)" (DistributionTemplates.h).
    "probabilities": ["cuda", "cpu"],
    # Checked by native_functions.yaml.
    "difference": ["refused", "cpu"],
    "bounds": ["refused", "cpu"],
}


def test_host_and_device_mix_where_they_do_on_a_gpu(tmp_path: Path) -> None:
    saved = tmp_path / "found.json"
    simulated("mixed_devices.py", saved)
    result, assigned = json.loads(saved.read_text())
    expected = {}
    for name in CASES.keys() - KNOWN.keys():
        # Values are unknown there: with a given number of classes, one_hot reads none.
        with FakeTensorMode(allow_non_fake_inputs=True):
            device, host = torch.ones(2, 3, device="cuda"), torch.ones(2, 3)
            expected[name] = outcome(CASES[name], device, host)
    expected |= KNOWN
    assert result == expected
    assert sum(item[0] == "refused" for item in result.values()) > len(result) // 2
    assert result["one_hot"] == ["cuda", "cpu"]
    for name, case in ASSIGNED.items():
        on_host = torch.ones(2, 3), torch.ones(2, 3)
        values = [case(*on_host).tolist(), *(item.tolist() for item in on_host)]
        assert assigned[name] == values, name


def test_a_refusal_keeps_none_of_the_programs_tensors(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import weakref, torch\n"
        "def work():\n"
        "    kept = torch.ones(4)\n"
        "    alive = weakref.ref(kept)\n"
        "    try:\n"
        "        torch.ones(2) + torch.ones(2, device='cuda')\n"
        "    except RuntimeError as error:\n"
        "        print('same device' in str(error))\n"
        "    del kept\n"
        "    print(alive())\n"
        "work()\n"
    )
    simulated(program)
    assert capfd.readouterr().out.split() == ["True", "None"]
