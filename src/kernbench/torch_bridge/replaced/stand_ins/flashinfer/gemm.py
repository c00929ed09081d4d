"""Products in FP8, by cuBLAS as ``backend="auto"`` may choose."""

import torch
from torch import Tensor


def bmm_fp8(
    A: Tensor,  # noqa: N803 (the name is the package's)
    B: Tensor,  # noqa: N803 (the name is the package's)
    A_scale: Tensor,  # noqa: N803 (the name is the package's)
    B_scale: Tensor,  # noqa: N803 (the name is the package's)
    dtype: torch.dtype,
    out: Tensor | None = None,
    backend: str = "cublas",
) -> Tensor:
    """Return ``A``, ``(1, rows, depth)``, times ``B``, ``(1, depth, columns)``, by their scales.

    Raises:
        NotImplementedError: There is more than one product.
    """
    if A.shape[0] != 1:
        raise NotImplementedError(
            f"bmm_fp8 of {A.shape[0]} products: kernbench's stand-in for flashinfer multiplies one "
            "at a time; call it once for each"
        )
    result = torch._scaled_mm(A[0], B[0], A_scale.view(()), B_scale.view(()), out_dtype=dtype)
    return result[None] if out is None else out.copy_(result[None])
