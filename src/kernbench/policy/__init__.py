"""Placement of tensors and programs inside one SIP."""

from kernbench.policy.placement import DPPolicy, Placement
