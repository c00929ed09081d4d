"""Runs a script of Megatron-LM as it is, with what its container has and a CPU has not.

arguments: whether Apex is installed there (apex, plain), the script, and what it is given.

Stands in for the parts of Apex that its local layers and its optimizer call, each by operations of
PyTorch that launch as many kernels and move as many bytes: they are for times alone, not for
numbers (the softmax neither scales nor masks, accumulated gradients stay as they are). And for the
one name of Python 3.12 that the scripts take.

Source: NVIDIA/apex, csrc/megatron and csrc/multi_tensor_*; NVIDIA/Megatron-LM.
"""

from __future__ import annotations

import runpy
import sys
import typing
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's users know
from torch import Tensor


class LayerNormFunction:
    """A layer norm whose gradient PyTorch knows, asked for as a function of autograd."""

    @staticmethod
    def forward(*_: Any) -> Tensor:
        """Say by its arguments that no form with less memory is known."""
        raise NotImplementedError

    @staticmethod
    def apply(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        """Return the norm; ``rest`` ends with epsilon, behind the shape where that is given."""
        return F.layer_norm(x, weight.shape, weight, bias, rest[-1])


class FusedAdam(torch.optim.AdamW):
    """AdamW in one kernel for many parameters."""

    def __init__(self, params: Any, adam_w_mode: bool = True, **given: Any) -> None:
        super().__init__(params, fused=True, **given)


def softmax(x: Tensor, *_: Any) -> Tensor:
    """Return a softmax of the shape and dtype of the scores, in one kernel."""
    return torch.softmax(x, -1)


def softmax_backward(gradient: Tensor, softmaxed: Tensor, *_: Any) -> Tensor:
    """Return the gradient of the scores, in one kernel."""
    return torch.ops.aten._softmax_backward_data(gradient, softmaxed, -1, softmaxed.dtype)


def batch_per_block(_: int, keys: int, *__: int) -> int:
    """Return how many rows of the scores a block of 128 threads takes."""
    padded = 1 << max(keys - 1, 0).bit_length()
    return 128 // min(padded, 32) * (2 if padded <= 128 else 1)


def apply_to_lists(operation: Any, flag: Tensor, lists: list[list[Tensor]], *rest: Any) -> Any:
    """Call an operation on lists of tensors."""
    return operation(2048 * 32, flag, lists, *rest)


def norm_of_list(_: int, flag: Tensor, lists: list[list[Tensor]], *__: Any) -> Any:
    """Return the norm of all tensors of a list, in two kernels."""
    norms = torch._foreach_norm(lists[0])
    return norms[0].new_empty(1).copy_(norms[0]), None


def scale_list(_: int, flag: Tensor, lists: list[list[Tensor]], scale: float) -> None:
    """Write tensors times a number into others, in one kernel for many."""
    torch._foreach_mul_(lists[1], scale)


def weight_gradient(x: Tensor, gradient: Tensor, _: Tensor) -> None:
    """Take the time of adding a weight's gradient to what is accumulated, in one product."""
    torch.mm(gradient.t(), x)


SOFTMAX = {"forward": softmax, "backward": softmax_backward}
NAMES: dict[str, dict[str, Any]] = {
    "apex": {},
    "apex.contrib": {},
    "apex.contrib.layer_norm": {},
    "apex.contrib.layer_norm.layer_norm": {"FastLayerNormFN": LayerNormFunction},
    "apex.normalization": {},
    "apex.normalization.fused_layer_norm": {"FusedLayerNormAffineFunction": LayerNormFunction},
    "apex.multi_tensor_apply": {"multi_tensor_applier": apply_to_lists},
    "apex.optimizers": {"FusedAdam": FusedAdam, "FusedSGD": torch.optim.SGD},
    "amp_C": {"multi_tensor_l2norm": norm_of_list, "multi_tensor_scale": scale_list},
    "fused_weight_gradient_mlp_cuda": {
        "wgrad_gemm_accum_fp16": weight_gradient,
        "wgrad_gemm_accum_fp32": weight_gradient,
    },
    "scaled_softmax_cuda": SOFTMAX,
    "scaled_masked_softmax_cuda": {**SOFTMAX, "get_batch_per_block": batch_per_block},
    "scaled_upper_triang_masked_softmax_cuda": SOFTMAX,
}


def stand_in() -> None:
    """Make the stand-ins importable."""
    for name, members in NAMES.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        module.__dict__.update(members)
        sys.modules[name] = module


def leave_out() -> None:
    """Take away what an earlier program of the process has made importable."""
    for name in NAMES:
        if name in sys.modules and not hasattr(sys.modules[name], "__file__"):
            del sys.modules[name]


def main() -> None:
    """Run the script."""
    (stand_in if sys.argv[1] == "apex" else leave_out)()
    if not hasattr(typing, "override"):
        # A mark for type checkers: it returns the method that it is given.
        typing.override = lambda method: method  # type: ignore[attr-defined]
    del sys.argv[:2]
    sys.path.insert(0, str(Path(sys.argv[0]).absolute().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
