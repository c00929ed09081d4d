"""Functions that make tensors, by torch's names: methods of :class:`RuntimeContext`.

Every factory takes ``dtype=``, ``device=``, ``dp=`` (a DPPolicy) and ``name=``.

The bytes of a new tensor are written at once, since no command can refer to them yet; what that
costs on the device is a command on its stream: a fill over HBM, or a copy over the host link where
the elements come from the host. ``empty`` costs nothing and holds zeros (with ``check``, poison:
bytes of 255, NaN in every float type).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.dtypes import Array, DType, as_dtype, bool_, float32, int64
from kernbench.errors import UsageError
from kernbench.policy import DPPolicy
from kernbench.runtime_api.base.transfers import Fill, HostToDevice
from kernbench.runtime_api.memory.storage import MOST_ELEMENTS, as_elements
from kernbench.runtime_api.memory.views import Ints, as_shape
from kernbench.runtime_api.tensors.tensor import Tensor, allocate

if TYPE_CHECKING:
    from kernbench.runtime_api.front.context import RuntimeContext


def empty(context: RuntimeContext, *size: Any, **options: Any) -> Tensor:
    """Return a tensor without writing it: zeros, or poison under the sanitizer."""
    tensor = _allocate(context, as_shape(size), float32, **options)
    if context.run.sanitizer is not None and context.run.has_data:
        tensor.buffer.poison()
    return tensor


def unwritten(
    context: RuntimeContext,
    shape: Ints,
    dtype: DType,
    name: str,
    values: Sequence[int] | None = None,
) -> Tensor:
    """Return a tensor of zeros or ``values``, made without a command."""
    tensor = _allocate(context, shape, dtype, name=name)
    if values is not None:
        _set(tensor, np.array(values))
    return tensor


def zeros(context: RuntimeContext, *size: Any, **options: Any) -> Tensor:
    """Return a tensor of zeros."""
    return _filled(_allocate(context, as_shape(size), float32, **options), None)


def ones(context: RuntimeContext, *size: Any, **options: Any) -> Tensor:
    """Return a tensor of ones."""
    return _filled(_allocate(context, as_shape(size), float32, **options), 1)


def full(context: RuntimeContext, size: Any, fill_value: Any, **options: Any) -> Tensor:
    """Return a tensor whose elements are all ``fill_value``."""
    default = float32
    if isinstance(fill_value, bool):
        default = bool_
    elif isinstance(fill_value, int):
        default = int64
    return _filled(_allocate(context, as_shape((size,)), default, **options), fill_value)


def empty_like(context: RuntimeContext, other: Tensor, **options: Any) -> Tensor:
    """Return an unwritten tensor with the shape, dtype, device and placement of another."""
    return empty(context, other.shape, **_like(other, options))


def zeros_like(context: RuntimeContext, other: Tensor, **options: Any) -> Tensor:
    """Return zeros with the shape, dtype, device and placement of another tensor."""
    return zeros(context, other.shape, **_like(other, options))


def ones_like(context: RuntimeContext, other: Tensor, **options: Any) -> Tensor:
    """Return ones with the shape, dtype, device and placement of another tensor."""
    return ones(context, other.shape, **_like(other, options))


def full_like(context: RuntimeContext, other: Tensor, fill_value: Any, **options: Any) -> Tensor:
    """Return ``full`` with the shape, dtype, device and placement of another tensor."""
    return full(context, other.shape, fill_value, **_like(other, options))


def arange(
    context: RuntimeContext, start: Any, end: Any = None, step: Any = 1, **options: Any
) -> Tensor:
    """Return the numbers from ``start`` (0 if only one is given) up to ``end``, exclusive."""
    if end is None:
        start, end = 0, start
    if step == 0:
        raise UsageError("arange: step must not be 0")
    count = max(0, math.ceil((end - start) / step))
    integers = all(isinstance(item, (int, np.integer)) for item in (start, end, step))
    tensor = _allocate(context, (count,), int64 if integers else float32, **options)
    return _filled(tensor, start + step * np.arange(count))


def linspace(
    context: RuntimeContext, start: float, end: float, steps: int, **options: Any
) -> Tensor:
    """Return ``steps`` numbers from ``start`` to ``end``, both inclusive, evenly apart."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise UsageError(f"linspace: steps must be 0 or more, but got {steps!r}")
    return _filled(_allocate(context, (steps,), float32, **options), np.linspace(start, end, steps))


def eye(context: RuntimeContext, n: int, m: int | None = None, **options: Any) -> Tensor:
    """Return a matrix of ``n`` rows with ones on its diagonal; square unless ``m`` is given."""
    tensor = _allocate(context, as_shape((n, n if m is None else m)), float32, **options)
    return _filled(tensor, np.eye(tensor.shape[0], tensor.shape[1]))


def rand(context: RuntimeContext, *size: Any, **options: Any) -> Tensor:
    """Return numbers drawn uniformly from [0, 1); see :func:`manual_seed`."""
    tensor = _allocate(context, as_shape(size), float32, **options)
    _check_real("rand", tensor)
    return _random(tensor, lambda generator: generator.random(tensor.shape, np.float32))


def randn(context: RuntimeContext, *size: Any, **options: Any) -> Tensor:
    """Return numbers drawn from the standard normal distribution; see :func:`manual_seed`."""
    tensor = _allocate(context, as_shape(size), float32, **options)
    _check_real("randn", tensor)
    return _random(tensor, lambda generator: generator.standard_normal(tensor.shape, np.float32))


