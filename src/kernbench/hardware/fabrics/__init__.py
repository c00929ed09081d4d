"""Networks between nodes that block: leaf switches, and what joins them."""

from kernbench.hardware.fabrics.leaves import Leaves
