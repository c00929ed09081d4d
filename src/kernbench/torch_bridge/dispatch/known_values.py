"""Values of tensors that are known even in a run without data (ADR-0098)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.operations import PLAIN, Operation
from kernbench.torch_bridge.dispatch.even_choices import (
    CHOOSES,
    MOST_CHOSEN,
    begin,
    dealt,
    drawn,
    mark,
    place_of,
    tell,
)
from kernbench.torch_bridge.dispatch.operands import leaves, written_tensors
from kernbench.torch_bridge.dispatch.wider_numbers import in_wider_numbers
from kernbench.torch_bridge.placement.call_keys import is_meta
from kernbench.torch_bridge.placement.names import CPU, META, without_modes
from kernbench.torch_bridge.placement.residence import own_set, storage_of
from kernbench.torch_bridge.processes.process import current

MOST_BYTES = 1 << 24
"""The largest memory whose values are kept: counters, lengths, positions, masks of a batch, tables
of requests."""

_MOST_FLOATS = 1 << 14
"""The most floats of a tensor whose values are kept: few programs decide by many, and products of
known ones would be computed here."""

_ZEROS = frozenset({"aten.zeros", "aten.zeros_like", "aten.new_zeros"})


class _Zeros:
    """In the place of values too many to keep: all are 0, until choices are written among them."""

    @staticmethod
    def nbytes() -> int:
        """Return what no memory has, so that these are not taken for values that are kept."""
        return -1


_MANY_ZEROS = _Zeros()
_dispatch_mode = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_INDEX = torch.ops.aten.index.Tensor
_MASKED_SELECT = torch.ops.aten.masked_select.default
_OVERWRITING = frozenset({"aten.fill_", "aten.zero_", "aten.copy_"})
_OR = frozenset({"aten.bitwise_or", "aten.bitwise_or_", "aten.logical_or", "aten.logical_or_"})
_AND = frozenset({"aten.bitwise_and", "aten.bitwise_and_", "aten.logical_and", "aten.logical_and_"})


def values_of(tensor: Tensor) -> Tensor | None:
    """Return a host tensor with a tensor's values; None if they are not known.

    It is a view of the values kept for the storage: writes to one view show in the others.
    """
    if not is_meta(tensor):
        return tensor
    kept = _kept(tensor)
    return None if kept is None else _view(kept, tensor)


def known_storage(storage: Any) -> Any:
    """Return the host storage with a storage's known contents, or None; many zeros are made now."""
    is_lazy = getattr(storage, "_known", None) is _MANY_ZEROS
    if is_lazy and storage.nbytes() <= MOST_BYTES:
        # Pages of zeros take memory once they are written.
        zeros = torch.zeros(storage.nbytes(), dtype=torch.uint8, device=CPU)
        storage._known = zeros.untyped_storage()
    return _kept_whole(storage)


def forget(tensors: Iterable[Tensor]) -> None:
    """Mark the memory of tensors as unknown."""
    for tensor in tensors:
        if type(tensor) in PLAIN and tensor.layout is torch.strided:
            storage = storage_of(tensor)
            if getattr(storage, "_known", None) is not None:
                storage._known = None


