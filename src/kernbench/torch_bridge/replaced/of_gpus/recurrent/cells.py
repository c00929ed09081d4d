"""Cells of LSTM and GRU as a GPU has them: two products, and one kernel for the rest.

``torch.lstm_cell`` and ``torch.gru_cell`` call these kernels for tensors of a device, and so do
layers where a program leaves cuDNN out; for the CPU PyTorch composes them of ten operations.
Source: ``RNN.cpp`` and ``cuda/RNN.cu`` of PyTorch's ``aten/src/ATen/native``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.of_all import compose
from kernbench.torch_bridge.processes.registrations import KEYSET

_aten: Any = torch.ops.aten
_KEPT_BY_GRU = 5
"""Values of each state that a GRU's cell keeps for its gradients."""


def install(library: Any) -> None:
    """Let cells on devices call the kernels, and implement these."""
    for name, step in (("lstm_cell", lstm_step), ("gru_cell", gru_step)):
        before = torch.library.get_kernel(f"aten::{name}", "CPU")
        compose(library, name, partial(_cell, step, before))
    for key in ("CPU", "Meta"):
        for name, kernel in (
            ("_thnn_fused_lstm_cell", _lstm),
            ("_thnn_fused_lstm_cell_backward_impl", _lstm_backward),
            ("_thnn_fused_gru_cell", _gru),
            ("_thnn_fused_gru_cell_backward", _gru_backward),
        ):
            library.impl(name, kernel, key, allow_override=True)


def lstm_step(
    tensor: Tensor, state: Tensor, cell: Any, weights: Sequence[Tensor], biases: Sequence[Any]
) -> tuple[Tensor, Tensor | None]:
    """Return the state and the cell after a step: two products and a kernel."""
    of_input, of_state = tensor @ weights[0].t(), state @ weights[1].t()
    thnn_fused_lstm_cell = _aten._thnn_fused_lstm_cell(of_input, of_state, cell, *biases)
    return thnn_fused_lstm_cell[0], thnn_fused_lstm_cell[1]


def gru_step(
    tensor: Tensor, state: Tensor, cell: Any, weights: Sequence[Tensor], biases: Sequence[Any]
) -> tuple[Tensor, Tensor | None]:
    """Return the state after a step, which has no cell: two products and a kernel."""
    of_input, of_state = tensor @ weights[0].t(), state @ weights[1].t()
    return _aten._thnn_fused_gru_cell(of_input, of_state, state, *biases)[0], None


def _cell(
    step: Callable[..., tuple[Tensor, Tensor | None]],
    before: Any,
    tensor: Tensor,
    hx: Any,
    of_input: Tensor,
    of_state: Tensor,
    input_bias: Tensor | None = None,
    state_bias: Tensor | None = None,
) -> Any:
    """``torch.lstm_cell``, whose ``hx`` is a state and a cell, and ``torch.gru_cell``."""
    if device_of(tensor).type != DEVICE_TYPE:
        return before.call_boxed(KEYSET, tensor, hx, of_input, of_state, input_bias, state_bias)
    is_lstm = step is lstm_step
    if is_lstm and len(hx) != 2:
        raise RuntimeError("lstm_cell expects two hidden states")
    states = (*hx,) if is_lstm else (hx,)
    _check(tensor, states, of_input, of_state)
    pair = step(tensor, states[0], states[-1], (of_input, of_state), (input_bias, state_bias))
    return pair if is_lstm else pair[0]


def _check(tensor: Tensor, hx: Sequence[Tensor], of_input: Tensor, of_state: Tensor) -> None:
    """Refuse what PyTorch refuses, in its words."""
    if tensor.size(1) != of_input.size(1):
        raise RuntimeError(
            f"input has inconsistent input_size: got {tensor.size(1)} expected {of_input.size(1)}"
        )
    for number, state in enumerate(hx):
        if tensor.size(0) != state.size(0):
            raise RuntimeError(
                f"Input batch size {tensor.size(0)} doesn't match hidden{number} batch size "
                f"{state.size(0)}"
            )
        if state.size(1) != of_state.size(1):
            raise RuntimeError(
                f"hidden{number} has inconsistent hidden_size: got {state.size(1)}, expected "
                f"{of_state.size(1)}"
            )


