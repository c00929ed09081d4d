"""Which shard of a transformer each rank holds, and what tensor parallelism sends per step."""

from kernbench.tp.sharding.shards import (
    FusedPart,
    ShardMove,
    ShardRange,
    ShardSpec,
    check_full_shape,
    check_rank,
    column_parallel,
    divide,
    extract,
    merge,
    plan_reshard,
    reshard,
    row_parallel,
    shard_range,
)
from kernbench.tp.sharding.traffic import (
    CollectiveUse,
    TimedCollective,
    collectives_per_step,
    time_collectives,
    total_step_bytes,
)
from kernbench.tp.sharding.transformer import TransformerConfig

__all__ = [
    "CollectiveUse",
    "FusedPart",
    "ShardMove",
    "ShardRange",
    "ShardSpec",
    "TimedCollective",
    "TransformerConfig",
    "check_full_shape",
    "check_rank",
    "collectives_per_step",
    "column_parallel",
    "divide",
    "extract",
    "merge",
    "plan_reshard",
    "reshard",
    "row_parallel",
    "shard_range",
    "time_collectives",
    "total_step_bytes",
]
