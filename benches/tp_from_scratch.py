"""Train a tensor-parallel MLP with every collective and every gradient written by hand.

Each layer is num_dim -> num_dim with its weight split by columns. Forward, a rank computes its
part of the features and all parts are gathered; backward, the gradient of a layer's input is the
sum of what the ranks' columns say about it. Gradients and AdamW are spelled out below on the
Triton kernels of kernbench.ops, and the run ends by checking them: against one rank in float64
(the same step in numpy), and that against central differences of the loss.

    x_0 = data;  z_l = x_l @ W_l;  x_{l+1} = gelu(z_l);  loss = mean(x_L ** 2)

The derivative of gelu is taken at z_l, before the activation, which is why z_l is kept.

Shapes: B batch_size, D num_dim, L num_dim / ranks (this rank's features).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench import ops
from kernbench.errors import CheckFailedError, UsageError
from kernbench.runtime_api import RuntimeContext, Tensor
from kernbench.tp.sharding import column_parallel, extract, shard_range

Array = npt.NDArray[np.float64]

# torch.optim.AdamW's defaults.
LEARNING_RATE = 1e-3
BETAS = (0.9, 0.999)
EPSILON = 1e-8
WEIGHT_DECAY = 0.01

RANKS = 2


def run(
    torch: RuntimeContext,
    batch_size: int = 2,
    num_dim: int = 32,
    num_layers: int = 4,
    steps: int = 3,
    seed: int = 0,
) -> None:
    """Train for ``steps`` steps on all ranks, print the losses, and check every number."""
    for name, value in (("batch_size", batch_size), ("num_layers", num_layers), ("steps", steps)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, but got {value}")
    shard_range(num_dim, torch.world_size, 0, "num_dim")
    data, weights = make_problem(batch_size, num_dim, num_layers, seed)
    trained: list[Trained | None] = [None] * torch.world_size
    torch.multiprocessing.spawn(
        train, args=(torch, data, weights, steps, trained), nprocs=torch.world_size
    )
    ranks = [rank for rank in trained if rank is not None]
    if ranks:
        check(data, weights, ranks)
        for number, step in enumerate(ranks[0].steps, start=1):
            print(f"step {number}: loss {step.loss:.6f}")


def make_problem(
    batch_size: int, num_dim: int, num_layers: int, seed: int
) -> tuple[Array, list[Array]]:
    """Return the data and the full initial weights, which float32 holds exactly."""
    random = np.random.default_rng(seed)
    data = random.standard_normal((batch_size, num_dim))
    scale = (2.0 / num_dim) ** 0.5
    weights = [scale * random.standard_normal((num_dim, num_dim)) for _ in range(num_layers)]
    return _to_f32(data), [_to_f32(weight) for weight in weights]


def _to_f32(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)


# --- the program: one rank -----------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What a rank has after a training step; its weights are changed by the next."""

    loss: Any
    activations: list[Any]
    gradients: list[Any]

    def to_numpy(self) -> Step:
        """Return the same on the host, in float64."""
        return Step(self.loss.item(), to_numpy(self.activations), to_numpy(self.gradients))


@dataclass(frozen=True)
class Trained:
    """What a rank has after training, on the host."""

    steps: list[Step]
    weights: list[Array]


def train(
    rank: int,
    torch: RuntimeContext,
    data: Array,
    full_weights: list[Array],
    num_steps: int,
    trained: list[Trained | None],
) -> None:
    torch.ahbm.set_device(rank)
    torch.distributed.init_process_group()
    width = len(full_weights[0])
    spec = column_parallel(width, width, torch.world_size)
    x_BD = torch.from_numpy(data.astype(np.float32))
    weights_DL = [
        torch.from_numpy(extract(full, spec, rank).astype(np.float32)) for full in full_weights
    ]
    moments_DL = [
        (torch.zeros(spec.local_shape(), dtype="f32"), torch.zeros(spec.local_shape(), dtype="f32"))
        for _ in weights_DL
    ]
    steps = []
    for number in range(1, num_steps + 1):
        inputs_BD, before_gelu_BL, output_BD = forward(torch, x_BD, weights_DL)
        loss = ops.mean(output_BD * output_BD)
        grads_DL = backward(torch, rank, weights_DL, inputs_BD, before_gelu_BL, output_BD)
        for weight, grad, (first, second) in zip(weights_DL, grads_DL, moments_DL, strict=True):
            ops.adamw_(
                weight,
                grad,
                first,
                second,
                step=number,
                lr=LEARNING_RATE,
                betas=BETAS,
                eps=EPSILON,
                weight_decay=WEIGHT_DECAY,
            )
        steps.append(Step(loss, [*inputs_BD[1:], output_BD], grads_DL))
    if torch.has_data:
        # Read behind the last step: the timeline of training is the same with and without data.
        trained[rank] = Trained([step.to_numpy() for step in steps], to_numpy(weights_DL))
    torch.distributed.destroy_process_group()


