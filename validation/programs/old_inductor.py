"""Rules of Inductor before PyTorch 2.8, by which most published compiled programs were made.

A broadcast of more than four tensors was written to memory, as what several operations use. Softmax
read a long row three times: for its largest element, for the sum, and for the result (2.8 finds the
first two together). Maximum pooling stayed ATen's kernel over volumes and where its windows are
dilated (2.8 has both lowered).

KernelBench has the same programs by 2.5 and 2.9: long rows of level1/23 and 24 take 8.7 and 6.6 ms
on an H100, 4 to 3 as they are read and written; level1/41, which dilates, takes by 2.5 what eager
programs do (14.0 ms on an H100 PCIe, 53.8 on an L4), and by 2.9 a quarter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

_VOLUME = 3
"""Dims of a volume."""


@contextmanager
def old_inductor() -> Iterator[None]:
    """Compile by the old rules, and keep graphs apart from those that were made by today's."""
    import torch
    from torch._inductor import config, decomposition, lowering
    from torch._inductor.ir import StorageBox
    from torch.compiler import config as of_all

    aten = torch.ops.aten
    decides: Callable[[StorageBox, int], bool] = StorageBox.should_realize_on_reuse
    decomposed = decomposition._max_pool_with_indices
    pools = {2: aten.max_pool2d_with_indices.default, 3: aten.max_pool3d_with_indices.default}

    def as_if_used(box: StorageBox, users: int, **_: bool) -> bool:
        return decides(box, users)

    def in_triton(
        x: Any, window: Any, stride: Any, padding: Any, dilation: Any, *rest: Any, dim: int
    ) -> Any:
        if dim == _VOLUME or any(step > 1 for step in lowering.pad_listlike(dilation, dim)):
            return NotImplemented
        return decomposed(x, window, stride, padding, dilation, *rest, dim=dim)

    def by_aten(x: Any, window: Any, stride: Any, *rest: Any, n_dim: int) -> Any:
        *sizes, ceils = (stride or window, *rest)
        sizes = [list(lowering.pad_listlike(size, n_dim)) for size in (window, *sizes)]
        pool = lowering.fallback_handler(pools[n_dim], add_to_fallback_set=False)
        return pool(x, *sizes, ceils)

    with (
        config.patch(online_softmax=False),
        patch.object(StorageBox, "should_realize_on_reuse", as_if_used),
        patch.object(decomposition, "_max_pool_with_indices", in_triton),
        patch.object(lowering, "_max_pool_with_indices", by_aten),
        patch.object(of_all, "cache_key_tag", f"{of_all.cache_key_tag} before 2.8"),
    ):
        yield
