"""DTensor's sharding rules, computed once for all ranks (ADR-0098).

A real rank computes how an operation is sharded once, in milliseconds. Here all ranks would do that
one after another: one does, and the hosts of all take the time of its calls. For lists of all
parameters PyTorch takes time that grows with the square of their number, which is left out.
A rule that was found for one rank is another's with its own mesh in it. Each rank
asks for itself where the answer may be its own: placements that keep data of a rank, and shapes of
shards that are not all equal. A rule that a program registers anew is asked again; one that is to
differ between ranks with equal shards is one rank's rule on all, for which PyTorch asks nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from operator import is_
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import ref

import torch.distributed.tensor._redistribute as redistribute
import torch.distributed.tensor._sharding_prop as sharding
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.distributed.tensor.placement_types import _StridedShard

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import (
    Shared,
    in_cxx,
    once_for_all,
    owe_shared,
    unseen,
)
from kernbench.torch_bridge.processes.compiling import COMPILING

# Others may hold data of the rank that made them.
_STATELESS = frozenset({Shard, Replicate, Partial, _StridedShard, _NormPartial})
_MOST_KEPT = 4096
_propagate_flag = sharding._propagate_use_strided_shard_flag


def install(patches: Patches) -> None:
    """Replace the slow parts."""
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    # C++ caches rules, and calls this on a miss.
    name = "propagate_op_sharding_non_cached"
    patches.set(propagator, name, SharedRules(propagator))
    patches.set(sharding, "_propagate_use_strided_shard_flag", _FlagOnce())
    # How often C++'s cache compares depends on the hash of a mesh, which has an address in it.
    patches.set(DTensorSpec, "__eq__", unseen(_equal_and_own(DTensorSpec.__eq__)))
    patches.set(DTensorSpec, "_hash_impl", _also_by_place(DTensorSpec._hash_impl))
    name = "_gen_transform_infos_non_cached"
    patches.set(redistribute, name, _with_own_planner(getattr(redistribute, name)))


def _place(spec: Any) -> tuple[int, ...] | None:
    """Return the rank's place in the mesh, if shards may differ: here, or on the way to others."""
    shape, count = spec.tensor_meta.shape if spec.tensor_meta is not None else (), spec.mesh.size()
    dims = {item.dim for item in spec.placements if isinstance(item, (Shard, _StridedShard))}
    sizes = [shape[dim] for dim in dims if dim < len(shape)]
    if all(type(size) is not int or size % count == 0 for size in sizes):
        return None
    return tuple(spec.mesh.get_coordinate() or ())


def _equal_and_own(equal: Callable[..., bool]) -> Callable[..., bool]:
    """Return how specs compare: PyTorch keeps by them what has the shapes of a rank's shards.

    A real process keeps its own.
    """
    return lambda self, other: (
        equal(self, other) and (self.mesh is other.mesh or _place(self) == _place(other))
    )


def _also_by_place(hash_of: Callable[..., int]) -> Callable[..., int]:
    @wraps(hash_of)
    def call(self: Any) -> int:
        place = in_cxx(_place, self)
        return hash((hash_of(self), place))

    return call


def _with_own_planner(plan: Callable[..., Any]) -> Callable[..., Any]:
    """Return what plans moves of shards, whose planner is kept by a mesh that equals others'."""

    def forget(source: Any, target: Any) -> None:
        if _place(source) is not None or _place(target) is not None:
            redistribute._planner_cache.pop((ref(source.mesh), source.tensor_meta), None)

    @wraps(plan)
    def call(source: Any, target: Any, *options: Any) -> Any:
        in_cxx(forget, source, target)
        return plan(source, target, *options)

    return call


class _FlagOnce:
    """Computes a flag of strided shards once, which the original computes again for each tensor."""

    def __init__(self) -> None:
        self._schema: Any = None
        self._strided = SimpleNamespace(args_spec=())

    def __call__(self, strategy: Any, schema: Any) -> None:
        if self._schema is not schema:
            self._schema = schema
            # One flag of each value decides as much as all.
            specs = {
                spec.use_strided_shard_as_shard_order: spec
                for spec in schema.args_spec
                if any(isinstance(placement, _StridedShard) for placement in spec.placements)
            }
            self._strided = SimpleNamespace(args_spec=tuple(specs.values()))
        if self._strided.args_spec:
            _propagate_flag(strategy, self._strided)


class _UnsharedError(Exception):
    """A call whose rule depends on more than placements and shapes."""


class _FoundRule(NamedTuple):
    rule: Any
    meshes: Meshes
    makers: tuple[Any, ...]
    """The functions that computed it."""
    took: Shared


