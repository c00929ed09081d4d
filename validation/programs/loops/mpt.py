"""A training step of an MPT (LLM Foundry's decoder), sharded by FSDP over the ranks.

arguments: layers, hidden, heads, feed-forward, vocabulary, sequence, micro-batch, number of
micro-batches, whether activations are recomputed (full, none), what stays sharded (FULL_SHARD,
SHARD_GRAD_OP), and the attention (triton, flash).

Equal in its operations to scripts/train/train.py of mosaicml/llm-foundry with its mpt-*.yaml, which
Composer wraps: learned positions, biases, layer norms of low precision, GELU, tied embeddings,
cross entropy in one kernel that leaves the gradient in the logits' memory, AdamW parameter by
parameter, the norm of gradients clipped, no prefetch in the backward pass. Attention is
FlashAttention 2, which PyTorch has, too, or before it a Triton kernel of FlashAttention 1, which
splits keys over warps; PyTorch's memory-efficient kernels stand for that. Composer updates two
metrics of the training, cross entropy and perplexity, with the logits of every micro-batch.

Source: mosaicml/llm-foundry, llmfoundry/models/mpt and scripts/train/benchmarking;
mosaicml/composer, composer/trainer/mosaic_fsdp.py.
"""

import os
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's users know
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from validation.programs.loops.timing import say, seconds_of

BLOCK = 4096


@triton.jit
def cross_entropy(
    logits,
    targets,
    losses,
    sums,
    width,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write the loss of a row of logits, and the logarithm of its sum of exponentials."""
    row = tl.program_id(0).to(tl.int64)
    most = -float("inf")
    total = 0.0
    for at in range(0, width, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        x = tl.load(logits + row * width + columns, mask=columns < width, other=-float("inf"))
        x = x.to(tl.float32)
        new = tl.maximum(most, tl.max(x, 0))
        total = total * tl.exp(most - new) + tl.sum(tl.exp(x - new), 0)
        most = new
    found = most + tl.log(total)
    target = tl.load(targets + row)
    x = tl.load(logits + row * width + target, mask=target >= 0, other=0.0).to(tl.float32)
    tl.store(sums + row, found)
    tl.store(losses + row, tl.where(target >= 0, found - x, 0.0))


@triton.jit
def cross_entropy_backward(
    logits,
    targets,
    sums,
    scale,
    width,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write gradients of logits in their place."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    at = logits + row * width + columns
    target = tl.load(targets + row)
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.exp(x - tl.load(sums + row)) - tl.where(columns == target, 1.0, 0.0)
    gradient = tl.where(target >= 0, gradient * tl.load(scale), 0.0)
    tl.store(at, gradient.to(logits.dtype.element_ty), mask=inside)


class FusedCrossEntropy(torch.autograd.Function):
    """The mean loss of rows whose target is not negative."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        rows, width = logits.shape
        losses, sums = torch.empty(2, rows, device=logits.device)
        cross_entropy[(rows,)](logits, targets, losses, sums, width, BLOCK=BLOCK)
        counted = (targets >= 0).sum()
        ctx.save_for_backward(logits, targets, sums, counted)
        return losses.sum() / counted

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, targets, sums, counted = ctx.saved_tensors
        rows, width = logits.shape
        scale = gradient / counted
        grid = (rows, triton.cdiv(width, BLOCK))
        cross_entropy_backward[grid](logits, targets, sums, scale, width, BLOCK=BLOCK)
        return logits, None


class LowPrecisionLayerNorm(nn.LayerNorm):
    """A layer norm that autocast does not widen to float32."""

    def forward(self, x: Tensor) -> Tensor:
        low = torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            weight, bias = self.weight.to(low), self.bias.to(low)
            return F.layer_norm(x.to(low), self.normalized_shape, weight, bias, self.eps)


class MptLayer(nn.Module):
    """One layer of the decoder."""

    def __init__(self, hidden: int, heads: int, ffn: int, attention: str) -> None:
        super().__init__()
        self.heads, self.is_flash = heads, attention == "flash"
        self.norm_1 = LowPrecisionLayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm_2 = LowPrecisionLayerNorm(hidden)
        self.up = nn.Linear(hidden, ffn)
        self.down = nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=2)
        q, k, v = (each.unflatten(2, (self.heads, -1)).transpose(1, 2) for each in parts)
        aten = torch.ops.aten
        if self.is_flash:
            found = aten._scaled_dot_product_flash_attention(q, k, v, is_causal=True)[0]
        else:
            attend = aten._scaled_dot_product_efficient_attention
            found = attend(q, k, v, None, compute_log_sumexp=True, is_causal=True)[0]
        x = x + self.out(found.transpose(1, 2).flatten(2))
        found = self.down(F.gelu(self.up(self.norm_2(x))))
        return x + found


class Mpt(nn.Module):
    """The decoder, with its loss."""

    def __init__(self, sizes: list[int], attention: str) -> None:
        super().__init__()
        layers, hidden, heads, ffn, vocab, length = sizes
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(MptLayer(hidden, heads, ffn, attention) for _ in range(layers))
        self.norm = LowPrecisionLayerNorm(hidden)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the logits and their targets."""
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        targets = torch.roll(tokens, shifts=-1)
        targets[:, -1] = -100
        rows, targets = logits.view(-1, logits.size(-1)), targets.view(-1)
        return FusedCrossEntropy.apply(rows, targets), rows.detach(), targets


def sharded(model: nn.Module, sharding: str, rank: int) -> nn.Module:
    """Return the model as Composer wraps it; its parameters are given memory shard by shard."""
    low = torch.bfloat16
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({MptLayer}),
        sharding_strategy=ShardingStrategy[sharding],
        # Gradients are reduced in bfloat16 by default as in pure mode.
        mixed_precision=MixedPrecision(param_dtype=low, buffer_dtype=low),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
        param_init_fn=lambda module: module.to_empty(
            device=torch.device("cuda", rank), recurse=False
        ),
        device_id=rank,
        limit_all_gathers=True,
        use_orig_params=True,
    )


def main() -> None:
    """Time a step after one."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )

    *sizes, micro, accumulated = map(int, sys.argv[1:9])
    recomputed, sharding, attention = sys.argv[9:]
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("meta"):
        model: nn.Module = Mpt(sizes, attention)
    model = sharded(model, sharding, rank)
    if recomputed == "full":
        apply_activation_checkpointing(
            model,
            partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda module: isinstance(module, MptLayer),
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    metrics = torch.zeros(2, 2, device="cuda")
    vocab, length = sizes[4], sizes[5]
    tokens = torch.randint(0, vocab, (micro, length), device="cuda")

    def step(number: int) -> None:
        for _ in range(number):
            # As Composer: gradients are reduced behind every micro-batch (no_sync would keep them).
            with torch.autocast("cuda", torch.bfloat16):
                loss, logits, targets = model(tokens)
            (loss / number).backward()
            for sums in metrics:
                with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                    sums[0] += F.cross_entropy(logits, targets, reduction="sum")
                    sums[1] += (targets != -100).sum()
            del loss, logits, targets
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()

    step(1)
    found = seconds_of(partial(step, accumulated))
    if rank == 0:
        say(found)


if __name__ == "__main__":
    main()
