"""Trains a decoder that is split over devices: ``torchrun train.py CONFIG``.

The configuration is JSON, or a file of it; it names the model's sizes, the split, and the steps
(`TrainingConfig`). Rank 0 prints the time of each step in microseconds and the peak of its memory
in bytes, as JSON. Source of the order of splits (pipeline, tensor, recomputation, compile, shards):
pytorch/torchtitan.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining.schedules import ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """A model, how it is split over devices, and what is measured."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    gated: bool = True
    bias: bool = False
    rms_norm: bool = True
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    seq: int
    microbatch: int
    """Sequences that go through the layers together."""
    microbatches: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    shard: str = "zero3"
    """``ddp``, ``zero1``, ``zero2``, ``zero3`` (FSDP2), or ``hsdp``."""
    shards: int = 0
    """Replicas that weights are divided over with ``hsdp``; 0 for all."""
    schedule: str = "1f1b"
    """``1f1b``, ``gpipe``, or ``interleaved`` (two pieces of the model a stage)."""
    sequence_parallel: bool = False
    recompute: str = "none"
    """What backward does again of layers' forward passes: ``none``, ``full``, or ``selective``:
    all but attention, exchanges and every second product."""
    recompute_share: float = 1.0
    """The share of layers that do so."""
    compile: bool = False
    steps: int = 3


class GroupedAttention(nn.Module):
    """Causal attention of grouped heads; with tensor parallelism each rank has some of them."""

    def __init__(self, config: TrainingConfig) -> None:
        super().__init__()
        hidden, dim, bias = config.hidden, config.head_dim, config.bias
        self.dim, self.repeats_keys = dim, config.cp > 1
        self.q = nn.Linear(hidden, config.heads * dim, bias=bias)
        self.k = nn.Linear(hidden, config.kv_heads * dim, bias=bias)
        self.v = nn.Linear(hidden, config.kv_heads * dim, bias=bias)
        self.o = nn.Linear(config.heads * dim, hidden, bias=bias)

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        batch, tokens, _ = x.shape
        heads = [part(x).view(batch, tokens, -1, self.dim) for part in (self.q, self.k, self.v)]
        q, k, v = heads
        if angles is not None:
            q, k = rotated(q, angles), rotated(k, angles)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if self.repeats_keys:
            repeats = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        is_grouped = q.shape[1] != k.shape[1]
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=is_grouped)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, -1))


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Return queries or keys turned by the complex numbers of their positions."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles[:, None]).flatten(3).to(x.dtype)


