"""Sizes of devices and of buffers, as FlashInfer says them."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class FP4Tensor:
    """A result in NVFP4, which no kernel here writes."""

    data: torch.Tensor
    scale: torch.Tensor
    scale_start_index: int = 0
    original_shape: tuple[int, ...] | None = None


def get_device_sm_count(device: Any) -> int:
    """Return how many SMs a device has."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def get_trtllm_gen_multi_ctas_kv_counter_bytes(
    batch_size: int, num_qo_heads: int, sm_count: int
) -> int:
    """Return the bytes of counters by which blocks that share a sequence's keys agree."""
    return -(-max(batch_size * num_qo_heads, sm_count) // 8) * 8 * 4