class SharedRules:
    """Sharding rules of operations, cached by what ranks have in common.

    Ranks have their own mesh objects, which may also contain different ranks. A rule computed for
    one rank becomes another's by inserting that rank's meshes.
    """

    def __init__(self, propagator: Any) -> None:
        self._propagator = propagator
        self._compute: Callable[[Any], Any] = propagator.propagate_op_sharding_non_cached
        self._found: dict[Any, _FoundRule] = {}

    @unseen
    def __call__(self, schema: Any) -> Any:
        """Return the ``OutputSharding`` of a call."""
        result, took = self._rule_of(schema)
        # Compiling takes no simulated time: nor do the rules that it asks for.
        if not COMPILING.depth:
            owe_shared(took)
        return result

    def _rule_of(self, schema: Any) -> tuple[Any, Shared]:
        """Return it, with what it takes PyTorch to find."""
        meshes = Meshes()
        try:
            arguments = _common((schema.args_schema, tuple(schema.kwargs_schema.items())), meshes)
            key = (schema.op, arguments, meshes.common())
            known = self._found.get(key)
        except (_UnsharedError, TypeError):
            return once_for_all(partial(self._compute, schema))
        makers = self._registered(schema.op)
        if known is not None and all(map(is_, known.makers, makers)):
            return _rule_on(known.rule, known.meshes, meshes), known.took
        rule, took = once_for_all(partial(self._compute, schema))
        if isinstance(rule, OutputSharding) and _is_common(rule):
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[key] = _FoundRule(rule, meshes, makers, took)
        return rule, took

    def _registered(self, op: Any) -> tuple[Any, ...]:
        """Return the functions that compute the rule: programs and contexts may replace them."""
        propagator = self._propagator
        return (
            propagator.op_single_dim_strategy_funcs.get(op),
            propagator.op_strategy_funcs.get(op),
            propagator.op_to_rules.get(op),
        )


class Meshes:
    """The meshes of a call, in the order in which they come."""

    def __init__(self) -> None:
        self._all: list[Any] = []
        self._positions: dict[int, int] = {}

    def position(self, mesh: Any) -> int:
        """Return the position of a mesh, which is appended if it is new."""
        number = self._positions.setdefault(id(mesh), len(self._all))
        if number == len(self._all):
            self._all.append(mesh)
        return number

    def __getitem__(self, position: int) -> Any:
        return self._all[position]

    def common(self) -> Any:
        """Return the part of the meshes that is equal on all ranks.

        For one mesh that is its shape; with several, it also matters which ranks they contain.
        """
        alone = len(self._all) == 1
        return tuple(
            (
                None if alone else item._flatten_rank_map,
                item._layout,
                item._device_type,
                item._mesh_dim_names,
            )
            for item in self._all
        )


def _common(value: Any, meshes: Meshes) -> Any:
    """Return the part of an argument that is equal on all ranks, and collect its meshes."""
    if isinstance(value, DTensorSpec):
        if any(type(placement) not in _STATELESS for placement in value.placements):
            raise _UnsharedError
        return (
            meshes.position(value.mesh),
            value.placements,
            value.tensor_meta,
            value.shard_order,
            value.use_strided_shard_as_shard_order,
        )
    if isinstance(value, (list, tuple)):
        return tuple([_common(item, meshes) for item in value])
    return type(value), value


def _is_common(rule: Any) -> bool:
    """Return whether a rule is equal on all ranks, except for their meshes."""
    specs = list(_specs_in(rule.output_spec))
    asked = rule.redistribute_schema
    if asked is not None:
        specs += _specs_in((asked.args_schema, tuple(asked.kwargs_schema.values())))
    if any(type(placement) not in _STATELESS for spec in specs for placement in spec.placements):
        return False
    # Arguments that are shapes were replaced by those of this rank's shard.
    return not rule.use_val_from_redistribute_schema or all(map(_is_even, specs))


def _specs_in(value: Any) -> Iterator[Any]:
    if isinstance(value, DTensorSpec):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _specs_in(item)


def _is_even(spec: Any) -> bool:
    """Return whether all shards have the same shape."""
    parts: dict[int, int] = {}
    for axis, placement in enumerate(spec.placements):
        if isinstance(placement, (Shard, _StridedShard)):
            parts[placement.dim] = parts.get(placement.dim, 1) * spec.mesh.size(axis)
    shape = spec.tensor_meta.shape if spec.tensor_meta is not None else ()
    return all(dim < len(shape) and shape[dim] % count == 0 for dim, count in parts.items())


def _rule_on(rule: Any, theirs: Meshes, own: Meshes) -> Any:
    """Return a cached rule with the caller's meshes inserted."""
    result: dict[int, Any] = {}
    asked = rule.redistribute_schema
    if asked is not None:
        args, kwargs = (
            _on_meshes(item, theirs, own, result)
            for item in (asked.args_schema, tuple(asked.kwargs_schema.items()))
        )
        asked = OpSchema(asked.op, args, dict(kwargs), asked.schema_info)
    return OutputSharding(
        _on_meshes(rule.output_spec, theirs, own, result),
        asked,
        needs_redistribute=rule.needs_redistribute,
        use_val_from_redistribute_schema=rule.use_val_from_redistribute_schema,
    )


def _on_meshes(spec: Any, theirs: Meshes, own: Meshes, result: dict[int, Any]) -> Any:
    if isinstance(spec, DTensorSpec):
        answer = result.get(id(spec))
        if answer is None:
            # Fields that the constructor derives do not depend on whose mesh it is.
            answer = result[id(spec)] = object.__new__(DTensorSpec)
            mesh = own[theirs.position(spec.mesh)]
            answer.__dict__.update(spec.__dict__, mesh=mesh, _hash=None)
        return answer
    if type(spec) in (list, tuple):
        return type(spec)([_on_meshes(item, theirs, own, result) for item in spec])
    return spec
