"""DTensor's rules for lists of tensors, without the part whose time grows with the square of them.

Working out a foreach operation on n parameters, PyTorch looks at all n of them n times. A real
rank does that once in its life; here it is paid by all ranks one after another.
"""

from __future__ import annotations

from typing import Any

import torch.distributed.tensor._sharding_prop as sharding
from torch.distributed.tensor.placement_types import _StridedShard

from kernbench.torch_bridge.patches import Patches

_propagate_flag = sharding._propagate_use_strided_shard_flag


def install(patches: Patches) -> None:
    """Replace it."""
    latest: list[Any] = [None, False]

    def propagate_flag(strategy: Any, schema: Any) -> None:
        if latest[0] is not schema:
            latest[:] = schema, _is_strided(schema)
        if latest[1]:
            _propagate_flag(strategy, schema)

    patches.set(sharding, "_propagate_use_strided_shard_flag", propagate_flag)


def _is_strided(schema: Any) -> bool:
    """Return whether there is anything to propagate."""
    return any(
        isinstance(placement, _StridedShard)
        for spec in schema.args_spec
        for placement in spec.placements
    )
