"""Notes what a process allocates: when, where in its program, and what for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

from kernbench.clock import owner_of
from kernbench.memory import NEVER, AllocationLog, LiveAllocation, Phase
from kernbench.torch_bridge.base.modes import NO_BACKWARD, graph_task
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.memory import MemoryBlock
from kernbench.torch_bridge.memory.allocator import SegmentAction
from kernbench.torch_bridge.placement.call_stacks import CallStack, CallStacks
from kernbench.torch_bridge.placement.memory_history import History
from kernbench.torch_bridge.placement.program_lines import Marks
from kernbench.torch_bridge.placement.roles import ModuleName, Roles
from kernbench.torch_bridge.processes.process import HERE, Process
from kernbench.torch_bridge.processes.python_calls import FRAMES_OF_FUNCTION, IN_THREAD

_node: Any = torch._C._current_autograd_node

_name_of = cache(lambda dtype: str(dtype).removeprefix("torch."))

Place = tuple[ModuleName | str, str, int]
"""A module and a line of the program."""
Pass = tuple[Any, ...]
"""What tells passes apart: of modules, of autograd, of an optimizer; empty outside of them."""


class ProcessMemory:
    """What a process has in its devices' memory, and what it is for.

    It only looks: at the stack when memory is allocated or freed, and, between passes of the
    program, at the modules, optimizers and autograd graphs that the stack has shown. So neither
    the program nor its simulated time can tell.
    """

    def __init__(self, process: Process, log: AllocationLog | None) -> None:
        self._process = process
        self._log = log
        self.history: History | None = None
        """What the program has asked to be kept."""
        self._stacks = CallStacks()
        self._roles = Roles()
        self._pass: Pass = ()
        self._number = 0
        """The number of the pass."""
        self._is_over = False
        """Whether something was freed after its end."""
        self._has_ended = False
        """Whether the program has."""
        self._in_step: list[LiveAllocation] = []
        self._known_roots: set[int] = set()
        """Modules that were looked at since an optimizer's step."""
        self._places = Marks()

    def allocated(self, block: MemoryBlock, tensor: Any) -> None:
        """Note that a block is in use, for a tensor if that is known."""
        _uncounted(FRAMES_OF_FUNCTION + 1, self._allocated, block, tensor)

    def _allocated(self, block: MemoryBlock, tensor: Any) -> None:
        frame, log = sys._getframe(3), self._log
        if self.history is not None:
            self.history.allocated(block, frame)
        if log is None:
            return
        stack = self._stacks.look(frame)
        self._meet(stack)
        module, file, line = self._place_of(stack)
        process = self._process
        block.pass_number = self._number
        block.allocation = began = log.began(
            process.rank,
            self._sip_of(block),
            block.size,
            block.asked_bytes,
            process.host.paid_ps,
            block.label,
            # A nested tensor has many shapes.
            () if tensor is None or tensor.is_nested else tuple(tensor.shape),
            "" if tensor is None else _name_of(tensor.dtype),
            module,
            file,
            line,
        )
        block.is_gathered = stack.is_sharding
        if stack.is_sharding:
            began.is_for(Phase.COMMUNICATION)
        elif stack.is_cache:
            began.is_for(Phase.KV_CACHE)
        if stack.step is not None:
            self._in_step.append(began)

    def _sip_of(self, block: MemoryBlock) -> int:
        for sip_id, allocator in self._process.allocators.items():
            if allocator is block.owner:
                return sip_id
        return self._process.state.sip_id

    def freed(self, block: MemoryBlock) -> None:
        """Note that a block is not in use any more."""
        # The list of blocks has called this.
        _uncounted(FRAMES_OF_FUNCTION + 2, self._freed, block)

    def _freed(self, block: MemoryBlock) -> None:
        frame = sys._getframe(4)
        if self.history is not None:
            self.history.freed(block, frame)
        allocation, block.allocation = block.allocation, None
        # What is freed once the program has ended goes with its process, whenever Python finds it.
        if allocation is None or self._log is None or self._has_ended:
            return
        # The search for garbage may come to it while another rank runs.
        if HERE.process is self._process and not HERE.is_foreign:
            # C++ may be in the middle of dropping what refers to it: no object may be looked at.
            current = self._pass_at(self._stacks.look(frame))
            self._is_over |= current != self._pass
            if current and current == self._pass and block.pass_number == self._number:
                allocation.is_for(Phase.TEMPORARIES)
            elif current and current[0] == "backward" and allocation.phase is Phase.OTHER:
                # It was there before, and autograd itself drops it: Python functions keep what
                # they need, and checkpoints what they do not compute again.
                allocation.is_for(Phase.ACTIVATIONS)
        self._log.ended(allocation, self._process.host.paid_ps)

    def segment(self, action: SegmentAction, block: MemoryBlock) -> None:
        """Note that the device has given a segment, which is one block, or has it back."""
        if self.history is not None:
            self.history.segment(action, block, sys._getframe(2))

    def backward_begins(self, outputs: Any) -> None:
        """Note that autograd begins a backward pass from some outputs."""
        if self._log is not None:
            self._roles.look_at_graph([outputs] if isinstance(outputs, Tensor) else outputs)

    def backward_ended(self) -> None:
        """Note that it has ended one."""
        if self._log is not None:
            self._roles.look_at_modules()
            self._roles.look_at_optimizers()

    def finish(self) -> None:
        """Note that the program has ended, or another thread of it."""
        if self._log is not None:
            self._leave()
            self._pass = ()
            self._has_ended |= self._process.thread is self._process.main_thread

    def _meet(self, stack: CallStack) -> None:
        """Note which pass is under way, and look at what passes leave behind."""
        result = self._pass_at(stack)
        if result != self._pass or self._is_over:
            self._leave()
            self._pass, self._is_over = result, False
            self._number += 1
            self._enter(stack)

    def _pass_at(self, stack: CallStack) -> Pass:
        task = graph_task()
        if task != NO_BACKWARD:
            return "backward", task
        if stack.step is not None:
            return "step", id(stack.step)
        return () if stack.outer is None else ("forward", id(stack.outer))

    def _enter(self, stack: CallStack) -> None:
        if not self._pass or self._pass[0] == "backward":
            return
        if stack.step is not None:
            self._roles.know(owner_of(stack.step))
            self._roles.look_at_optimizers()
        elif stack.outer is not None:
            root = owner_of(stack.outer)
            if id(root) not in self._known_roots:
                self._known_roots.add(id(root))
                self._roles.name_of(root, root)
                self._roles.look_at_module(root)

    def _leave(self) -> None:
        if self._pass and self._pass[0] == "step":
            self._roles.look_at_modules()
            self._roles.look_at_optimizers()
            self._known_roots.clear()
            for live_allocation in self._in_step:
                # What a step leaves behind is the optimizer's.
                if live_allocation.end == NEVER and live_allocation.phase is Phase.OTHER:
                    live_allocation.is_for(Phase.OPTIMIZER_STATE)
            self._in_step.clear()

    def _place_of(self, stack: CallStack) -> Place:
        """Return the module and the line of an allocation; of a gradient, those of its forward."""
        is_forward = graph_task() == NO_BACKWARD
        if stack.inner is not None or is_forward:
            name = self._roles.name_of(owner_of(stack.inner), owner_of(stack.outer))
            place = name, stack.file, stack.line
            if is_forward or torch.is_grad_enabled():
                self._places.keep(place)
            return place
        node = _node()
        marked: Place | None = None if node is None else self._places.of(node)
        return marked or ("", stack.file, stack.line)


def note_passes(patches: Patches) -> None:
    """Let the memory of a process know of each call of the autograd engine."""
    engine = torch.autograd._engine_run_backward
    patches.set(torch.autograd, "_engine_run_backward", _noted(engine))


def _noted(engine: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(engine)
    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        memory = None if HERE.process is None else HERE.process.memory_use
        if memory is None:
            return engine(outputs, *args, **kwargs)
        _uncounted(FRAMES_OF_FUNCTION + 1, memory.backward_begins, outputs)
        try:
            return engine(outputs, *args, **kwargs)
        finally:
            # This function itself was left out before.
            _uncounted(FRAMES_OF_FUNCTION, memory.backward_ended)

    return run


def _uncounted(num_own: int, note: Callable[..., None], *args: Any) -> None:
    calls = IN_THREAD.calls
    if calls is None or not calls.is_on:
        note(*args)
        return
    calls.pause(num_own)
    try:
        note(*args)
    finally:
        calls.resume()
