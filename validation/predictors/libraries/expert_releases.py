"""What releases of a source's stacks do differently, and which of them a row is the median of.

A row says of how many releases it is the median, not of which. Which they are, and what each did
with rows of other ranks' experts, is inferred from rows that a fit may see; how choices were drawn
and which tile a kernel took is in the history of the source's collector and of the stacks.

Source: ``collector`` of ai-dynamo/aiconfigurator; ``get_default_config`` of vLLM 0.14 to 0.24 and
SGLang 0.5.9 to 0.5.14.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernbench.accuracy.rows import Row
from kernbench.hardware import Machine
from validation.kernels import MoeProblem
from validation.predictors.libraries.expert_loads import Dealing, Others


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTile:
    """A tile that a serving stack's Triton kernel of experts takes for shapes nobody tuned."""

    rows: int
    columns: int
    depth: int
    """Elements of the inner dimension in a trip."""
    resident: int
    """Tiles whose registers and shared memory a PE has room for."""
    name: str = ""
    """What is appended to the name of the kernel's constants: the shape of the tile decides how
    busy it keeps a matrix engine."""


_FEW = ExpertTile(rows=16, columns=32, depth=64, resident=8, name="_few")
_MANY = ExpertTile(rows=64, columns=64, depth=32, resident=5)
_SCALED = ExpertTile(rows=64, columns=128, depth=128, resident=3)


def untuned_tile(tokens: int, experts: int, *, scaled: bool) -> ExpertTile:
    """Return the tile of vLLM's first and of SGLang's default configuration.

    ``scaled`` says whether weights have a scale per block of 128 x 128.

    Source: ``get_default_config`` of both projects.

    >>> untuned_tile(tokens=8, experts=16, scaled=False).rows
    16
    """
    if scaled:
        return _SCALED
    return _FEW if tokens <= experts else _MANY


def untuned_tile_by_tokens(tokens: int, *, element_bytes: float, scaled: bool) -> ExpertTile:
    """Return the tile of vLLM's later default configuration.

    Source: ``get_default_config`` of vLLM.
    """
    if scaled:
        return ExpertTile(rows=16 if tokens <= 64 else 64, columns=128, depth=128, resident=3)
    limits = ((32, 16), (96, 32), (512, 64))
    rows = next((rows for most, rows in limits if tokens <= most), 128)
    columns = 64 if tokens <= 64 else 128
    depth = 128 if tokens <= 64 or element_bytes < 2 else 64
    resident = 4 if tokens <= 64 else 2
    name = "_few" if rows <= 16 else "_later"
    return ExpertTile(rows=rows, columns=columns, depth=depth, resident=resident, name=name)


TileRule = Callable[[MoeProblem], ExpertTile]


@dataclass(frozen=True, slots=True)
class ExpertRelease:
    """How a release was measured."""

    others: Others
    dealing: Dealing = Dealing.IN_TURN
    tile: TileRule | None = None
    """The tile where the kernel is compiled for one; its structure says which when None."""
    asks_pytorch: bool = False
    """Whether PyTorch's top-k chooses where experts or choices are many."""
    choosing: str = ""
    """Name of the constants of the kernels that choose, where the source timed these too and
    ``asks_pytorch`` says nothing of them."""


def _is_scaled(problem: MoeProblem) -> bool:
    """Whether rows have a scale per 128 elements."""
    return 1 < problem.row_bytes < 2


def by_experts(problem: MoeProblem) -> ExpertTile:
    """Return the tile of vLLM's first and of SGLang's default configuration."""
    return untuned_tile(problem.load.tokens, problem.experts, scaled=_is_scaled(problem))


def by_tokens(problem: MoeProblem) -> ExpertTile:
    """Return the tile of vLLM's later default configuration."""
    return untuned_tile_by_tokens(
        problem.load.tokens, element_bytes=problem.row_bytes, scaled=_is_scaled(problem)
    )


_COMPUTED, _ZEROED, _OUT = Others.COMPUTED, Others.ZEROED, Others.TAKEN_OUT
_FIRST, _SECOND, _THIRD = Dealing.MOST_LOADED, Dealing.LEAST_LOADED, Dealing.IN_TURN

_SGLANG_WITH = ExpertRelease(_COMPUTED, _THIRD, by_experts)
_SGLANG_WITHOUT = ExpertRelease(_ZEROED, _THIRD, by_experts)
_SGLANG_BEFORE = ExpertRelease(_ZEROED, _SECOND, by_experts)
_SGLANG = {
    "a100-sxm-80g": ((_SGLANG_WITH,), (_SGLANG_WITH,)),
    "b200": ((_SGLANG_WITHOUT,), (_SGLANG_BEFORE, _SGLANG_WITHOUT)),
    "gb200": ((_SGLANG_WITH,), (_SGLANG_BEFORE, _SGLANG_WITH)),
    "h100-sxm": ((_SGLANG_WITHOUT,), (_SGLANG_BEFORE, _SGLANG_WITH)),
    "h200": ((_SGLANG_WITHOUT,), (_SGLANG_BEFORE, _SGLANG_WITH)),
    "l40s": ((_SGLANG_WITHOUT, _SGLANG_WITH), (_SGLANG_WITHOUT, _SGLANG_WITH)),
}
"""Tiles by machine, for an odd and an even number of releases. SGLang's Triton experts compute rows
of other ranks' experts with the first one in some releases, and leave them out in others."""

