"""Tensors on simulated devices: in C++ they are on the CPU, and here they say where they are."""

from kernbench.torch_bridge.device.install import install

__all__ = ["install"]
