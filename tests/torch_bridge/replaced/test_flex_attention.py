"""flex_attention on a device, against attention written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.runtime_api import RuntimeContext  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

PROGRAM = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.manual_seed(0)
B, H, Q, D = 2, 4, 96, 16
host = [torch.randn(B, heads, Q, D, requires_grad=True) for heads in (H, {kv_heads}, {kv_heads})]
device = [each.detach().cuda().requires_grad_() for each in host]
bias = torch.randn(H, requires_grad=True)
my_bias = bias.detach().cuda().requires_grad_()
doubled = my_bias * 2  # not a leaf
masked = {masked}

def score_mod(score, b, h, q, k):
    return score + doubled[h] * (q - k)

def mask_mod(b, h, q, k):
    return (q >= k) & (q - k < 24)

block_mask = create_block_mask(mask_mod, None, None, Q, Q, device="cuda", BLOCK_SIZE=32)
attention = torch.compile(flex_attention) if masked else flex_attention
out, lse = attention(
    *device, score_mod=score_mod, block_mask=block_mask if masked else None,
    enable_gqa={kv_heads} != H, return_lse=True,
)
(out * out + lse[..., None]).sum().backward()

q, k, v = host
k, v = (each.repeat_interleave(H // {kv_heads}, 1) for each in (k, v))
place = torch.arange(Q)
scores = q @ k.mT * D**-0.5 + 2 * bias[:, None, None] * (place[:, None] - place)
if masked:
    keep = (place[:, None] >= place) & (place[:, None] - place < 24)
    scores = scores.masked_fill(~keep, float("-inf"))
expected = scores.softmax(-1) @ v
(expected * expected + scores.logsumexp(-1)[..., None]).sum().backward()

assert out.is_cuda and lse.is_cuda and device[0].grad.is_cuda
for mine, theirs in zip([out, lse, my_bias.grad, *(each.grad for each in device)],
                        [expected, scores.logsumexp(-1), bias.grad, *(e.grad for e in host)]):
    torch.testing.assert_close(mine.cpu(), theirs, rtol=2e-4, atol=2e-4)
"""


def run(folder: Path, source: str, **options: object) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text(source)
    return simulated(path, **options)  # type: ignore[arg-type]


def times(context: RuntimeContext) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in context.op_log.instances:
        if "flex" in each.template.name:
            assert each.template.name not in found, "one operation each way"
            found[each.template.name] = each.template.duration_ps
    return found


@pytest.mark.adr("0086-D1")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("most", [None, 20_000, 1])
def test_numbers_and_gradients_are_those_of_the_definition(
    tmp_path: Path, masked: bool, kv_heads: int, most: int | None, monkeypatch
) -> None:
    if most is not None:
        # 26 queries at a time, cut to blocks of 32 where there are any; and one at a time.
        monkeypatch.setattr("kernbench.torch_bridge.replaced.flex_pieces.MOST_SCORES", most)
    context = run(tmp_path, PROGRAM.format(masked=masked, kv_heads=kv_heads))
    assert set(times(context)) == {"flex_attention", "flex_attention_backward"}


LONG = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
q, k, v = (torch.randn(1, 8, 1024, 64, device="cuda", dtype=torch.float16) for _ in "qkv")
mask = create_block_mask({mask}, None, None, 1024, 1024, device="cuda")
flex_attention(q, k, v, block_mask=mask)
torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""


@pytest.mark.adr("0086-D2")
def test_blocks_that_the_mask_leaves_out_take_no_time(tmp_path: Path) -> None:
    dense = run(tmp_path, LONG.format(mask="lambda b, h, q, k: q >= 0"))
    window = run(tmp_path, LONG.format(mask="lambda b, h, q, k: (q >= k) & (q - k < 128)"))
    (time,) = times(dense).values()
    (flash,) = (
        each.template.duration_ps
        for each in dense.op_log.instances
        if "scaled_dot" in each.template.name
    )
    assert time == flash
    assert times(window)["flex_attention"] < 0.5 * time


@pytest.mark.adr("0086-D2")
def test_without_data_every_key_counts(tmp_path: Path) -> None:
    source = LONG.format(mask="lambda b, h, q, k: (q >= k) & (q - k < 128)")
    dense = run(tmp_path, LONG.format(mask="lambda b, h, q, k: q >= 0"))
    assert times(run(tmp_path, source, data=False)) == times(dense)


def test_on_the_host_it_is_pytorchs_own(tmp_path: Path) -> None:
    source = """
import torch
from torch.nn.attention.flex_attention import flex_attention
q = torch.randn(1, 2, 128, 16)
expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
torch.testing.assert_close(flex_attention(q, q, q), expected, rtol=1e-4, atol=1e-4)
"""
    context = run(tmp_path, source)
    assert not context.op_log.instances


@pytest.mark.adr("0086-D3")
def test_long_sequences_are_done_a_piece_at_a_time_with_the_keys_that_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernbench.torch_bridge.replaced import flex_pieces

    shapes = []
    attend: Any = vars(flex_pieces)["math_attention"]

    def seen(query, key, *rest):
        shapes.append((query.size(2), key.size(2)))
        return attend(query, key, *rest)

    monkeypatch.setattr(flex_pieces, "math_attention", seen)
    monkeypatch.setattr(flex_pieces, "MOST_SCORES", 8 * 256 * 1024)
    near = "lambda b, h, q, k: (q >= k) & (q - k < 128)"
    run(tmp_path, LONG.format(mask=near))
    # A window of 128 reaches into one block of 128 before the piece's own.
    assert shapes == [(256, 256), (256, 384), (256, 384), (256, 384)]


@pytest.mark.adr("0094-D1")
def test_in_a_graph_it_is_done_again_for_what_is_there_then(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
bias = torch.randn(4, device="cuda", requires_grad=True)
given = [torch.randn(1, 4, 64, 16, device="cuda", requires_grad=True) for _ in "qkv"]
mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 64, 64, device="cuda")
def step(operands, bias):
    out = flex_attention(*operands, lambda s, b, h, q, k: s + bias[h] * (q - k), block_mask=mask)
    out.square().sum().backward()
    return out
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = step(given, bias)
for _ in range(2):
    with torch.no_grad():
        for each in (*given, bias):
            each.copy_(torch.randn_like(each))
    graph.replay()
    eager = [each.detach().clone().requires_grad_() for each in (*given, bias)]
    assert torch.equal(step(eager[:3], eager[3]), out)
    for mine, theirs in zip((*given, bias), eager):
        assert torch.equal(mine.grad, theirs.grad) and theirs.grad.abs().sum() > 0
""",
    )
