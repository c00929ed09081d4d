"""``torch.distributed`` among simulated processes."""

from kernbench.torch_bridge.c10d.calls import CollectiveWork
from kernbench.torch_bridge.c10d.install import install, know_groups
from kernbench.torch_bridge.c10d.process_group import NcclGroup, SimulatedGroup