_VLLM_FIRST = ExpertRelease(_ZEROED, _SECOND, by_experts)
_VLLM_LATER = ExpertRelease(_ZEROED, _THIRD, by_tokens)
_VLLM = {
    ("a100-sxm-80g", 1): (_VLLM_FIRST,),
    ("gb200", 2): (_VLLM_FIRST, _VLLM_LATER),
    ("gb200", 4): (_VLLM_FIRST, _VLLM_LATER),
    ("h100-sxm", 2): (_VLLM_FIRST, _VLLM_LATER),
    ("h100-sxm", 4): (_VLLM_FIRST, _VLLM_LATER),
    ("l40s", 2): (_VLLM_FIRST, _VLLM_LATER),
    ("l40s", 3): (_VLLM_FIRST,),
    ("rtx-pro-6000", 2): (_VLLM_FIRST, _VLLM_LATER),
}
"""Tiles by machine and number of releases; all others had the later tile."""

_EARLY = {
    ("2048", "768"), ("2688", "1856"), ("2880", "2880"), ("4096", "1536"),
    ("4096", "2688"), ("4096", "14336"), ("6144", "2560"), ("6144", "16384"),
    ("7168", "2048"),
}  # fmt: skip
_LATELY = {("3072", "1536"), ("4096", "1024"), ("6144", "2048")}
"""Hidden and inner sizes of the models that the source's collector knew in December 2025, and that
came until April 2026. Later releases leave out formats that a model's checkpoints do not have."""
_BEFORE = ExpertRelease(_OUT, _SECOND, asks_pytorch=True)
_BETWEEN = ExpertRelease(_OUT, _THIRD, asks_pytorch=True)
_AFTER = ExpertRelease(_OUT)
_IN_APRIL = ("b200", "gb200", "h100-sxm", "h200")
"""Machines that were measured then."""
_TRTLLM = {
    ("b200", 1): (_BEFORE,),
    ("b200", 2): (_BEFORE,),
    ("b200", 3): (_BEFORE,),
    ("b200", 4): (_BEFORE,),
    ("gb200", 1): (_BEFORE,),
    ("gb200", 2): (_BEFORE, _AFTER),
    ("h100-sxm", 1): (_BEFORE,),
    ("h100-sxm", 2): (_BEFORE,),
    ("h100-sxm", 3): (_BEFORE,),
    ("h200", 1): (_BEFORE,),
    ("h200", 2): (_BEFORE, _AFTER),
    ("l40s", 1): (_AFTER,),
    ("l40s", 2): (_AFTER,),
}
"""Tiles of early models, by machine and number of releases; later machines were measured later."""


def releases_of(row: Row, machine: Machine, has: str, others: Others) -> tuple[ExpertRelease, ...]:
    """Return the releases of which a row is the median: one, or two of which it is the mean.

    ``has`` is what a stack's kernels have in their names, ``others`` what it does with the rows of
    other ranks' experts.
    """
    number = round(row.optional("n_releases") or 1)
    if has == "sglang_fused_moe_triton" and not row.dtype.endswith("mxfp4"):
        both = (_SGLANG_WITHOUT,)
        releases = _SGLANG.get(machine.name, (both, both))[number % 2 == 0]
        if row.integer("moe_ep_size") > 1:
            return releases
        return tuple(replace(release, choosing="sglang_choice") for release in releases)
    if has == "sglang_marlin" and row.integer("moe_ep_size") == 1:
        return (ExpertRelease(others, choosing="sglang_choice"),)
    if has == "vllm_fused_moe":
        return _VLLM.get((machine.name, number), (_VLLM_LATER,))
    if has == "triton_tritonexperts":
        return (replace(_VLLM_LATER, choosing="vllm_choice"),)
    if has in ("moe_torch_flow", "deepgemm"):
        return _trtllm(row, machine, number)
    return (ExpertRelease(others),)


def _trtllm(row: Row, machine: Machine, number: int) -> tuple[ExpertRelease, ...]:
    if row.fields["kernel"] == "moe_torch_flow":
        return (ExpertRelease(_OUT, _FIRST, asks_pytorch=True),)
    sizes = row.fields["hidden_size"], row.fields["inter_size"]
    if sizes in _LATELY and machine.name in _IN_APRIL:
        return (_BEFORE, _AFTER)
    if sizes not in _EARLY:
        return (_AFTER,)
    return _TRTLLM.get((machine.name, number), (_BETWEEN,) if number == 1 else (_BETWEEN, _AFTER))
