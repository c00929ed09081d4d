"""DTensor's rules for lists of tensors, worked out once and not by every rank (ADR-0066).

A real rank works out how a foreach operation on all parameters is sharded once in its life. Here
all ranks would do that one after another, and PyTorch's way takes time that grows with the square
of the number of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch.distributed.tensor._sharding_prop as sharding
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OutputSharding
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.distributed.tensor.placement_types import _StridedShard

from kernbench.torch_bridge.patches import Patches

_FAMILIES = ("aten._foreach_", "aten._fused_")
# Others may keep data of the rank that made them.
_STATELESS = frozenset({Shard, Replicate, Partial, _StridedShard, _NormPartial})
_MOST_KEPT = 512
_propagate_flag = sharding._propagate_use_strided_shard_flag


def install(patches: Patches) -> None:
    """Replace what would take long."""
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    # C++ keeps what it has asked for, and asks for what is not kept.
    name = "propagate_op_sharding_non_cached"
    patches.set(propagator, name, SharedRules(getattr(propagator, name)))
    patches.set(sharding, "_propagate_use_strided_shard_flag", _FlagOnce())


class _FlagOnce:
    """Passes a flag of strided shards on, which the original looks up again for each tensor."""

    def __init__(self) -> None:
        self._schema: Any = None
        self._strided = SimpleNamespace(args_spec=())

    def __call__(self, strategy: Any, schema: Any) -> None:
        if self._schema is not schema:
            self._schema = schema
            # One of each flag decides as much as all do.
            found = {
                spec.use_strided_shard_as_shard_order: spec
                for spec in schema.args_spec
                if any(isinstance(each, _StridedShard) for each in spec.placements)
            }
            self._strided = SimpleNamespace(args_spec=tuple(found.values()))
        if self._strided.args_spec:
            _propagate_flag(strategy, self._strided)


class _UnsharedError(Exception):
    """A call whose rule depends on more than placements and shapes."""


class SharedRules:
    """Rules of foreach operations by what ranks have in common; all else is passed on.

    Ranks have meshes of their own, which differ in who asks. A rule that was found for one rank is
    another's with its own meshes in it.
    """

    def __init__(self, work_out: Callable[[Any], Any]) -> None:
        self._work_out = work_out
        self._found: dict[Any, tuple[Any, Meshes]] = {}

    def __call__(self, schema: Any) -> Any:
        """Return the ``OutputSharding`` of a call."""
        if not str(schema.op).startswith(_FAMILIES):
            return self._work_out(schema)
        meshes = Meshes()
        try:
            arguments = _common((schema.args_schema, tuple(schema.kwargs_schema.items())), meshes)
            key = (schema.op, arguments, meshes.common())
            known = self._found.get(key)
        except (_UnsharedError, TypeError):
            return self._work_out(schema)
        if known is not None:
            rule, theirs = known
            return OutputSharding(_on_meshes(rule.output_spec, theirs, meshes, {}))
        rule = self._work_out(schema)
        if not rule.needs_redistribute and rule.redistribute_schema is None:
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[key] = rule, meshes
        return rule


class Meshes:
    """The meshes of a call, in the order in which they come."""

    def __init__(self) -> None:
        self._all: list[Any] = []
        self._positions: dict[int, int] = {}

    def position(self, mesh: Any) -> int:
        """Return which one it is; a new one is the next."""
        found = self._positions.setdefault(id(mesh), len(self._all))
        if found == len(self._all):
            self._all.append(mesh)
        return found

    def __getitem__(self, position: int) -> Any:
        return self._all[position]

    def common(self) -> Any:
        """Return what is the same on all ranks."""
        return tuple(
            (each._flatten_rank_map, each._layout, each._device_type, each._mesh_dim_names)
            for each in self._all
        )


def _common(value: Any, meshes: Meshes) -> Any:
    """Return what of an argument is the same on all ranks; collect the meshes."""
    if isinstance(value, DTensorSpec):
        if any(type(each) not in _STATELESS for each in value.placements):
            raise _UnsharedError
        return (
            meshes.position(value.mesh),
            value.placements,
            value.tensor_meta,
            value.shard_order,
            value.use_strided_shard_as_shard_order,
        )
    if isinstance(value, (list, tuple)):
        return tuple([_common(each, meshes) for each in value])
    return type(value), value


def _on_meshes(spec: Any, theirs: Meshes, own: Meshes, made: dict[int, Any]) -> Any:
    if isinstance(spec, DTensorSpec):
        found = made.get(id(spec))
        if found is None:
            # What the constructor derives does not depend on the mesh's owner.
            found = made[id(spec)] = object.__new__(DTensorSpec)
            mesh = own[theirs.position(spec.mesh)]
            found.__dict__.update(spec.__dict__, mesh=mesh, _hash=None)
        return found
    if isinstance(spec, (list, tuple)):
        return type(spec)([_on_meshes(each, theirs, own, made) for each in spec])
    return spec
