"""Rows of mixtures of experts: the kernels that serving stacks launch for one rank's experts."""

from __future__ import annotations

import re
from dataclasses import replace

from kernbench.accuracy.rows import Row
from kernbench.hardware import Machine
from kernbench.library_kernels import ExpertTiles, LibraryKernel
from validation.kernels import MoeKernels, MoeProblem, expert_kernels, expert_products
from validation.predictors.libraries.expert_loads import Routing, load_of
from validation.predictors.libraries.expert_releases import ExpertRelease, releases_of
from validation.predictors.libraries.expert_stacks import (
    FORMATS,
    STACKS,
    ExpertFormat,
    ExpertStack,
    is_gated,
)
from validation.predictors.library_rows import LibraryPredictor, MeasuredKernels, NotModeledError
from validation.sources.launching import layer_launching

_BLOCK = 128
_PYTORCH_CHOICE = "pytorch_choice"
_FUSED_EXPERTS, _FUSED_CHOICES = 128, 8
"""The most of which TensorRT-LLM's own kernel chose in releases of the source that ask PyTorch for
more. Source: ``routing.py`` of TensorRT-LLM's fused experts."""
_AITER_FORMATS = {
    "bfloat16": ("bf16", "bfloat16", 2.0),
    "float8_e4m3fn": ("fp8", "float8_e4m3fn", 1.0),
    "float8_e4m3fnuz": ("fp8", "float8_e4m3fn", 1.0),
    "float4_e2m1fn_x2": ("fp4", "float4_e2m1fn", 0.5 + 1 / 32),
    "int8": ("int8", "int8", 1.0),
    "int4": ("int4", "bfloat16", 0.5 + 2 / 128),
}
_AITER_TILES = (
    re.compile(r"_gemm1_\d+x(?P<rows>\d+)x(?P<columns>\d+)x\d+_"),
    re.compile(r"_t(?P<rows>\d+)x(?P<columns>\d+)x\d+"),
    re.compile(r"_a\dw\d_(?P<rows>\d+)x(?P<columns>\d+)x\d+"),
    re.compile(r"_(?P<rows>\d+)x(?P<columns>\d+)[E_]"),
    re.compile(r"_(?P<rows>\d+)x\d*$"),  # The file cuts long names.
    re.compile(r"_bm(?P<rows>\d+)"),
)
_AITER_ROWS, _AITER_COLUMNS, _AITER_BYTES_DEEP = 32, 128, 128
_AITER_TIMED = {"MI308X": (16, 1024)}
"""Devices on which AITER's rows of fewer and of more tokens repeat those of the fewest and most."""
_AITER_FROM_16 = "/tuned_fmoe.csv"
"""The file whose rows of fewer tokens repeat; others' were timed from 1 token on."""
_AITER_GROUPED = "/tuned_grouped_fmoe.csv"
_AITER_GROUPED_SIZES, _AITER_GROUPED_LEAST = (7168, 3072, 6, 96), 64
"""The file whose rows repeat, for other sizes and for fewer tokens, the times of these."""


class MoePredictor(LibraryPredictor):
    """Answers rows of mixtures of experts."""

    def measured(self, row: Row) -> MeasuredKernels:
        """Return what a row measured.

        Raises:
            NotModeledError: No kernel is described for the stack and its format.
        """
        machine = self.machines.machine_of(row.device)
        if row.fields["framework"] == "aiter":
            return MeasuredKernels(kernels=expert_products(*_aiter(row, machine)), machine=machine)
        kernel = row.fields["kernel"]
        stack = next((expert_stack for expert_stack in STACKS if expert_stack.has in kernel), None)
        form = FORMATS.get(row.dtype)
        if stack is None or form is None:
            raise NotModeledError(f"no kernels for {row.dtype} of {kernel}")
        launched, *others = (
            _launches(row, machine, stack, form, release)
            for release in releases_of(row, machine, stack.has, stack.others)
        )
        layer = layer_launching(machine.name) if row.op == "wideep_context_moe" else None
        return MeasuredKernels(
            kernels=launched,
            other=others[0] if others else (),
            machine=machine,
            extra_us=layer.lead * layer.host_us if layer else 0.0,
            least_us=layer.host_us if layer else 0.0,
        )


def _launches(
    row: Row, machine: Machine, stack: ExpertStack, form: ExpertFormat, release: ExpertRelease
) -> tuple[LibraryKernel, ...]:
    problem, kernels = _problem(row, machine, stack, form, release)
    if row.op == "wideep_generation_moe":
        # What was received lies by expert already, in eight bits, and is summed up where it came
        # from; the activation writes eight bits too.
        kernels = replace(kernels, sums=False, quantises=False)
    if row.op == "wideep_context_moe":
        tallest = kernels.products.row_tiles[-1:]
        kernels = replace(kernels.with_tiles(row_tiles=tallest), copies_rows=True)
        problem = _in_blocks(problem, row)
    return expert_kernels(problem, kernels)