def forward(
    torch: RuntimeContext, x_BD: Tensor, weights_DL: list[Tensor]
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return each layer's input, each layer's z, and the output of the last."""
    inputs, before_gelu = [], []
    for weight_DL in weights_DL:
        z_BL = ops.matmul(x_BD, weight_DL)
        inputs.append(x_BD)
        before_gelu.append(z_BL)
        y_BL = ops.gelu(z_BL)
        parts = [torch.empty(y_BL.shape, dtype="f32") for _ in range(torch.world_size)]
        torch.distributed.all_gather(parts, y_BL)
        x_BD = torch.cat(parts, dim=1)
    return inputs, before_gelu, x_BD


def backward(
    torch: RuntimeContext,
    rank: int,
    weights_DL: list[Tensor],
    inputs_BD: list[Tensor],
    before_gelu_BL: list[Tensor],
    output_BD: Tensor,
) -> list[Tensor]:
    """Return the gradient of the loss for each of this rank's weights."""
    mine = shard_range(output_BD.shape[1], torch.world_size, rank).slice
    grad_BD = output_BD * (2.0 / output_BD.numel())
    grads = []
    for layer in reversed(range(len(weights_DL))):
        grad_z_BL = ops.gelu_backward(grad_BD[:, mine].contiguous(), before_gelu_BL[layer])
        grads.append(ops.matmul(inputs_BD[layer].T, grad_z_BL))
        if layer:
            # Every rank's columns used all of the input: the parts of its gradient add up.
            grad_BD = ops.matmul(grad_z_BL, weights_DL[layer].T)
            torch.distributed.all_reduce(grad_BD)
    return grads[::-1]


def to_numpy(tensors: list[Tensor]) -> list[Array]:
    return [tensor.numpy().astype(np.float64) for tensor in tensors]


# --- the reference: one rank, float64 ------------------------------------------------------


def reference_forward(data: Array, weights: list[Array]) -> tuple[list[Array], list[Array]]:
    """Return the layers' inputs with the output behind them, and every z."""
    xs, zs = [data], []
    for weight in weights:
        zs.append(xs[-1] @ weight)
        xs.append(gelu(zs[-1]))
    return xs, zs


def reference_loss(data: Array, weights: list[Array]) -> float:
    xs, _ = reference_forward(data, weights)
    return float(np.mean(xs[-1] ** 2))


def reference_gradients(data: Array, weights: list[Array]) -> list[Array]:
    xs, zs = reference_forward(data, weights)
    grad = xs[-1] * (2.0 / xs[-1].size)
    grads = []
    for weight, x, z in zip(weights[::-1], xs[-2::-1], zs[::-1], strict=True):
        grad_z = grad * gelu_slope(z)
        grads.append(x.T @ grad_z)
        grad = grad_z @ weight.T
    return grads[::-1]


def gelu(z: Array) -> Array:
    return 0.5 * z * (1.0 + np.tanh(_inner(z)))


def gelu_slope(z: Array) -> Array:
    """Return gelu's derivative at ``z``, its argument."""
    tanh = np.tanh(_inner(z))
    inner_slope = (2.0 / np.pi) ** 0.5 * (1.0 + 3 * 0.044715 * z**2)
    return 0.5 * (1.0 + tanh) + 0.5 * z * (1.0 - tanh**2) * inner_slope


def _inner(z: Array) -> Array:
    return (2.0 / np.pi) ** 0.5 * (z + 0.044715 * z**3)


class ReferenceAdamW:
    """Decoupled weight decay as in torch.optim.AdamW, on one rank."""

    def __init__(self, weights: list[Array]) -> None:
        self.weights = [weight.copy() for weight in weights]
        self.first = [np.zeros_like(weight) for weight in weights]
        self.second = [np.zeros_like(weight) for weight in weights]
        self.steps = 0

    def update(self, grads: list[Array]) -> None:
        self.steps += 1
        beta1, beta2 = BETAS
        for index, grad in enumerate(grads):
            self.first[index] = beta1 * self.first[index] + (1 - beta1) * grad
            self.second[index] = beta2 * self.second[index] + (1 - beta2) * grad**2
            first = self.first[index] / (1 - beta1**self.steps)
            second = self.second[index] / (1 - beta2**self.steps)
            self.weights[index] *= 1 - LEARNING_RATE * WEIGHT_DECAY
            self.weights[index] -= LEARNING_RATE * first / (np.sqrt(second) + EPSILON)


# --- the check -----------------------------------------------------------------------------

F32_EPSILON = float(np.finfo(np.float32).eps)


def check(data: Array, weights: list[Array], ranks: list[Trained]) -> None:
    """Compare every step of every rank, and the weights at the end, with one rank in float64.

    The reference optimizer takes the gradients that the ranks computed, so each comparison sees
    the rounding of its own step only: Adam divides by the gradient's size and would blow up the
    rounding of a gradient that is almost zero.

    Raises:
        CheckFailedError: Says what differs, where, and by how much.
    """
    depth, width = len(weights), len(weights[0])
    optimizer = ReferenceAdamW(weights)
    # Roundings in a chain of dot products of `width` terms, one per layer, forward and backward.
    rounding = 4 * F32_EPSILON * width * depth
    num_steps = len(ranks[0].steps)
    for index in range(num_steps):
        where = f"step {index + 1}"
        wanted = reference_gradients(data, optimizer.weights)
        check_gradients(data, optimizer.weights, wanted, where)
        outputs = reference_forward(data, optimizer.weights)[0][1:]
        steps = [rank.steps[index] for rank in ranks]
        for rank, step in enumerate(steps):
            at = f"{where}, rank {rank}"
            compare(f"{at}: loss", step.loss, float(np.mean(outputs[-1] ** 2)), rounding)
            for layer, activation in enumerate(step.activations):
                compare(f"{at}: activation of layer {layer}", activation, outputs[layer], rounding)
                if not np.array_equal(activation, steps[0].activations[layer]):
                    raise CheckFailedError(
                        f"{at}: activation of layer {layer} has other bits than on rank 0"
                    )
        grads = [join_columns(step.gradients[layer] for step in steps) for layer in range(depth)]
        for layer, grad in enumerate(grads):
            compare(f"{where}: gradient of layer {layer}", grad, wanted[layer], rounding)
        optimizer.update(grads)
    for layer, weight in enumerate(optimizer.weights):
        activation = join_columns(rank.weights[layer] for rank in ranks)
        # A handful of roundings per update, of numbers no larger than the weight or the step.
        tolerance = 8 * F32_EPSILON * num_steps
        compare(f"weight of layer {layer} after the last update", activation, weight, tolerance)


def join_columns(shards: Iterable[Array]) -> Array:
    return np.concatenate(list(shards), axis=1)


def check_gradients(
    data: Array, weights: list[Array], grads: list[Array], where: str, size: float = 1e-5
) -> None:
    """Compare gradients with central differences of the loss along random directions.

    Raises:
        CheckFailedError: The slope along a direction differs.
    """
    random = np.random.default_rng(0)
    for layer, weight in enumerate(weights):
        for _ in range(3):
            direction = random.standard_normal(weight.shape)
            around = [
                reference_loss(data, [*weights[:layer], moved, *weights[layer + 1 :]])
                for moved in (weight + size * direction, weight - size * direction)
            ]
            slope = (around[0] - around[1]) / (2 * size)
            scale = float(np.linalg.norm(grads[layer]) * np.linalg.norm(direction))
            error = abs(float(np.sum(grads[layer] * direction)) - slope)
            if not error <= 1e-6 * scale:
                raise CheckFailedError(
                    f"{where}: gradient of layer {layer} differs from central differences by "
                    f"{error:.3g} along a direction where its size is {scale:.3g}"
                )


def compare(what: str, number: Array | float, wanted: Array | float, tolerance: float) -> None:
    """Require ``found`` to be ``wanted`` up to ``tolerance`` of its largest element."""
    scale = float(np.max(np.abs(wanted)))
    error = float(np.max(np.abs(number - wanted)))
    # Written so that a NaN fails.
    if not error <= tolerance * scale:
        raise CheckFailedError(
            f"{what} differs from one rank in float64 by {error:.3g}, "
            f"but may by {tolerance * scale:.3g} (largest element {scale:.3g})"
        )
