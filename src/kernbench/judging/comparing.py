"""Whether a result is the reference's: by a float64 reference, its type, and eager's own error."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernbench.judging.tasks import copied, tensors_of, with_tensors
from kernbench.judging.values import begin_random_numbers
from kernbench.torch_bridge import unobserved

_RELATIVE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""What a result may be off, relative to the larger of its element and the results' root mean
square: about eight times the distance of neighbours, for sums in another order."""
_FLOAT8 = 0.15
_REDUCED = 2e-3
"""The same where products of float32 are of TF32, whose numbers have 10 bits behind the point."""
_OF_EAGER = 8
"""How many times the error of the eager reference itself is let pass."""
_PART = 1 << 16
"""How many elements are compared at a time."""


@dataclass
class Expected:
    """What the reference returns for some inputs."""

    forms: tuple[str, str]
    """How its results are built, its numbers by their type and by their value."""
    plain: list[Tensor]
    """Results of the reference as it is, on the host."""
    exact: list[Tensor | None]
    """Its results in float64; None where it does not run so, or results are no floats."""
    inputs: list[Tensor]
    """What the reference left of its inputs."""
    in_inputs: bool
    """Whether a result lies in the memory of an input."""
    is_shared: bool
    """Whether two results lie in one memory."""
    room: frozenset[int] = frozenset()
    """Inputs that are there for results alone, by number."""
    accepts: Callable[[Any], bool] = lambda results: False
    """Whether the task's own check takes results for right."""


@dataclass
class WrongElement:
    """The first element of a result that is wrong."""

    says: str
    result: int
    place: int | None = None
    """Its position in row-major order; None if the whole result is wrong."""


def expect(reference: Callable[..., Any], args: Any) -> Expected:
    """Return what a reference makes of its arguments, which stay as they are."""
    own = copied(args)
    with torch.no_grad():
        begin_random_numbers()  # as before a candidate's recorded call
        returned = reference(*own)
        forms = form_of(returned, has_numbers=False), form_of(returned, has_numbers=True)
        results = ordered_tensors(returned)
        places = [item.untyped_storage().data_ptr() for item in results]
        in_inputs = not {e.untyped_storage().data_ptr() for e in tensors_of(own)}.isdisjoint(places)
        plain = [item.cpu() for item in results]
        inputs = tensors_of(own)
        exact: list[Tensor | None]
        try:
            wide = copy.deepcopy(reference) if isinstance(reference, torch.nn.Module) else reference
            if isinstance(wide, torch.nn.Module):
                wide = wide.double()
            doubles = [
                tensor.double() if tensor.is_floating_point() else tensor.clone()
                for tensor in tensors_of(args)
            ]
            begin_random_numbers()
            tensors = ordered_tensors(wide(*with_tensors(copied(args), doubles)))
            exact = [
                e if e.is_floating_point() and p.is_floating_point() else None
                for e, p in zip(tensors, plain, strict=True)
            ]
        except Exception:
            exact = [None] * len(plain)
    return Expected(forms, plain, exact, inputs, in_inputs, len(set(places)) < len(places))


