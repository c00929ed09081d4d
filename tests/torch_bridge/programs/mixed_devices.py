"""Operations on tensors of a host and of a device: which are refused, and where results are.

python mixed_devices.py FILE writes what each has come to.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

Case = Callable[[Tensor, Tensor], Any]


def copied(device: Tensor, host: Tensor) -> Tensor:
    host[0] = device[0]
    host.view(-1).copy_(device.view(-1))
    for ours, theirs in zip(host.unbind(0), device.unbind(0), strict=True):
        ours.copy_(theirs)
    with torch.no_grad():
        host.data[0] = device[0]
    with torch.inference_mode():
        tensor = torch.zeros(2, 3)
        tensor[0] = device[0]
        tensor.t().copy_(device.t())
    return tensor


def unpacked(device: Tensor) -> Tensor:
    lengths = torch.tensor([1, 3])
    packed = pack_padded_sequence(device[..., None], lengths, True, enforce_sorted=False)
    return pad_packed_sequence(packed, batch_first=True)[0]


def gradient(tensor: Tensor, value: Tensor) -> Tensor:
    leaf = tensor.clone().requires_grad_()
    leaf.grad = value
    return leaf.grad


def ctc_loss(device: Tensor) -> Tensor:
    values = torch.randn(9, 2, 5, device=device.device, requires_grad=True)
    sizes, targets = torch.tensor([9, 9]), torch.randint(1, 5, (2, 3))
    loss = F.ctc_loss(values.log_softmax(2), targets, sizes, sizes // 4)
    loss.backward()
    assert values.grad is not None
    return values.grad


def put(host: Tensor, *indices: Any, value: Any = 7) -> Tensor:
    host[indices] = value
    return host


def _generator(of: Tensor) -> torch.Generator:
    return torch.Generator(of.device)


ASSIGNED: dict[str, Case] = {
    "number": lambda d, h: put(h, d[0].long() - 1, d[0].long()),
    "mask": lambda d, h: put(h, d > 0),
    "mask_of_rows": lambda d, h: put(h, d[:, 0] > 0, 1, value=torch.arange(2.0)),
    "rows": lambda d, h: put(h, d[:, 0].long(), value=torch.arange(3.0)),
    "after_slices": lambda d, h: put(h, slice(None), d[0, :2].long(), value=torch.ones(2, 2) * 3),
    "of_both": lambda d, h: put(h, torch.tensor([0, 1]), d[0, :2].long()),
    "int32": lambda d, h: put(h, d[0].int()),
    "value_of_device": lambda d, h: put(h, d[0].long(), value=d[0, 0] * 5),
    "added": lambda d, h: h.index_put_((d[0].long(),), torch.tensor(2.0), accumulate=True),
    "another": lambda d, h: h.index_put((d[0].long(), d[0].long()), torch.arange(3.0)),
    "unsafe": lambda d, h: torch.ops.aten._unsafe_index_put(h, [d[0].long()], torch.ones(3)),
    "to_device": lambda d, h: put(d, h[:, 0].long(), d[:, 0].long()),
    "data": lambda d, h: put(h.data, d[0].long()),
}
"""Assignments by indices of another device; ``index_put_`` moves them to that of its tensor."""
# Fake tensors of a device cannot be subscripted where there is none.
CASES: dict[str, Case] = {
    "assigned_value": lambda d, h: put(h, d.select(0, 0).long(), value=d.select(0, 0)),
    "assigned_to_device": lambda d, h: d.index_put_((d.select(0, 0).long(),), h[0]),
    "masked_fill": lambda d, h: h.masked_fill_(d > 0, 1.0),
    # Refused.
    "scatter": lambda d, h: h.scatter_(1, d.long() - 1, 1.0),
    "scatter_src": lambda d, h: d.scatter(1, h.long() - 1, h),
    "scatter_add": lambda d, h: d.scatter_add(1, d.long() - 1, h),
    "stack": lambda d, h: torch.stack([d, h]),
    "isin": lambda d, h: torch.isin(d, h),
    "dist": lambda d, h: torch.dist(d, h),
    "cholesky_solve": lambda d, h: torch.cholesky_solve(h.t(), d.t() @ d),
    "total": lambda d, h: h.sum().add_(d.sum()),
    "total_of_device": lambda d, h: d.sum().add_(h.sum()),
    "filled": lambda d, h: h.fill_(d.sum()),
    "filled_total": lambda d, h: h.sum().fill_(d.sum()),
    "gather": lambda d, h: d.gather(1, h.long() - 1),
    "index_select": lambda d, h: h.index_select(0, d.select(0, 0).long() - 1),
    "index_add": lambda d, h: d.index_add(0, d.select(1, 0).long() - 1, h),
    "index_of_host": lambda d, h: h[d.select(0, 0).long() - 1],
    "masked_select": lambda d, h: torch.masked_select(d, h > 0),
    "convolution": lambda d, h: F.conv1d(d.unsqueeze(0), h[None]),
    "layer_norm": lambda d, h: F.layer_norm(d, (3,), h[0]),
    "batch_norm": lambda d, h: F.batch_norm(d, h[0], h[0]),
    "mse_loss": lambda d, h: F.mse_loss(h, d),
    "embedding": lambda d, h: F.embedding(h.long(), d),
    "solve": lambda d, h: torch.linalg.solve(h[:, :2] + torch.eye(2), d),
    "lerp": lambda d, h: torch.lerp(d, h, 0.5),
    "where": lambda d, h: torch.where(d > 0, d, h),
    "product": lambda d, h: h @ d.T,
    "product_of_batches": lambda d, h: h.expand(2, 2, 3) @ d.T,
    "attention": lambda d, h: F.scaled_dot_product_attention(d.unsqueeze(0), h[None], h[None]),
    "views": lambda d, h: h[None] + d.unsqueeze(0),
    "searchsorted": lambda d, h: torch.searchsorted(h, d),
    "stack_of_numbers": lambda d, h: torch.stack([d.sum(), h.sum()]),
    "index_of_number": lambda d, h: d.index_select(0, h.sum().long() - 6),
    "close": lambda d, h: torch.isclose(d, h),
    "all_close": lambda d, h: d.new_tensor(torch.allclose(d, h)),
    "sum_to_host": lambda d, h: torch.add(d, 1, out=h),
    "sum_to_device": lambda d, h: torch.add(h, 1, out=d),
    "product_to_host": lambda d, h: torch.mm(d, d.t(), out=torch.empty(2, 2)),
    "total_to_host": lambda d, h: torch.sum(d, 0, out=torch.empty(3)),
    "kron": lambda d, h: torch.kron(d, h),
    "kron_of_host": lambda d, h: torch.kron(h, d),
    "meshgrid": lambda d, h: torch.meshgrid(d.select(0, 0), h[0], indexing="ij")[0],
    "cartesian": lambda d, h: torch.cartesian_prod(d.select(0, 0), h[0]),
    "repeats": lambda d, h: d.repeat_interleave(h[:, 0].long(), dim=0, output_size=2),
    "mask": lambda d, h: F.scaled_dot_product_attention(d, d, d, attn_mask=h @ h.T > 0),
    "trapezoid": lambda d, h: torch.trapezoid(d, h),
    "similarity": lambda d, h: F.cosine_similarity(d, h),
    "logits": lambda d, h: F.binary_cross_entropy_with_logits(d, h),
    "hinge": lambda d, h: F.hinge_embedding_loss(d, h),
    "bilinear": lambda d, h: F.bilinear(d, h, h.new_ones(4, 3, 3)),
    "block_diagonal": lambda d, h: torch.block_diag(d, h),
    "quantile": lambda d, h: torch.quantile(d, h[0, :1]),
    "split": lambda d, h: torch.tensor_split(h, d.select(0, 0).long())[0],
    "difference": lambda d, h: torch.logaddexp(d, h.sum()),
    "bounds": lambda d, h: torch.clamp(d, min=h.sum()),
    "sums_of_both": lambda d, h: torch._foreach_add([d, d], [h, h])[0],
    "repeated_list": lambda d, h: torch._foreach_mul([d, h], [h, d])[0],
    "lengths": lambda d, h: pack_padded_sequence(d[..., None], d[:, 0].long(), True).data,
    "generator_of_host": lambda d, h: torch.randn(2, device=d.device, generator=_generator(h)),
    "generator_of_device": lambda d, h: torch.randperm(2, generator=_generator(d)),
    "filled_by_host": lambda d, h: torch.empty_like(d).normal_(generator=_generator(h)),
    "gradient": lambda d, h: gradient(d, h),
    "gradient_of_host": lambda d, h: gradient(h, d),
    # Not refused.
    "gradients": lambda d, h: gradient(d, d * 2),
    "sums": lambda d, h: torch._foreach_add([d, h], [d, h])[0],
    "sums_on_host": lambda d, h: torch._foreach_add([d, h], [d, h])[1],
    "sums_of_numbers": lambda d, h: torch._foreach_mul([d, d], [h.sum(), h.sum()])[1],
    "into_host": lambda d, h: h.select_scatter(d.select(0, 0), 0, 1),
    "into_device": lambda d, h: d.select_scatter(h[0], 0, 1),
    "quantile_of_number": lambda d, h: torch.quantile(d, 0.5),
    "probabilities": lambda d, h: d.bernoulli_(h),
    "targets": lambda d, h: ctc_loss(d),
    "index_of_device": lambda d, h: d[h[0, :2].long() - 1],
    "mask_of_host": lambda d, h: d[h > 0],
    "number": lambda d, h: d * torch.tensor(2.0),
    "one_hot": lambda d, h: F.one_hot(d.long(), 3),
    "one_hot_of_host": lambda d, h: F.one_hot(h.long(), 3),
    "copy": lambda d, h: h.copy_(d),
    "copy_into_views": lambda d, h: copied(d, h),
    "powers": lambda d, h: torch.vander(d[0]),
    "counted_to_device": lambda d, h: torch.arange(3, out=d.select(0, 0)),
    "number_to_device": lambda d, h: torch.add(d, h.sum(), out=d),
    "generator_without_data": lambda d, h: torch.empty(2, device="meta").normal_(
        generator=_generator(d)
    ),
    "generators": lambda d, h: torch.randn(2, device=d.device, generator=_generator(d)),
    "unpacked": lambda d, h: unpacked(d),
    "padded": lambda d, h: pad_sequence([d, d[:1]]),
}


def outcome(case: Case, device: Tensor, host: Tensor) -> list[str]:
    try:
        result = case(device, host)
    except RuntimeError as error:
        words = "(same|a different) device|be on cpu|Mismatching .* device|1D CPU int64"
        words += "|device type for generator"
        if re.search(words, str(error)) is None:
            raise
        return ["refused", host.device.type]
    return [result.device.type, host.device.type]


def main() -> None:
    outcomes = {
        name: outcome(case, torch.ones(2, 3, device="cuda"), torch.ones(2, 3))
        for name, case in CASES.items()
    }
    assigned: dict[str, list[Any]] = {}
    for name, case in ASSIGNED.items():
        operands = torch.ones(2, 3, device="cuda"), torch.ones(2, 3)
        assigned[name] = [case(*operands).tolist(), *(operand.tolist() for operand in operands)]
    Path(sys.argv[1]).write_text(json.dumps([outcomes, assigned]))


if __name__ == "__main__":
    main()
