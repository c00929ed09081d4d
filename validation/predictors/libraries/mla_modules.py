"""What SGLang's module of DeepSeek's attention launches around the attention itself.

Rows of ``wideep`` are of the whole module, from hidden states to hidden states: low-rank
projections of queries and of keys and values, their norms, rotary parts, the cache, and the
projection of results. Weights are fp8 in blocks, but for the two batched products with the
up-projection of keys and values while it decodes.
"""

from __future__ import annotations

from kernbench.hardware import Machine
from kernbench.library_kernels import (
    LibraryKernel,
    Product,
    kept_share,
    product_kernels,
    stream,
)
from validation.kernels import batched_product, load_library, quantize_rows

_HIDDEN, _QUERY_RANK = 7168, 1536
_LATENT, _ROPE, _NOPE, _VALUE = 512, 64, 128, 128
_BESIDE = "mla_module_elementwise"
"""What is beside products: norms, rotary parts, and copies into the cache."""
_QUANTISE = "mla_module_quantise"


def before_attention(
    tokens: int, heads: int, decodes: bool, machine: Machine
) -> tuple[LibraryKernel, ...]:
    """Return the launches that make queries, keys and values of hidden states."""
    cold = _cold(heads, machine)
    low_rank = _QUERY_RANK + _LATENT + _ROPE
    launches = (
        stream(_BESIDE, 2.0 * tokens * low_rank, 2.0 * tokens * low_rank),
        *_product(tokens, heads * (_NOPE + _ROPE), _QUERY_RANK, cold, machine),
    )
    if decodes:
        absorbed = batched_product(
            "mla_product", heads, tokens, _LATENT, _NOPE, machine.sip.num_pes
        )
    rotated = float(tokens * (heads + 1) * _ROPE)
    cached = float(tokens * (_LATENT + _ROPE))
    beside = (stream(_BESIDE, 2 * rotated, 2 * rotated), stream(_BESIDE, 2 * cached, 2 * cached))
    if decodes:
        return (*launches, absorbed, *beside)
    widened = _product(tokens, heads * (_NOPE + _VALUE), _LATENT, cold, machine)
    return (*launches, *beside, *widened)


def after_attention(
    tokens: int, heads: int, decodes: bool, machine: Machine
) -> tuple[LibraryKernel, ...]:
    """Return the launches that make hidden states of its results."""
    launches = _product(tokens, _HIDDEN, heads * _VALUE, _cold(heads, machine), machine)
    if not decodes:
        return launches
    values = batched_product("mla_product", heads, tokens, _VALUE, _LATENT, machine.sip.num_pes)
    return (values, *launches)


def _cold(heads: int, machine: Machine) -> float:
    """Return the share of the weights that a call of the module finds in HBM."""
    per_head = _QUERY_RANK * (_NOPE + _ROPE) + 4 * _LATENT * _NOPE + _VALUE * _HIDDEN
    shared = _HIDDEN * (_QUERY_RANK + _LATENT + _ROPE)
    return 1 - kept_share(shared + heads * per_head, machine.sip)


def _product(m: int, n: int, k: int, cold: float, machine: Machine) -> tuple[LibraryKernel, ...]:
    """Return the launches of a product of hidden states that the launch before left cached."""
    product = Product(
        m=m,
        n=n,
        k=k,
        dtype="float8_e4m3fn",
        itemsize=1,
        a_cold=0.0,
        b_cold=cold,
        library="blocks",
    )
    library = load_library(machine.spec.kernel_library or "")
    return (
        quantize_rows(_QUANTISE, m, k, 1.0, 0.0),
        *product_kernels(product, machine.sip, library).kernels,
    )
