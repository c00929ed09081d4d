"""Recurrent layers as one operation, as cuDNN runs them; PyTorch composes them for the CPU.

``torch.lstm`` and the like call ``aten::_cudnn_rnn`` for tensors of a device, as in a CUDA build.
Its numbers are computed here, step by step, and its gradients from the same steps once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.modes import DIFFERENTIATING
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.costs import GATES, RecurrentKind
from kernbench.torch_bridge.device.autocast import cast_as_asked
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.of_all import compose, overriding
from kernbench.torch_bridge.processes.registrations import KEYSET
from kernbench.torch_bridge.replaced.of_gpus.recurrent import cells

_MODES = {
    "rnn_relu": RecurrentKind.RELU,
    "rnn_tanh": RecurrentKind.TANH,
    "lstm": RecurrentKind.LSTM,
    "gru": RecurrentKind.GRU,
}


def install(patches: Patches) -> None:
    """Let recurrent layers on devices call the operation, and implement it."""
    with overriding(patches) as library:
        for name, mode in _MODES.items():
            for overload, call in (("input", _of_steps), ("data", _of_packed)):
                before = torch.library.get_kernel(f"aten::{name}.{overload}", "CPU")
                compose(library, f"{name}.{overload}", partial(call, mode, before))
        compose(library, "pad_sequence", _padded)
        cells.install(library)
        for key in ("CPU", "Meta"):
            library.impl("_cudnn_rnn", _forward, key, allow_override=True)
            library.impl("_cudnn_rnn_backward", _backward, key, allow_override=True)


def _composed(
    mode: int, before: Any, is_for_device: bool, tensor: Tensor, batch_sizes: Any, *args: Any
) -> Any:
    """Compose a layer of steps, as PyTorch does without cuDNN: on a device, of its cells."""
    if is_for_device and mode in _OF_CELLS:
        sizes = [] if batch_sizes is None else batch_sizes.tolist()
        return _of_cells(mode, tensor, sizes, *args)
    args = (tensor, *([] if batch_sizes is None else [batch_sizes]), *args)
    if not is_for_device:
        return before.call_boxed(KEYSET, *args)
    # Tensors with data would be given to the host's library, which has a layer as one operation.
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return before.call_boxed(KEYSET, *args)
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _of_steps(mode: int, before: Any, tensor: Tensor, *args: Any) -> Any:
    """``lstm.input`` and the like: all sequences of a batch have one length."""
    return _of_packed(mode, before, tensor, None, *args)


def _of_packed(
    mode: int, before: Any, tensor: Tensor, batch_sizes: Any, hx: Any, params: Any, *how: Any
) -> Any:
    """``lstm.data`` and the like: packed sequences, so many of which have each step."""
    # One of both on the host is a mistake, which the operation finds.
    is_for_device = any(device_of(x).type == DEVICE_TYPE for x in (tensor, *params[:1]))
    if not is_for_device or not torch.backends.cudnn.enabled:
        return _composed(mode, before, is_for_device, tensor, batch_sizes, hx, params, *how)
    if batch_sizes is not None:
        return _call(mode, tensor, batch_sizes.tolist(), hx, params, False, *how)
    *how_else, batch_first = how
    return _call(mode, tensor, [], hx, params, batch_first, *how_else)


def _of_cells(
    mode: int,
    tensor: Tensor,
    batch_sizes: list[int],
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """Return a layer's output and its states at the end, of a device's cells."""
    state, cell = hx if mode == RecurrentKind.LSTM else (hx, None)
    projected = 0 if cell is None or cell.size(2) == state.size(2) else state.size(2)
    network = _Network(
        mode, (state if cell is None else cell).size(2), projected, num_layers, batch_first,
        dropout, train, bidirectional, batch_sizes,
    )  # fmt: skip
    weights = _by_layer(params, 2 + 2 * has_biases + (projected > 0))
    out, state, cell = _run(network, tensor, weights, state, cell, (), apart=True)
    return (out, state) if cell is None else (out, state, cell)


def _call(
    mode: int,
    tensor: Tensor,
    batch_sizes: list[int],
    hx: Any,
    params: Any,
    batch_first: bool,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    state, cell = hx if mode == RecurrentKind.LSTM else (hx, None)
    hidden, projected = state.size(2), 0
    if cell is not None and cell.size(2) != hidden:
        hidden, projected = cell.size(2), hidden
    stride = 2 + 2 * has_biases + (projected > 0)
    tensor, state, *params = cast_as_asked(tensor, state, *params)
    if cell is not None:
        (cell,) = cast_as_asked(cell)
    out, state, cell, *_ = torch._cudnn_rnn(
        tensor, list(params), stride, None, state, cell, mode, hidden, projected, num_layers,
        batch_first, dropout, train, bidirectional, batch_sizes, None,
    )  # fmt: skip
    return (out, state, cell) if mode == RecurrentKind.LSTM else (out, state)


def _padded(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """``pad_sequence``, with the result where the sequences are: C++ would make it on the host."""
    if not sequences:
        raise RuntimeError("received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(
            f"Expected padding_side to be one of left or right, but got {padding_side}."
        )
    longest = max(sequence.size(0) for sequence in sequences)
    first, count = sequences[0], len(sequences)
    sizes = (count, longest) if batch_first else (longest, count)
    result = first.new_full((*sizes, *first.shape[1:]), padding_value)
    for number, item in enumerate(sequences):
        start = longest - item.size(0) if padding_side == "left" else 0
        result.select(0 if batch_first else 1, number).narrow(0, start, item.size(0)).copy_(item)
    return result


@dataclass(frozen=True, slots=True)
class _Network:
    """What a call's numbers say; the arguments of both operations from ``mode`` on, in order."""

    mode: int
    hidden: int
    projected: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: Sequence[int]
    dropout_state: Any = None

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    @property
    def outputs(self) -> int:
        """Features that a layer makes in one direction."""
        return self.projected or self.hidden

    @property
    def drops(self) -> bool:
        return self.train and self.dropout > 0 and self.num_layers > 1

    def steps(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return ``(sequences, features)`` of each step."""
        if self.batch_sizes:
            return tensor.split(list(self.batch_sizes))
        return tensor.unbind(1 if self.batch_first else 0)

    def joined(self, steps: Sequence[Tensor]) -> Tensor:
        """Return a layer's output of all steps."""
        return self.turned(self.stacked(steps))

    def stacked(self, steps: Sequence[Tensor]) -> Tensor:
        """Return all steps, one behind the other."""
        return torch.cat(list(steps)) if self.batch_sizes else torch.stack(list(steps))

    def turned(self, tensor: Tensor) -> Tensor:
        """Return all steps with sequences first, if the program has them so."""
        return tensor.transpose(0, 1) if self.batch_first and not self.batch_sizes else tensor

    def by_steps(self, tensor: Tensor) -> Tensor:
        """Return the same values as they lie when cuDNN has written them."""
        if self.batch_first and not self.batch_sizes:
            return tensor.transpose(0, 1).contiguous().transpose(0, 1)
        return tensor.contiguous()

    def shape_of_output(self, tensor: Tensor) -> tuple[int, ...]:
        return (*tensor.shape[:-1], self.outputs * self.directions)

    def num_reserved(self, tensor: Tensor) -> int:
        """Return the bytes kept for the backward pass: what each gate gave, and the cell."""
        if not self.train:
            return 0
        kept = GATES[self.mode] + (self.mode == RecurrentKind.LSTM)
        elements = math.prod(tensor.shape[:-1]) * self.hidden * self.directions * self.num_layers
        return elements * kept * tensor.element_size()


def _forward(
    tensor: Tensor,
    weight: list[Tensor],
    stride: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    *how: Any,
) -> tuple[Tensor, ...]:
    """``aten::_cudnn_rnn``: output, states at the end, and what the backward pass needs."""
    network = _Network(*how)
    reserve = tensor.new_empty(network.num_reserved(tensor), dtype=torch.uint8)
    empty = tensor.new_empty(0)
    if tensor.is_meta:
        out = network.by_steps(tensor.new_empty(network.shape_of_output(tensor)))
        cell = empty if cx is None else torch.empty_like(cx, memory_format=torch.contiguous_format)
        return out, hx.new_empty(hx.shape), cell, reserve, empty
    masks: list[Tensor] = []
    if network.drops:
        shape = (network.num_layers - 1, *network.shape_of_output(tensor))
        masks = list(torch.empty(shape, dtype=torch.bool).bernoulli_(1 - network.dropout))
        flat = torch.stack(masks).flatten().view(torch.uint8)
        reserve[: flat.numel()] = flat
    out, state, cell = _run(network, tensor, _by_layer(weight, stride), hx, cx, masks)
    return out, state, empty if cell is None else cell, reserve, empty


def _backward(
    tensor: Tensor,
    weight: list[Tensor],
    stride: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    of_output: Tensor | None,
    of_state: Tensor | None,
    of_cell: Tensor | None,
    *how: Any,
) -> tuple[Any, ...]:
    """``aten::_cudnn_rnn_backward``: gradients of the input, the states and the weights."""
    *how_else, reserve, _ = how
    network = _Network(*how_else)
    if not network.train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    operands = [tensor, hx, *([] if cx is None else [cx]), *weight]
    if tensor.is_meta:
        tensors = [torch.empty_like(operand) for operand in operands]
    else:
        masks: list[Tensor] = []
        if network.drops:
            shape = (network.num_layers - 1, *network.shape_of_output(tensor))
            masks = list(reserve[: math.prod(shape)].view(torch.bool).reshape(shape))
        with torch.enable_grad(), torch._C._ForceDispatchKeyGuard(*DIFFERENTIATING):
            leaves = [operand.detach().requires_grad_() for operand in operands]
            there, state, *rest = leaves
            cell, rest = (None, rest) if cx is None else (rest[0], rest[1:])
            triple = _run(network, there, _by_layer(rest, stride), state, cell, masks)
            pairs = [
                (result, outer)
                for result, outer in zip(triple, (of_output, of_state, of_cell), strict=True)
                if result is not None and outer is not None
            ]
            tensors = list(
                torch.autograd.grad(
                    [result for result, _ in pairs],
                    leaves,
                    [outer for _, outer in pairs],
                    allow_unused=True,
                    materialize_grads=True,
                )
            )
    states = 1 if cx is None else 2
    of_cx = None if cx is None else tensors[2]
    return network.by_steps(tensors[0]), tensors[1], of_cx, tensors[1 + states :]


def _by_layer(weight: Sequence[Tensor], stride: int) -> list[Sequence[Tensor]]:
    """Return the parameters of each layer and direction."""
    return [weight[at : at + stride] for at in range(0, len(weight), stride)]


def _run(
    network: _Network,
    tensor: Tensor,
    weights: Sequence[Sequence[Tensor]],
    hx: Tensor,
    cx: Tensor | None,
    masks: Sequence[Tensor],
    apart: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the output and the states at the end; ``apart`` says that steps are a device's cells.

    Those draw what dropout leaves out themselves, in place of ``masks``.
    """
    states, cells = [], []
    for layer in range(network.num_layers):
        result = []
        for direction in range(network.directions):
            at = layer * network.directions + direction
            cell = None if cx is None else cx[at]
            steps, state, cell = _pass(
                network, tensor, weights[at], hx[at], cell, direction == 1, apart
            )
            result.append(steps)
            states.append(state)
            cells.append(cell)
        if len(result) == 1:
            tensor = network.joined(result[0])
        elif apart:
            tensor = network.turned(torch.cat([network.stacked(item) for item in result], -1))
        else:
            tensor = network.joined([torch.cat(pair, -1) for pair in zip(*result, strict=True)])
        if masks and layer < network.num_layers - 1:
            tensor = tensor * masks[layer] / (1 - network.dropout)
        elif apart and network.drops and layer < network.num_layers - 1:
            tensor = torch.dropout(tensor, network.dropout, True)
    return tensor, torch.stack(states), None if cx is None else torch.stack(cells)


def _pass(
    network: _Network,
    tensor: Tensor,
    weight: Sequence[Tensor],
    state: Tensor,
    cell: Tensor | None,
    is_reverse: bool,
    apart: bool,
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Return what a layer makes in one direction, step by step, and its states at the end.

    Of packed sequences the shorter ones end earlier: they are the last of a batch.
    """
    rest = list(weight)
    of_input, of_state = rest[:2]
    biases = rest[2:4] if len(rest) >= 4 else (None, None)
    projection = rest[-1] if network.projected else None
    steps = network.steps(
        tensor if apart else torch.nn.functional.linear(tensor, of_input, biases[0])
    )
    first, result, ended = (state, cell), [], []
    order = range(len(steps) - 1, -1, -1) if is_reverse else range(len(steps))
    count = len(steps[order[0]]) if len(steps) else len(state)
    at = _rows((state, cell), 0, count)
    for number in order:
        size = len(steps[number])
        if size < count:
            ended.append(_rows(at, size, count))
            at = _rows(at, 0, size)
        elif size > count:
            at = _stacked([at, _rows(first, count, size)])
        count = size
        if apart:
            at = _OF_CELLS[network.mode](steps[number], *at, (of_input, of_state), biases)
        else:
            recurrent = torch.nn.functional.linear(at[0], of_state, biases[1])
            at = _STEPS[network.mode](steps[number], recurrent, *at)
        if projection is not None:
            at = (torch.nn.functional.linear(at[0], projection), at[1])
        result.append(at[0])
    state, cell = _stacked([at, *reversed(ended)])
    return result[::-1] if is_reverse else result, state, cell


_States = tuple[Tensor, Tensor | None]


def _rows(states: _States, first: int, end: int) -> _States:
    state, cell = states
    return state[first:end], None if cell is None else cell[first:end]


def _stacked(parts: Sequence[_States]) -> _States:
    if len(parts) == 1:
        return parts[0]
    cells = [cell for _, cell in parts if cell is not None]
    return torch.cat([state for state, _ in parts]), torch.cat(cells) if cells else None


def _lstm_step(of_input: Tensor, of_state: Tensor, state: Tensor, cell: Any) -> _States:
    into, kept, new, shown = (of_input + of_state).chunk(4, -1)
    cell = kept.sigmoid() * cell + into.sigmoid() * new.tanh()
    return shown.sigmoid() * cell.tanh(), cell


def _gru_step(of_input: Tensor, of_state: Tensor, state: Tensor, cell: Any) -> _States:
    value, held = of_input.chunk(3, -1), of_state.chunk(3, -1)
    new = (value[2] + (value[0] + held[0]).sigmoid() * held[2]).tanh()
    return new + (value[1] + held[1]).sigmoid() * (state - new), None


def _plain_step(
    function: Callable[[Tensor], Tensor], of_input: Tensor, of_state: Tensor, *_: Any
) -> _States:
    return function(of_input + of_state), None


_STEPS: dict[int, Callable[..., _States]] = {
    RecurrentKind.RELU: partial(_plain_step, torch.relu),
    RecurrentKind.TANH: partial(_plain_step, torch.tanh),
    RecurrentKind.LSTM: _lstm_step,
    RecurrentKind.GRU: _gru_step,
}


_OF_CELLS: dict[int, Callable[..., _States]] = {
    RecurrentKind.LSTM: cells.lstm_step,
    RecurrentKind.GRU: cells.gru_step,
}
"""The cells for which a GPU has a kernel; steps of others are composed as on the CPU."""
