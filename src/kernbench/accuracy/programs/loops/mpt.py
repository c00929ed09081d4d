"""A training step of an MPT (LLM Foundry's decoder), sharded by FSDP over the ranks.

arguments: layers, hidden, heads, feed-forward, vocabulary, sequence, micro-batch, number of
micro-batches, whether activations are recomputed (full, none), whether weights are cast (amp_bf16)
or kept in bfloat16 (bf16), and what stays sharded (FULL_SHARD, SHARD_GRAD_OP).

Equal in its operations to scripts/train/train.py of mosaicml/llm-foundry with its mpt-*.yaml: no
biases, layer norms, ALiBi or learned positions by length (learned here), flash attention, GELU,
tied embeddings, decoupled AdamW, clipped norm of gradients.
"""

import os
import sys
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's users know
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class MptLayer(nn.Module):
    """One layer of the decoder."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(hidden, bias=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.norm_2 = nn.LayerNorm(hidden, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=2)
        q, k, v = (each.unflatten(2, (self.heads, -1)).transpose(1, 2) for each in parts)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        found = self.down(F.gelu(self.up(self.norm_2(x))))
        return x + found


class Mpt(nn.Module):
    """The decoder, with its loss."""

    def __init__(self, sizes: list[int], recomputes: bool) -> None:
        super().__init__()
        layers, hidden, heads, ffn, vocab, length = sizes
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(length, hidden)
        self.blocks = nn.ModuleList(MptLayer(hidden, heads, ffn) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, bias=False)
        self.recomputes = recomputes

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        targets = torch.roll(tokens, shifts=-1)
        targets[:, -1] = -100
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main() -> None:
    """Time a step after one."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )

    *sizes, micro, accumulated = map(int, sys.argv[1:9])
    recomputed, precision, sharding = sys.argv[9:]
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.backends.cuda.matmul.allow_tf32 = True
    low = torch.bfloat16
    kept = MixedPrecision(
        param_dtype=low, reduce_dtype=low if precision == "bf16" else None, buffer_dtype=low
    )
    with torch.device("cuda"):
        model: nn.Module = Mpt(sizes, recomputed == "full")
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({MptLayer}),
        sharding_strategy=ShardingStrategy[sharding],
        mixed_precision=kept,
        device_id=rank,
        limit_all_gathers=True,
        use_orig_params=True,
    )
    if recomputed == "full":
        apply_activation_checkpointing(
            model,
            partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda module: isinstance(module, MptLayer),
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    vocab, length = sizes[4], sizes[5]
    tokens = torch.randint(0, vocab, (micro, length), device="cuda")

    def step(number: int) -> None:
        for index in range(number):
            # As Composer: gradients are reduced behind every micro-batch (no_sync would keep them).
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens)
            (loss / number).backward()
            del loss, index
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()

    step(1)
    torch.cuda.synchronize()
    began = time.perf_counter()
    step(accumulated)
    torch.cuda.synchronize()
    if rank == 0:
        print(f"step {(time.perf_counter() - began) * 1e3:.4f} ms")


if __name__ == "__main__":
    main()