def randint(
    context: RuntimeContext, low: int, high: Any = None, size: Any = None, **options: Any
) -> Tensor:
    """Return integers drawn uniformly from [low, high), or from [0, low) if high is a shape."""
    if size is None:
        low, high, size = 0, low, high
    if high <= low:
        raise UsageError(f"randint: high must be above low, but got {low} and {high}")
    tensor = _allocate(context, as_shape((size,)), int64, **options)
    return _random(tensor, lambda generator: generator.integers(low, high, tensor.shape))


def manual_seed(context: RuntimeContext, seed: int) -> None:
    """Restart the random numbers of the calling rank.

    They depend on the seed, the rank and how many tensors it has drawn, on nothing else.
    """
    context.run.rank_state.seed = seed
    context.run.rank_state.random_calls = 0


def tensor(context: RuntimeContext, values: Any, **options: Any) -> Tensor:
    """Return a tensor of numbers or nested lists; float64 becomes float32, as in torch."""
    if isinstance(values, Tensor):
        return values.clone()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UsageError(f"tensor: {error}") from None
    if array.dtype == np.float64 and not isinstance(values, (np.ndarray, np.generic)):
        array = array.astype(np.float32)
    return from_numpy(context, array, **options)


def from_numpy(context: RuntimeContext, array: Array, **options: Any) -> Tensor:
    """Return a tensor with the elements of a numpy array, copied over the host link.

    Raises:
        UsageError: It is no array, or its elements are no numbers.
    """
    if not isinstance(array, (np.ndarray, np.generic)):
        raise UsageError(
            f"from_numpy takes a numpy array, but got {type(array).__name__}; use tensor()"
        )
    if array.dtype.kind in "OSUcMm":
        raise UsageError(f"tensors hold real numbers, but got an array of {array.dtype}")
    tensor = _allocate(context, array.shape, as_dtype(array.dtype), **options)
    _set(tensor, array)
    context.run.submit(HostToDevice(context.run, tensor.buffer, tensor.nbytes), writes=tensor)
    _know(tensor, array)
    return tensor


def cat(context: RuntimeContext, tensors: Any, dim: int = 0, **options: Any) -> Tensor:
    """Return tensors concatenated along ``dim``; their other sizes are equal."""
    parts = tuple(tensors)
    if not parts:
        raise UsageError("cat needs at least one tensor")
    first: Tensor = parts[0]
    at = dim % max(first.ndim, 1)
    for part in parts:
        if part.shape[:at] + part.shape[at + 1 :] != first.shape[:at] + first.shape[at + 1 :]:
            raise UsageError(
                f"cat along dim {at}: shapes {first.shape} and {part.shape} do not match"
            )
    shape = (*first.shape[:at], sum(part.shape[at] for part in parts), *first.shape[at + 1 :])
    result = empty(context, shape, **_like(first, options))
    start = 0
    for part in parts:
        result.narrow(at, start, part.shape[at]).copy_(part)
        start += part.shape[at]
    return result


def stack(context: RuntimeContext, tensors: Any, dim: int = 0, **options: Any) -> Tensor:
    """Return tensors of one shape as the entries of a new ``dim``."""
    parts = tuple(tensors)
    for part in parts:
        if part.shape != parts[0].shape:
            raise UsageError(f"stack needs equal shapes, but got {parts[0].shape} and {part.shape}")
    return cat(context, [part.unsqueeze(dim) for part in parts], dim, **options)


def _allocate(
    context: RuntimeContext,
    shape: Ints,
    default: DType,
    dtype: Any = None,
    dp: DPPolicy | None = None,
    name: str | None = None,
    device: Any = None,
) -> Tensor:
    element = default if dtype is None else as_dtype(dtype)
    return allocate(context, shape, element, dp, name, device)


def _filled(tensor: Tensor, values: Any, *, is_random: bool = False) -> Tensor:
    if values is not None:
        _set(tensor, values)
    if tensor.nbytes:
        run = tensor.context.run
        run.submit(Fill(run, tensor.buffer, tensor.nbytes), writes=tensor)
    if not is_random:
        _know(tensor, 0 if values is None else values)
    return tensor


def _random(tensor: Tensor, draw: Any) -> Tensor:
    run = tensor.context.run
    state = run.rank_state
    state.random_calls += 1
    seed = run.seed if state.seed is None else state.seed
    if run.has_data:
        _set(tensor, draw(_generator(seed, state.rank, state.random_calls)))
    return _filled(tensor, None, is_random=True)


def _set(tensor: Tensor, values: Any) -> None:
    """Write a fresh tensor's bytes; no command can refer to them yet."""
    if tensor.context.run.has_data:
        tensor.buffer.adopt(as_elements(np.broadcast_to(values, tensor.shape), tensor.dtype))


def _know(tensor: Tensor, values: Any) -> None:
    """Keep the numbers of a fresh tensor as known, in a run without data."""
    if not tensor.context.run.has_data and tensor.numel() <= MOST_ELEMENTS:
        elements = as_elements(np.broadcast_to(values, tensor.shape), tensor.dtype)
        tensor.buffer.know(elements, tensor.buffer.last_writer)


def _generator(seed: int, rank: int, call: int) -> np.random.Generator:
    """Return the generator of one call of ``rand`` and the like, whatever the order of ranks.

    >>> float(_generator(0, 1, 1).random()) == float(_generator(0, 1, 1).random())
    True
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((abs(seed), rank, call))))


def _check_real(what: str, tensor: Tensor) -> None:
    if not tensor.dtype.is_floating_point:
        raise UsageError(f"{what} draws real numbers, not {tensor.dtype}; use randint for integers")


def _like(other: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": other.dtype, "device": other.device, "dp": other.dp, **options}
