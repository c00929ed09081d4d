"""Whose kernels scaled dot-product attention runs on a GPU, as PyTorch 2.13 chooses them.

Operations here are those of the CPU's dispatcher, which knows flash attention alone; the time is of
the kernels that the same call takes on the simulated device.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from kernbench.library_kernels import attention_kernels

if TYPE_CHECKING:
    from kernbench.hardware import MachineSpec
    from kernbench.library_kernels import AttentionProblem

_C: Any = torch._C
_FLASH, _EFFICIENT, _CUDNN = "flash2", "efficient", "cudnn"
_WIDEST_FLASH = 256
_WIDEST_CUDNN = {90: 256}
"""Head size that cuDNN takes at most, by compute capability; 128 elsewhere."""
_LATER_CUDNN = (90, 100)
"""Compute capabilities on which PyTorch asks cuDNN first."""
_OLDEST = 80
"""Compute capability from which on flash attention and cuDNN's run."""


_ALLOWS = {
    _FLASH: _C._get_flash_sdp_enabled,
    _EFFICIENT: _C._get_mem_efficient_sdp_enabled,
    _CUDNN: _C._get_cudnn_sdp_enabled,
}


class AttentionBackends:
    """The choice on one machine."""

    def __init__(self, spec: MachineSpec) -> None:
        self._capability = spec.cuda_architecture or 0
        asked = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "0") != "1"
        first = asked and self._capability in _LATER_CUDNN
        rest = (_FLASH, _EFFICIENT)
        described = attention_kernels(spec.kernel_library or "")
        self.only: tuple[str, ...] | None = None
        """What is allowed whatever the program says: in a run without one."""
        self._order = tuple(
            kind
            for kind in ((_CUDNN, *rest) if first else (*rest, _CUDNN))
            if f"{kind}_forward" in described
        )

    def allowed(self) -> tuple[str, ...]:
        """Return the kinds that the program allows at present (``sdpa_kernel``), best first.

        Only those that the machine's library describes.
        """
        if self.only is not None:
            return tuple(kind for kind in self._order if kind in self.only)
        return tuple(kind for kind in self._order if _ALLOWS[kind]())

    def asked(self) -> tuple[str, ...]:
        """Return the kinds that the program allows, whether the machine has them or not."""
        return tuple(kind for kind, allows in _ALLOWS.items() if allows())

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
            _FLASH: self._flash_takes(problem, masked or ragged),
            _EFFICIENT: True,
            _CUDNN: self._cudnn_takes(problem),
        }
        named = next((kind for kind in (_EFFICIENT, _CUDNN) if kind in name), None)
        # Without data both are that operation, whatever the device would choose.
        is_asked = not masked and problem.values == problem.head_dim
        if named is not None and takes[named] and is_asked and named in self._order:
            return named
        return next(kind for kind in (*allowed, _FLASH, _EFFICIENT) if takes[kind])

    def _flash_takes(self, problem: AttentionProblem, masked: bool) -> bool:
        fits = problem.q_bytes == 2 and problem.head_dim <= _WIDEST_FLASH
        fits = fits and problem.values == problem.head_dim
        return fits and not masked and self._capability >= _OLDEST

    def _cudnn_takes(self, problem: AttentionProblem) -> bool:
        widest = _WIDEST_CUDNN.get(self._capability, 128)
        sizes = (problem.head_dim, problem.values)
        fits = problem.kv_len > 1 and all(each <= widest and each % 8 == 0 for each in sizes)
        return fits and problem.q_bytes == 2 and self._capability >= _OLDEST
