"""FlashInfer's attention over pages, by the kernels that TensorRT-LLM generates for Blackwell.

Source: ``trtllm_batch_decode_with_kv_cache`` and ``trtllm_batch_context_with_kv_cache`` of
flashinfer-python 0.7.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernbench.library_kernels import attention_kernels, variant_names
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import defines
from kernbench.torch_bridge.replaced.extension_modules.finder import DefinedOperators
from kernbench.torch_bridge.replaced.package_kernels.flash_calls import (
    Lengths,
    between,
    call_of,
    launch,
    of_each,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_operations import attend_sequences
from kernbench.torch_bridge.replaced.package_kernels.flash_values import FlashOptions

_DECODE = "trtllm_gen_decode"
_SCHEMAS = (
    "attend_pages(Tensor query, Tensor key, Tensor value, Tensor block_tables, Tensor seq_lens, "
    "Tensor? ends, int max_kv_len, Tensor? sinks, float bmm1_scale, "
    "float bmm2_scale, int window_left, bool causal, bool decodes, Tensor(a!) out) -> ()",
    "rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, int head_size, "
    "Tensor cos_sin_cache, bool is_neox) -> ()",
    "concat_mla_k(Tensor(a!) k, Tensor k_nope, Tensor k_rope) -> ()",
)


def install(patches: Patches) -> None:
    """Define the operators, for all processes."""
    operators = DefinedOperators(patches)
    for schema in _SCHEMAS:
        operators.define_one("flashinfer", schema, "flashinfer")


def is_described(architecture: str) -> bool:
    """Whether GPUs of an architecture have the kernels."""
    return _DECODE in attention_kernels(architecture)


@defines(
    "flashinfer::attend_pages",
    takes=(
        "query key value block_tables seq_lens ends max_kv_len sinks bmm1_scale bmm2_scale "
        "window_left causal decodes out"
    ),
)
def _attend(call: OperatorCall) -> None:
    q, k, out, used, ends = call.query, call.key, call.out, call.seq_lens, call.ends
    batch, total, window = used.numel(), q.shape[0], call.window_left
    options = FlashOptions(scale=call.bmm1_scale, causal=call.causal, left=window)

    def compute(
        q: Tensor, k: Tensor, v: Tensor, table: Tensor, used: Tensor, ends: Any, sinks: Any,
        out: Tensor,
    ) -> None:  # fmt: skip
        if ends is None:
            ends = torch.arange(batch + 1) * (total // batch)
        wide = torch.zeros(out.shape, dtype=torch.float32)
        lse = wide.new_empty(wide.shape[1], total)
        attend_sequences(q.float(), k, v, ends, None, table, used, None, options, wide, lse)
        if sinks is not None:
            # A sink is one more score, of no value.
            wide *= torch.sigmoid(lse.t() - sinks.float()).unsqueeze(-1)
        most = torch.finfo(out.dtype).max
        out.copy_((wide * call.bmm2_scale).clamp(-most, most))

    library = attention_kernels(current().session.run.machine.spec.kernel_library or "")
    kind = _DECODE if call.decodes else "trtllm_gen_paged"
    names = variant_names(kind, k.element_size() == 1, window >= 0)
    kernel = next(name for name in names if name in library)
    # What the kernels for 8-bit keys were fitted to says that queries have 16 bits.
    sizes = {"dtype": torch.bfloat16, "kv_bytes": k.element_size()}
    flash = call_of("flashinfer.attend_pages", kernel, q, k, options, **sizes)
    of_queries = (lambda: (total // batch,) * batch) if ends is None else between(ends, total)
    lengths = Lengths(of_queries, of_each(used, batch, call.max_kv_len))
    operands = (q, k, call.value, call.block_tables, used, ends, call.sinks, out)
    launch(call.func, compute, operands, (out,), flash, lengths)
