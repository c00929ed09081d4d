"""The collectives of a tensor-parallel training step: how many, and how many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from kernbench.dtypes import as_dtype
from kernbench.errors import UsageError
from kernbench.runtime_api import RuntimeContext
from kernbench.tp.sharding.shards import divide
from kernbench.tp.sharding.transformer import TransformerConfig

Phase = Literal["forward", "backward"]
Op = Literal["all_reduce", "all_gather", "reduce_scatter"]

# The cross entropy keeps its row statistics in this type, whatever the logits are.
_STATISTICS = "f32"
# How often the message, in all, crosses the links, per (ranks - 1): a reduction travels once, and
# what every rank shall have once more. No algorithm that sends whole messages needs less.
_CROSSINGS: dict[Op, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


@dataclass(frozen=True)
class CollectiveUse:
    """``count`` equal collectives of a step.

    Attributes:
        phase: Where in the step they are.
        what: What they move.
        op: The name of the collective, as in ``torch.distributed``.
        count: How often a step calls it.
        num_elements: Elements of the message as nccl-tests counts it: the whole tensor of an
            all_reduce, the output of an all_gather, the input of a reduce_scatter.
        dtype: Element type of the message.
        num_ranks: Ranks of the group.
        num_groups: Groups of neighbouring ranks that do this at the same time.
    """

    phase: Phase
    what: str
    op: Op
    count: int
    num_elements: int
    dtype: str
    num_ranks: int
    num_groups: int = 1

    @property
    def message_bytes(self) -> int:
        """Bytes of one message."""
        return self.num_elements * as_dtype(self.dtype).itemsize

    @property
    def step_bytes(self) -> int:
        """Bytes of the messages of a step."""
        return self.count * self.message_bytes

    @property
    def wire_bytes(self) -> int:
        """Bytes that all ranks together send in a step, by a ring."""
        return self.num_groups * self.step_bytes * _CROSSINGS[self.op] * (self.num_ranks - 1)


def collectives_per_step(
    config: TransformerConfig, tokens: int, *, training: bool = True
) -> tuple[CollectiveUse, ...]:
    """Return the collectives of one step over ``tokens`` tokens, as the layers of tp make them.

    Without sequence parallelism every block has one all_reduce behind attention and one behind
    the MLP, and as many backward. With it each becomes a reduce_scatter, and an all_gather stands
    before each parallel region; backward gathers the region's input a second time, so that it
    need not be kept. One rank needs none.

    Args:
        config: The model and how it is split.
        tokens: Tokens of the step (batch times sequence length).
        training: With the backward pass.

    Raises:
        UsageError: Sequence parallelism, and tokens that do not split over the ranks.
    """
    if tokens < 1:
        divide(tokens, 1, "tokens", "tensor parallel size")
    if config.tp_size == 1:
        return ()
    uses = list(_forward(config, tokens))
    if training:
        uses += _backward(config, tokens)
    return tuple(uses)


def total_step_bytes(uses: Iterable[CollectiveUse]) -> int:
    """Return the bytes of all messages of a step."""
    return sum(use.step_bytes for use in uses)


def _forward(config: TransformerConfig, tokens: int) -> Iterator[CollectiveUse]:
    tp, layers = config.tp_size, config.num_layers
    activations = tokens * config.hidden_size

    def use(
        what: str, op: Op, count: int, elements: int = activations, dtype: str = config.dtype
    ) -> CollectiveUse:
        return CollectiveUse("forward", what, op, count, elements, dtype, tp)

    if config.sequence_parallel:
        divide(tokens, tp, "tokens", "tensor parallel size")
        yield use("embedding", "reduce_scatter", 1)
        yield use("inputs of attention and MLP", "all_gather", 2 * layers)
        yield use("outputs of attention and MLP", "reduce_scatter", 2 * layers)
        yield use("input of the output layer", "all_gather", 1)
    else:
        yield use("embedding", "all_reduce", 1)
        yield use("outputs of attention and MLP", "all_reduce", 2 * layers)
    yield use("maxima of the cross entropy", "all_reduce", 1, tokens, _STATISTICS)
    yield use("sums and targets of the cross entropy", "all_reduce", 1, 2 * tokens, _STATISTICS)


def _backward(config: TransformerConfig, tokens: int) -> Iterator[CollectiveUse]:
    tp, layers = config.tp_size, config.num_layers
    activations = tokens * config.hidden_size

    def use(
        what: str, op: Op, count: int, elements: int = activations, ranks: int = tp
    ) -> CollectiveUse:
        dtype = config.dtype
        return CollectiveUse("backward", what, op, count, elements, dtype, ranks, tp // ranks)

    if config.sequence_parallel:
        yield use("input of the output layer, again", "all_gather", 1)
        yield use("input gradient of the output layer", "reduce_scatter", 1)
        yield use("output gradients of attention and MLP", "all_gather", 2 * layers)
        yield use("inputs of attention and MLP, again", "all_gather", 2 * layers)
        yield use("input gradients of attention and MLP", "reduce_scatter", 2 * layers)
        yield use("gradient of the embedding's output", "all_gather", 1)
        norms = (2 * layers + 1) * config.hidden_size
        yield use("gradients of the norms, which saw a part of the tokens", "all_reduce", 1, norms)
    else:
        yield use("input gradient of the output layer", "all_reduce", 1)
        yield use("input gradients of attention and MLP", "all_reduce", 2 * layers)
    replicas = config.kv_replicas
    if replicas > 1:
        rows = config.hidden_size + (1 if config.bias else 0)
        weights = rows * 2 * config.local_kv_size
        yield use("gradients of replicated KV heads", "all_reduce", layers, weights, replicas)


@dataclass(frozen=True)
class TimedCollective:
    """A collective of a step with its modeled time.

    Attributes:
        use: What is called, how often, and how many bytes.
        algorithm: What the runtime chose for a message of this size.
        each_ns: Time of one call, from the last rank's arrival to the last rank's end.
    """

    use: CollectiveUse
    algorithm: str
    each_ns: float

    @property
    def step_ns(self) -> float:
        """Time of all calls of a step, one after the other."""
        return self.use.count * self.each_ns

    @property
    def algbw_gbps(self) -> float:
        """Message bytes per nanosecond, which is GB/s (nccl-tests' algbw)."""
        return self.use.message_bytes / self.each_ns if self.each_ns else 0.0


def time_collectives(
    uses: Iterable[CollectiveUse], machine: Any = "ahbm"
) -> tuple[TimedCollective, ...]:
    """Return the modeled time of each collective, run alone on idle links of ``machine``.

    Overlap with compute, and contention, belong to a run of the model itself. Equal messages are
    run once.

    Args:
        uses: As :func:`collectives_per_step` gives them.
        machine: What ``RuntimeContext`` takes.

    Raises:
        KernbenchError: The machine is not known, or has fewer SIPs than there are ranks.
    """
    known: dict[tuple[Any, ...], tuple[str, float]] = {}
    timed = []
    for use in uses:
        key = (use.op, use.num_elements, use.dtype, use.num_ranks, use.num_groups)
        if key not in known:
            known[key] = _run_once(use, machine)
        timed.append(TimedCollective(use, *known[key]))
    return tuple(timed)


def _run_once(use: CollectiveUse, machine: Any) -> tuple[str, float]:
    if use.op != "all_reduce" and use.num_elements % use.num_ranks:
        raise UsageError(
            f"{use.op} of {use.num_elements} elements must be divisible by its "
            f"{use.num_ranks} ranks"
        )
    world_size = use.num_ranks * use.num_groups
    with RuntimeContext(machine=machine, ranks=world_size, data=False) as torch:
        torch.multiprocessing.spawn(_call, args=(torch, use), nprocs=world_size)
        rows = [row for row in torch.report()["collectives"] if row["op"] == use.op]
    (row,) = rows
    return row["algorithm"], row["time_ns"] / row["count"]


def _call(rank: int, torch: RuntimeContext, use: CollectiveUse) -> None:
    torch.ahbm.set_device(rank)
    torch.distributed.init_process_group()
    groups = [
        torch.distributed.new_group(list(range(first, first + use.num_ranks)))
        for first in range(0, use.num_ranks * use.num_groups, use.num_ranks)
    ]
    group = groups[rank // use.num_ranks]
    whole = torch.empty((use.num_elements,), dtype=use.dtype)
    if use.op == "all_reduce":
        torch.distributed.all_reduce(whole, group=group)
        return
    part = torch.empty((use.num_elements // use.num_ranks,), dtype=use.dtype)
    if use.op == "all_gather":
        torch.distributed.all_gather_into_tensor(whole, part, group=group)
    else:
        torch.distributed.reduce_scatter_tensor(part, whole, group=group)
