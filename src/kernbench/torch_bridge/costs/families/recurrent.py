"""The time of recurrent layers, as cuDNN runs them.

The input projection of all steps is one product per layer. Then each step is a product of the
states and one kernel for the rest of it. Backward, a step is that kernel's gradient and a product;
gradients of inputs and of weights are products over all steps.

Steps of all layers and of both directions are one chain: the host launches two kernels for each,
and a narrow step is over before it has launched the next. So two directions take twice as long as
one (KernelBench at dacd881c and 80c03d44, LSTM of 6 layers, 512 steps, batch 10, level3/35 and 38:
1.9 times on H100, 1.8 on A100, 2.0 on L40S, 2.2 on T4), and batch 10 as long as any small one.

Source: Appleyard, Kocisky, Blunsom, "Optimizing Performance of Recurrent Neural Networks on GPUs"
(arXiv 1604.01946); ATen/native/cudnn/RNN.cpp for what PyTorch copies, and when it asks for cuDNN's
persistent kernels, which are not modeled: of 16 bits alone, one layer in one direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from math import prod
from typing import Any, NamedTuple

from torch import Tensor

from kernbench.commands import MathClass
from kernbench.dtypes import DType
from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.costs.by_bytes import timing_by_bytes, vector_ps
from kernbench.torch_bridge.costs.families import gemm
from kernbench.torch_bridge.costs.families.gemm import Multiplication
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.products import PLAIN, RECURRENT, OperandLayout
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.sequences import in_turn, no_sooner, repeated


class RecurrentKind(IntEnum):
    """Kinds of recurrent layers, by cuDNN's numbers."""

    RELU = 0
    TANH = 1
    LSTM = 2
    GRU = 3


GATES: dict[int, int] = {
    RecurrentKind.RELU: 1,
    RecurrentKind.TANH: 1,
    RecurrentKind.LSTM: 4,
    RecurrentKind.GRU: 3,
}
_SIMPLE = 3
"""Sums and products of a gate, about."""
_LAUNCHES = 2
"""Kernels of a step without a projection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """What determines the time of a call."""

    inputs: int
    """Features of the input."""
    hidden: int
    outputs: int
    """Features that a layer makes in one direction: fewer where they are projected."""
    batches: tuple[tuple[int, int], ...]
    """How many steps have how many sequences."""
    gates: int
    has_cell: bool
    num_layers: int
    directions: int
    has_biases: bool
    train: bool
    drops: bool
    copied: tuple[int, ...]
    """Bytes of tensors that PyTorch copies to have their steps apart."""
    size: int
    """Bytes of an element."""

    @property
    def rows(self) -> int:
        """Sequences of all steps together."""
        return sum(steps * batch for batch, steps in self.batches)

    @property
    def of_layers(self) -> Iterator[int]:
        """Yield the features of each layer's input."""
        yield self.inputs
        for _ in range(self.num_layers - 1):
            yield self.outputs * self.directions

    @property
    def chains(self) -> Iterator[tuple[int, int]]:
        """Yield the batch of steps and how many there are one after another."""
        for batch, steps in self.batches:
            yield batch, steps * self.num_layers * self.directions


class _Problem(NamedTuple):
    layers: _Layers
    dtype: DType
    precision: str
    is_backward: bool


def _key(costs: OperationCosts, call: OperationCall) -> _Problem | None:
    """Return what determines the time of a call; None if there is nothing to compute."""
    names = (argument.name for argument in call.func._schema.arguments)
    values = dict(zip(names, call.args, strict=False))
    dtype = kernel_dtype(values["input"].dtype)
    layers = _layers(values)
    if dtype is None or not layers.rows * layers.hidden:
        return None
    precision = costs.input_precision("recurrent", dtype, call.sip_id)
    return _Problem(layers, dtype, precision, "output" in values)


def _kernels(costs: OperationCosts, name: str, problem: _Problem, sip_id: int) -> OperationTiming:
    work = _Work(costs, name, problem, sip_id)
    return reduce(in_turn, work.backward() if problem.is_backward else work.forward())


def _layers(value: dict[str, Any]) -> _Layers:
    x, mode, hidden = value["input"], value["mode"], value["hidden_size"]
    sizes, is_first = value["batch_sizes"], value["batch_first"]
    if sizes:
        batches = tuple(Counter(sizes).items())
    else:
        steps, batch = x.shape[:2] if not is_first else (x.shape[1], x.shape[0])
        batches = ((batch, steps),)
    has_projection = bool(value["proj_size"])
    return _Layers(
        inputs=x.shape[-1],
        hidden=hidden,
        outputs=value["proj_size"] or hidden,
        batches=batches,
        gates=GATES[mode],
        has_cell=mode == RecurrentKind.LSTM,
        num_layers=value["num_layers"],
        directions=1 + value["bidirectional"],
        has_biases=value["weight_stride0"] - has_projection > 2,
        train=value["train"],
        drops=value["train"] and value["dropout"] > 0,
        copied=() if sizes or not is_first else tuple(_copied(value)),
        size=x.element_size(),
    )


def _copied(value: dict[str, Any]) -> Iterator[int]:
    """Yield the bytes of what lies sequence by sequence; backward, for inputs and for weights."""
    for name in ("input",) if "output" not in value else ("input", "grad_output", "input"):
        item = value[name]
        if isinstance(item, Tensor) and not item.transpose(0, 1).is_contiguous():
            yield prod(item.shape) * item.element_size()


