"""How releases of Megatron-Bridge train mixtures of experts, by model and device.

Source, where nothing else is said: NVIDIA-NeMo/Megatron-Bridge @v0.2.0 (25.11), @v0.3.0 (26.02),
@v0.4.0 (26.04) and @v0.5.0 (26.06), scripts/performance/configs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kernbench.accuracy.rows import Row
from validation.predictors.clusters.jobs import MXFP8_ATTENTION, Software

_RELEASE = re.compile(r"^(\d\d)\.(\d\d)")


@dataclass(frozen=True, slots=True)
class _Where:
    """Rows that a recipe is of: models by their beginning, devices, and releases."""

    model: str
    devices: tuple[str, ...]
    since: tuple[int, int] = (0, 0)
    before: tuple[int, int] = (100, 0)

    def has(self, row: Row) -> bool:
        return (
            row.fields["model"].startswith(self.model)
            and row.device in self.devices
            and self.since <= _released(row) < self.before
        )


_GRAPHS = ("GB200", "GB300")
"""Devices whose rows run layers as CUDA graphs, but for the products of experts."""
_LAUNCHED_US = 2900.0
"""What a host launches a layer of experts in, kernel by kernel, where no graph has it. Fitted to 26
rows of x86 hosts."""
_WHOLE = (
    _Where("", ("GB200", "GB300"), since=(26, 6)),
    _Where("Qwen3_30B", ("B300",), since=(26, 6)),
)
"""Whose steps in 8 bits are one graph (``full_iteration``): with exchanges beside other work, fused
experts (``cutedsl_fused_grouped_mlp``), pages for their rows (NVIDIA/Megatron-LM @d98e8a6,
docs/user-guide/features/paged_stash.md), and ``fp8_dot_product_attention``."""
_OVERLAP = (
    _Where("Qwen3_235B", ("H100",), since=(26, 2)),
    _Where("GPT OSS", ("GB200",), since=(26, 4)),
)
"""Whose other steps have exchanges beside other work (``moe_a2a_overlap``)."""
_OVERLAPPED = 0.5
"""The share of exchanges of experts' rows that is then hidden. Fitted to 12 rows since 26.06."""
_HYBRID_EP = (
    _Where("Qwen3", ("GB200", "GB300")),
    _Where("Qwen3_30B", ("B200", "B300")),
    _Where("Qwen3_30B", ("H100",), since=(26, 4)),
    _Where("GPT OSS", ("GB200", "B200"), since=(26, 4), before=(26, 6)),
    _Where("GPT OSS", ("B300",), since=(26, 4)),
)
"""Whose rows HybridEP exchanges (``moe_flex_dispatcher_backend``)."""
_RECOMPUTES = (_Where("GPT OSS", ("H100", "B200", "GB200")),)
"""Whose experts' activations are computed again (``recompute_modules``)."""
_EXPERT_LAUNCH_US = 25.0
"""Of a kernel of one expert. Fitted to 24 rows of Qwen3 on B300, GB200 and GB300 before 26.06."""
_SLOW_GRADIENT = "26.06.01"
_SLOW_BIAS_GRADIENT = 1362.8 / 155.6
"""How much longer the fused gradient of experts with biases took in one release. Source:
NVIDIA/cudnn-frontend, pull request 322, on the issue that the release's table names."""


def of_mixture(row: Row, base: Software) -> Software:
    """Return how a row's release trained its mixture of experts."""
    whole = "8" in row.fields["dtype"] and _any(_WHOLE, row)
    hybrid_ep = whole or _any(_HYBRID_EP, row)
    slow = row.fields["program_config"].startswith(_SLOW_GRADIENT)
    return replace(
        base,
        attention=MXFP8_ATTENTION if whole else base.attention,
        host_us=0.0 if whole or row.device in _GRAPHS else _LAUNCHED_US,
        exchange_hidden=_OVERLAPPED if whole or _any(_OVERLAP, row) else 0.0,
        # The frequencies of GPT OSS are scaled, which the fused kernel does not do.
        fused_rotation=not row.fields["model"].startswith("GPT OSS"),
        fused_experts=whole,
        expert_launch_us=_EXPERT_LAUNCH_US,
        sorts_rows=not hybrid_ep,
        wide_probabilities=hybrid_ep,
        stashes_rows=whole,
        recomputes_activation=not whole and _any(_RECOMPUTES, row),
        slow_bias_gradient=_SLOW_BIAS_GRADIENT if slow else 1.0,
    )


def _any(places: Iterable[_Where], row: Row) -> bool:
    return any(each.has(row) for each in places)


def _released(row: Row) -> tuple[int, int]:
    found = _RELEASE.match(row.fields["program_config"])
    return (0, 0) if found is None else (int(found.group(1)), int(found.group(2)))
