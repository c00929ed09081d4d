"""``torch.compile`` for simulated devices: PyTorch's compiler as it is, on their tensors."""

from __future__ import annotations