def ordered_tensors(value: Any) -> list[Tensor]:
    """Return the tensors anywhere inside of a value, those of dictionaries by their keys."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value, key=str)]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in ordered_tensors(part)]
    return tensors_of(value)


def form_of(value: Any, *, has_numbers: bool) -> str:
    """Return how a value is built; tuples are as lists, and keys are in order.

    ``has_numbers``: whether two numbers are told apart.
    """
    if isinstance(value, Tensor):
        return "a tensor" if value.is_cuda else "a tensor of the host"
    form = partial(form_of, has_numbers=has_numbers)
    if isinstance(value, dict):
        parts = [f"{key}: {form(value[key])}" for key in sorted(value, key=str)]
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(form, value))}]"
    if has_numbers and isinstance(value, (bool, int, float)):
        return f"{float(value):.4g}"
    return repr(value) if isinstance(value, str) else type(value).__name__


@unobserved()
def difference(
    value: Any,
    expected: Sequence[Tensor],
    exact: Sequence[Tensor | None],
    tolerance: tuple[float, float] | None,
    *,
    reduced: bool,
) -> WrongElement | None:
    """Return what is wrong, None where all results are right.

    ``reduced``: whether products of float32 may have been of TF32.
    """
    tensors = tensors_of(value)
    if len(tensors) != len(expected):
        return WrongElement(f"it returns {len(tensors)} tensors, the reference {len(expected)}", 0)
    for index, (mine, plain, wide) in enumerate(zip(tensors, expected, exact, strict=True)):
        name = "the result" if len(tensors) == 1 else f"result {index}"
        if mine.shape != plain.shape:
            says = f"{name} has the shape {tuple(mine.shape)}, the reference's {tuple(plain.shape)}"
            return WrongElement(says, index)
        if mine.dtype != plain.dtype:
            says = f"{name} is of {mine.dtype}, the reference's of {plain.dtype}"
            return WrongElement(says, index)
        wrong = _wrong_elements(mine, plain, wide, tolerance, reduced=reduced)
        count = int(wrong.count_nonzero())
        if count:
            first = int(wrong.flatten().to(torch.uint8).argmax())
            place = [int(item) for item in torch.unravel_index(torch.tensor(first), plain.shape)]
            truth = plain if wide is None else wide
            says = (
                f"{name} is wrong at {place}: {mine.flatten()[first].item():.6g} instead of "
                f"{truth.flatten()[first].item():.6g}; {count:,} of {plain.numel():,} elements are"
            )
            return WrongElement(says, index, first)
    return None


def _wrong_elements(
    mine: Tensor,
    plain: Tensor,
    exact: Tensor | None,
    tolerance: tuple[float, float] | None,
    *,
    reduced: bool,
) -> Tensor:
    if not (plain.is_floating_point() or plain.is_complex()):
        return mine != plain
    if plain.is_complex():
        mine, plain = (
            torch.view_as_real(mine.resolve_conj()),
            torch.view_as_real(plain.resolve_conj()),
        )
        wrong_elements = _wrong_elements(mine, plain, None, tolerance, reduced=reduced)
        return wrong_elements.any(-1)
    relative = _RELATIVE.get(plain.dtype, _FLOAT8)
    if reduced and plain.dtype == torch.float32:
        relative = _REDUCED
    squares = own_error = 0.0
    are_finite = []
    for _, theirs, truth in _parts(mine, plain, exact):
        power, error = float(truth.square().sum()), float((theirs - truth).abs().max())
        are_finite.append(math.isfinite(power) and math.isfinite(error))
        if not are_finite[-1]:
            finite = truth.isfinite()
            power = float(truth[finite].square().sum())
            errors = (theirs - truth)[finite & theirs.isfinite()]
            error = float(errors.abs().max()) if len(errors) else 0.0
        squares, own_error = squares + power, max(own_error, error)
    scale = math.sqrt(squares / max(plain.numel(), 1))
    wrong = []
    for is_finite, (own, theirs, truth) in zip(are_finite, _parts(mine, plain, exact), strict=True):
        sizes = truth.abs()
        if not is_finite:
            finite = truth.isfinite()
            sizes = torch.where(finite, sizes, 0.0)
        allowed = relative * sizes.clamp(min=scale)
        if tolerance is not None:
            allowed = torch.maximum(allowed, tolerance[1] + tolerance[0] * sizes)
        off = ~((own - truth).abs() <= allowed + _OF_EAGER * own_error)
        if is_finite:
            wrong.append(off)
            continue
        same = torch.where(truth.isnan(), own.isnan(), own == theirs)
        # Where eager itself has no number, or another one, nothing is asked for.
        wrong.append(torch.where(finite, off, ~same) & (finite == theirs.isfinite()))
    return torch.cat(wrong).view(plain.shape) if wrong else plain.new_zeros(plain.shape).bool()


def _parts(
    mine: Tensor, plain: Tensor, exact: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield parts of three tensors in float64, so small that a processor's cache holds them."""
    flat = [tensor.flatten() for tensor in (mine, plain, plain if exact is None else exact)]
    for at in range(0, plain.numel(), _PART):
        own, theirs, truth = (tensor[at : at + _PART].double() for tensor in flat)
        yield own, theirs, truth


@unobserved()
def is_same(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have the same bits, whatever NaN is."""
    if left.shape != right.shape:
        return False
    if left.dtype.itemsize == 1 and left.is_floating_point():  # which PyTorch does not compare
        left, right = left.float(), right.float()
    return bool(torch.equal(left, right) or torch.equal(left.nan_to_num(), right.nan_to_num()))
