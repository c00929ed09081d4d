"""flex_attention on a device, compared with attention written out on the host.

python flex_attention.py CASE [ARGUMENTS]
"""

import sys

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BATCH, HEADS, LENGTH, SIZE = 2, 4, 96, 16


def compared(is_masked: str, num_kv_heads: str) -> None:
    masked, kv_heads = is_masked == "masked", int(num_kv_heads)
    torch.manual_seed(0)
    shapes = [(BATCH, heads, LENGTH, SIZE) for heads in (HEADS, kv_heads, kv_heads)]
    host = [torch.randn(shape, requires_grad=True) for shape in shapes]
    device = [item.detach().cuda().requires_grad_() for item in host]
    bias = torch.randn(HEADS, requires_grad=True)
    my_bias = bias.detach().cuda().requires_grad_()
    # Not a leaf.
    doubled = my_bias * 2

    def score_mod(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return score + doubled[h] * (q - k)

    def mask_mod(
        b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return (q >= k) & (q - k < 24)

    block_mask = create_block_mask(
        mask_mod, None, None, LENGTH, LENGTH, device="cuda", BLOCK_SIZE=32
    )
    attention = torch.compile(flex_attention) if masked else flex_attention
    out, lse = attention(
        *device,
        score_mod=score_mod,
        block_mask=block_mask if masked else None,
        enable_gqa=kv_heads != HEADS,
        return_lse=True,
    )
    (out * out + lse[..., None]).sum().backward()

    q, k, v = host
    k, v = (item.repeat_interleave(HEADS // kv_heads, 1) for item in (k, v))
    place = torch.arange(LENGTH)
    distance = place[:, None] - place
    scores = q @ k.mT * SIZE**-0.5 + 2 * bias[:, None, None] * distance
    if masked:
        scores = scores.masked_fill((distance < 0) | (distance >= 24), float("-inf"))
    expected = scores.softmax(-1) @ v
    (expected * expected + scores.logsumexp(-1)[..., None]).sum().backward()

    assert all(item.is_cuda for item in (out, lse, device[0].grad))
    result = [out, lse, my_bias.grad, *(item.grad for item in device)]
    wanted = [expected, scores.logsumexp(-1), bias.grad, *(item.grad for item in host)]
    for mine, theirs in zip(result, wanted, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=2e-4, atol=2e-4)


def long(mask: str, length: str = "1024") -> None:
    num = int(length)

    def all_keys(
        b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return q >= 0

    def window(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (q - k < 128)

    q, k, v = (torch.randn(1, 8, num, 64, device="cuda", dtype=torch.float16) for _ in "qkv")
    chosen = {"all_keys": all_keys, "window": window}[mask]
    blocks = create_block_mask(chosen, None, None, num, num, device="cuda")
    flex_attention(q, k, v, block_mask=blocks)
    torch.nn.functional.scaled_dot_product_attention(q, k, v)


def on_the_host() -> None:
    q = torch.randn(1, 2, 128, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(flex_attention(q, q, q), expected, rtol=1e-4, atol=1e-4)


def in_a_graph() -> None:
    bias = torch.randn(4, device="cuda", requires_grad=True)
    tensors = [torch.randn(1, 4, 64, 16, device="cuda", requires_grad=True) for _ in "qkv"]
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 64, 64, device="cuda")

    def step(operands: list[torch.Tensor], bias: torch.Tensor) -> torch.Tensor:
        def score_mod(
            score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
        ) -> torch.Tensor:
            return score + bias[h] * (q - k)

        q, k, v = operands
        out = flex_attention(q, k, v, score_mod, block_mask=mask)
        out.square().sum().backward()
        return out

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(tensors, bias)
    for _ in range(2):
        with torch.no_grad():
            for item in (*tensors, bias):
                item.copy_(torch.randn_like(item))
        graph.replay()
        eager = [entry.detach().clone().requires_grad_() for entry in (*tensors, bias)]
        assert torch.equal(step(eager[:3], eager[3]), out)
        for mine, theirs in zip((*tensors, bias), eager, strict=True):
            assert torch.equal(mine.grad, theirs.grad)
            assert theirs.grad.abs().sum() > 0


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
