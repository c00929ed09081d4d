"""Operations on tensors of a host and of a device: which are refused, and where results are.

python mixed_devices.py FILE writes what each has come to.
"""

import json
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
        made = torch.zeros(2, 3)
        made[0] = device[0]
        made.t().copy_(device.t())
    return made


def unpacked(device: Tensor) -> Tensor:
    lengths = torch.tensor([1, 3])
    packed = pack_padded_sequence(device[..., None], lengths, True, enforce_sorted=False)
    return pad_packed_sequence(packed, batch_first=True)[0]


CASES: dict[str, Case] = {
    # Refused.
    "scatter": lambda d, h: h.scatter_(1, d.long() - 1, 1.0),
    "scatter_src": lambda d, h: d.scatter(1, h.long() - 1, h),
    "scatter_add": lambda d, h: d.scatter_add(1, d.long() - 1, h),
    "gather": lambda d, h: d.gather(1, h.long() - 1),
    "index_select": lambda d, h: h.index_select(0, d[0].long() - 1),
    "index_add": lambda d, h: d.index_add(0, d[0, :2].long() - 1, h),
    "index_of_host": lambda d, h: h[d[0].long() - 1],
    "masked_select": lambda d, h: torch.masked_select(d, h > 0),
    "convolution": lambda d, h: F.conv1d(d[None], h[None]),
    "layer_norm": lambda d, h: F.layer_norm(d, (3,), h[0]),
    "batch_norm": lambda d, h: F.batch_norm(d, h[0], h[0]),
    "mse_loss": lambda d, h: F.mse_loss(h, d),
    "embedding": lambda d, h: F.embedding(h.long(), d),
    "solve": lambda d, h: torch.linalg.solve(h[:, :2] + torch.eye(2), d),
    "lerp": lambda d, h: torch.lerp(d, h, 0.5),
    "where": lambda d, h: torch.where(d > 0, d, h),
    "product": lambda d, h: h @ d.T,
    "product_of_batches": lambda d, h: h.expand(2, 2, 3) @ d.T,
    "attention": lambda d, h: F.scaled_dot_product_attention(d[None], h[None], h[None]),
    "views": lambda d, h: h[None] + d[None],
    "searchsorted": lambda d, h: torch.searchsorted(h, d),
    # Not refused.
    "index_of_device": lambda d, h: d[h[0, :2].long() - 1],
    "mask_of_host": lambda d, h: d[h > 0],
    "number": lambda d, h: d * torch.tensor(2.0),
    "one_hot": lambda d, h: F.one_hot(d.long(), 3),
    "one_hot_of_host": lambda d, h: F.one_hot(h.long(), 3),
    "copy": lambda d, h: h.copy_(d),
    "copy_into_views": lambda d, h: copied(d, h),
    "powers": lambda d, h: torch.vander(d[0]),
    "unpacked": lambda d, h: unpacked(d),
    "padded": lambda d, h: pad_sequence([d, d[:1]]),
}


def outcome(case: Case, device: Tensor, host: Tensor) -> list[str]:
    try:
        found = case(device, host)
    except RuntimeError:
        return ["refused", host.device.type]
    return [found.device.type, host.device.type]


def main() -> None:
    found = {
        name: outcome(case, torch.ones(2, 3, device="cuda"), torch.ones(2, 3))
        for name, case in CASES.items()
    }
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