class _Work:
    """The kernels of one call."""

    def __init__(self, costs: OperationCosts, name: str, problem: _Problem, sip_id: int) -> None:
        self._costs = costs
        self._sip = costs.machine.sip_at(sip_id)
        self._name = name
        self._layers, self._dtype, self._precision, _ = problem
        self._sip_id = sip_id

    def forward(self) -> Iterator[OperationTiming]:
        """Yield what a forward pass launches."""
        layers = self._layers
        yield from self._copies()
        wide = layers.gates * layers.hidden
        for number, layer in enumerate(layers.of_layers):
            if number and layers.drops:
                rows = layers.rows * layer
                yield self._stream(rows, rows)
            yield self._product(layers.directions, layers.rows, wide, layer, a_shared=True)
        for batch, count in layers.chains:
            yield repeated(self._launched(self._step(batch)), count)

    def backward(self) -> Iterator[OperationTiming]:
        """Yield what the gradients of inputs, and then of weights launch."""
        layers, wide = self._layers, self._layers.gates * self._layers.hidden
        yield from self._copies()
        for batch, count in layers.chains:
            yield repeated(self._launched(self._step_back(batch)), count)
        both = layers.directions * wide
        for number, layer in enumerate(layers.of_layers):
            yield self._product(1, layers.rows, layer, both)
            if number and layers.drops:
                rows = layers.rows * layer
                yield self._stream(rows, rows)
            for inputs in (layer, layers.outputs):
                yield self._product(layers.directions, wide, inputs, layers.rows)
            if layers.outputs != layers.hidden:
                yield self._product(layers.directions, layers.outputs, layers.hidden, layers.rows)
            if layers.has_biases:
                yield self._stream(layers.rows * both, both)

    def _launched(self, step: OperationTiming) -> OperationTiming:
        """Return the time of a step, and no less than the host takes to launch its kernels."""
        launches = _LAUNCHES + (self._layers.outputs != self._layers.hidden)
        return no_sooner(step, launches * self._sip.host_launch_ps)

    def _step(self, batch: int) -> OperationTiming:
        layers = self._layers
        step = self._product(1, batch, layers.gates * layers.hidden, layers.outputs)
        # Reads the gates' parts from input and state; writes states, and gates for the gradients.
        read = 2 * layers.gates + layers.has_cell
        written = 1 + layers.has_cell + (layers.gates if layers.train else 0)
        step = in_turn(step, self._gated(batch, read, written))
        if layers.outputs != layers.hidden:
            step = in_turn(step, self._product(1, batch, layers.outputs, layers.hidden))
        return step

    def _step_back(self, batch: int) -> OperationTiming:
        layers = self._layers
        # Reads what the gates gave, the cell before and after, and gradients of both states.
        read = layers.gates + 2 + 3 * layers.has_cell
        step_back = self._gated(batch, read, layers.gates + layers.has_cell)
        if layers.outputs != layers.hidden:
            projected = self._product(1, batch, layers.hidden, layers.outputs)
            step_back = in_turn(projected, step_back)
        wide = layers.gates * layers.hidden
        return in_turn(step_back, self._product(1, batch, layers.outputs, wide))

    def _copies(self) -> Iterator[OperationTiming]:
        for number in self._layers.copied:
            yield timing_by_bytes(self._name, self._sip, number, number)

    def _product(
        self, batch: int, m: int, n: int, k: int, *, a_shared: bool = False
    ) -> OperationTiming:
        """Return the time of products side by side: of one launch, or of one for each of them.

        One that K can be cut for may be faster by itself.
        """
        layout = OperandLayout(a_shared=a_shared and batch > 1)
        product = self._products(batch, m, n, k, layout)
        if batch > 1:
            alone = repeated(self._products(1, m, n, k, PLAIN), batch)
            product = min(
                product,
                alone,
                key=lambda operation_timing: operation_timing.template(True).duration_ps,
            )
        return product

    def _products(
        self, batch: int, m: int, n: int, k: int, layout: OperandLayout
    ) -> OperationTiming:
        sizes = ((batch, m, n, k),)
        product = Multiplication(sizes, self._dtype, self._dtype, self._precision, layout)
        products = self._costs.once(gemm.kernels, self._name, product, self._sip_id)
        assert products is not None
        return products

    def _stream(self, read: int, written: int) -> OperationTiming:
        size = self._layers.size
        return timing_by_bytes(self._name, self._sip, read * size, written * size)

    def _gated(self, rows: int, read: int, written: int) -> OperationTiming:
        layers = self._layers
        elements = rows * layers.hidden
        functions = layers.gates + layers.has_cell
        work = {MathClass.TRANSCENDENTAL: functions, MathClass.SIMPLE: _SIMPLE * layers.gates}
        return timing_by_bytes(
            self._name,
            self._sip,
            read * elements * layers.size,
            written * elements * layers.size,
            vector_ps(self._sip, work, elements),
            elements={name.value: elements * count for name, count in work.items()},
        )


FAMILY = Family(
    matches=RECURRENT.__contains__, key=_key, kernels=_kernels, cold=lambda call: (call.args[1],)
)
