"""Attention as the operations that a GPU runs, in eager mode and in compiled graphs (ADR-0220)."""

from kernbench.torch_bridge.replaced.attention import operations
from kernbench.torch_bridge.replaced.attention.eager import install