def follow(func: Any, operation: Operation, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """Compute the values of ``result = func(*args, **kwargs)``, and of what it writes, if known."""
    if operation.changed:
        _fill_with_zeros(operation, args)
    overwrites = operation.name in _OVERWRITING
    arguments = args[1:] if overwrites else args
    if (
        are_known(arguments)
        and (not kwargs or are_known(kwargs.values()))
        and _is_plain(operation, reads=(args, list(kwargs.values())))
    ):
        _follow_known(func, operation, args, kwargs, result)
        return
    value = _decided(operation, args)
    if operation.changed:
        forget(written_tensors(func, operation, args, kwargs))
    if value is not None:
        with without_modes():
            target = _to_be_known(result)
            if target is not None:
                target.fill_(value)
    elif operation.full_name == CHOOSES and _is_plain(operation):
        with without_modes():
            chosen = dealt(args, result)
            if chosen is not None:
                _keep(result[1], chosen)
                begin(result[1])


def results_of(func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the results of an operation with data-dependent shapes; None if they are not known."""
    if not _is_plain(operation):
        return None
    if not (are_known(args) and are_known(kwargs.values())):
        selects = func is _INDEX or func is _MASKED_SELECT
        return _selected(func, args) if selects and are_known(args[1:]) else None
    tell(args)
    with without_modes():
        result = _on_host(func, args, kwargs)
        if any(leaf.layout is not torch.strided for leaf in leaves(result)):
            # Sparse tensors keep no values.
            return None
        results = _each(torch.empty_like, result, device=META)
        _keep(results, result)
        mark(leaves(results), place_of(args))
    return results


def read(func: Any, args: Any) -> Any:
    """Return what the host reads from device tensors; None if it is not known."""
    if not are_known(args) or _dispatch_mode(_FAKE) is not None:
        return None
    tell(args)
    with without_modes():
        return _on_host(func, args, {})


def with_known_ends(position: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a call's arguments with a tensor at this position replaced by its values, if known."""
    if len(args) <= position or not isinstance(args[position], Tensor):
        return args
    with without_modes():
        values = values_of(args[position])
        ends = None if values is None else values.tolist()
    if ends is None:
        return args
    tell(args[position : position + 1])
    return (*args[:position], ends, *args[position + 1 :])


def follow_collective(
    compute: Callable[[Any, Any], None],
    inputs: Sequence[Sequence[Tensor]],
    outputs: Sequence[Sequence[Tensor]],
) -> None:
    """Apply a collective to its ranks' values, all known; what is too large becomes unknown."""
    value, place = _each(values_of, inputs), place_of(inputs)
    for tensors in outputs:
        _open_pieces(tensors)
    targets = _each(_to_be_known, outputs)
    if None not in (tensor for tensors in targets for tensor in tensors):
        compute(value, targets)
        mark(leaves(outputs), place)
        return
    for tensors in outputs:
        forget(tensors)


def follow_kernel(
    compute: Callable[..., None], value: tuple[Any, ...], written: Sequence[Tensor]
) -> None:
    """Compute what a library's kernel writes if all that it reads is known without data."""
    over = {id(item) for item in written}
    read = [item for item in value if isinstance(item, Tensor) and id(item) not in over]
    place = place_of(read)
    # Replays of a graph find other numbers, but the same choices that are taken to be even.
    changes = place is None and current().capture is not None
    if changes or not is_meta(written[0]) or not are_known(read):
        return
    with without_modes():
        targets = [_to_be_known(item, 8 * MOST_CHOSEN) for item in written]
        if None not in targets:
            compute(*_each(values_of, value))
            mark(written, place)


def deal(scores: Tensor, chosen: Tensor) -> None:
    """Take what a router's kernel chooses by unknown scores for drawn: experts are as likely."""
    if is_meta(chosen):
        with without_modes():
            _keep(chosen, drawn(*chosen.shape, scores.shape[-1]))
            begin(chosen)


def _kept(tensor: Tensor) -> Any:
    """Return the host storage with the known contents of a tensor's memory, or None."""
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
        return None
    kept = _kept_whole(storage_of(tensor))
    return None if kept is None or _is_lazy(tensor) else kept


def _kept_whole(storage: Any) -> Any:
    """Return what is kept for a storage, or None: where its size has changed, that is old."""
    kept = getattr(storage, "_known", None)
    return None if kept is None or kept.nbytes() != storage.nbytes() else kept


def _is_lazy(tensor: Tensor) -> bool:
    """Return whether a view is lazily conjugated or negated."""
    return bool(tensor.is_conj() or tensor.is_neg())


def _view(storage: Any, tensor: Tensor) -> Tensor:
    """Return a host tensor that views a storage as a device tensor views its own."""
    result = torch.empty(0, dtype=tensor.dtype, device=CPU)
    own_set(result, storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return result


def are_known(values: Iterable[Any]) -> bool:
    """Return whether the values of all tensors among nested arguments are known."""
    for value in values:
        kind = type(value)
        if kind is list or kind is tuple:
            if not are_known(value):
                return False
        elif (
            isinstance(value, Tensor)
            and _kept(value) is None
            and (is_meta(value) or kind not in PLAIN)
        ):
            return False
    return True


def _is_plain(operation: Operation, reads: Any = None) -> bool:
    """Return whether an operation is deterministic, and runs when it is called.

    A captured one runs in replays, and is only if it is said to read no tensor.
    """
    return not (
        operation.is_random
        or operation.makes_empty
        or operation.is_custom
        or (current().capture is not None and (reads is None or bool(leaves(reads))))
        or _dispatch_mode(_FAKE) is not None
    )


def _follow_known(
    func: Any, operation: Operation, args: Any, kwargs: dict[str, Any], result: Any
) -> None:
    written = written_tensors(func, operation, args, kwargs)
    place = place_of((args, tuple(kwargs.values())))
    is_small = all(
        _is_small(leaf) or (place is not None and leaf.numel() <= MOST_CHOSEN)
        for leaf in leaves(result)
    )
    with without_modes():
        if is_small and None not in _each(_to_be_known, written):
            try:
                _keep(result, _in_any_numbers(func, operation, args, kwargs))
                mark((*leaves(result), *written), place)
                return
            except NotImplementedError:
                # The host does not have this operation.
                pass
    forget(written)
    if operation.name in _ZEROS and isinstance(result, Tensor) and result.numel() <= MOST_CHOSEN:
        storage_of(result)._known = _MANY_ZEROS


def _fill_with_zeros(operation: Operation, args: Any) -> None:
    """Keep the values of many zeros that choices are about to be written among."""
    for position in operation.changed:
        if position >= len(args) or type(args[position]) not in PLAIN:
            continue
        storage = storage_of(args[position])
        if getattr(storage, "_known", None) is _MANY_ZEROS and place_of(args) is not None:
            storage._known = torch.UntypedStorage(storage.nbytes()).fill_(0)


def _selected(func: Any, args: Any) -> Tensor:
    """Return a tensor of the shape that known masks select from unknown values."""
    value, indices = args
    places: list[Tensor | None] = []
    with without_modes():
        if func is _MASKED_SELECT:
            value, mask = torch.broadcast_tensors(value, torch.empty_like(indices, device=META))
            indices = [torch.broadcast_to(values_of(indices), mask.shape)]
        for item in _each(values_of, indices):
            if item is None or item.dtype not in (torch.bool, torch.uint8):
                places.append(item)
            else:
                places.extend(item.nonzero().unbind(1))
        tensor: Tensor = _INDEX(value, _each(torch.empty_like, places, device=META))
    return tensor


def _decided(operation: Operation, args: Any) -> bool | None:
    """Return the value of all elements of a result if the known operand determines it, or None."""
    name = operation.name
    if (name not in _OR and name not in _AND) or not _is_plain(operation):
        return None
    for arg in args[:2]:
        if isinstance(arg, Tensor) and _kept(arg) is not None:
            with without_modes():
                values = values_of(arg)
                assert values is not None
                if name in _AND and not values.any():
                    return False
                if name in _OR and values.dtype is torch.bool and values.all():
                    return True
    return None


def _is_small(tensor: Tensor, most_bytes: int = MOST_BYTES) -> bool:
    if tensor.layout is not torch.strided or tensor.is_floating_point() or tensor.is_complex():
        return tensor.numel() <= _MOST_FLOATS
    return tensor.nbytes <= most_bytes


def _to_be_known(tensor: Tensor, most_bytes: int = MOST_BYTES) -> Tensor | None:
    """Return a tensor's known values, zeros to write to if there were none; None if too large."""
    if type(tensor) in PLAIN and tensor.layout is torch.strided:
        known_storage(storage_of(tensor))
    be_known = values_of(tensor)
    if be_known is None and _is_small(tensor, most_bytes) and not _is_lazy(tensor):
        storage = storage_of(tensor)
        if tensor.is_contiguous() and storage.nbytes() == tensor.nbytes:
            storage._known = torch.UntypedStorage(storage.nbytes()).fill_(0)
            be_known = _view(storage._known, tensor)
    return be_known


def _open_pieces(tensors: Sequence[Tensor]) -> None:
    """Let pieces of a storage be known, zeros so far, that are all of it."""
    pieces: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() and values_of(tensor) is None and tensor.is_contiguous():
            pieces.setdefault(storage_of(tensor)._cdata, []).append(tensor)
    for of_storage in pieces.values():
        storage = storage_of(of_storage[0])
        is_whole = sum(item.nbytes for item in of_storage) == storage.nbytes()
        if is_whole and len(of_storage) > 1 and storage.nbytes() <= MOST_BYTES:
            storage._known = torch.UntypedStorage(storage.nbytes()).fill_(0)


def _on_host(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    named = {name: _each(values_of, value) for name, value in kwargs.items()}
    if "device" in named:
        named["device"] = CPU
    return func(*_each(values_of, args), **named)


def _in_any_numbers(func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what an operation gives on the host, in wider numbers where it lacks the dtype."""
    try:
        return _on_host(operation.call, args, kwargs)
    except NotImplementedError as error:
        named = {name: _each(values_of, value) for name, value in kwargs.items()}
        return in_wider_numbers(operation, _each(values_of, args), named, error)


def _keep(results: Any, value: Any) -> None:
    """Keep the values of an operation's results."""
    for result, numbers in zip(leaves(results), leaves(value), strict=True):
        if is_meta(result) and _kept(result) is None:
            storage = storage_of(result)
            storage._known = torch.UntypedStorage(storage.nbytes())
            _view(storage._known, result).copy_(numbers)


def _each(do: Callable[..., Any], value: Any, **named: Any) -> Any:
    """Return nested values with each tensor replaced."""
    if isinstance(value, Tensor):
        return do(value, **named)
    if type(value) is list or type(value) is tuple:
        return type(value)([_each(do, item, **named) for item in value])
    return value
