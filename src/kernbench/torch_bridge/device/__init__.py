"""Tensors on simulated devices: C++ has them on the CPU, and Python reports the device."""

from kernbench.torch_bridge.device.install import install
