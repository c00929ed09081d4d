"""Whose kernels scaled dot-product attention runs on a GPU, as PyTorch 2.13 chooses them.

Operations are two, flash and memory-efficient attention, on every machine; the time is of the
kernels that the same call takes on the simulated device.
"""

from __future__ import annotations

from collections.abc import Hashable

from kernbench.hardware import MachineSpec
from kernbench.library_kernels import AttentionProblem, attention_kernels
from kernbench.torch_bridge.costs.attention.choice import (
    CUDNN,
    EFFICIENT,
    FLASH,
    OLDEST,
    WIDEST_CUDNN,
    WIDEST_FLASH,
    kinds_allowed,
    priority,
)


class AttentionBackends:
    """The choice on one machine."""

    def __init__(self, spec: MachineSpec) -> None:
        self._capability = spec.cuda_architecture or 0
        described = attention_kernels(spec.kernel_library or "")
        self.only: tuple[str, ...] | None = None
        """What is allowed whatever the program says: in a run without one."""
        self._forward: dict[Hashable, tuple[str, ...]] = {}
        """What the last forward pass of a kind was allowed."""
        self._order = tuple(
            kind for kind in priority(self._capability) if f"{kind}_forward" in described
        )

    def allowed(self) -> tuple[str, ...]:
        """Return the kinds that the program allows at present (``sdpa_kernel``), best first.

        Only those that the machine's library describes.
        """
        if self.only is not None:
            return tuple(kind for kind in self._order if kind in self.only)
        return kinds_allowed(self._order)

    def of_pass(self, asked: Hashable, is_backward: bool) -> tuple[str, ...]:
        """Return the kinds that a pass is allowed; backward, those of the last such forward."""
        if is_backward:
            return self._forward.get(asked) or self.allowed()
        self._forward[asked] = self.allowed()
        return self._forward[asked]

    def asked(self) -> tuple[str, ...]:
        """Return the kinds that the program allows, whether the machine has them or not."""
        return kinds_allowed((FLASH, EFFICIENT, CUDNN))

    def chosen(
        self,
        name: str,
        problem: AttentionProblem,
        masked: bool,
        ragged: bool,
        allowed: tuple[str, ...],
    ) -> str:
        """Return whose kernels an operation runs.

        ``ragged`` says that a causal mask is of another number of keys than of queries. An
        operation that names its kernels runs those, unless they cannot.

        Source: ``sdp_utils.cpp`` of PyTorch 2.13: the order of priority, and what each kind takes.
        """
        takes = {
            FLASH: self._flash_takes(problem, masked or ragged),
            EFFICIENT: True,
            CUDNN: self._cudnn_takes(problem),
        }
        named = next((kind for kind in (EFFICIENT, CUDNN) if kind in name), None)
        # With a mask, or for values of another size, it is called whatever the device would choose.
        is_asked = not masked and problem.values == problem.head_dim
        if named is not None and takes[named] and is_asked and named in self._order:
            return named
        return next(kind for kind in (*allowed, FLASH, EFFICIENT) if takes[kind])

    def _flash_takes(self, problem: AttentionProblem, masked: bool) -> bool:
        fits = problem.q_bytes == 2 and problem.head_dim <= WIDEST_FLASH
        fits = fits and problem.values == problem.head_dim
        return fits and not masked and self._capability >= OLDEST

    def _cudnn_takes(self, problem: AttentionProblem) -> bool:
        widest = WIDEST_CUDNN.get(self._capability, 128)
        sizes = (problem.head_dim, problem.values)
        fits = problem.kv_len > 1 and all(size <= widest and size % 8 == 0 for size in sizes)
        return fits and problem.q_bytes == 2 and self._capability >= OLDEST
