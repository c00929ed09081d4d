"""``torch.no_grad``: nothing to switch off, since a bench's tensors have no gradients."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any, Self


class NoGradients(ContextDecorator):
    """A block, or a decorated function, without gradients, as all of a bench is."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        return None
