"""Recurrent layers and their cells, as a GPU has them."""

from kernbench.torch_bridge.replaced.of_gpus.recurrent.layers import install