def _in_blocks(problem: MoeProblem, row: Row) -> MoeProblem:
    """Return a problem whose rows are given in blocks, each of the expert of its first row."""
    load = problem.load
    if row.fields["distribution"] != "uniform":
        return problem
    blocks = min(len(load.rows), -(-load.total // _BLOCK))
    whole = load.total // max(blocks, 1)
    return replace(problem, load=replace(load, rows=(whole,) * blocks))


def _problem(
    row: Row, machine: Machine, stack: ExpertStack, form: ExpertFormat, release: ExpertRelease
) -> tuple[MoeProblem, MoeKernels]:
    ranks, experts = row.integer("moe_ep_size"), row.integer("num_experts")
    routing = Routing(
        tokens=row.integer("num_tokens"),
        topk=row.integer("topk"),
        experts=experts,
        ranks=ranks,
        distribution=row.fields["distribution"],
        others=release.others,
        own_tokens=stack.own_tokens,
        dealing=release.dealing,
    )
    problem = MoeProblem(
        load=load_of(routing),
        experts=experts // ranks,
        all_experts=experts,
        choices=row.integer("topk"),
        hidden=row.integer("hidden_size"),
        inter=max(row.integer("inter_size") // row.integer("moe_tp_size"), 1),
        gated=is_gated(row),
        dtype=form.dtype,
        row_bytes=form.row_bytes,
        weight_bytes=form.weight_bytes,
        pes=machine.sip.num_pes,
        cache_bytes=_cache_bytes(machine),
    )
    quantises = form.row_bytes < 2 and not stack.kernels.copies_rows
    name = f"{stack.kernels.products.name}_{form.short}"
    sorting = stack.kernels.routing
    if form.row_bytes < 2 and stack.kernels.copies_rows and sorting:
        sorting += "_quantised"  # Goes over the rows of all choices.
    many = experts > _FUSED_EXPERTS or row.integer("topk") > _FUSED_CHOICES
    pytorch = release.asks_pytorch and many
    kernels = replace(
        stack.kernels.with_tiles(name=name),
        routing=sorting,
        quantises=quantises,
        choosing=_PYTORCH_CHOICE if pytorch else release.choosing or stack.kernels.choosing,
        chooses_in_steps=pytorch or bool(release.choosing),
    )
    if release.tile is None:
        return problem, kernels
    tile = release.tile(problem)
    return problem, kernels.with_tiles(
        name=name + tile.name,
        row_tiles=(tile.rows,),
        columns=(tile.columns,),
        depth=tile.depth,
        resident=tile.resident,
    )


def _aiter(row: Row, machine: Machine) -> tuple[MoeProblem, MoeKernels]:
    """Return a row of AITER's tuner, which times the products alone."""
    kernel, formats = row.fields["kernel"], (row.fields["q_dtype_a"], row.fields["q_dtype_w"])
    if any(name not in _AITER_FORMATS for name in formats):
        raise NotModeledError(f"no kernels for {' times '.join(formats)} of aiter")
    if row.fields["topk"].startswith("-"):
        raise NotModeledError("the row does not say how many experts a token has")
    (short_rows, dtype, row_bytes), (short, _, weight_bytes) = (
        _AITER_FORMATS[name] for name in formats
    )
    tokens = row.integer("num_tokens")
    if row.device in _AITER_TIMED:
        least, most = _AITER_TIMED[row.device]
        repeats = row.fields.get("path", "").endswith(_AITER_FROM_16)
        tokens = min(max(tokens, least if repeats else 1), most)
    hidden, inter, topk, experts = (
        row.integer(name) for name in ("hidden_size", "inter_size", "topk", "num_experts")
    )
    if row.fields.get("path", "").endswith(_AITER_GROUPED):
        hidden, inter, topk, experts = _AITER_GROUPED_SIZES
        tokens = max(tokens, _AITER_GROUPED_LEAST)
    load = load_of(Routing(tokens=tokens, topk=topk, experts=experts, distribution="random"))
    problem = MoeProblem(
        load=load,
        experts=experts,
        hidden=hidden,
        inter=inter,
        gated=row.fields["g1u1"] == "1",
        dtype=dtype,
        row_bytes=row_bytes,
        weight_bytes=weight_bytes,
        pes=machine.sip.num_pes,
        cache_bytes=_cache_bytes(machine),
    )
    one = "fmoe" in kernel and "stage1" not in kernel
    tile = next(
        (result for aiter_tile in _AITER_TILES if (result := aiter_tile.search(kernel))), None
    )
    sizes = {} if tile is None else tile.groupdict()
    # Products are scaled by blocks of 128 x 128.
    by_blocks = "_block" if row.fields["q_type"] == "per_1x128" else ""
    tiles = ExpertTiles(
        name=f"aiter_{'fmoe' if one else 'moe'}_{short_rows}_{short}{by_blocks}",
        row_tiles=(max(int(sizes.get("rows", _AITER_ROWS)), 1),),
        columns=(int(sizes.get("columns", _AITER_COLUMNS)),),
        depth=round(_AITER_BYTES_DEEP / row_bytes),
    )
    return problem, MoeKernels(products=tiles, one_kernel=one)


def _cache_bytes(machine: Machine) -> float:
    cache = machine.sip.cache
    if cache is None:
        return 0.0
    return float(cache.capacity_mib) * 2**20 * float(cache.retained_share)
