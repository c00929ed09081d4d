"""MLA rows: context and generation of DeepSeek's attention, and the products around generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from kernbench.accuracy.rows import Row
from kernbench.hardware import Machine
from kernbench.library_kernels import (
    AttentionProblem,
    FlashKernel,
    LibraryKernel,
    flash_launches,
    stream,
)
from validation.kernels import LatentKernel, batched_product, latent_decode
from validation.predictors.libraries.mla_modules import after_attention, before_attention
from validation.predictors.library_rows import LibraryPredictor, MeasuredKernels, NotModeledError
from validation.sources.harness import MLA_HOSTS, MLA_MODULE_HOSTS

_LATENT, _ROPE = 512, 64
"""Sizes of DeepSeek's MLA: what a token keeps in the cache."""
_NOPE, _VALUE = 128, 128
"""Sizes of a head after the up-projection; queries and keys have the rotary part besides."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """How a stack attends to a prompt."""

    absorbed: bool = False
    """Whether on latent vectors (one key for all heads) rather than on keys of each head."""
    block_m: int = 128
    block_n: int = 128
    resident: int = 2


_CONTEXT = {
    ("sglang", "flash_attention"): _Context(absorbed=True, block_m=64, block_n=64, resident=1),
    ("sglang", "triton"): _Context(absorbed=True, block_m=64, block_n=64, resident=1),
    ("sglang", "trtllm_mla"): _Context(),
    ("trtllm", "default"): _Context(),
    ("trtllm", "default", "sm80"): _Context(block_m=64),
    ("vllm", "vllm_flash_attn_mla"): _Context(),
    ("vllm", "vllm_flashmla"): _Context(),
    ("vllm", "vllm_triton_mla"): _Context(block_n=64),
}
"""Kernels of prompts by stack and kernel; with an architecture where that one differs."""

_PARALLEL = LatentKernel(name="", combine="combine")
_TRITON = LatentKernel(name="", block_m=16, block_n=16, combine="combine")
_WHOLE = LatentKernel(name="", waves=0)
"""Without a split of the keys: TensorRT-LLM's on GPUs that have no kernel of their own for MLA."""

_GENERATION = {
    ("sglang", "flash_attention"): replace(_PARALLEL, least_blocks=4, cache_pass="cache"),
    ("sglang", "triton"): _TRITON,
    ("sglang", "trtllm_mla"): replace(_PARALLEL, block_n=128),
    ("trtllm", "default"): _PARALLEL,
    ("trtllm", "default", "sm100"): replace(_PARALLEL, block_n=128),
    ("trtllm", "default", "sm80"): _WHOLE,
    ("trtllm", "default", "sm89"): _WHOLE,
    ("trtllm", "default", "sm120"): _WHOLE,
    ("vllm", "vllm_flash_attn_mla"): replace(_PARALLEL, least_blocks=4, persistent=True),
    ("vllm", "vllm_flashmla"): replace(_PARALLEL, persistent=True),
    ("vllm", "vllm_triton_mla"): replace(_TRITON, block_n=32, resident=2),
}
"""As :data:`_CONTEXT`."""


class MlaPredictor(LibraryPredictor):
    """Answers MLA rows."""

    def measured(self, row: Row) -> MeasuredKernels:
        """Return what a row measured.

        Raises:
            NotModeledError: No kernel is described for the operation or the stack.
        """
        machine = self.machines.machine_of(row.device)
        make = _MAKERS.get(row.op)
        if make is None:
            raise NotModeledError(f"no kernel for {row.op}")
        return MeasuredKernels(
            kernels=make(row, machine), machine=machine, least_us=_host_us(row, machine)
        )


def _host_us(row: Row, machine: Machine) -> float:
    """Return what the host takes for the launches of a row that was measured without a graph."""
    if row.op == "wideep_context_mla":
        return MLA_MODULE_HOSTS.get(machine.name, 0.0)
    return MLA_HOSTS.get((row.op, row.fields.get("kernel", "")), 0.0)


def _stack(row: Row) -> tuple[str, str]:
    return row.fields.get("framework", ""), row.fields.get("kernel", "")


def _of_stack(kernels: Mapping[tuple[str, ...], _T], row: Row, machine: Machine) -> _T:
    stack = _stack(row)
    kernel = kernels.get((*stack, machine.spec.kernel_library or "")) or kernels.get(stack)
    if kernel is None:
        raise NotModeledError(f"no kernel for {row.op} of {' '.join(stack)}")
    return kernel


def _name(row: Row, phase: str) -> str:
    stack, kernel = _stack(row)
    kernel = kernel.removeprefix(f"{stack}_")
    narrow = "_fp8" if row.fields.get("kv_dtype", "").startswith("fp8") else ""
    return f"mla_{stack}_{kernel}_{phase}{narrow}"


