"""Attention rows: prefill, decode and encoders, by the kernels that serving stacks launch."""

from __future__ import annotations

from kernbench.accuracy.validation.predictors.library_rows import (
    LibraryPredictor,
    MeasuredKernels,
    NotModeledError,
)
from kernbench.accuracy.validation.rows.reference import Row
from kernbench.library_kernels import AttentionProblem, FlashKernel, flash_forward

_KERNELS = {
    ("sm80", "sglang", "flash_attention", "attention_prefill"): FlashKernel(
        name="sglang_flash2_prefill", block_m=128, block_n=64, resident=2, packs_groups=False
    ),
}
"""By architecture, stack, its kernel and the operation."""


class AttentionPredictor(LibraryPredictor):
    """Answers attention rows."""

    def measured(self, row: Row) -> MeasuredKernels:
        """Return what a row measured.

        Raises:
            NotModeledError: No kernel is described for the stack and the architecture.
        """
        machine = self.machines.machine_of(row.device)
        stack, kernel = row.fields.get("framework", ""), row.fields.get("kernel", "")
        found = _KERNELS.get((machine.spec.kernel_library or "", stack, kernel, row.op))
        if found is None:
            raise NotModeledError(f"no kernel for {row.op} of {stack} {kernel} on {machine.name}")
        problem = AttentionProblem(
            batch=row.integer("batch"),
            q_len=row.integer("q_len"),
            kv_len=row.integer("kv_len"),
            heads=row.integer("heads"),
            kv_heads=row.integer("kv_heads"),
            head_dim=row.integer("head_dim"),
            causal=row.fields.get("causal") == "yes",
            window=_window(row),
        )
        return MeasuredKernels(kernels=(flash_forward(problem, found),), machine=machine)


def _window(row: Row) -> int:
    return 0 if row.fields.get("window", "0") in ("", "0") else row.integer("window")
