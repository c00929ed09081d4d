"""The time of a rank's training step, from layers run forward and backward on the machine.

As in :mod:`kernbench.plans.passes`, a few layers are run as a user's
program would run them, without data, and all others are assumed to take as long as the last ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kernbench import ops, tp
from kernbench.hardware import Machine
from kernbench.op_log import average_watts
from kernbench.plans.passes import LAYERS, Model, ModelRuns
from kernbench.runtime_api import RuntimeContext


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """Sequences that go forward and backward together, and the tokens of each."""

    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The times of a microbatch and an update on one rank, in microseconds.

    Attributes:
        forward_us: Of a layer.
        backward_us: Of a layer, with its second forward where activations are not kept.
        ends_forward_us: Embedding, last norm, logits and loss.
        ends_backward_us: Their gradients.
        update_us: The optimizer's step for a layer.
        layer_elements: Parameters of a layer on this rank.
        ends_elements: Parameters of the embedding, and of the output where it has its own.
        watts: What a device draws above idle until the update; None where nothing says.
        update_watts: The same of the update.
    """

    forward_us: float
    backward_us: float
    ends_forward_us: float
    ends_backward_us: float
    update_us: float
    layer_elements: int
    ends_elements: int
    watts: float | None = None
    update_watts: float | None = None


class Steps(ModelRuns):
    """Times training steps. Results are cached.

    ``keep_scores`` says that attention stores the matrix of scores, ``recompute`` that layers
    compute their activations again before backward.
    """

    def __init__(
        self, machine: Machine, *, keep_scores: bool = False, recompute: bool = False
    ) -> None:
        super().__init__(machine)
        self.keep_scores = keep_scores
        self.recompute = recompute
        self.time = lru_cache(maxsize=1024)(self._time)

    def _time(self, model: Model, asked: Microbatch) -> StepTime:
        """Return the times of a step's parts, on the slowest path over all ranks."""
        step_times: list[StepTime] = []
        marks: list[int] = []

        def program(rank: int, torch: RuntimeContext) -> None:
            run = _RankLayers(torch, model, asked, self)
            run.step()
            if rank == 0:
                step_times.append(run.measured())
                marks.extend(run.marks_ps)

        ranks = model.config.tp_size
        log = self.run(ranks, program).op_log
        (step,) = step_times
        return replace(
            step,
            watts=average_watts(log, self.machine, ranks, marks[0], marks[-2]),
            update_watts=average_watts(log, self.machine, ranks, marks[-2], marks[-1]),
        )


class _RankLayers:
    """One rank's layers, and the marks between them."""

    def __init__(
        self, torch: RuntimeContext, model: Model, asked: Microbatch, steps: Steps
    ) -> None:
        config = model.config
        self._torch = torch
        self._recompute = steps.recompute
        self._layers = [
            tp.TransformerLayer(
                config,
                tp.TrainingAttention(
                    tp.TransformerLayer.heads(config), asked.sequences,
                    causal=model.causal, keep_scores=steps.keep_scores,
                ),
                norm=model.norm,
            )
            for _ in range(LAYERS)
        ]  # fmt: skip
        sizes: Any = {"dtype": config.dtype, "torch": torch}
        self._embedding = tp.VocabParallelEmbedding(
            config.vocab_size, config.hidden_size,
            sequence_parallel=config.sequence_parallel, **sizes,
        )  # fmt: skip
        self._output = tp.ColumnParallelLinear(
            config.hidden_size, config.vocab_size,
            sequence_parallel=config.sequence_parallel, **sizes,
        )  # fmt: skip
        self._loss = tp.VocabParallelCrossEntropy(torch)
        self._norm = torch.empty((config.hidden_size,), dtype=config.dtype)
        self._ids = torch.empty((asked.sequences * asked.tokens,), dtype="int32")
        self._config = config
        self._elements = sum(
            math.prod(parameter.shape) for parameter in self._layers[0].parameters()
        )
        self._marks: list[Any] = []

    def step(self) -> None:
        """Enqueue a microbatch, forward and backward, and the update of one layer."""
        torch, config = self._torch, self._config
        moments = [torch.empty((self._elements,), dtype="f32") for _ in range(2)]
        weights = torch.empty((self._elements,), dtype="f32")
        grads = torch.empty((self._elements,), dtype=config.dtype)
        torch.ahbm.synchronize()
        self._mark()
        inputs = [self._embedding(self._ids)]
        self._mark()
        for layer in self._layers:
            inputs.append(layer(inputs[-1]))
            self._mark()
        last = inputs[-1]
        logits = self._output(ops.layer_norm(last, self._norm, self._norm))
        loss = self._loss(logits, self._ids)
        self._mark()
        grad = self._output.backward(self._loss.backward(loss))
        grad, _, _ = ops.norm_backward(grad, last, self._norm)
        self._mark()
        for layer, x in zip(reversed(self._layers), reversed(inputs[:-1]), strict=True):
            if self._recompute:
                layer(x)
            grad = layer.backward(grad)
            self._mark()
        self._embedding.backward(grad)
        self._mark()
        ops.adamw_(weights, grads, *moments, step=1)
        self._mark()
        torch.ahbm.synchronize()

    def measured(self) -> StepTime:
        """Return the times between the marks; a layer's are those of the last of each kind."""
        between = [
            before.elapsed_time(after) * 1e3
            for before, after in zip(self._marks, self._marks[1:], strict=False)
        ]
        table = math.prod(self._embedding.weight.shape)
        return StepTime(
            forward_us=between[LAYERS],
            backward_us=between[2 * LAYERS + 2],
            ends_forward_us=between[0] + between[LAYERS + 1],
            ends_backward_us=between[LAYERS + 2] + between[2 * LAYERS + 3],
            update_us=between[2 * LAYERS + 4],
            layer_elements=self._elements,
            ends_elements=table if self._config.tied_embeddings else 2 * table,
        )

    @property
    def marks_ps(self) -> list[int]:
        """When the marks were passed."""
        return [mark.handle.end_ps for mark in self._marks]

    def _mark(self) -> None:
        self._marks.append(self._torch.ahbm.current_stream().record_event())