def _wide(tensor: Tensor) -> Tensor:
    """Return numbers as the kernels compute with them."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _gates(of_input: Tensor, of_state: Tensor, biases: Sequence[Tensor | None]) -> list[Tensor]:
    """Return what comes from the input and from the state, biases included, in wide numbers."""
    gates = [_wide(of_input), _wide(of_state)]
    for number, bias in enumerate(biases):
        if bias is not None:
            gates[number] = gates[number] + _wide(bias)
    return gates


def _lstm(
    of_input: Tensor,
    of_state: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    state_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``aten::_thnn_fused_lstm_cell``: state, cell, and what gates gave."""
    if of_input.is_meta:
        return cx.new_empty(cx.shape), cx.new_empty(cx.shape), of_input.new_empty(of_input.shape)
    value, held = _gates(of_input, of_state, (input_bias, state_bias))
    into, kept, new, shown = (value + held).chunk(4, 1)
    into, kept, new, shown = into.sigmoid(), kept.sigmoid(), new.tanh(), shown.sigmoid()
    cell = kept * _wide(cx) + into * new
    state = shown * cell.tanh()
    gates = torch.cat([into, kept, new, shown], 1)
    return state.to(cx.dtype), cell.to(cx.dtype), gates.to(of_input.dtype)


def _lstm_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Any, Any, Any]:
    """``aten::_thnn_fused_lstm_cell_backward_impl``: gradients of gates, of the cell, of biases."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    if workspace.is_meta:
        bias = workspace.new_empty(workspace.shape[1:]) if has_bias else None
        return workspace.new_empty(workspace.shape), cx.new_empty(cx.shape), bias
    into, kept, new, shown = _wide(workspace).chunk(4, 1)
    shining = _wide(cy).tanh()
    of_state = torch.zeros_like(shining) if grad_hy is None else _wide(grad_hy)
    of_cell = of_state * shown * (1 - shining * shining)
    if grad_cy is not None:
        of_cell = of_cell + _wide(grad_cy)
    gates = torch.cat(
        [
            of_cell * new * into * (1 - into),
            of_cell * _wide(cx) * kept * (1 - kept),
            of_cell * into * (1 - new * new),
            of_state * shining * shown * (1 - shown),
        ],
        1,
    ).to(workspace.dtype)
    return gates, (of_cell * kept).to(cx.dtype), gates.sum(0) if has_bias else None


def _gru(
    of_input: Tensor,
    of_state: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    state_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``aten::_thnn_fused_gru_cell``: the state, and what its gradients need."""
    kept_shape = (hx.size(0), _KEPT_BY_GRU * hx.size(1))
    if of_input.is_meta:
        return hx.new_empty(hx.shape), hx.new_empty(kept_shape)
    value, held = (
        gate.chunk(3, 1) for gate in _gates(of_input, of_state, (input_bias, state_bias))
    )
    reset, update = (value[0] + held[0]).sigmoid(), (value[1] + held[1]).sigmoid()
    new = (value[2] + reset * held[2]).tanh()
    before = _wide(hx)
    state = new + update * (before - new)
    kept = torch.cat([reset, update, new, before, held[2]], 1)
    return state.to(hx.dtype), kept.to(hx.dtype)


def _gru_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    """``aten::_thnn_fused_gru_cell_backward``: of gates, of the state, and of biases."""
    rows, hidden = grad_hy.shape
    if workspace.is_meta:
        gates = (workspace.new_empty(rows, 3 * hidden) for _ in range(2))
        shapes = (workspace.new_empty(3 * hidden) if has_bias else None for _ in range(2))
        return (*gates, grad_hy.new_empty(grad_hy.shape), *shapes)
    reset, update, new, before, held = _wide(workspace).chunk(_KEPT_BY_GRU, 1)
    grad = _wide(grad_hy)
    of_update = grad * (before - new) * update * (1 - update)
    of_new = grad * (1 - update) * (1 - new * new)
    of_reset = of_new * held * reset * (1 - reset)
    of_input = torch.cat([of_reset, of_update, of_new], 1).to(workspace.dtype)
    of_state = torch.cat([of_reset, of_update, of_new * reset], 1).to(workspace.dtype)
    biases = (of_input.sum(0), of_state.sum(0)) if has_bias else (None, None)
    return of_input, of_state, (grad * update).to(grad_hy.dtype), *biases
