"""What Triton's C++ holds of the vendor's libraries."""

from __future__ import annotations

from typing import Any


def products_library() -> Any | None:
    """Return Triton's module of cuBLASLt, or None where it was built without NVIDIA's backend."""
    from triton._C import libtriton

    return getattr(getattr(libtriton, "nvidia", None), "cublas", None)
