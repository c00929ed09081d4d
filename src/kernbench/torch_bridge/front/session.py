"""One run of PyTorch programs on a simulated machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

import torch

from kernbench.runtime_api import Collective, ProcessGroup, Run
from kernbench.torch_bridge.base.call_order import CallOrder
from kernbench.torch_bridge.base.device_limit import MOST_DEVICES
from kernbench.torch_bridge.costs import KeptCosts, OperationCosts
from kernbench.torch_bridge.dispatch.addresses import Addresses
from kernbench.torch_bridge.dispatch.pricing import Pricing
from kernbench.torch_bridge.dispatch.shapes import Shapes
from kernbench.torch_bridge.kept.hosts import kept_host
from kernbench.torch_bridge.memory import Memories
from kernbench.torch_bridge.placement.names import CPU, DEVICE_TYPE, META
from kernbench.torch_bridge.placement.program_lines import TorchLines
from kernbench.torch_bridge.processes.call_counts import uncounted
from kernbench.torch_bridge.processes.float32 import Float32
from kernbench.torch_bridge.processes.process import Process


class Session:
    """What all simulated processes of a run share."""

    def __init__(self, run: Run) -> None:
        self.run = run
        if run.keeper is not None:
            run.keeper.about["pytorch"] = True
            run.keeper.make_host = kept_host
        if run.lines is not None:
            TorchLines(run.lines, run)
        self.stores: dict[str, Any] = {}
        """Keys and values of each store, by its address or file."""
        self.groups: dict[tuple[int, str], ProcessGroup] = {}
        """Groups by spawn and name."""
        self.pairs: dict[Any, list[Collective]] = {}
        """Unmatched sends and receives, by group, ranks and tag."""
        self.pair_calls: dict[Any, int] = {}
        self.sent_in_turn: dict[Any, torch.Tensor] = {}
        """In a folded run, what ranks have sent to all as their root, the latest of each shape."""
        self._orders: dict[ProcessGroup, CallOrder] = {}
        self.pids = count(1)
        """Process ids of those started by ``multiprocessing``."""
        self.started: dict[int, Any] = {}
        """These processes, by their ids."""
        self.said: set[str] = set()
        """Warnings that were already given, once for all processes."""
        self.given_out: dict[str, str] = {}
        """Functions that give all ranks one object, which the program changes, and where."""
        self.for_all: dict[str, None] = {}
        """Calls of ranks that set something for the real process, which they share."""
        self.unordered: dict[str, None] = {}
        """Where programs used pinned memory while it was being copied."""
        self.left_out_compiling = False
        """Whether the program compiles something where nothing is compiled."""
        self.compiled_ps = 0
        """What has passed for programs while they compiled."""
        self.tracing: Callable[[], AbstractContextManager[None]] = uncounted
        """Lets another compiler than PyTorch's trace, in no simulated time."""
        self.lacks_shared_memory = False
        """Whether the compiler would have fused collectives in symmetric memory."""
        self.outside: dict[str, None] = {}
        """Python programs that ranks have started outside of the simulation."""
        self.network: Any = None
        """What its simulated sockets are bound to."""
        self.reached: dict[str, None] = {}
        """Addresses outside of the run that sockets of ranks have connected to."""
        self.has_loops_in_c = False
        """Whether a program asked for event loops of uvloop, and got those of asyncio."""
        self.stand_ins: set[str] = set()
        """Packages in whose place kernbench's stand-ins were imported."""
        self.operators: dict[str, None] = {}
        """Operators of extension modules that ran by kernbench's definitions."""
        self.views_host = False
        """Whether a device has memory of the host as its own tensor."""
        self.equal_scores: dict[str, None] = {}
        """Kernels that decide by scores, which a run without data took for equal."""
        self.lacking_operators: dict[str, None] = {}
        """Those that were asked for, and have none."""
        self.rendezvous: dict[Any, dict[int, Any]] = {}
        """Symmetric memory that ranks have brought to a meeting, by group and call."""
        self.reads_peers = False
        """Whether a rank has other ranks' memory as a tensor."""
        self.waits_for_kernels = False
        """Whether a rank has waited for a kernel that communicates (ADR-0230)."""
        self.as_nccl: set[str] = set()
        """Back ends of torchcomms that programs named, in whose place NCCL's groups were made."""
        self.called_from: set[Any] = set()
        """Lines of the program that have called collectives."""
        self.by_sets: dict[str, None] = {}
        """Lines of loops over sets of strings in which it does."""
        self.hash_seeds: list[bytes] = []
        """Those of its ranks, where each has its own."""
        self.has_even_choices = False
        """Whether a choice of unknown numbers was taken to be even (ADR-0193)."""
        self.even_choices: dict[str, None] = {}
        """Where the program makes those that have decided something."""
        self.pricings: dict[Float32, Pricing] = {}
        """Costs, by the requested precision of float32 products."""
        self.costs = self.pricing(Float32()).costs
        self.shapes = self.pricing(Float32()).shapes
        self.random_positions: dict[tuple[int, int], Any] = {}
        """States of the CPU's generator that a process has read, by seed and offset."""
        self.memories: Memories[Process] = Memories(run.machine)
        self.addresses = run.lent = Addresses(run.has_data)
        per_host = run.machine.sips_per_host
        self.num_devices = min(per_host, MOST_DEVICES)
        """How many devices programs see: those of their own host."""
        known = [torch.device(DEVICE_TYPE, index) for index in range(self.num_devices)]
        num_sips = run.machine.num_sips if per_host == self.num_devices else self.num_devices
        self.devices = [known[index % per_host] for index in range(num_sips)]
        """The device that each SIP is to programs of its host."""
        self.place = CPU if run.has_data else META
        """The device on which C++ has the tensors of simulated devices."""

    def start_again(self) -> None:
        """Forget what processes have left, which are gone."""
        self.stores.clear()
        self.groups.clear()
        self.pairs.clear()
        self.pair_calls.clear()
        self._orders.clear()
        self.memories.forget()

    def pricing(self, precision: Float32) -> Pricing:
        """Return the times and shapes of operations for a precision of float32 products."""
        result = self.pricings.get(precision)
        if result is None:
            machine, keeper = self.run.machine, self.run.keeper
            if keeper is None:
                costs = OperationCosts(machine, precision)
            else:
                costs = KeptCosts(machine, precision, keeper)
            shapes = None if self.run.has_data else Shapes()
            result = self.pricings[precision] = Pricing(costs, {}, shapes)
        return result

    def order_of(self, members: ProcessGroup) -> CallOrder:
        """Return the latest calls of a group, in which swapped ones are detected."""
        order = self._orders.get(members)
        if order is None:
            order = self._orders[members] = CallOrder()
        return order
