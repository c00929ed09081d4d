"""The table of what a run installs in PyTorch and Python: its purpose, its order, and why."""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import TYPE_CHECKING

import torch

from kernbench.torch_bridge import c10d, device, graphs, registered
from kernbench.torch_bridge.base.patches import Installation, Patches
from kernbench.torch_bridge.compiler import install as compiler
from kernbench.torch_bridge.compiler import scripts
from kernbench.torch_bridge.dispatch import addresses
from kernbench.torch_bridge.front import hosts, signals, storage, workers
from kernbench.torch_bridge.placement import call_stacks, process_memory
from kernbench.torch_bridge.processes import call_counts, float32, naming
from kernbench.torch_bridge.python import clocks, endings, environ, locks, output, queues, sockets
from kernbench.torch_bridge.replaced import (
    attention,
    context_parallel,
    control_flow,
    flex_attention,
    library_calls,
    products_for_gpus,
    profiling,
    sharding,
    without_data,
)
from kernbench.torch_bridge.replaced.extension_modules import finder as extension_modules
from kernbench.torch_bridge.replaced.of_gpus import composed, recurrent, sync_batch_norm
from kernbench.torch_bridge.replaced.package_kernels import cublas
from kernbench.torch_bridge.replaced.stand_ins import finder
from kernbench.torch_bridge.replaced.transformer_engine import install as transformer_engine

if TYPE_CHECKING:
    from kernbench.torch_bridge.front.programs import Programs

_HIDES = "it hides what CUDA builds have under the same names"


def installations(programs: Programs) -> list[Installation]:
    """Return the table for a program's processes, in order."""
    session = programs.session
    return [
        *_of_python(programs),
        *_of_torch(programs),
        Installation(
            "replaced.without_data",
            "what PyTorch would read data for, in a run without data",
            lambda patches: None if session.run.has_data else without_data.install(patches),
        ),
        Installation(
            "replaced.context_parallel",
            "ring attention, with settings per process",
            lambda patches: context_parallel.install(patches, programs.assignments.for_all),
            after={"replaced.attention": "it wraps the attention that it finds"},
        ),
        Installation(
            "replaced.stand_ins",
            "stand-ins for packages of CUDA C++ that are not installed",
            lambda patches: finder.install(
                patches, session.stand_ins, session.run.machine.spec.kernel_library or ""
            ),
            after={"compiler": "its finder comes behind all others"},
        ),
        Installation(
            "replaced.extension_modules",
            "operators of extension modules that need CUDA",
            extension_modules.install,
            after={"replaced.stand_ins": "its finder comes in front of all others"},
        ),
        Installation(
            "replaced.transformer_engine",
            "the extension module of Transformer Engine's Python",
            transformer_engine.install,
            after={"replaced.stand_ins": "its finder comes in front of all others"},
        ),
        Installation("states", "state of libraries, per process", programs.states.install),
        Installation(
            "modules",
            "modules of programs, per process",
            programs.modules.install,
            after={
                "states": "it passes on each module that is imported from then on",
                "compiler": "its finder must be asked first, to see every import",
                "replaced.stand_ins": "so must it before the finder of stand-ins",
                "replaced.extension_modules": "and before that of extension modules",
                "replaced.transformer_engine": "and before that of Transformer Engine",
            },
        ),
        Installation("loggers", "loggers, per process", programs.loggers.install),
        Installation(
            "passes",
            "notes of backward passes, in a run that records its memory",
            lambda patches: _note_passes(programs, patches),
        ),
        Installation(
            "call_counts.unseen",
            "C++ of a GPU build is not counted as Python",
            lambda patches: _leave_out(programs, patches),
        ),
        Installation(
            "scripts",
            "functions that TorchScript finds by their identity",
            scripts.install,
            after={
                "call_counts.unseen": "it must meet all that is replaced",
                "replaced.library_calls": "it wraps the loader of scripts",
            },
        ),
        Installation(
            "assigned",
            "what a process assigns to shared modules and classes, for it alone",
            programs.assignments.install,
        ),
    ]


def _note_passes(programs: Programs, patches: Patches) -> None:
    if programs.session.run.op_log.allocations is not None:
        process_memory.note_passes(patches)


def _install_compiler(programs: Programs, patches: Patches) -> None:
    install = compiler.install(patches, programs.session.run, programs.assignments.for_all)
    if install is not None:
        programs.session.tracing = install.tracing


