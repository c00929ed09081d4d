"""Placement of tensors and programs inside one SIP."""

from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.placement import Piece, Placement
