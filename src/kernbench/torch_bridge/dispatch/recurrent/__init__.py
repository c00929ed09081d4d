"""Recurrent layers and their cells, as a GPU has them."""

from kernbench.torch_bridge.dispatch.recurrent.layers import install

__all__ = ["install"]
