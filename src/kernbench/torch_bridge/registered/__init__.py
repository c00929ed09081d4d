"""What programs register with PyTorch's dispatcher, per process (ADR-0116)."""

from kernbench.torch_bridge.registered.libraries import install
