"""Which tile a library's kernels take for a shape, where its source says it by rule.

cuBLAS and tuned stacks try what is fastest. The CUTLASS kernels of serving stacks do not: a list of
bounds on rows and columns names one tile, with the cluster that it runs in, whatever the device.
Where few rows are computed, A and B are swapped; a tile here is given as it lies on the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from kernbench.inputs import shipped_yaml
from kernbench.library_kernels import CUTLASS_RULES
from validation.kernels import LibraryTile


@dataclass(frozen=True, slots=True)
class TileRule:
    """A tile, and the largest product that takes it."""

    tile: LibraryTile
    most_rows: float = inf
    most_cols: float = inf
    least_depth: int = 0
    """The least K that takes it."""


def ruled_tile(rules: Sequence[TileRule], m: int, n: int, k: int = 0) -> LibraryTile:
    """Return the tile of the first rule that a result of ``m`` x ``n``, summed over K, is within.

    The last rule has no bounds.
    """
    return next(
        rule.tile
        for rule in rules
        if m <= rule.most_rows and n <= rule.most_cols and k >= rule.least_depth
    )


def _of_vllm() -> Iterator[TileRule]:
    """Yield the rules of vLLM on Hopper, which programs launch by."""
    for rule in CUTLASS_RULES["sm90"]:
        values = rule._asdict()
        bounds = [values.pop(name) for name in ("most_rows", "most_cols")]
        yield TileRule(LibraryTile(**values), *bounds)


def _rule(values: dict[str, Any]) -> TileRule:
    return TileRule(**{**values, "tile": LibraryTile(**values["tile"])})


FP8_RULES: Mapping[tuple[str, str], tuple[TileRule, ...]] = {
    ("sm90", "vllm"): tuple(_of_vllm()),
    **{
        (entry["architecture"], entry["stack"]): tuple(map(_rule, entry["rules"]))
        for entry in shipped_yaml("validation.predictors.libraries", "tile_rules.yaml")
    },
}
"""Rules by architecture and by whose they are."""
