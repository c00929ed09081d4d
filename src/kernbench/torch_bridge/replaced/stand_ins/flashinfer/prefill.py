"""Attention of prompts to keys in pages, by the kernels that TensorRT-LLM generates."""

from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

Cache: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""Keys and values: of a page, each ``(heads, places, size)`` by ``HND``, else places first."""
_IGNORED = ("enable_pdl", "multi_ctas_kv_counter_buffer")
_USUAL = {"backend": "trtllm-gen", "o_scale": 1.0, "uses_shared_paged_kv_idx": True}
"""What stands for nothing of other options, besides None and False."""
_ELSE = "kernbench's stand-in for flashinfer has attention over pages (trtllm_batch_*) and bmm_fp8"


def lacking(name: str) -> type:
    """Return a class, as which it stands in annotations, that says that there is none."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"flashinfer.{name}: {_ELSE}; choose another attention backend of the engine, or leave "
            "flashinfer out (KERNBENCH_STAND_INS=none)"
        )

    return type(name, (), {"__init__": refuse})


def attend_pages(
    query: Tensor, kv_cache: Cache, *operands: Any, scales: tuple[float, float], window_left: int,
    decodes: bool, out: Tensor | None = None, out_dtype: Any = None, kv_layout: str = "HND",
    sinks: Tensor | None = None, causal: bool = True, **others: Any,
) -> Tensor:  # fmt: skip
    """Return what queries ``(tokens, heads, size)`` see of their sequences, the same shape.

    ``operands`` are tables of pages, keys and ends of queries by sequence, and the most keys.

    Raises:
        NotImplementedError: One of the other options is used, or a scale is a tensor.
    """
    asked = {
        name: value
        for name, value in others.items()
        if name not in _IGNORED
        and value is not None
        and value is not False
        and (name not in _USUAL or value != _USUAL[name])
    }
    asked |= {f"bmm{n}_scale": x for n, x in enumerate(scales, 1) if isinstance(x, Tensor)}
    if not isinstance(out, Tensor | None) or isinstance(out_dtype, str):
        asked["out"] = "a result in NVFP4"
    if asked:
        names = ", ".join(f"{name}={value!r}" for name, value in asked.items())
        raise NotImplementedError(f"attention of flashinfer with {names}: {_ELSE} without these")
    key, value = kv_cache.unbind(1) if isinstance(kv_cache, Tensor) else kv_cache
    if kv_layout == "HND":
        key, value = key.transpose(1, 2), value.transpose(1, 2)
    if out is None:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]), dtype=out_dtype or query.dtype)
    torch.ops.flashinfer.attend_pages(
        query, key, value, *operands, sinks, *scales, window_left, causal, decodes, out
    )
    return out


def trtllm_batch_context_with_kv_cache(
    query: Tensor, kv_cache: Cache, workspace_buffer: Tensor, block_tables: Tensor,
    seq_lens: Tensor, max_q_len: int, max_kv_len: int, bmm1_scale: float, bmm2_scale: float,
    batch_size: int, cum_seq_lens_q: Tensor, cum_seq_lens_kv: Tensor, window_left: int = -1,
    **options: Any,
) -> Tensor:  # fmt: skip
    """Return what queries ``(tokens, heads, size)`` see of their sequences, the same shape.

    ``cum_seq_lens_q`` are where each sequence's queries begin, and the last one's end.

    Raises:
        NotImplementedError: It is called with options that the stand-in lacks.
    """
    operands = (block_tables, seq_lens, cum_seq_lens_q, max_kv_len)
    scales = (bmm1_scale, bmm2_scale)
    return attend_pages(
        query, kv_cache, *operands, scales=scales, window_left=window_left, decodes=False, **options
    )
