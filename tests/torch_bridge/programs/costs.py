"""Small models of every kind, and operations whose cost is to be known.

python costs.py CASE
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


def convolution() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(), nn.MaxPool2d(2)),
        *(nn.ConvTranspose2d(8, 4, 2), nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(4, 5)),
    ).cuda()
    x = torch.randn(2, 3, 12, 12, device="cuda")
    F.cross_entropy(model(x), torch.zeros(2, device="cuda", dtype=torch.int64)).backward()


def generation() -> None:
    x = torch.randn(2, 64, device="cuda")
    x = x.masked_fill(x < x.topk(5)[0][:, [-1]], -float("inf")).softmax(-1)
    p, i = x.sort(descending=True)
    p[p.cumsum(-1) > 0.9] = 0
    cache = torch.zeros(2, 9, device="cuda")
    cache.index_copy_(1, torch.tensor([3], device="cuda"), p[:, :1])
    i.gather(-1, torch.multinomial(x, 1)).argmax(-1)


def experts() -> None:
    x = torch.randn(12, 8, device="cuda", requires_grad=True)
    v, i = x.softmax(-1).topk(2)
    flat = i.flatten()
    order = flat.argsort(stable=True)
    torch.bincount(flat, minlength=8)
    x.repeat_interleave(2, 0)[order].split(8)
    F.one_hot(i, 8)
    torch.nonzero(i)
    flat.unique()
    v = v.reshape(-1, 1).expand(-1, 8)
    torch.zeros_like(x).index_add(0, order // 2, v).sum().backward()


def transformer() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).cuda()
    x = torch.randn(2, 4, 8, device="cuda")
    model(x).sum().backward()
    model.eval()
    with torch.no_grad():
        model(x)
    nn.LSTM(8, 8).cuda()(x)[0].sum().backward()


def rotary() -> None:
    x = torch.randn(2, 4, 8, device="cuda", requires_grad=True)
    turn = torch.polar(torch.ones(4, 4, device="cuda"), torch.rand(4, 4, device="cuda"))
    turned = torch.view_as_complex(x.reshape(2, 4, 4, 2)) * turn
    torch.view_as_real(turned).flatten(2).sum().backward()


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("nccl")
    model = fully_shard(nn.Linear(8, 8).cuda())
    model(torch.randn(2, 8, device="cuda")).sum().backward()


def unknown_arithmetic() -> None:
    x = torch.ones(8, 8, device="cuda")
    torch.fft.rfft(x)
    torch.fft.rfft(x)
    x + x
    x @ x
    x.view(64)
    x.is_pinned()
    x.sum()


def small_products() -> None:
    x = torch.ones(8, 8, device="cuda")
    for _ in range(100):
        x = x @ x
    torch.cuda.synchronize()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
