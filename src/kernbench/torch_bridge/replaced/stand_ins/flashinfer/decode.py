"""Attention of few queries each to keys in pages, by the kernels that TensorRT-LLM generates."""

from typing import Any

from flashinfer.prefill import Cache, attend_pages, lacking
from torch import Tensor

fast_decode_plan = lacking("fast_decode_plan")


def trtllm_batch_decode_with_kv_cache(
    query: Tensor, kv_cache: Cache, workspace_buffer: Tensor, block_tables: Tensor,
    seq_lens: Tensor, max_seq_len: int, bmm1_scale: float = 1.0, bmm2_scale: float = 1.0,
    window_left: int = -1, *, q_len_per_req: int | None = 1, max_q_len: int | None = None,
    cum_seq_lens_q: Tensor | None = None, backend: str = "auto", **options: Any,
) -> Tensor:  # fmt: skip
    """Return what queries ``(tokens, heads, size)`` see of their sequences, the same shape.

    Raises:
        NotImplementedError: It is called with options that the stand-in lacks, or the backend is
            not TensorRT-LLM's.
    """
    operands = (block_tables, seq_lens, cum_seq_lens_q, max_seq_len)
    options["backend"] = "trtllm-gen" if backend == "auto" else backend
    scales = (bmm1_scale, bmm2_scale)
    return attend_pages(
        query, kv_cache, *operands, scales=scales, window_left=window_left, decodes=True, **options
    )