def _attend(row: Row, context: _Context, name: str) -> tuple[LibraryKernel, ...]:
    batch, tokens, heads = (row.integer(name) for name in ("batch", "q_len", "heads"))
    problem = AttentionProblem(
        batch=batch,
        q_len=tokens,
        kv_len=row.integer("kv_len"),
        heads=heads,
        kv_heads=1 if context.absorbed else heads,
        head_dim=_LATENT + _ROPE if context.absorbed else _NOPE + _ROPE,
        value_dim=_LATENT if context.absorbed else _VALUE,
        causal=True,
    )
    (flash,) = flash_launches(
        problem,
        FlashKernel(
            name=name,
            block_m=context.block_m,
            block_n=context.block_n,
            resident=context.resident,
            packs_groups=context.absorbed,
        ),
        num_pes=1,
    )
    # Before: queries and their rotary parts are put beside each other, and so are keys and values
    # where each head has its own.
    head_dim = problem.head_dim if context.absorbed else 2 * problem.head_dim + problem.values
    moved = 2.0 * batch * tokens * heads * head_dim
    return stream(f"{name}_prepare", moved, moved), flash


def _generation(row: Row, machine: Machine) -> tuple[LibraryKernel, ...]:
    narrow = row.fields.get("kv_dtype", "").startswith("fp8")
    generation = _of_stack(_GENERATION, row, machine)
    return _decode(row, machine, generation, _name(row, "generation"), narrow)


def _decode(
    row: Row, machine: Machine, latent_kernel: LatentKernel, name: str, narrow: bool
) -> tuple[LibraryKernel, ...]:
    problem = AttentionProblem(
        batch=row.integer("batch"),
        q_len=row.integer("q_len"),
        kv_len=row.integer("kv_len"),
        heads=row.integer("heads"),
        kv_heads=1,
        head_dim=_LATENT + _ROPE,
        value_dim=_LATENT,
        kv_bytes=1 if narrow and not latent_kernel.cache_pass else 2,
    )
    kernel = replace(
        latent_kernel,
        name=name,
        combine=f"{name}_combine" if latent_kernel.combine else "",
        cache_pass=f"{name}_cache" if latent_kernel.cache_pass and narrow else "",
    )
    return latent_decode(problem, kernel, machine.sip.num_pes)


def _product(row: Row, machine: Machine) -> tuple[LibraryKernel, ...]:
    stack, kernel = _stack(row)
    n, k = (_LATENT, _NOPE) if row.op == "mla_gen_pre" else (_VALUE, _LATENT)
    heads, tokens = row.integer("heads"), row.integer("batch")
    if row.dtype == "bfloat16" or kernel == "trtllm_bmm_out_dequant_bf16":
        # Weights of fp8 are converted before the product, outside of what is measured.
        return (batched_product("mla_product", heads, tokens, n, k, machine.sip.num_pes),)
    name = f"mla_{stack}_product_fp8"
    elements = float(heads * tokens * k)
    return (
        stream(f"{name}_quantise", 2 * elements, elements),
        batched_product(name, heads, tokens, n, k, machine.sip.num_pes, "float8_e4m3fn"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """Which kernels a whole module attends with."""

    context: str
    generation: str
    kernel: LatentKernel
    narrow: bool


_MODULES = {
    "sm90": _Module(
        context="mla_trtllm_default_context",
        generation="mla_sglang_flash_attention_generation",
        kernel=replace(_PARALLEL, least_blocks=4),
        narrow=False,
    ),
    "sm100": _Module(
        context="mla_sglang_trtllm_mla_context",
        generation="mla_sglang_trtllm_mla_generation_fp8",
        kernel=replace(_PARALLEL, block_n=128),
        narrow=True,
    ),
}
"""SGLang's modules, by architecture."""


def _module(row: Row, machine: Machine) -> tuple[LibraryKernel, ...]:
    """Return the launches of the module from hidden states to hidden states."""
    module = _MODULES.get(machine.spec.kernel_library or "")
    if module is None:
        raise NotModeledError(f"no modules of {' '.join(_stack(row))} on {machine.name}")
    decodes = row.op == "wideep_generation_mla"
    if decodes:
        attention = _decode(row, machine, module.kernel, module.generation, module.narrow)
    else:
        attention = _attend(row, _Context(), module.context)
    tokens, heads = row.integer("batch") * row.integer("q_len"), row.integer("heads")
    around = (tokens, heads, decodes, machine)
    return (*before_attention(*around), *attention, *after_attention(*around))


_MAKERS: dict[str, Callable[[Row, Machine], tuple[LibraryKernel, ...]]] = {
    "context_mla": lambda row, machine: _attend(
        row, _of_stack(_CONTEXT, row, machine), _name(row, "context")
    ),
    "generation_mla": _generation,
    "mla_gen_pre": _product,
    "mla_gen_post": _product,
    "wideep_context_mla": _module,
    "wideep_generation_mla": _module,
}
"""What makes each operation's kernels."""