class MLP(nn.Module):
    """Two products, or three with a gate."""

    def __init__(self, config: TrainingConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden, config.intermediate, config.bias
        self.up = nn.Linear(hidden, inner, bias=bias)
        self.down = nn.Linear(inner, hidden, bias=bias)
        if config.gated:
            self.gate = nn.Linear(hidden, inner, bias=bias)
        self.is_gated = config.gated

    def forward(self, x: Tensor) -> Tensor:
        return self.down(
            functional.silu(self.gate(x)) * self.up(x)
            if self.is_gated
            else functional.gelu(self.up(x))
        )


class RoutedExperts(nn.Module):
    """Routed experts, each rank of ``group`` with some of them; all get equally many tokens.

    With tensor parallelism each rank has some columns of each: ``split`` adds up what they make.
    """

    def __init__(self, config: TrainingConfig, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.group, self.top_k, self.local = group, config.top_k, config.experts // config.ep
        self.split: DeviceMesh | None = None
        self.between = Shard(1) if config.sequence_parallel else Replicate()
        hidden, inner = config.hidden, config.expert_intermediate // config.tp
        self.router = nn.Linear(hidden, config.experts, bias=False)
        self.up = nn.Parameter(torch.empty(self.local, hidden, 2 * inner))
        self.down = nn.Parameter(torch.empty(self.local, inner, hidden))

    def exchanged(self, rows: Tensor) -> Tensor:
        if self.group is None:
            return rows
        return funcol.all_to_all_single_autograd(rows, None, None, self.group)

    def reset_parameters(self) -> None:
        for weights in (self.up, self.down):
            nn.init.normal_(weights, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        if self.split is None:
            return self.routed(x)
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self.split, [self.between], run_check=False)
        x = x.redistribute(placements=[Replicate()])
        y = self.routed(x.to_local(grad_placements=[Partial()]))
        whole = DTensor.from_local(y, self.split, [Partial()], run_check=False)
        whole = whole.redistribute(placements=[self.between])
        return whole if isinstance(self.between, Shard) else whole.to_local()

    def routed(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        scores, experts = self.router(flat).softmax(-1).topk(self.top_k)
        order = experts.flatten().argsort()
        rows = self.exchanged(flat[order // self.top_k])
        # From (ranks, experts, rows) to rows that lie together by expert.
        local = rows.shape[0] // self.local
        ranks = 1 if self.group is None else self.group.size()
        rows = rows.view(ranks, self.local, -1, x.shape[-1]).transpose(0, 1).flatten(0, 2)
        ends = torch.arange(local, rows.shape[0] + 1, local, dtype=torch.int32, device=x.device)
        gate, up = torch._grouped_mm(rows, self.up.to(rows.dtype), offs=ends).chunk(2, -1)
        rows = torch._grouped_mm(functional.silu(gate) * up, self.down.to(rows.dtype), offs=ends)
        rows = rows.view(self.local, ranks, -1, x.shape[-1]).transpose(0, 1).flatten(0, 2)
        rows = self.exchanged(rows.contiguous())
        weights = scores.flatten()[order, None].to(rows.dtype)
        return torch.zeros_like(flat).index_add(0, order // self.top_k, rows * weights).view_as(x)


class DecoderLayer(nn.Module):
    """A layer of the decoder."""

    def __init__(
        self, config: TrainingConfig, number: int, experts: dist.ProcessGroup | None
    ) -> None:
        super().__init__()
        norm = nn.RMSNorm if config.rms_norm else nn.LayerNorm
        self.norm_1, self.attention = norm(config.hidden), GroupedAttention(config)
        self.norm_2 = norm(config.hidden)
        self.mlp = MLP(config) if config.intermediate else None
        self.experts = RoutedExperts(config, experts) if config.experts else None
        # The layers of which something is computed again are spread evenly.
        share = config.recompute_share
        is_one = int((number + 1) * share) > int(number * share)
        self.recompute = config.recompute if is_one else "none"

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        if self.recompute == "none":
            return self.layer(x, angles)
        more = {"context_fn": selective} if self.recompute == "selective" else {}
        return checkpoint(self.layer, x, angles, use_reentrant=False, **more)

    def layer(self, x: Tensor, angles: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm_1(x), angles)
        y = self.norm_2(x)
        parts = [part(y) for part in (self.mlp, self.experts) if part is not None]
        return x + (parts[0] if len(parts) == 1 else parts[0] + parts[1])


_KEPT = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def selective() -> Any:
    """Return what a layer keeps for its backward pass: attention, sums, every second product."""
    products: Counter[bool] = Counter()

    def keeps(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = op == torch.ops.aten.mm.default
        products[context.is_recompute] += is_product
        is_kept = op in _KEPT or (is_product and products[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(keeps)


class Decoder(nn.Module):
    """A piece of the model: some layers, tokens in front or logits behind where it has an end."""

    def __init__(self, config: TrainingConfig, piece: int, pieces: int, experts: Any) -> None:
        super().__init__()
        own = range(config.layers * piece // pieces, config.layers * (piece + 1) // pieces)
        self.layers = nn.ModuleDict(
            {str(number): DecoderLayer(config, number, experts) for number in own}
        )
        self.is_first, self.is_last = piece == 0, piece == pieces - 1
        if self.is_first:
            self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        if self.is_last:
            self.norm = (nn.RMSNorm if config.rms_norm else nn.LayerNorm)(config.hidden)
            self.output = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.angles = angles_of(config) if config.rms_norm else None

    def forward(self, x: Tensor) -> Tensor:
        if self.is_first:
            x = self.tokens(x)
        for layer in self.layers.values():
            x = layer(x, self.angles)
        return self.output(self.norm(x)) if self.is_last else x


def angles_of(config: TrainingConfig) -> Tensor:
    """Return the complex numbers that turn queries and keys, by position and pair."""
    device = torch.device("cuda", torch.cuda.current_device())
    frequency = 1e4 ** -(torch.arange(0, config.head_dim, 2, device=device) / config.head_dim)
    angles = torch.outer(torch.arange(config.seq, device=device), frequency)
    return torch.polar(torch.ones_like(angles), angles)


def split_tensors(model: Decoder, mesh: DeviceMesh, config: TrainingConfig) -> None:
    """Give each rank of a node its columns and rows of the layers' weights."""
    between = Shard(1) if config.sequence_parallel else Replicate()
    ends: dict[str, Any] = {}
    if model.is_first:
        ends["tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if model.is_last:
        ends["output"] = ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        )
        if config.sequence_parallel:
            ends["norm"] = SequenceParallel()
    parallelize_module(model, mesh, ends)
    down = RowwiseParallel(output_layouts=between)
    for layer in model.layers.values():
        plan: dict[str, Any] = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
        plan |= {"attention.o": down}
        if layer.mlp is not None:
            plan |= {"mlp.up": ColwiseParallel(), "mlp.down": down}
            plan |= {"mlp.gate": ColwiseParallel()} if config.gated else {}
        if config.sequence_parallel:
            plan |= {"norm_1": SequenceParallel(), "norm_2": SequenceParallel()}
            plan["attention"] = PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            )
            if layer.mlp is not None:
                plan["mlp"] = PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                )
        parallelize_module(layer, mesh, plan)
        if layer.experts is not None:
            layer.experts.split = mesh


def shard(
    model: Decoder, config: TrainingConfig, mesh: DeviceMesh, outside: DeviceMesh
) -> nn.Module:
    """Divide weights over replicas; ``outside`` has the replicas of experts."""
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    common: dict[str, Any] = {"mesh": mesh, "mp_policy": mixed}
    again = config.shard != "zero2" and config.pp == 1
    for layer in model.layers.values():
        if config.ep > 1:
            fully_shard(layer.experts, mesh=outside, mp_policy=mixed, reshard_after_forward=again)
        fully_shard(layer, **common, reshard_after_forward=again)
    return fully_shard(model, **common)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))


class Training:
    """A model on this rank, and its step."""

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl")
        self.copies_weights = config.shard in ("ddp", "zero1")
        self.meshes = self._meshes()
        count = config.pp * (2 if config.schedule == "interleaved" and config.pp > 1 else 1)
        own = [
            self.meshes["pp"].get_local_rank() + k * config.pp for k in range(count // config.pp)
        ]
        self.pieces = [self._piece(number, count) for number in own]
        weights = [parameter for piece in self.pieces for parameter in piece.parameters()]
        if config.shard == "zero1":
            self.optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
                weights, torch.optim.AdamW, process_group=self.replicas.get_group(), fused=True
            )
        else:
            self.optimizer = torch.optim.AdamW(weights, fused=True)
        self.schedule = self._schedule(own, count) if config.pp > 1 else None

    def _meshes(self) -> dict[str, DeviceMesh]:
        config = self.config
        inside = config.ep if config.ep > 1 else config.shards or config.dp
        sizes = {
            "pp": config.pp,
            "copies": config.dp // inside,
            "shards": inside,
            "cp": config.cp,
            "tp": config.tp,
        }
        mesh = init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if config.ep > 1 or config.cp > 1:
            names = ("copies", "shards", "cp")
            self.replicas = mesh[names]._flatten("dp")
        else:
            self.replicas = mesh["copies", "shards"] if config.shard == "hsdp" else mesh["shards"]
        return {name: mesh[name] for name in sizes}

    def _piece(self, number: int, count: int) -> nn.Module:
        config = self.config
        experts = self.meshes["shards"].get_group() if config.ep > 1 else None
        # Weights are made where they stay, once it is known which of them these are.
        with torch.device("meta"):
            model = Decoder(config, number, count, experts)
        if config.tp > 1:
            split_tensors(model, self.meshes["tp"], config)
        if config.compile:
            for layer in model.layers.values():
                layer.compile()
        if not self.copies_weights:
            shard(model, config, self.replicas, self.meshes["copies"])
        model.to_empty(device=self.device)
        for part in model.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        if self.copies_weights:
            if config.tp == 1:
                return DistributedDataParallel(
                    model, process_group=self.replicas.get_group(), gradient_as_bucket_view=True
                )
            # By its mesh it knows which others there are, and keeps their tensors' local parts.
            return DistributedDataParallel(
                model, device_mesh=self.replicas, gradient_as_bucket_view=True
            )
        return model

    def _schedule(self, own: list[int], count: int) -> Any:
        config = self.config
        group = self.meshes["pp"].get_group()
        stages = [
            PipelineStage(piece, number, count, self.device, group=group)
            for piece, number in zip(self.pieces, own, strict=True)
        ]
        if config.schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, config.microbatches, loss_fn=loss_of)
        kind = ScheduleGPipe if config.schedule == "gpipe" else Schedule1F1B
        return kind(stages[0], config.microbatches, loss_fn=loss_of)

    def step(self) -> None:
        """Train on one batch."""
        config = self.config
        rows = config.microbatch * config.microbatches
        shape = (rows, config.seq)
        tokens = torch.randint(config.vocabulary, shape, device=self.device)
        targets = torch.randint(config.vocabulary, shape, device=self.device)
        with ExitStack() as around:
            if config.cp > 1:
                around.enter_context(self._split_sequences(tokens, targets))
            if config.tp > 1:
                around.enter_context(loss_parallel())
            if self.copies_weights:
                around.enter_context(torch.autocast("cuda", torch.bfloat16))
            if self.schedule is None:
                self._accumulate(tokens, targets)
            else:
                stage = self.meshes["pp"].get_local_rank()
                inputs = [tokens] if stage == 0 else []
                labels = {"target": targets} if stage == config.pp - 1 else {}
                self.schedule.step(*inputs, **labels)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _split_sequences(self, *batch: Tensor) -> Any:
        """Leave each rank its part of all sequences, and let attention pass keys on."""
        buffers = [*batch, *(piece.angles for piece in self.pieces if piece.angles is not None)]
        dims = [1] * len(batch) + [0] * (len(buffers) - len(batch))
        return context_parallel(self.meshes["cp"], buffers=buffers, buffer_seq_dims=dims)

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> None:
        config, (model,) = self.config, self.pieces
        for number in range(config.microbatches):
            part = slice(number * config.microbatch, (number + 1) * config.microbatch)
            is_last = number == config.microbatches - 1
            waits = nullcontext()
            if isinstance(model, DistributedDataParallel) and not is_last:
                waits = model.no_sync()
            elif config.shard == "zero2":
                model.set_requires_gradient_sync(is_last)
            with waits:
                loss_of(model(tokens[part]), targets[part]).backward()


def main() -> None:
    name = sys.argv[1]
    config = TrainingConfig(**json.loads(name if name.startswith("{") else Path(name).read_text()))
    training = Training(config)
    dist.barrier()
    for _ in range(config.steps):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        training.step()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            took_us = (time.perf_counter_ns() - began) / 1e3
            peak = torch.cuda.max_memory_reserved()
            print(json.dumps({"step_us": took_us, "peak_bytes": peak}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