def _leave_out(programs: Programs, patches: Patches) -> None:
    if programs.session.run.machine.spec.host is None:
        return
    for owner in (
        torch.Tensor,
        torch,
        torch.nn.functional,
        torch._C,
        torch.UntypedStorage,
        torch.cuda.nvtx._nvtx,
        c10d.CollectiveWork,
        c10d.SimulatedGroup,
        os,
        select,
        *locks.IN_C,
        *sockets.IN_C,
    ):
        call_counts.leave_out(patches, owner)
    for owner in locks.OF_PYTHON:
        call_counts.leave_out(patches, owner, is_whole=True)
    for owner in (
        torch.cuda,
        torch.cuda.Stream,
        torch.cuda.Event,
        torch.cuda.StreamContext,
        torch.cuda.device,
        torch.cuda.CUDAGraph,
        torch.cuda.graph,
        *([torch.accelerator.Graph] if hasattr(torch.accelerator, "Graph") else ()),
        torch.autograd.profiler.record_function,
        threading,
        threading.Event,
        threading.Thread,
    ):
        call_counts.leave_out(patches, owner, is_python=True)
    for stream in (sys.stdout, sys.stderr):
        # Where output goes must not be seen in times: to write to a pipe, or by a filter of ranks,
        # takes functions of ours.
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)
        for part in {type(stream), type(raw)}:
            call_counts.leave_out(patches, part)


def _of_python(programs: Programs) -> list[Installation]:
    """Return the rows that replace parts of Python."""
    num_nodes = programs.session.run.machine.num_hosts

    def name_hosts(patches: Patches) -> None:
        if num_nodes > 1:
            hosts.install(patches, num_nodes)

    return [
        Installation("environ", "os.environ, per process", environ.install),
        Installation("hosts", "names of hosts, where there are several", name_hosts),
        Installation(
            "output",
            "output of the chosen ranks, in whole lines",
            lambda patches: output.install(patches, *programs.output),
        ),
        Installation("warned_lines", "lines of warnings from C++", call_stacks.install),
        Installation("locks", "locks whose waits let other ranks run", locks.install),
        Installation("signals", "handlers of signals and alarms, per process", signals.install),
        Installation("clocks", "clocks and sleep in virtual time", clocks.install),
        Installation(
            "sockets",
            "sockets, and waits for them",
            lambda patches: sockets.install(patches, programs.session, hosts.address_of),
        ),
        Installation(
            "call_counts",
            "a count of Python calls, unseen",
            lambda patches: call_counts.install(patches, programs.session.run.simulation),
        ),
        Installation("queues", "queues, pipes and managers between ranks", queues.install),
        Installation(
            "workers",
            "multiprocessing.Process and spawn, which start threads of a rank, or ranks",
            lambda patches: workers.install(patches, programs),
        ),
        Installation("threads", "threads that take turns with all ranks", programs.threads.install),
        Installation("endings", "atexit, at the end of each process", endings.install),
    ]


def _of_torch(programs: Programs) -> list[Installation]:
    """Return the rows that replace parts of PyTorch."""
    return [
        Installation("c10d", "torch.distributed among ranks", c10d.install),
        Installation(
            "registered", "kernels that a process registers for its devices", registered.install
        ),
        Installation("device", "the machine's SIPs, as CUDA's devices", device.install),
        Installation(
            "addresses",
            "data_ptr, and what is at an address",
            lambda patches: addresses.install(patches, programs.session.addresses),
        ),
        Installation("switches", "switches of C++, per process", programs.globals.install),
        Installation(
            "float32",
            "the requested precision of float32 products",
            float32.install,
            after={"switches": "what sets a precision is noted before its price is found"},
        ),
        Installation("graphs", "CUDA graphs", graphs.install),
        Installation(
            "replaced.library_calls",
            "loaders and FSDP in ranks, printing tensors of a device, torch.cuda._sleep",
            library_calls.install,
            after={"device": _HIDES},
        ),
        Installation(
            "storage",
            "torch.save and torch.load, on machines with storage",
            lambda patches: storage.install(patches, programs.session.run),
        ),
        Installation(
            "compiler",
            "torch.compile, and torch._dynamo where a program asks it not to compile",
            lambda patches: _install_compiler(programs, patches),
        ),
        Installation("replaced.control_flow", "torch.cond and the like", control_flow.install),
        Installation("naming", "ranges of NVTX and record_function", naming.install),
        Installation("replaced.profiling", "torch.profiler of simulated time", profiling.install),
        Installation(
            "replaced.sharding", "DTensor's rules, computed once for all ranks", sharding.install
        ),
        Installation(
            "replaced.attention", "attention as one operation of a GPU", attention.install
        ),
        Installation("replaced.flex_attention", "flex_attention", flex_attention.install),
        Installation(
            "replaced.products_for_gpus",
            "products that PyTorch has for GPUs only, packed weights of four bits among them",
            products_for_gpus.install,
        ),
        Installation(
            "replaced.package_kernels.cublas",
            "cuBLASLt as Triton's programs call it, to compare with",
            cublas.install,
        ),
        Installation(
            "sync_batch_norm",
            "SyncBatchNorm, which PyTorch has for GPUs only",
            sync_batch_norm.install,
        ),
        Installation("composed", "dropout, one_hot and RMS norms as a GPU's", composed.install),
        Installation("recurrent", "recurrent layers as one operation of a GPU", recurrent.install),
    ]
